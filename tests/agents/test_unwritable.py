"""Recording: a hit that no file can hold ends the run that it happens to, and none of its siblings."""

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.agents.playing import QUESTION, WIDE, Shelf, typist

from coseek.agents.drivers import Agent
from coseek.agents.protocol import load_protocol
from coseek.agents.run_questions import run_questions
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import StopReason, Trajectory
from coseek.measure.searched import search_questions
from coseek.pipelines.audit import audit_run
from coseek.retrieval.query import QueryLike

SEARCH_R1 = load_protocol("search-r1", "default")
GOOD = [Question(f"q{number}", QUESTION.question, ("1815",)) for number in range(3)]


def stored(folder: Path) -> dict[str, Trajectory]:
    return {one.question.id: one for one in Run(folder).trajectories()}


class Broken(Shelf):
    """Gives one hit that no file can hold to whoever asks for Bob."""

    def __init__(self, hit: Hit) -> None:
        super().__init__()
        self.hit = hit

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        found = super().search(queries, k)
        return [[self.hit] if "Bob" in self.seen(query) else hits for query, hits in zip(queries, found, strict=True)]


HITS = {
    "NaN": Hit(Passage("p1", "Ada", "x"), math.nan),
    "infinity": Hit(Passage("p1", "Ada", "x"), math.inf),
    "half in the text": Hit(Passage("p1", "Ada", "x \ud800"), 1.0),
    "half in the title": Hit(Passage("p1", "\ud800", "x"), 1.0),
    "half in the id": Hit(Passage("\ud800", "Ada", "x"), 1.0),
}


@pytest.mark.parametrize("what", HITS)
def test_a_hit_that_no_file_can_hold_is_a_fault_of_the_retriever(what: str, tmp_path: Path) -> None:
    shelf = Broken(HITS[what])
    bob = Question("bob", "Bob")
    run = Run.create(tmp_path / "run", {})
    rag = load_protocol("rag", "default")
    run_questions(run, Agent(rag, typist(rag, "<answer> x </answer>")), shelf, [*GOOD, bob], WIDE)
    rows = stored(run.folder)
    assert rows["bob"].stop is StopReason.RETRIEVER_ERROR and "hit 1" in rows["bob"].stop_detail
    assert all(rows[one.id].stop is not StopReason.RETRIEVER_ERROR for one in GOOD)
    assert audit_run(run.folder).violations == ()
    (found,) = search_questions(shelf, [*GOOD, bob], 3)
    assert [one.fault is not None for _, one in found] == [False, False, False, True]


def test_a_query_that_a_model_escapes_as_half_of_a_pair_is_searched_and_kept(tmp_path: Path) -> None:
    protocol = load_protocol("react", "default")
    call = '<tool_call>{"name": "search", "arguments": {"query": "Ada \\ud800"}}</tool_call>'
    run = Run.create(tmp_path / "run", {})
    run_questions(run, Agent(protocol, typist(protocol, f"<think> x </think>{call}")), Shelf(), [QUESTION], WIDE)
    (row,) = run.trajectories()
    assert "Ada \ufffd" in [search.query for search in row.searches]
