"""The reward of declining: the pay of each case, and that unanswerable questions change no other part."""

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, strategies as st
from tests.measure.samples import ORBO, QUESTION, run, search_of

from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.rewards.grades import Grades
from coseek.rewards.reward import Reward, RewardSpec, make_reward

GONE = replace(QUESTION, answers=(), meta={"unanswerable": True})


def ended(question: Question, answer: str | None, declined: bool) -> Trajectory:
    stop = StopReason.DECLINED if declined else None
    return run(search_of("x", ORBO), answer=None if declined else answer, question=question, stop=stop)


def paid(spec: RewardSpec, question: Question, answer: str | None = None, declined: bool = False) -> Reward:
    reward = make_reward(spec)(ended(question, answer, declined))
    assert reward is not None
    return reward


PAY = st.floats(-2, 2, allow_nan=False)


@given(PAY, PAY, PAY, st.booleans(), st.sampled_from(["Velora", "Zun", "", " ", None]), st.booleans())
def test_each_case_pays_its_own_setting_and_every_other_run_nothing(
    right: float, wrong: float, invented: float, answerable: bool, answer: str | None, declined: bool
) -> None:
    spec = cast(RewardSpec, {"abstention": {"right_decline": right, "wrong_decline": wrong, "invented": invented}})
    made = paid(spec, QUESTION if answerable else GONE, answer, declined)
    if declined:
        wanted = wrong if answerable else right
    else:
        wanted = invented if not answerable and (answer or "").strip() else 0.0
    assert made.value == wanted
    cases = [made.parts[f"abstention/{name}"] for name in ("right_decline", "wrong_decline", "invented")]
    assert set(cases) <= {0.0, 1.0} and sum(cases) <= 1


def test_an_honest_decline_pays_like_an_answer() -> None:
    values = {}
    for name, question in (("answerable", QUESTION), ("unanswerable", GONE)):
        ends = [("Velora", False), ("not in these documents, I think", False), (None, True), (None, False)]
        values[name] = [paid({"preset": "abstention"}, question, *end).value for end in ends]
    assert values == {"answerable": [1.0, 0.0, -0.5, 0.0], "unanswerable": [-0.5, -0.5, 1.0, 0.0]}


PARTS = ["exact_match", "cover_match", "f1", "hit", "answer_hit", "gen_acc"]


@pytest.mark.parametrize("name", PARTS)
def test_no_answer_to_an_unanswerable_question_is_right_and_no_judge_is_asked(name: str) -> None:
    spec: RewardSpec = {"gen_acc": {"of": "own"}} if name == "gen_acc" else {name: 1.0}
    reward = make_reward(spec)
    for answer in ("Velora", "not in these documents"):
        made = reward(ended(GONE, answer, False), Grades(verdicts={}))
        assert made is not None and made.value == 0
