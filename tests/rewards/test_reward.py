"""Rewards: equations, gates and sums, the needs of each part, and the part of a fault."""

from dataclasses import replace
from fractions import Fraction
from functools import partial
from math import log2
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, fault, run, search_of

from coseek.core.errors import DataError, SettingError, UnknownName, UserError
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.question import UNANSWERABLE, Question
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.rewards.grades import (
    NO_GRADES,
    Accuracy,
    Grades,
    Need,
    is_right,
    needs_of,
    undecided,
)
from coseek.rewards.reward import Reward, RewardFault, RewardLike, RewardSpec, make_reward, reward_names, reward_spec

SAID = Grades(
    GeneratedAnswer("q1", 0, "c", "in Velora"),
    GeneratedAnswer("q1", 0, "r", "in Zun"),
    {"in Zun": Verdict("q1", "in Zun", False)},
)
"""A generator is right from the run's passages, and wrong from naive RAG's."""


def value_of(trajectory: Trajectory, spec: RewardSpec) -> float:
    reward = make_reward(spec)(trajectory, SAID)
    assert reward is not None
    return reward.value


def value(spec: RewardSpec, *, answer: str | None, valid: bool, hit: bool = False) -> float:
    return value_of(run(search_of("x", MIRA if hit else OTHER), answer=answer, valid=valid), spec)


@pytest.mark.parametrize(("outcome", "share"), [("f1", 2 / 3), ("cover", 1.0), ("em", 0.0)])
def test_an_answer_that_is_right_in_part_earns_that_part_of_what_a_right_one_earns(outcome: str, share: float) -> None:
    spec: RewardSpec = {"format": {"outcome": outcome, "lambda_f": 0.2}}
    assert value(spec, answer="in Velora", valid=True) == pytest.approx(0.8 * share + 0.2)
    assert value(spec, answer="in Velora", valid=False) == pytest.approx(0.8 * share)
    assert value(spec, answer="Velora", valid=True) == 1
    assert value(spec, answer="Zun", valid=False) == 0
    paying: RewardSpec = {"retrieval": {"outcome": outcome, "lambda_f": 0.2, "lambda_r": 0.1}}
    assert value(paying, answer="in Velora", valid=True, hit=True) == pytest.approx(
        0.8 * share + 0.2 + 0.1 * (1 - share)
    )


def test_gold_recall_can_be_budgeted_and_all_or_nothing() -> None:
    recall = partial(value_of, run(search_of("x", OTHER, ORBO), search_of("y", MIRA)))
    assert recall({"gold_recall": 1.0}) == 1
    assert recall({"gold_recall": {"max_passages": 2}}) == 0.5
    assert recall({"gold_recall": {"max_passages": 2, "all_or_nothing": True}}) == 0
    assert recall({"gold_recall": {"all_or_nothing": True}}) == 1


def test_a_sum_is_weighted_and_every_part_is_named_unweighted() -> None:
    spec: RewardSpec = {"exact_match": 1.0, "cover_match": 2.0, "f1": 0.5, "searches": {"weight": -0.1, "free": 1}}
    reward = make_reward(spec)(
        run(search_of("a", ORBO), search_of("b", MIRA), search_of("c", OTHER), answer="Velora city")
    )
    assert reward is not None
    assert reward.parts == {"exact_match": 0, "cover_match": 1, "f1": pytest.approx(2 / 3), "searches": 2}
    assert reward.value == pytest.approx(2 + 0.5 * 2 / 3 - 0.2)
    assert value({"searches": {"free": 1}}, answer="Zun", valid=True) == 0
    assert value({"valid": {"gate": True}}, answer="Zun", valid=True) == 1  # a gate alone multiplies 1


@pytest.mark.parametrize("name", reward_names())
def test_a_run_that_ended_by_a_fault_has_no_reward_and_not_a_zero(name: str) -> None:
    reward = make_reward({name: 1.0})
    assert reward(fault()) is None
    assert reward(replace(run(answer=None), stop=StopReason.MODEL_ERROR)) is None


