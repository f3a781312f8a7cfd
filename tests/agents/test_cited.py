"""Cited answers: which passages an answer rests on, by its own citations."""

from dataclasses import replace

import pytest
from tests.agents.playing import ADA, BOB, EVE, WIDE, Shelf, observations, play

from coseek.agents.sources import cited_answer, reply_of, sources_of
from coseek.cli.commands.ask import show_sources
from coseek.cli.terminal import stdout_console
from coseek.data.passage import Corpus

LIMITS = WIDE.model_copy(update={"passages_per_search": 2})


def test_citations_are_resolved_over_all_searches_and_those_of_nothing_are_dropped_and_counted() -> None:
    said = "Eve knows a cat [3], called Bob [4, 2][9]. Ada is older [0][1]; the pool is [12] deep."
    run = play("cited", "<search>Eve</search>", f"<answer>{said}</answer>", limits=LIMITS)
    assert observations(run)[0].count("[1] ") == 1
    assert "[3] Eve" in observations(run)[1] and "[1]" not in observations(run)[1]
    found = cited_answer(run)
    assert found is not None
    assert found.text == reply_of(run) == "Eve knows a cat [1], called Bob [2]. Ada is older [3]; the pool is deep."
    assert found.passages == (EVE, BOB, ADA) == tuple(sources_of(run))
    assert found.dropped == 4, "4, 9, 0 and 12"


@pytest.mark.parametrize("name", ["rag", "search-r1"])
def test_brackets_in_answers_of_other_protocols_are_text(name: str) -> None:
    think = "<think>a</think>" if name == "search-r1" else ""
    run = play(name, f"{think}<answer>f[1]</answer>", limits=LIMITS)
    assert cited_answer(run) is None and reply_of(run) == "f[1]"


def test_a_citation_is_shown_with_file_and_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = replace(ADA, meta={"path": "notes/ada.pdf", "page": 3})
    run = play("cited", "<answer>In 1815 [1][7].</answer>", limits=LIMITS, retriever=Shelf(Corpus([page, BOB, EVE])))
    show_sources(run, stdout_console())
    shown = capsys.readouterr().out
    assert "[1] Ada: notes/ada.pdf#page=3" in shown and "left out: 1" in shown


def test_an_agent_of_this_protocol_can_decline() -> None:
    run = play("cited", "<answer>not in these documents</answer>", limits=LIMITS)
    assert run.declined and cited_answer(run) is None and sources_of(run) == []
