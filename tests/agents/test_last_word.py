"""Fears about the last word at a limit: a search after it, pay for what was never read, a run no audit can follow."""

from pathlib import Path

import pytest
import yaml
from tests.agents.playing import WIDE, play
from tests.agents.test_tools import SAY, tool, violations

from coseek.agents.limits import Limits
from coseek.agents.protocol import load_protocol
from coseek.core.errors import SettingError
from coseek.data.trajectory import LAST_WORD, Author, StopReason, Trajectory
from coseek.measure.score import score_trajectory
from coseek.models.tokenizer import ByteTokenizer
from coseek.pipelines.run_checks import Derivation
from coseek.traces.messages import messages_of

FOUND, OPENED = tool("search", query="Ada"), tool("visit", id="p1")
PAPER = "react-paper"


def limited(*turns: str, **budgets: int) -> tuple[Trajectory, Limits]:
    limits = WIDE.model_copy(update=budgets)
    return play(PAPER, *turns, limits=limits), limits


def tags(run: Trajectory) -> list[str]:
    return [segment.tag for segment in run.segments[1:]]


def check(run: Trajectory, limits: Limits) -> None:
    protocol = load_protocol(PAPER)
    tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
    assert violations(run, PAPER) == []
    assert list(Derivation(protocol, tokenizer, limits, own_ranking=False).differences(run)) == []


def test_the_turn_behind_the_last_call_is_answered_by_the_request_for_an_answer() -> None:
    run, limits = limited(FOUND, OPENED, FOUND, SAY, max_turns=2)
    assert tags(run) == ["tool_call", "tool_response", "tool_call", "page", "tool_call", LAST_WORD, "answer"]
    assert (run.stop, run.answer, run.valid, len(run.searches)) == (StopReason.ANSWERED, "1815", True, 1)
    asked = run.segments[-2]
    assert asked.author is Author.ENVIRONMENT and not asked.logprobs and "likeliest answer" in asked.text
    scores = score_trajectory(run)
    assert (scores["forced"], scores["visits"], scores["truncated"]) == (1, 1, 0)
    check(run, limits)
    assert score_trajectory(limited(FOUND, SAY)[0])["forced"] == 0
    assert [one["role"] for one in messages_of(run)][-3:] == ["assistant", "user", "assistant"]


def test_who_searches_once_more_instead_has_no_answer_and_finds_nothing() -> None:
    run, limits = limited(FOUND, FOUND, FOUND, SAY, max_turns=1)
    assert tags(run)[-3:] == ["tool_call", LAST_WORD, "tool_call"] and len(run.searches) == 1
    assert (run.stop, run.answer, run.truncated) == (StopReason.TURN_LIMIT, None, True)
    check(run, limits)


@pytest.mark.parametrize("last", [SAY, FOUND])
def test_results_without_room_are_replaced_and_count_as_never_found(last: str) -> None:
    whole, _ = limited(FOUND, FOUND, SAY)
    before = sum(len(segment.ids) for segment in whole.segments[:4])
    kept = len(load_protocol(PAPER).last_word) + 200
    run, limits = limited(FOUND, FOUND, last, max_tokens=before + kept + 1, max_turn_tokens=200)
    assert tags(run)[2:] == ["tool_call", LAST_WORD, "answer" if last == SAY else "tool_call"]
    assert len(run.searches) == 1 and sum(len(segment.ids) for segment in run.segments) <= limits.max_tokens
    assert run.stop is (StopReason.ANSWERED if last == SAY else StopReason.TOKEN_LIMIT)
    assert last == SAY or run.stop_detail.startswith("no room for an observation")
    check(run, limits)


def test_a_turn_that_its_limit_cut_is_followed_by_the_last_one_and_is_not_valid() -> None:
    run, limits = limited(FOUND, "<think>" + "so " * 80, SAY, max_turn_tokens=200)
    assert tags(run)[2:] == ["", LAST_WORD, "answer"]
    assert run.answer == "1815" and not run.valid
    check(run, limits)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"extends": "s3"}, "needs a tag by the environment, and one by the agent that answers"),
        ({"extends": "direct"}, "needs a tag by the environment"),
        ({"extends": "search-o1"}, "last_word cannot be combined with reason_in_documents"),
    ],
)
def test_a_protocol_without_a_result_or_an_answer_takes_no_last_word(
    changed: dict[str, str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**changed, "last_word": "now"}), encoding="utf-8")
    with pytest.raises(SettingError, match=says):
        load_protocol(str(tmp_path / "mine.yaml"))