def test_a_run_that_went_on_though_one_of_its_searches_failed_is_not_charged_for_it() -> None:
    """Traps 19, 30: the agent is not responsible for a failed search."""
    both = run(search_of("Mira", MIRA), Search("orbo", fault="the server is away"))
    for spec in ({"gold_recall": 1.0}, {"searches": -0.02}, {"preset": "qagent-1"}):
        paid = make_reward(spec).compute(both, SAID)
        assert paid == RewardFault("retriever_error", "the server is away")


def test_recall_and_ndcg_of_single_searches_make_an_idle_search_cost_something() -> None:
    assert value_of(run(search_of("x", OTHER, ORBO)), {"ndcg": {"over": "search", "k": 1}}) == 0
    worth = partial(value_of, run(search_of("x", OTHER, ORBO), search_of("y", OTHER)))
    ideal = 1 + 1 / log2(3)
    assert worth({"gold_recall": 1.0}) == 0.5
    assert worth({"gold_recall": {"over": "search"}}) == 0.25  # (1/2 + 0) / 2: the search that failed found nothing
    assert worth({"gold_recall": {"over": "search", "max_passages": 1}}) == 0
    assert worth({"ndcg": 1.0}) == pytest.approx((1 / log2(3)) / ideal)
    assert worth({"ndcg": {"over": "search"}}) == pytest.approx((1 / log2(3)) / ideal / 2)
    assert worth({"ndcg": {"k": 1}}) == 0
    # Gold at rank 2, then at rank 1.
    later = partial(value_of, run(search_of("x", OTHER, ORBO), search_of("y", MIRA, OTHER)))
    assert later({"ndcg": {"over": "search", "k": 1}}) == pytest.approx(1 / 2)
    assert later({"ndcg": {"over": "search", "k": 2}}) == pytest.approx((1 / log2(3) + 1) / ideal / 2)
    for name in ("gold_recall", "ndcg"):
        assert value_of(run(), {name: {"over": "search"}}) == 0


def test_the_evidence_that_was_selected_stands_first_in_the_runs_ndcg() -> None:
    chosen = make_reward({"ndcg": {"k": 1}})(run(search_of("x", OTHER, ORBO), selected_ids=("orbo",)))
    assert chosen is not None and chosen.value == 1


def test_a_reward_that_was_not_told_what_it_needs_says_the_way_out() -> None:
    for name in ("component", "gbr", "gen_acc"):
        with pytest.raises(SettingError, match=r"graders\.generator\.model"):
            make_reward({name: 1.0})(run())
    with pytest.raises(SettingError, match=r"graders\.baseline"):
        make_reward({"gbr": {"accuracy": "cover_match"}})(run(), Grades(SAID.reply))
    with pytest.raises(SettingError, match="accuracy: cover_match"):
        make_reward({"gen_acc": {"of": "own"}})(run(answer="Zun"), NO_GRADES)


def test_an_answer_that_words_settle_and_an_empty_one_are_shown_to_no_judge() -> None:
    nobody = Grades(verdicts={})
    own: RewardSpec = {"gen_acc": {"of": "own"}}
    for answer, worth in (("in Velora", 1), (None, 0), ("  ", 0)):
        reward = make_reward(own)(run(answer=answer), nobody)
        assert reward is not None and reward.value == worth
        assert make_reward(own).to_judge(run(answer=answer), nobody) == []
    assert make_reward(own).to_judge(run(answer="Zun"), nobody) == ["Zun"]
    assert make_reward(own).compute(run(answer="Zun"), nobody) == RewardFault("judge", "no verdict")


def test_the_judge_is_shown_both_answers_of_a_generator_that_words_do_not_settle() -> None:
    unread = replace(SAID, verdicts={})
    gain, component = (make_reward({name: {"accuracy": "gen_acc"}}) for name in ("gbr", "component"))
    assert gain.to_judge(run(), unread) == ["in Zun"]
    assert gain.to_judge(run(), replace(unread, reply=SAID.baseline, baseline=None)) == ["in Zun"]
    assert component.to_judge(run(), replace(unread, reply=SAID.baseline)) == ["in Zun"]
    assert gain.to_judge(run(), SAID) == component.to_judge(run(), unread) == []
    # An answer of function words alone can be matched by no words, and a judge still reads it.
    the = run(question=replace(QUESTION, answers=("the",)))
    accepted = {text: Verdict("q1", text, text == "in Velora") for text in ("in Velora", "in Zun")}
    for reward in (gain, component):
        paid = reward(the, replace(SAID, verdicts=accepted))
        assert paid is not None and paid.value == 1


