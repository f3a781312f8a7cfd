"""Trajectories: they come back from their line, and an invariant that a file has lost is named."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most
from tests.measure.samples import MIRA, ORBO, OTHER, decode, fault, found, run

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, json_line, parse_row
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory
from coseek.data.trajectory_checks import check_trajectory

text = st.text(max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)
passages = st.builds(Passage, text, text, text)
meta = st.dictionaries(
    text, st.none() | st.booleans() | st.integers() | finite | text | st.lists(text, max_size=2), max_size=2
)
questions = st.builds(
    Question,
    text,
    text,
    st.lists(text, max_size=2).map(tuple),
    st.lists(text, max_size=2).map(tuple),
    st.none() | st.integers(0, 9),
    meta,
)
searches = st.builds(
    Search, text, st.lists(st.builds(Hit, passages, finite), max_size=2).map(tuple), st.none() | st.just("away")
)


@st.composite
def segments(draw: st.DrawFn) -> Segment:
    author = draw(st.sampled_from(Author))
    ids = draw(st.lists(st.integers(0, 2**31), max_size=4))
    logprobs = [draw(finite) for _ in ids] if author is Author.AGENT else []
    version = draw(st.none() | st.integers(0, 9)) if author is Author.AGENT else None
    return Segment(author, draw(text), draw(text), tuple(ids), tuple(logprobs), version)


trajectories = st.builds(
    Trajectory,
    question=questions,
    protocol=text,
    segments=st.lists(segments(), max_size=3).map(tuple),
    searches=st.lists(searches, max_size=2).map(tuple),
    stop=st.sampled_from(StopReason),
    answer=st.none() | text,
    valid=st.booleans(),
    format_error=text,
    stop_detail=text,
    selected_ids=st.lists(text, max_size=2).map(tuple),
    evidence=st.none() | st.lists(text, max_size=2).map(tuple),
    seed=st.integers(0, 2**63),
    timings=st.dictionaries(text, finite, max_size=2),
)


@given(trajectories)
def test_a_trajectory_comes_back_from_its_line_exactly(trajectory: Trajectory) -> None:
    line = json_line(trajectory.to_json())
    assert len(line.splitlines()) == 1
    assert Trajectory.from_json(json.loads(line)) == trajectory


@given(trajectories)
@settings(max_examples=at_most(50))
def test_ids_and_mask_cover_every_token_once(trajectory: Trajectory) -> None:
    assert len(trajectory.ids) == len(trajectory.agent_mask) == sum(len(one.ids) for one in trajectory.segments)
    assert (
        trajectory.agent_tokens == sum(trajectory.agent_mask) == sum(len(one.logprobs) for one in trajectory.segments)
    )


@pytest.mark.parametrize(
    ("author", "logprobs", "wanted"),
    [(Author.AGENT, (-0.1,), 2), (Author.AGENT, (), 2), (Author.ENVIRONMENT, (-0.1, -0.2), 0)],
)
def test_a_segment_with_the_wrong_number_of_log_probabilities_cannot_exist(
    author: Author, logprobs: tuple[float, ...], wanted: int
) -> None:
    with pytest.raises(DataError, match=f"needs {wanted} log-probabilities, and has {len(logprobs)}"):
        Segment(author, "search", "ab", (1, 2), logprobs)


def test_only_the_agents_tokens_have_a_version_of_weights() -> None:
    with pytest.raises(DataError, match="the agent's alone"):
        Segment(Author.ENVIRONMENT, "prompt", "a", (1,), version=0)
    with pytest.raises(DataError, match="a whole number"):
        Segment.from_json({**Segment(Author.AGENT, "", "a", (1,), (0.0,)).to_json(), "version": "3"})
    assert "version" not in Segment(Author.AGENT, "", "a", (1,), (0.0,)).to_json()


def test_a_blank_answer_is_none() -> None:
    assert [run(answer=answer).answered for answer in (None, "", " \n", "0")] == [False, False, False, True]


def test_only_a_spent_budget_truncates_and_only_a_failed_part_is_a_fault() -> None:
    stops = {stop: replace(run(answer=None), stop=stop) for stop in StopReason}
    assert {stop for stop, one in stops.items() if one.truncated} == {StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT}
    assert {stop for stop in stops if stop.is_fault} == {
        StopReason.RETRIEVER_ERROR,
        StopReason.MODEL_ERROR,
        StopReason.TOOL_ERROR,
    }


@pytest.mark.parametrize("schema", [None, 1, 3, "2"])
def test_a_trajectory_of_another_schema_is_refused_by_its_number(schema: int | str | None) -> None:
    with pytest.raises(DataError, match=f"schema {schema!r}"):
        Trajectory.from_json({**run().to_json(), "schema": schema})


# --- invariants, each named with its segment


Edit: TypeAlias = Callable[[JsonObject], object]


def sound() -> Trajectory:
    return run(found("orbo", ORBO, OTHER), found("mira", MIRA), selected_ids=("mira",))


def segment_row(row: JsonObject, at: int) -> JsonObject:
    return cast(list[JsonObject], row["segments"])[at]


def search_row(row: JsonObject, at: int) -> JsonObject:
    return cast(list[JsonObject], row["searches"])[at]


def list_row(row: JsonObject, name: str) -> list[object]:
    return cast(list[object], row[name])


def test_trajectories_of_the_driver_hold_every_invariant() -> None:
    for trajectory in (sound(), fault(), run(answer=None, valid=False)):
        assert [*check_trajectory(trajectory, decode)] == []


BROKEN: dict[str, tuple[Edit, int | None, str]] = {
    "another text": (
        lambda row: segment_row(row, 1).update(text="<think>ho</think>"),
        1,
        "not the decoding of the ids",
    ),
    "another id": (lambda row: list_row(segment_row(row, 2), "ids").__setitem__(0, 65), 2, "from character 0"),
    "ids that no tokenizer has": (
        lambda row: list_row(segment_row(row, 2), "ids").__setitem__(0, 99_999_999),
        2,
        "cannot be decoded",
    ),
    "a negative id": (lambda row: list_row(segment_row(row, 0), "ids").__setitem__(3, -1), 0, "token 3 is -1"),
    "a lost log-probability": (lambda row: list_row(segment_row(row, 1), "logprobs").pop(), None, "log-probabilities"),
    "a positive one": (lambda row: list_row(segment_row(row, 1), "logprobs").__setitem__(2, 0.5), 1, "token 2 is 0.5"),
    "the environment as agent": (lambda row: segment_row(row, 2).update(author="agent"), None, "log-probabilities"),
    "the agent as environment": (
        lambda row: segment_row(row, 1).update(author="environment"),
        None,
        "log-probabilities",
    ),
    "a lost observation": (lambda row: list_row(row, "segments").pop(2), 2, "two turns of the agent"),
    "a lost prompt": (lambda row: list_row(row, "segments").pop(0), 0, "begins with the environment's prompt"),
    "no segments": (lambda row: row.update(segments=[], searches=[], selected_ids=[]), None, "no segments"),
    "an observation nobody asked for": (
        lambda row: list_row(row, "searches").pop(0),
        None,
        "2 observations and only 1",
    ),
    "rising scores": (lambda row: list_row(search_row(row, 0), "hits").reverse(), None, "not finite and falling"),
    "the same hit twice": (
        lambda row: list_row(search_row(row, 1), "hits").append(list_row(search_row(row, 1), "hits")[0]),
        None,
        "same passage twice",
    ),
    "an answer nobody gave": (lambda row: row.update(stop="invalid"), None, "only answered runs have an answer"),
    "a lost answer": (lambda row: row.update(answer=None), None, "only answered runs have an answer"),
    "a fault without a failed search": (
        lambda row: row.update(stop="retriever_error", answer=None),
        None,
        "none of its searches failed",
    ),
    "valid with a format error": (lambda row: row.update(format_error="no"), None, "exactly one holds"),
    "a selection out of nowhere": (lambda row: row.update(selected_ids=["zun"]), None, "'zun' was never retrieved"),
    "evidence out of nowhere": (lambda row: row.update(evidence=["zun"]), None, "'zun' of the evidence was never"),
    "evidence twice": (
        lambda row: row.update(evidence=["orbo", "orbo", "other", "mira"]),
        None,
        "'orbo' stands twice in the evidence",
    ),
    "evidence that is not whole": (lambda row: row.update(evidence=["orbo"]), None, "is not in the evidence"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_named_with_its_segment(name: str) -> None:
    edit, segment, says = BROKEN[name]
    row = sound().to_json()
    edit(row)
    try:
        what, at = next(check_trajectory(parse_row(row, Trajectory.from_json, "row"), decode))
    except DataError as error:
        what, at = str(error), None
    assert says in what and at == segment


def test_text_is_compared_only_where_ids_can_be_decoded() -> None:
    row = sound().to_json()
    segment_row(row, 1).update(text="<think>ha</think>")
    assert [*check_trajectory(Trajectory.from_json(row))] == []
    assert [*check_trajectory(Trajectory.from_json(row), decode)] != []
