import json
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most
from tests.measure.samples import ORBO, found, run

from coseek.core.errors import DataError
from coseek.core.files import json_line
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory

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


def test_nothing_in_a_trajectory_can_be_changed() -> None:
    trajectory = run(found("orbo", ORBO))
    with pytest.raises(FrozenInstanceError):
        trajectory.answer = "other"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        trajectory.segments[0].text = "other"  # type: ignore[misc]


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


def test_a_stored_trajectory_can_be_read_without_coseek() -> None:
    row = json.loads(json_line(run(found("orbo", ORBO)).to_json()))
    agent = [segment for segment in row["segments"] if segment["author"] == "agent"]
    assert agent[-1]["text"] == "<think>so</think><answer>Velora</answer>"
    assert all(len(segment["ids"]) == len(segment["logprobs"]) for segment in agent)
    assert row["searches"][0]["hits"][0]["title"] == "Orbo"