def test_no_answer_from_the_generator_is_wrong_and_no_fault() -> None:
    silent = Grades(GeneratedAnswer("q1", 0, "c", None, "hm"), GeneratedAnswer("q1", 0, "r", "Velora"), {})
    reward = make_reward({"gbr": 1.0})(run(), silent)
    assert reward is not None and reward.value == -1


@pytest.mark.parametrize(
    ("spec", "kind", "says"),
    [
        ({}, SettingError, "names no part"),
        ({"exact_macht": 1.0}, UnknownName, "did you mean 'exact_match'"),
        ({"format": {"lamda_f": 0.2}}, SettingError, "did you mean 'lambda_f'"),
        ({"format": {"lambda_f": 2.0}}, SettingError, "got 2"),
        ({"format": {"variant": "codes"}}, SettingError, "'paper' or 'code'"),
        ({"valid": {"gate": True, "weight": 2.0}}, SettingError, "leave out its weight"),
        ({"reward": 1.0}, UnknownName, "no reward named 'reward'"),
        ({"f1": 1.0, "exact_match": 1.0, "exact-match": 1.0}, SettingError, "twice"),
    ],
)
def test_a_wrong_spec_is_one_sentence(spec: RewardSpec, kind: type[UserError], says: str) -> None:
    with pytest.raises(kind, match=says):
        make_reward(spec)


def test_a_name_of_a_part_and_of_a_preset_is_not_guessed() -> None:
    with pytest.raises(SettingError, match=r"write \{'abstention': 1.0\} or \{'preset': 'abstention'\}"):
        reward_spec("abstention")


@given(
    answer=st.sampled_from(["Velora", "velora.", "Zun", "", None]),
    valid=st.booleans(),
    hit=st.booleans(),
    name=st.sampled_from([name for name in reward_names() if name not in ("searches", "gbr", "rank_tiers")]),
)
def test_every_part_but_a_count_and_a_gain_is_at_most_one(
    answer: str | None, valid: bool, hit: bool, name: str
) -> None:
    assert 0 <= value({name: 1.0}, answer=answer, valid=valid, hit=hit) <= 1


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ({"gbr": 1.0}, ["river"]),  # the baseline's answer has a matching span
        ({"gbr": {"accuracy": "cover_match"}}, []),
        ({"component": {"accuracy": "judge"}}, ["river"]),
        ({"gen_acc": {"of": "own"}}, ["lake"]),
        ({"gen_acc": {"of": "component"}}, ["river"]),
        ({"gen_acc": {"of": "own", "span": "span_match"}}, ["lake"]),
        ({"gen_acc": {"of": "component", "span": "span_match"}}, ["river"]),
    ],
)
def test_only_answers_that_no_span_decides_go_to_the_judge(reward: RewardSpec, named: list[str]) -> None:
    run = Trajectory(Question("q", "Where?", ("sea",)), "search-r1", (), (), StopReason.ANSWERED, "lake")
    written, plain = (GeneratedAnswer("q", 0, "", answer) for answer in ("river", "the sea"))
    assert make_reward(reward).to_judge(run, Grades(written, plain, {})) == named


def test_a_span_is_looked_for_as_words_or_as_the_tokens_of_s3s_program() -> None:
    quoted, nobody = run(answer="in \u201cVelora\u201d"), Grades(verdicts={})  # Unicode quotes stick to a word
    for spec, settled in (({"span": "cover_match"}, False), ({"span": "span_match"}, True)):
        reward = make_reward({"gen_acc": {"of": "own", **spec}})
        assert reward.to_judge(quoted, nobody) == ([] if settled else [quoted.answer])
        assert (reward(quoted, nobody) is not None) == settled
    generated = Grades(GeneratedAnswer("q1", 0, "c", quoted.answer))
    for accuracy, worth in (("span_match", 1), ("cover_match", 0), ("exact_match", 0)):
        paid = make_reward({"component": {"accuracy": accuracy}})(run(answer="Zun"), generated)
        assert paid is not None and paid.value == worth


