"""What each part of a reward needs, pays and says: when an answer counts, whose fault is whose, and by which name."""

from dataclasses import replace
from math import log2
from pathlib import Path

import pytest
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, found, run

from coseek.core.errors import DataError, SettingError
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.rewards.grades import Accuracy, Grades, Need, NoReward, is_right, left_to_judge, needs_of
from coseek.rewards.reward import Reward, RewardFault, RewardSpec, make_reward, reward_names

NO_JUDGE = Grades()


def said(response: str, right: bool) -> Grades:
    return Grades(verdicts={response: Verdict("q1", response, right)})


@pytest.mark.parametrize(
    ("accuracy", "response", "grades", "right"),
    [
        ("exact_match", "the Velora.", NO_JUDGE, True),
        ("exact_match", "in Velora", NO_JUDGE, False),
        ("exact_match", None, NO_JUDGE, False),
        ("cover_match", "in Velora", NO_JUDGE, True),
        ("cover_match", "Zun", NO_JUDGE, False),
        ("judge", "in Velora", said("in Velora", False), False),
        ("judge", "Zun", said("Zun", True), True),
        ("gen_acc", "in Velora", said("in Velora", False), True),
        ("gen_acc", "Zun", said("Zun", True), True),
        ("gen_acc", "Zun", said("Zun", False), False),
    ],
)
def test_an_answer_is_right_as_its_accuracy_says(
    accuracy: Accuracy, response: str | None, grades: Grades, right: bool
) -> None:
    assert is_right(accuracy, QUESTION, response, grades) is right


def test_a_judge_is_asked_always_for_its_own_accuracy_and_for_genacc_where_words_fail() -> None:
    asked = {
        (accuracy, response): left_to_judge(accuracy, QUESTION, response)
        for accuracy in ("judge", "gen_acc")
        for response in ("in Velora", "Zun")
    }
    assert asked == {
        ("judge", "in Velora"): True,
        ("judge", "Zun"): True,
        ("gen_acc", "in Velora"): False,
        ("gen_acc", "Zun"): True,
    }
    assert not left_to_judge("exact_match", QUESTION, "Zun") and not left_to_judge("cover_match", QUESTION, "Zun")


@pytest.mark.parametrize(
    ("spec", "needs"),
    [
        ({"exact_match": 1.0}, set()),
        ({"component": 1.0}, {"component"}),
        ({"component": {"accuracy": "judge"}}, {"component", "judge"}),
        ({"gbr": 1.0}, {"component", "baseline", "judge"}),
        ({"gbr": {"accuracy": "exact_match"}}, {"component", "baseline"}),
        ({"gen_acc": 1.0}, {"component", "judge"}),
        ({"gen_acc": {"of": "own"}}, {"judge"}),
    ],
)
def test_a_part_asks_for_the_models_that_its_settings_need_and_no_other(spec: RewardSpec, needs: set[Need]) -> None:
    assert make_reward(spec).needs == needs
    assert needs_of("cover_match") == () and needs_of("gen_acc") == ("judge",)


def paid(spec: RewardSpec, grades: Grades = NO_JUDGE, answer: str | None = "Velora") -> Reward:
    reward = make_reward(spec)(run(found("x", OTHER, ORBO), found("y", MIRA, OTHER), answer=answer), grades)
    assert reward is not None
    return reward


def test_a_judge_decides_on_the_generators_answer_where_the_component_asks_it() -> None:
    for right in (True, False):
        grades = replace(said("in Velora", right), reply=GeneratedAnswer("q1", 0, "c", "in Velora"))
        assert paid({"component": {"accuracy": "judge"}}, grades).value == right


def test_the_answer_of_the_run_is_what_matching_reads() -> None:
    assert paid({"cover_match": 1.0}, answer="in Velora").value == 1
    assert paid({"cover_match": 1.0}, answer="Zun").value == 0


def test_ndcg_of_single_searches_is_cut_at_its_own_depth() -> None:
    """The first search has its gold passage second, the other first; two gold passages are wanted."""
    ideal = 1 + 1 / log2(3)
    assert paid({"ndcg": {"over": "search", "k": 1}}).value == pytest.approx((0 + 1) / 2)
    assert paid({"ndcg": {"over": "search", "k": 2}}).value == pytest.approx((1 / log2(3) + 1) / ideal / 2)


def test_a_run_without_a_search_has_none_to_pay_for() -> None:
    reward = make_reward({"searches": -0.5})(run())
    assert reward is not None and (reward.value, reward.parts["searches"]) == (0, 0)


def test_the_part_that_failed_is_named() -> None:
    fine = GeneratedAnswer("q1", 0, "c", "Zun")
    broken = GeneratedAnswer("q1", 0, "r", None, fault="the server choked")
    gain = make_reward({"gbr": {"accuracy": "cover_match"}})
    assert gain.compute(run(), Grades(fine, broken)) == RewardFault("baseline", "the server choked")
    assert gain.compute(run(), Grades(broken, fine)) == RewardFault("generator", "the server choked")
    assert str(NoReward("judge", "it said perhaps")) == "judge: it said perhaps"


PARTS_OF_PASSAGES = ["gold_recall", "ndcg", "step_search"]
PARTS_OF_ANSWERS = sorted({*reward_names()} - {*PARTS_OF_PASSAGES, "searches", "searched", "valid", "invalid"})


@pytest.mark.parametrize("name", PARTS_OF_ANSWERS)
def test_a_question_without_gold_answers_is_refused_in_the_name_of_the_part_that_needs_them(name: str) -> None:
    bare = run(question=replace(QUESTION, answers=()))
    with pytest.raises(DataError, match=f"^question 'q1' has no gold answers, and the reward '{name}' needs them;"):
        make_reward({name: 1.0})(bare, Grades(GeneratedAnswer("q1", 0, "c", "Zun")))


@pytest.mark.parametrize("name", PARTS_OF_PASSAGES)
def test_a_question_without_gold_passages_is_refused_in_the_name_of_the_part_that_needs_them(name: str) -> None:
    bare = run(question=replace(QUESTION, gold_ids=()))
    with pytest.raises(DataError, match=f"^question 'q1' names no gold_ids, and the reward '{name}' needs them;"):
        make_reward({name: 1.0})(bare)


def test_a_part_of_ones_own_that_is_graded_must_take_the_grades(tmp_path: Path) -> None:
    source = (
        "from coseek.rewards.reward import PartSettings as SETTINGS\n"
        "def needs(settings): return ('judge',)\n"
        "def reward(trajectory, settings): return 1.0\n"
    )
    (tmp_path / "graded.py").write_text(source, encoding="utf-8")
    with pytest.raises(SettingError, match=r"`reward` of .*graded\.py must take \(trajectory, settings, grades\)"):
        make_reward({str(tmp_path / "graded.py"): 1.0})
