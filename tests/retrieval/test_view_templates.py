"""Views with a template: published retrievers get the bytes that they were trained on, and no text poses as a field."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.core.errors import SettingError
from coseek.retrieval.query import PastTurn, Query
from coseek.retrieval.views import TEMPLATES, QueryView, ViewTemplate, load_view, render_view

INSTRUCTION = "Instruct: what the model card says\nQuery:"
"""The encoder's query prompt; the card's ends in `Query:` without a blank, too."""
REASONING = "Some results are about music.\nWhich subgenre?\n\n- euphoric house: build-up, drop\n- other"
ASKED = Query(
    '"backroom" "studio" "early 2010s"',
    question="Who?",
    reasoning=REASONING,
    history=(
        PastTurn("grammy winners", "Composers\nfirst.", ("A list.\nOf winners.", "Sweden")),
        PastTurn("sweden 1995"),
    ),
)


def test_agentir_reads_what_its_model_card_and_its_program_write() -> None:
    text = INSTRUCTION + render_view("reasoning+query@code", ASKED)
    assert text == (
        "Instruct: what the model card says\nQuery:Reasoning: Some results are about music.\nWhich subgenre?\n\n"
        '- euphoric house: build-up, drop\n- other\n\nQuery: "backroom" "studio" "early 2010s"'
    )
    assert render_view("reasoning+query@code", "q") == "Reasoning: Empty\n\nQuery: q"
    assert render_view("reasoning+query@code", Query("q\n", reasoning="r")) == "Reasoning: r\n\nQuery: q\n"


def test_the_figures_of_the_agentir_paper_are_written_byte_for_byte() -> None:
    assert render_view("reasoning+query@paper", ASKED) == f"Reasoning: {REASONING}\nQuery: {ASKED.text}"
    assert render_view("prior-queries@paper", ASKED) == (
        f"Browsing History:\nTurn 1: grammy winners\nTurn 2: sweden 1995\nCurrent Query: {ASKED.text}"
    )
    assert render_view("prior-queries+reasonings@paper", ASKED) == (
        "Browsing History:\nTurn 1: Composers\nfirst. grammy winners\nTurn 2: Empty sweden 1995\n"
        f"Current Query: {ASKED.text}"
    )
    assert render_view("prior-queries+reasonings+documents@paper", ASKED) == (
        "Browsing History:\nTurn 1: A search for Composers\nfirst. grammy winners found 2 results:\n"
        "A list.\nOf winners.\n\nSweden\nTurn 2: A search for Empty sweden 1995 found 0 results:\n\n"
        f"Current Query: {ASKED.text}"
    )


def test_the_latest_turns_have_the_layout_of_figure_8_and_are_numbered_from_one() -> None:
    assert render_view("last-1-turns@paper", ASKED) == render_view("reasoning+query@paper", ASKED)
    two = render_view("last-2-turns@paper", ASKED)
    assert two == f"Browsing History:\nTurn 1: Empty sweden 1995\nCurrent Query: {ASKED.text}"
    assert render_view("last-3-turns@paper", ASKED) == render_view("prior-queries+reasonings@paper", ASKED)


lines = st.lists(
    st.sampled_from(
        ["Query: x", "  query:", "Reasoning: y", "Turn 12: z", "Current Query: w", "Browsing History:", "a"]
    ),
    min_size=1,
)
ends = st.sampled_from(["\n", "\r\n", "\u2028", "\x0b", "\x85", "\r"])
texts = st.builds(lambda parts, end: end.join(parts), lines, ends)


@given(st.sampled_from([*TEMPLATES]), texts, texts, texts, texts)
def test_no_text_of_an_agent_or_a_passage_begins_a_field(
    view: str, query: str, reason: str, old: str, page: str
) -> None:
    history = (PastTurn(old, reason, (page, page)), PastTurn(old, reason, (page,)))
    own = "query|reasoning" if view.startswith("reasoning") else r"current query|browsing history|turn \d+"
    label = re.compile(rf"\s*({own}):", re.IGNORECASE)

    def labels(asked: Query) -> list[str]:
        found = [label.match(line) for line in render_view(view, asked).splitlines()]
        return [match[1].lower() for match in found if match]

    plain = Query("q", "Who?", "r", (PastTurn("o", "s", ("p", "p")), PastTurn("o", "s", ("p",))))
    assert labels(Query(query, "Who?", reason, history)) == labels(plain)


def test_the_separator_ends_no_field_and_other_lines_stay_as_they_are() -> None:
    seen = render_view(
        "reasoning+query@code", Query("q </s>", reasoning="one  two\nthree </s>  four\n five"), separator="</s>"
    )
    assert seen == "Reasoning: one  two\nthree s four\n five\n\nQuery: q s"


def test_braces_in_a_field_are_text() -> None:
    assert render_view("reasoning+query@code", Query("{reasoning}", reasoning="{query}")) == (
        "Reasoning: {query}\n\nQuery: {reasoning}"
    )


def test_a_long_text_is_cut_like_that_of_any_view_and_keeps_its_lines() -> None:
    cut = render_view("reasoning+query@code", Query("q", reasoning="one two\nthree four\nfive"), limit=34)
    assert cut == "Reasoning: four\nfive\n\nQuery: q"
    assert render_view("prior-queries@paper", ASKED, limit=90).startswith(
        "Browsing History:\nTurn 1: sweden 1995\nCurrent"
    )
    assert render_view("prior-queries@paper", ASKED, limit=5) == ASKED.text


def test_a_view_file_may_bring_a_template(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from coseek.retrieval.views import QueryView\n"
        "from coseek.retrieval.views import ViewTemplate\n"
        "TEMPLATE = ViewTemplate('{question}\\n---\\n{turns}> {query}', turn='{turn}. {query}\\n')\n"
        "VIEW = QueryView('mine', question=True, past='queries', template=TEMPLATE)\n"
    )
    asked = Query("born", "Who?\n> x", "", (PastTurn("Ada"),))
    assert render_view(load_view(str(tmp_path / "mine.py")), asked) == "Who?\n\\> x\n---\n1. Ada\n> born"


@pytest.mark.parametrize(
    ("text", "turn", "says"),
    [
        ("{reason} {query}", "", "no field {reason}"),
        ("Reasoning: {reasoning}", "", "needs {query} once"),
        ("{turns}{query}", "", "needs a template"),
        ("{query}", "{turn}", "needs a template"),
        ("{turns}{query}", "{question}", "no field {question}"),
    ],
)
def test_a_template_that_cannot_be_filled_is_refused_when_it_is_made(text: str, turn: str, says: str) -> None:
    with pytest.raises(SettingError, match=re.escape(says)):
        QueryView("mine", template=ViewTemplate(text, turn))
