import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tests.html_page import HtmlPage
from tests.measure.samples import QUESTION, fault, run, search_of

from coseek.core.errors import MissingExtra
from coseek.core.files import JsonObject
from coseek.data.passage import Passage
from coseek.measure.intervals import Interval
from coseek.measure.plots import BarSeries, Series, Svg, bar_plot, line_plot, series_of, smoothed
from coseek.measure.report import (
    ReportSection,
    files_section,
    plot_section,
    report_html,
    settings_section,
    table_section,
    text_section,
    trajectory_section,
)
from coseek.measure.table import Table

NASTY = "</pre><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt; $x$ \ud800 \x00 \u202e"


def plots(name: str = "EM") -> Iterator[Svg]:
    line = Series(name, (0, 1, 2), (0.1, 0.4, 0.6), (0.0, 0.3, 0.5), (0.2, 0.5, 0.7), markers=True)
    yield line_plot([line], "step", name)
    some = Interval(0.5, 0.4, 0.6, 10)
    yield bar_plot(
        ["1 hop", name], [BarSeries("before", (some, None)), BarSeries(name, (some, Interval(1, None, None, 1)))], "EM"
    )


def sections(text: str) -> list[ReportSection]:
    question = replace(QUESTION, question=text, answers=(text,))
    passage = Passage("p", text, text)
    return [
        text_section(text, text),
        table_section(text, Table((text, "em"), ((text, f"{text} [0, 1]"),), (text,)), text),
        settings_section(text, {"name": text}),
        files_section(text, {text: text}),
        trajectory_section(
            text, (run(search_of(text, passage), answer=text, question=question), fault(question)), text
        ),
    ]


@given(st.text(max_size=30) | st.just(NASTY))
@settings(max_examples=at_most(40))
def test_what_data_says_is_shown_and_never_obeyed(text: str) -> None:
    plain, page = HtmlPage(report_html("title", sections("plain"))), HtmlPage(report_html("title", sections(text)))
    assert page.open == [] and (text != NASTY or "<script>alert(1)</script>" in page.text)
    # An empty paragraph or bracket is left out, so tags may be fewer; none is ever new.
    assert set(page.tags) <= {*plain.tags, "p", "small"}
    assert not {"script", "iframe", "img", "link", "object", "base", "form"} & set(page.tags)
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}


def test_a_page_fetches_nothing_and_forbids_scripts() -> None:
    page = HtmlPage(report_html("t", [*sections("x"), *(plot_section("p", plot) for plot in plots())]))
    links = [value for name, value in page.attributes if name in ("href", "src", "xlink:href", "action")]
    assert links and all(link.startswith("#") for link in links)
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'; img-src data:") in page.attributes
    assert not [name for name, _ in page.attributes if name.startswith("on")]


def test_plots_in_one_page_do_not_share_ids() -> None:
    html = report_html("t", [plot_section("p", plot) for plot in [*plots(), *plots()]])
    page = HtmlPage(html)
    ids = page.values_of("id")
    assert len(ids) == len(set(ids))
    targets = {value[1:] for value in page.values_of("xlink:href")}
    targets |= {piece.split(")")[0] for piece in html.split("url(#")[1:]}
    assert targets and targets <= set(ids)


def test_names_with_dollars_tags_and_other_alphabets_can_be_drawn() -> None:
    for plot in plots('$x <b> 维罗拉 & "q"'):
        page = HtmlPage(plot)
        assert "b" not in page.tags
        assert '$x <b> 维罗拉 & "q"' in page.text


def test_what_is_counted_has_whole_numbers_on_its_axis() -> None:
    halves = tuple(half / 2 for half in range(5))
    words = HtmlPage(line_plot([Series("way", halves, (5.0,) * 5)], "round", "searches")).text.split()
    assert {"0", "1", "2"} <= set(words) and not {"0.5", "0.50", "1.5", "1.50"} & set(words)


def test_a_series_reads_the_rows_that_have_the_metric() -> None:
    rows: list[JsonObject] = [{"step": 1, "em": 0.5}, {"step": 2}, {"step": 3, "em": 0.75}, {"step": 4, "em": "broken"}]
    series = series_of(rows, "em", "EM")
    assert (series.x, series.y) == ((1, 3), (0.5, 0.75))


def test_smoothing_averages_the_last_points() -> None:
    assert smoothed(Series("r", (0, 1, 2), (0, 1, 2)), 2).y == (0, 0.5, 1.5)


def test_without_matplotlib_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"coseek\[report\]"):
        next(plots())
