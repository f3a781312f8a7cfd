"""Trajectories: they come back from their line, and an invariant that a file has lost is named."""

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, cast

import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tests.measure.samples import MIRA, ORBO, OTHER, decode, fault, run, search_of

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, json_line, parse_row
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question, load_questions
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
    assert len(trajectory.ids) == len(trajectory.agent_mask) == sum(len(segment.ids) for segment in trajectory.segments)
    written = sum(len(segment.logprobs) for segment in trajectory.segments)
    assert trajectory.agent_tokens == sum(trajectory.agent_mask) == written


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
    assert {stop for stop, run in stops.items() if run.truncated} == {StopReason.TURN_LIMIT, StopReason.TOKEN_LIMIT}
    faults = {StopReason.RETRIEVER_ERROR, StopReason.MODEL_ERROR, StopReason.TOOL_ERROR}
    assert {stop for stop in stops if stop.is_fault} == faults


@pytest.mark.parametrize("schema", [None, 1, 3, "2"])
def test_a_trajectory_of_another_schema_is_refused_by_its_number(schema: int | str | None) -> None:
    with pytest.raises(DataError, match=f"schema {schema!r}"):
        Trajectory.from_json({**run().to_json(), "schema": schema})


# --- invariants, each named with its segment


Edit: TypeAlias = Callable[[JsonObject], object]


def at(row: JsonObject, *path: str | int) -> list[object]:
    """The list at the end of a path of keys and places."""
    for step in path:
        row = cast(dict[str | int, JsonObject], row)[step]
    return cast(list[object], row)


def put(value: object, *path: str | int) -> Edit:
    return lambda row: cast(dict[str | int, object], at(row, *path[:-1])).__setitem__(path[-1], value)


def drop(*path: str | int) -> Edit:
    return lambda row: cast(dict[str | int, object], at(row, *path[:-1])).__delitem__(path[-1])


def sound() -> Trajectory:
    return run(search_of("orbo", ORBO, OTHER), search_of("mira", MIRA), selected_ids=("mira",))


def test_trajectories_of_the_driver_hold_every_invariant() -> None:
    for trajectory in (sound(), fault(), run(answer=None, valid=False)):
        assert [*check_trajectory(trajectory, decode)] == []


