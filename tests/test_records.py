"""Records: files of earlier versions are read, and are written again byte for byte.

coseek 0.2 wrote the lines of `records.jsonl`, one for each of `SAMPLES`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Protocol, Self

import numpy as np
import pytest
from hypothesis import given, strategies as st

from coseek.agents.search_turns import TurnId
from coseek.core.errors import DataError
from coseek.core.files import JsonObject, json_line, parse_line
from coseek.core.record import OMIT_EMPTY, OMIT_NONE, Number, PlainObject, Record, Schema, TokenIds, WrongField
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question, Step
from coseek.data.token_data import TokenData
from coseek.data.trajectory import Author, Call, Search, Segment, StopReason, Trajectory, Visit
from coseek.graders.relevance import Rating, SubAnswers
from coseek.labels.answer_likelihood import AnswerLikelihoods
from coseek.labels.label_folder import Score
from coseek.labels.label_set import Candidate, DroppedTurn, LabelSet
from coseek.labels.oracle_retriever import OracleRanking
from coseek.retrieval.query import ContextFields, PastTurn, Query
from coseek.training.encoder.evaluation import EvaluationResult
from coseek.training.rl.rows import TrainingRow

ADA = Passage("d1", "Ada", "born in 1815 – “London”", None, {"url": "http://x.y", "page": 3})
BOB = Passage("d2", "", "a\u2028b", '"Bob" a', {})
QUESTION = Question("q1", "Who is Ada?", ("Ada", "1815"), ("d1",), 2, {"kind": "bridge", "n": 1.0})
BARE = Question("q2", "Why?")
PROMPT = Segment(Author.ENVIRONMENT, "prompt", "Who?", (1, 2))
TURN = Segment(Author.AGENT, "search", "<search>é", (3, 150000), (-0.5, -1e-07), 4, {"content": "x", "tool_calls": []})
LOGGED = Segment(Author.AGENT, "answer", "text of a log", ())
SEARCH = Search("ada", (Hit(ADA, 2.5), Hit(BOB, -1.0)), None, 1, ())
LOST = Search("bob", fault="", turn=0)
CALL = Call(1, "calculator", {"expression": "1+1", "deep": [{"a": None}]}, {"value": [2, 2.0]})
FAILED = Call(2, "calculator", {}, fault="away")
VISIT = Visit(2, "d1", (ADA, BOB))
SMALL = Trajectory(BARE, "search-r1", (), (), StopReason.INVALID)
WHOLE = Trajectory(
    question=QUESTION, protocol="search-r1", segments=(PROMPT, TURN, LOGGED), searches=(SEARCH, LOST),
    stop=StopReason.ANSWERED, answer="Ada", valid=True, format_error="", stop_detail="d", selected_ids=("d1", "d2"),
    side_contexts=((PROMPT, TURN), (PROMPT,)), seed=2**100, timings={"model_s": 1.25, "retriever_s": 0}, exact=False,
    cost_usd=0, calls=(CALL, FAILED), evidence=(), visits=(VISIT,), messages=({"role": "user", "content": None},),
    logged_protocol="native",
)  # fmt: skip
TOKENS = TokenData(
    "q1", 7, 0, None, {"em": 1.0, "bad": None}, True, spans=((1, 3), (4, 5)), advantages=(0.5, None, 1.0),
    trainer_logprobs=(-0.25, -1.0, -2.0), updates=0, entropies=(),
)  # fmt: skip
ANSWER = GeneratedAnswer("q1", 7, "c0ffee", None, "said", None, ("d1", "d2"), 12)
BASELINE = GeneratedAnswer("q1", 7, "c0ffee", "Ada", "said", "away", (), 0, "digest")
VERDICT, ASKED = Verdict("q1", "Ada", None, "", "away"), Verdict("q1", "Ada", True, "yes", None, "digest")
TURN_ID = TurnId("q1", 7, 0)
PAST = PastTurn("ada", "think", ("a", "b"))
QUERY = Query("bob", "Who?", "so", (PAST, replace(PAST, same_turn=True)))
CANDIDATE, ADDED = Candidate(ADA, 1, {"retriever": 2.5, "lr": 80.0}), Candidate(BOB, 0)
LABEL = LabelSet(TURN_ID, QUESTION, QUERY, (CANDIDATE, ADDED), "d1", ("d2",))
COPY = replace(LABEL, targets=(0.75, 0.25), copy=1, trajectory="digest")
DROPPED = DroppedTurn(TURN_ID, "no-positive", "none", "digest")
ROW = TrainingRow(
    ids=(1, 2, 3), trained=(False, True, True), sampled_logprob=(0.0, -1.0, -2.0), advantage=(0.0, 0.5, 0.5),
    weight=0.5, step=1, group=2, episode="q/1", turn=3, policy_version=4,
)  # fmt: skip
RANKING = OracleRanking("q1", "digest", (CANDIDATE, ADDED), ("text",), "unread", None)
SCORE = Score(TURN_ID, "d1", "digest", 1.0, "detail", None)
RATING = Rating(TURN_ID, "digest", {"d1": 80.0, "d2": 3.0}, ("text",))
UNRATED = Rating(TURN_ID, "digest", None, (), "unread", "away")
LIKELIHOODS = AnswerLikelihoods("q1", "digest", (-1.5, -2.0), (3, 4))
SUB_ANSWERS = SubAnswers("q1", 7, "digest", ("a", None), ("text",))
STEP = Step("Ada", "ada", "painter", "born", "d1", "1815", "When?", "Who is 1815?")
FIELDS = ContextFields(True, False, "queries", 3)
RESULT = EvaluationResult(np.array([1, 3], dtype=np.int64), ((), (1, 2)))


class Stored(Protocol):
    def to_json(self) -> JsonObject: ...
    @classmethod
    def from_json(cls, row: JsonObject) -> Self: ...


SAMPLES: tuple[Stored, ...] = (
    ADA, BOB, QUESTION, BARE, PROMPT, TURN, LOGGED, SEARCH, LOST, CALL, FAILED, VISIT, SMALL, WHOLE, TOKENS,
    ANSWER, BASELINE, VERDICT, ASKED, TURN_ID, PAST, QUERY, CANDIDATE, ADDED, LABEL, COPY, DROPPED, ROW, RANKING,
    SCORE, RATING, UNRATED, LIKELIHOODS, SUB_ANSWERS, STEP, FIELDS, RESULT,
)  # fmt: skip
LINES = Path(__file__).with_name("records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)


@pytest.mark.parametrize(("sample", "line"), list(zip(SAMPLES, LINES, strict=True)), ids=lambda row: type(row).__name__)
def test_a_record_is_written_as_ever_and_comes_back(sample: Stored, line: str) -> None:
    assert json_line(sample.to_json()) == line
    again = type(sample).from_json(parse_line(line, "here"))
    assert json_line(again.to_json()) == line
    assert isinstance(sample, EvaluationResult) or again == sample  # arrays have no one answer to ==


@dataclass(frozen=True, slots=True)
class Point(Record):
    x: float
    y: Annotated[int, OMIT_EMPTY] = 0


@dataclass(frozen=True, slots=True)
class Line(Record):
    SCHEMA = Schema(3, "a line", ": draw it again")
    KEYS = ("name", "ends", "ids", "closed", "of", "meta", "cost", "known")
    ends: tuple[Point, ...]
    name: str
    closed: bool = False
    ids: TokenIds = ()
    of: Author | None = None
    meta: Annotated[PlainObject | None, OMIT_NONE] = None
    cost: Annotated[Number | None, OMIT_NONE] = None
    known: Annotated[tuple[tuple[int, int], ...], OMIT_EMPTY] = ()


LINE: JsonObject = {"schema": 3, "name": "a", "ends": [{"x": 1.5}, {"x": 2.0, "y": 3}], "ids": [1], "closed": True}


TEXT, FINITE = st.text(max_size=9), st.floats(allow_nan=False, allow_infinity=False)
POINTS = st.lists(st.builds(Point, FINITE, st.integers(0, 2**100)), max_size=2).map(tuple)
PLAIN = st.dictionaries(TEXT, st.none() | st.integers() | FINITE | st.lists(TEXT), max_size=2)
IDS = st.lists(st.integers(0, 2**63 - 1), max_size=3).map(tuple)
LINES_DRAWN = st.builds(
    Line, POINTS, TEXT, st.booleans(), IDS, st.sampled_from([None, *Author]), st.none() | PLAIN, st.none() | FINITE,
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
)  # fmt: skip


@given(LINES_DRAWN)
def test_any_record_comes_back_from_its_line(record: Line) -> None:
    line = json_line(record.to_json())
    again = Line.from_json(parse_line(line, "here"))
    assert again == record and json_line(again.to_json()) == line


def test_a_line_has_the_order_of_its_keys_and_keeps_the_spelling_of_numbers() -> None:
    line = Line.from_json({**LINE, "cost": 0, "unknown": 1, "of": None})
    assert line == Line((Point(1.5), Point(2.0, 3)), "a", True, (1,), cost=0)
    assert json_line(line.to_json()) == json_line({**LINE, "of": None, "cost": 0})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 2}, "a line of schema 2; this coseek reads schema 3: draw it again"),
        ({"name": 1}, "'name' must be a text, not 1"),
        ({"ends": {}}, "'ends' must be a list, not {}"),
        ({"ends": [1]}, "'ends[0]' must be an object, not 1"),
        ({"ends": [{"x": "1.5"}]}, "'ends[0].x' must be a number, not '1.5'"),
        ({"ends": [{"x": True}]}, "'ends[0].x' must be a number, not True"),
        ({"ends": [{"x": 10**400}]}, f"'ends[0].x' must be a number, not {'1' + '0' * 58}…"),
        ({"ends": [{"x": 1.0}, {"x": 1.0, "y": 1.0}]}, "'ends[1].y' must be a whole number of at most 128"),
        ({"ends": [{"x": 1.0, "y": 2**128}]}, f"'ends[0].y' must be a whole number of at most 128 bits, not {2**128}"),
        ({"ends": [{"x": 1.0, "y": 10**5000}]}, "not a number of thousands of digits"),
        ({"closed": 1}, "'closed' must be true or false, not 1"),
        ({"closed": None}, "'closed' must be true or false, not None"),
        ({"ids": [1, True]}, "'ids[1]' must be a whole number of at most 128 bits, not True"),
        ({"ids": [2**63]}, f"'ids' must be token ids of at most 64 bits, not [{2**63}]"),
        ({"of": "nobody"}, "'of' must be 'agent' or 'environment', not 'nobody'"),
        ({"meta": []}, "'meta' must be an object, not []"),
        ({"cost": "1"}, "'cost' must be a number, not '1'"),
        ({"known": [[1, 2, 3]]}, "'known[0]' must be a list of 2, not [1, 2, 3]"),
    ],
)
def test_a_wrong_field_is_named_with_its_place_and_value(change: JsonObject, says: str) -> None:
    with pytest.raises(DataError) as refused:
        Line.from_json({**LINE, **change})
    assert says in str(refused.value)
    assert isinstance(refused.value, WrongField) or "schema" in change


@pytest.mark.parametrize("name", ["name", "ends", "ids", "closed"])
def test_a_field_that_is_always_written_must_be_there(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        Line.from_json({key: value for key, value in LINE.items() if key != name})
    with pytest.raises(KeyError, match=r"ends\[0\]\.x"):
        Line.from_json({**LINE, "ends": [{}]})