def test_an_answer_to_a_question_without_one_is_wrong_by_every_accuracy_and_shown_to_no_judge() -> None:
    nowhere = Question("q", "Where?", meta={UNANSWERABLE: True})
    for accuracy in get_args(Accuracy):
        assert not is_right(accuracy, nowhere, "lake", Grades(verdicts={"lake": Verdict("q", "lake", True)}))
        assert undecided(accuracy, nowhere, "lake") == []


@pytest.mark.parametrize(
    ("given", "spec"),
    [
        ("exact-match", {"exact-match": 1.0}),
        (Path("mine.py"), {"mine.py": 1.0}),
        ("search-r1", {"preset": "search-r1"}),
        ("mine.yaml", {"preset": "mine.yaml"}),
        (Path("mine.yml"), {"preset": "mine.yml"}),
        (["search-r1", "f1", {"valid": {"gate": True}}], {"preset": "search-r1", "f1": 1.0, "valid": {"gate": True}}),
    ],
)
def test_a_reward_is_a_part_a_preset_a_file_or_several_of_them(given: RewardLike, spec: RewardSpec) -> None:
    assert reward_spec(given) == spec


def test_a_reward_that_is_neither_part_nor_preset_nor_fit_for_a_trajectory_is_a_sentence() -> None:
    with pytest.raises(UnknownName, match="no reward named 'exact_macht'; did you mean 'exact_match'"):
        reward_spec("exact_macht")
    given: dict[str, object] = {"valid": {"gate": True}}
    taken = reward_spec(given)  # type: ignore[arg-type]
    given["valid"]["gate"] = False  # type: ignore[index]
    assert taken == {"valid": {"gate": True}}  # a copy
    with pytest.raises(SettingError, match=r"reward.*trajectory"):
        reward_spec(lambda: 1.0)  # type: ignore[arg-type,misc]


def half(run: Trajectory, share: float = 0.5) -> float:
    return share


REPEATED: dict[str, object] = {
    "preset": ["search-r1", "qagent-1"],
    "f1": ["f1", {"f1": 0.5}],
    "lambda": [lambda run: 1.0, lambda run: 2.0],
    "half": [half, partial(half, share=1.0)],
}


@pytest.mark.parametrize("name", REPEATED)
def test_no_member_of_a_list_of_rewards_is_dropped(name: str) -> None:
    with pytest.raises(SettingError, match=f"two parts of the reward are called '{name}'"):
        reward_spec(REPEATED[name])  # type: ignore[arg-type]


def test_a_function_is_a_key_with_a_weight_and_a_pair_is_no_reward() -> None:
    assert reward_spec({half: 0.5, "f1": 1.0}) == {"python:half": 0.5, "f1": 1.0}  # type: ignore[dict-item]
    assert reward_spec(partial(half, share=1.0)) == {"python:half": 1.0}
    with pytest.raises(SettingError, match=r"a reward is a name, .* not 0\.5"):
        reward_spec([("f1", 0.5)])  # type: ignore[list-item]


@pytest.mark.parametrize("paid", [np.float32(1), np.bool_(True), np.array(1.0), Fraction(1), True])
@pytest.mark.parametrize("of_turns", [False, True])
def test_a_number_of_any_library_is_a_float_of_the_reward(paid: object, of_turns: bool) -> None:
    reward = make_reward(reward_spec(lambda run: [paid] if of_turns else paid))(run(answer="Velora"))  # type: ignore[arg-type, return-value, list-item]
    assert reward is not None and [type(each) for each in (reward.value, *reward.turns)] == [float] * (1 + of_turns)
    assert reward.value == 1.0 and reward.turns == (1.0,) * of_turns


def test_a_turns_reward_that_is_no_number_is_a_sentence() -> None:
    with pytest.raises(SettingError, match="'lambda' of a turn gave None for the question"):
        make_reward(reward_spec(lambda run: [None]))(run(answer="Velora"))  # type: ignore[list-item]


# --- what each part needs, pays and says


NO_JUDGE = Grades()


def judged(response: str, right: bool) -> Grades:
    return Grades(verdicts={response: Verdict("q1", response, right)})