BROKEN: dict[str, tuple[Edit, int | None, str]] = {
    "another text": (put("<think>ho</think>", "segments", 1, "text"), 1, "not the decoding of the ids"),
    "another id": (put(65, "segments", 2, "ids", 0), 2, "from character 0"),
    "ids that no tokenizer has": (put(99_999_999, "segments", 2, "ids", 0), 2, "cannot be decoded"),
    "a negative id": (put(-1, "segments", 0, "ids", 3), 0, "token 3 is -1"),
    "a lost log-probability": (drop("segments", 1, "logprobs", -1), None, "log-probabilities"),
    "a positive one": (put(0.5, "segments", 1, "logprobs", 2), 1, "token 2 is 0.5"),
    "the environment as agent": (put("agent", "segments", 2, "author"), None, "log-probabilities"),
    "the agent as environment": (put("environment", "segments", 1, "author"), None, "log-probabilities"),
    "a lost observation": (drop("segments", 2), 2, "two turns of the agent"),
    "a lost prompt": (drop("segments", 0), 0, "begins with the environment's prompt"),
    "no segments": (lambda row: row.update(segments=[], searches=[], selected_ids=[]), None, "no segments"),
    "an observation nobody asked for": (drop("searches", 0), None, "2 observations and only 1"),
    "rising scores": (lambda row: at(row, "searches", 0, "hits").reverse(), None, "not finite and falling"),
    "the same hit twice": (
        lambda row: at(row, "searches", 1, "hits").append(at(row, "searches", 1, "hits", 0)),
        None,
        "same passage twice",
    ),
    "an answer nobody gave": (put("invalid", "stop"), None, "only answered runs have an answer"),
    "a lost answer": (put(None, "answer"), None, "only answered runs have an answer"),
    "a fault without a failed search": (
        lambda row: row.update(stop="retriever_error", answer=None),
        None,
        "none of its searches failed",
    ),
    "valid with a format error": (put("no", "format_error"), None, "exactly one holds"),
    "a selection out of nowhere": (put(["zun"], "selected_ids"), None, "'zun' was never retrieved"),
    "evidence out of nowhere": (put(["zun"], "evidence"), None, "'zun' of the evidence was never"),
    "evidence twice": (put(["orbo", "orbo", "other", "mira"], "evidence"), None, "'orbo' stands twice in the evidence"),
    "evidence that is not whole": (put(["orbo"], "evidence"), None, "is not in the evidence"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_invariant_is_named_with_its_segment(name: str) -> None:
    edit, segment, says = BROKEN[name]
    row = sound().to_json()
    edit(row)
    try:
        problem, position = next(check_trajectory(parse_row(row, Trajectory.from_json, "row"), decode))
    except DataError as error:
        problem, position = str(error), None
    assert says in problem and position == segment


def test_text_is_compared_only_where_ids_can_be_decoded() -> None:
    row = sound().to_json()
    put("<think>ha</think>", "segments", 1, "text")(row)
    assert [*check_trajectory(Trajectory.from_json(row))] == []
    assert [*check_trajectory(Trajectory.from_json(row), decode)] != []


# --- passages, questions and data sets


def write(path: Path, *rows: JsonObject) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@given(text, text.filter(lambda title: "\n" not in title), text)
def test_a_passage_can_be_read_back_from_its_contents(ident: str, title: str, body: str) -> None:
    passage = Passage(ident, title, body)
    assert Passage.from_json({"id": ident, "contents": passage.contents}) == passage
    assert Passage.from_json(passage.to_json()) == passage


@pytest.mark.parametrize(
    ("title", "contents", "expected"),
    [
        ("Beta", "Beta is a river.", ("Beta", "Beta is a river.")),
        ("Beta", "It is a river.\nIt is long.", ("Beta", "It is a river.\nIt is long.")),
        ("Beta", "Beta", ("Beta", "Beta")),
        ("Beta", '"Beta"\nIt is', ("Beta", "It is")),
        ("Beta", "Beta\nIt is", ("Beta", "It is")),
        ('"Beta"', '"Beta"\nIt is', ("Beta", "It is")),
        ("Be\nta", '"Be\nta"\nIt is', ("Be\nta", "It is")),
        ("", '"Beta"\nIt is', ("Beta", "It is")),
        ("", "Beta\nIt is", ("Beta", "It is")),
        ("", "just text", ("", "just text")),
    ],
)
def test_a_title_beside_contents_is_kept_and_takes_no_line_of_the_body(
    title: str, contents: str, expected: tuple[str, str]
) -> None:
    passage = Passage.from_json({"id": "b", "title": title, "contents": contents})
    assert (passage.title, passage.text, passage.contents) == (*expected, contents)


@given(st.lists(st.tuples(text, text, text), min_size=1, max_size=4, unique_by=lambda row: row[0]), st.randoms())
@settings(max_examples=at_most(60))
def test_a_digest_belongs_to_one_corpus(rows: list[tuple[str, str, str]], rng: random.Random) -> None:
    digest = Corpus(Passage(*row) for row in rows).digest
    at = rng.randrange(len(rows))
    changed = [*rows]
    changed[at] = (rows[at][0], rows[at][1] + rows[at][2], "")
    if changed != rows:
        assert Corpus(Passage(*row) for row in changed).digest != digest
    if len(rows) > 1:
        assert Corpus(Passage(*row) for row in reversed(rows)).digest != digest


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "no questions"),
        ([{"id": "a", "question": "?"}] * 2, "'a' twice"),
        ([{"question": "?"}], "line 1: a question needs 'id'"),
        ([{"id": "a"}], "needs 'question'"),
        ([{"id": "a", "question": "?", "gold_ids": "x"}], "'gold_ids' must be a list"),
        ([{"id": "a", "question": "?", "hops": "two"}], "'hops' must be a whole number"),
        ([{"id": "a", "question": "?", "answer": ["x"]}], "line 1: a question has no 'answer'; did you mean 'answers'"),
        ([{"id": "a", "questions": "?"}], "did you mean 'question'"),
        ([{"id": "a", "question": "?", "gold_id": ["x"]}], "did you mean 'gold_ids'"),
        ([{"id": "a", "question": None}], "a question needs 'question'"),
        ([{"id": None, "question": "?"}], "a question needs 'id'"),
        ([{"id": "a", "question": "?", "answers": [None]}], "line 1: question 'a': 'answers' holds null"),
    ],
)
def test_a_bad_question_file_is_one_sentence(rows: list[JsonObject], says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "questions.dev.jsonl", *rows)
    with pytest.raises(DataError, match=says):
        load_questions(path)


def test_other_keys_are_passed_over_beside_those_that_are_known() -> None:
    row: JsonObject = {"id": 7, "question": "?", "golden_answers": [1815], "answer": "x", "metadata": {}, "idx": 1}
    assert Question.from_json({**row, "question_id": "q"}) == Question("7", "?", ("1815",))


def test_a_data_set_offers_its_splits_and_checks_gold_passages(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", {"id": "a", "text": ""})
    write(tmp_path / "questions.dev.jsonl", {"id": "q", "question": "?", "gold_ids": ["a"]})
    write(tmp_path / "questions.test.jsonl", {"id": "q", "question": "?", "gold_ids": ["zun"]})
    data = Dataset(tmp_path)
    assert data.splits == ["dev", "test"]
    assert [question.id for question in data.questions("dev")] == ["q"]
    with pytest.raises(DataError, match="gold passage 'zun'"):
        data.questions("test")
    with pytest.raises(DataError, match="did you mean 'dev'"):
        data.questions("dve")
    with pytest.raises(DataError, match="no data folder"):
        Dataset(tmp_path / "none")