@pytest.mark.parametrize(
    ("accuracy", "response", "grades", "right"),
    [
        ("exact_match", "the Velora.", NO_JUDGE, True),
        ("exact_match", "in Velora", NO_JUDGE, False),
        ("exact_match", None, NO_JUDGE, False),
        ("cover_match", "in Velora", NO_JUDGE, True),
        ("cover_match", "Zun", NO_JUDGE, False),
        ("judge", "in Velora", judged("in Velora", False), False),
        ("judge", "Zun", judged("Zun", True), True),
        ("gen_acc", "in Velora", judged("in Velora", False), True),
        ("gen_acc", "Zun", judged("Zun", True), True),
        ("gen_acc", "Zun", judged("Zun", False), False),
    ],
)
def test_an_accuracy_says_what_is_right(accuracy: Accuracy, response: str | None, grades: Grades, right: bool) -> None:
    assert is_right(accuracy, QUESTION, response, grades) is right


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


def test_a_reward_is_shown_with_the_terms_of_its_preset() -> None:
    gated = make_reward({"exact_match": 1.0, "searches": -0.02, "valid": {"gate": True}})
    assert str(gated) == "(1 exact_match + -0.02 searches) × valid"
    assert str(make_reward({"preset": "search-r1", "f1": 0.2})) == "(1 exact_match + 0.2 f1)"
    assert str(make_reward({"valid": {"gate": True}})) == "valid"
    assert repr(gated) == "RewardFunction(exact_match, searches, valid)"


PARTS_OF_PASSAGES = ["gold_recall", "ndcg", "step_search"]
PARTS_OF_ANSWERS = sorted({*reward_names()} - {*PARTS_OF_PASSAGES, "searches", "searched", "valid", "invalid"})


@pytest.mark.parametrize("name", PARTS_OF_ANSWERS)
def test_a_question_without_gold_answers_is_refused_in_the_name_of_the_part_that_needs_them(name: str) -> None:
    bare = run(question=replace(QUESTION, answers=()))
    with pytest.raises(DataError, match=f"^question 'q1' has no gold answers, and the reward '{name}' needs them;"):
        make_reward({name: 1.0})(bare, Grades(GeneratedAnswer("q1", 0, "c", "Zun")))
    with pytest.raises(DataError, match=f"^question 'q1' has no gold answers, and the reward '{name}' needs them;"):
        make_reward({name: 1.0}).check_golds([QUESTION, bare.question])


def test_a_reward_that_needs_no_golds_takes_questions_without() -> None:
    make_reward({"searches": 1.0}).check_golds([replace(QUESTION, answers=(), gold_ids=())])
    make_reward(dict.fromkeys(PARTS_OF_ANSWERS, 1.0)).check_golds([replace(QUESTION, gold_ids=())])


@pytest.mark.parametrize("golds", [("The",), ("!!!", "A"), ("",)])
def test_gold_answers_that_nothing_can_match_are_a_fault_unless_a_judge_decides(
    golds: tuple[str, ...],
) -> None:
    lost = run(question=replace(QUESTION, answers=golds), answer=golds[0] or "x")
    for name in {*PARTS_OF_ANSWERS} - {"gbr", "gen_acc"}:
        outcome = make_reward({name: 1.0}).compute(lost, SAID)
        assert isinstance(outcome, RewardFault) and outcome.part == "gold answers", name
    accepted = Grades(verdicts={lost.answer or "": Verdict("q1", lost.answer or "", True)})
    assert make_reward({"gen_acc": {"of": "own"}}).compute(lost, accepted) == Reward(
        1.0, {"gen_acc": 1.0, "gen_acc/span": 0.0, "gen_acc/judge": 1.0}
    )


@pytest.mark.parametrize("name", PARTS_OF_PASSAGES)
def test_a_question_without_gold_passages_is_refused_in_the_name_of_the_part_that_needs_them(name: str) -> None:
    bare = run(question=replace(QUESTION, gold_ids=()))
    with pytest.raises(DataError, match=f"^question 'q1' names no gold_ids, and the reward '{name}' needs them;"):
        make_reward({name: 1.0})(bare)
    with pytest.raises(DataError, match=f"^question 'q1' names no gold_ids, and the reward '{name}' needs them;"):
        make_reward({name: 1.0}).check_golds([QUESTION, bare.question])
