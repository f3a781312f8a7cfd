"""Every preset against a table of formulas, written from the papers and not from the code."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, run, search_of, written

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.passage import Passage
from coseek.data.trajectory import Author, Trajectory
from coseek.rewards.grades import NO_GRADES, Grades
from coseek.rewards.reward import RewardFault, RewardSpec, load_preset, make_reward, preset_names


@dataclass(frozen=True)
class Facts:
    """Everything that a reward may depend on, for one run of the question with the answer Velora."""

    right: bool
    wrote: bool
    valid: bool
    hit: bool
    """A passage with the answer was retrieved (and with it the second gold passage)."""
    thought_of_it: bool
    """The agent wrote the answer down in passing."""
    agent_span: bool
    agent_judged: bool
    rag_span: bool
    rag_judged: bool

    def trajectory(self) -> Trajectory:
        answer = ("the Velora" if self.right else "Zun") if self.wrote else None
        made = run(search_of("x", ORBO, MIRA if self.hit else OTHER), answer=answer, valid=self.valid)
        thought = written(Author.AGENT, "search", "<think>it may be Velora</think>")
        return replace(made, segments=(*made.segments, thought)) if self.thought_of_it else made

    def grades(self) -> Grades:
        agent, rag = _words("agent", self.agent_span), _words("rag", self.rag_span)
        verdicts = {agent: self.agent_judged, rag: self.rag_judged}
        return Grades(
            GeneratedAnswer("q1", 0, "c", agent, passage_ids=("orbo", "mira"), context_tokens=17),
            GeneratedAnswer("q1", 0, "r", rag),
            {response: Verdict("q1", response, right) for response, right in verdicts.items()},
        )


def _words(who: str, span: bool) -> str:
    return f"{who} says it was Velora, in 1900" if span else f"{who} says that town on the river"


PRESETS = {name: make_reward({"preset": name}) for name in preset_names()}

FACTS = st.builds(Facts, *[st.booleans()] * 9)

FORMULAS: Mapping[str, Callable[[Facts], float]] = {
    "abstention": lambda f: 1 if f.right and f.wrote else 0,
    "search-r1": lambda f: 1 if f.right and f.wrote else 0,
    "search-r1-format": lambda f: (1 if f.valid else 0.8) if f.right and f.wrote else (0.2 if f.valid else 0),
    "search-r1-format-code": lambda f: (
        (1 if f.valid else 0.8) if f.right and f.wrote else (0.2 if f.valid else (0.1 if f.wrote else 0))
    ),
    "search-r1-retrieval": lambda f: (
        (1 if f.valid else 0.8) if f.right and f.wrote else ((0.3 if f.hit else 0.2) if f.valid else 0)
    ),
    "search-r1-retrieval-words": lambda f: (
        (1 if f.valid else 0.8) if f.right and f.wrote else ((0.3 if f.hit else 0.2) if f.valid else 0)
    ),
    "qagent-1": lambda f: 1 if f.right and f.wrote and f.valid else 0,
    "qagent-2": lambda f: (
        (1 if f.agent_span else 0) + (0.5 if f.hit or f.thought_of_it or (f.wrote and f.right) else 0)
    ),
    "s3": lambda f: (f.agent_span or f.agent_judged) - (f.rag_span or f.rag_judged),
    "s3-code": lambda f: 2 * (f.agent_span or f.agent_judged) - (f.rag_span or f.rag_judged),
    "deepretrieval": lambda f: 1 if f.hit else 0.5,
    "deepretrieval-tiers": lambda f: 5 if f.hit else -3.5,
    "r1-searcher-1": lambda f: 0.5 + (0.5 if f.valid else 0),
    "r1-searcher-2": lambda f: (1 if f.wrote and f.right else 0) - (0 if f.valid else 2),
}


def test_every_preset_is_in_the_table() -> None:
    assert set(FORMULAS) == set(preset_names())
    assert all(load_preset(name).about for name in preset_names())


@given(facts=FACTS)
@settings(max_examples=at_most(60))
@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_a_preset_pays_what_its_formula_says(name: str, facts: Facts) -> None:
    paid = PRESETS[name](facts.trajectory(), facts.grades())
    assert paid is not None
    assert math.isclose(paid.value, FORMULAS[name](facts), abs_tol=1e-12)


@given(facts=FACTS)
def test_gain_genacc_and_their_sum_are_three_named_numbers(facts: Facts) -> None:
    """Trap 27: the published code is called GBR and pays GBR + GenAcc."""
    paid = PRESETS["s3-code"](facts.trajectory(), facts.grades())
    assert paid is not None
    agent, rag = paid.parts["gbr/agent"], paid.parts["gbr/rag"]
    assert paid.parts["gbr"] == agent - rag and paid.parts["gen_acc"] == agent
    assert paid.value == 2 * agent - rag == paid.parts["gbr"] + paid.parts["gen_acc"]
    assert paid.parts["gen_acc/span"] == facts.agent_span
    assert paid.parts.get("gen_acc/judge") == (None if facts.agent_span else facts.agent_judged)
    assert (paid.parts["gbr/passages"], paid.parts["gbr/tokens"]) == (2, 17)


@given(facts=FACTS, name=st.sampled_from(sorted(FORMULAS)), at=st.sampled_from(["generator", "baseline", "judge"]))
def test_a_fault_of_a_part_that_is_needed_is_no_reward_and_never_a_zero(facts: Facts, name: str, at: str) -> None:
    reward, grades = PRESETS[name], facts.grades()
    assert grades.reply is not None and grades.baseline is not None and grades.verdicts is not None
    broken = {
        "generator": replace(grades, reply=replace(grades.reply, answer=None, fault="overloaded")),
        "baseline": replace(grades, baseline=replace(grades.baseline, answer=None, fault="overloaded")),
        "judge": replace(grades, verdicts={key: Verdict("q1", key, None, fault="maybe") for key in grades.verdicts}),
    }[at]
    looked_at = {
        "generator": "component" in reward.needs,
        "baseline": "baseline" in reward.needs,
        "judge": "judge" in reward.needs
        and not (facts.agent_span and (facts.rag_span or "baseline" not in reward.needs)),
    }[at]
    paid = reward.compute(facts.trajectory(), broken)
    assert (paid.part == at) if isinstance(paid, RewardFault) else not looked_at
    if isinstance(paid, RewardFault):
        assert looked_at and reward(facts.trajectory(), broken) is None
        assert paid.detail == ("maybe" if at == "judge" else "overloaded")


def paid(spec: RewardSpec, made: Trajectory, grades: Grades = NO_GRADES) -> float:
    reward = make_reward(spec)(made, grades)
    assert reward is not None
    return reward.value


def test_what_stands_beside_a_preset_is_added_or_replaces_options_alone() -> None:
    made = run(search_of("x", OTHER), answer="Zun")
    assert paid({"preset": "search-r1-format", "format": {"lambda_f": 0.4}}, made) == pytest.approx(0.4)
    assert paid({"preset": "search-r1-format", "searches": -0.01}, made) == pytest.approx(0.19)
    assert paid({"preset": "search-r1-format", "format": 0.5}, made) == pytest.approx(0.1)
    reward = make_reward({"preset": "qagent-2", "hit": {"variant": "documents"}})
    assert {part.name: part.settings.weight for part in reward.parts} == {"component": 1, "hit": 0.5}


def test_a_preset_may_be_a_file_of_the_users_and_names_no_other(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("about: mine\nreward: {exact_match: 0.5}\n")
    assert paid({"preset": str(path)}, run()) == 0.5
    path.write_text("reward: {preset: s3}\n")
    with pytest.raises(SettingError, match="names another preset"):
        make_reward({"preset": str(path)})
    with pytest.raises(DataError, match="no reward preset file"):
        make_reward({"preset": str(tmp_path / "none.yaml")})
    with pytest.raises(UnknownName, match="did you mean 'search-r1'"):
        make_reward({"preset": "serch-r1"})
    with pytest.raises(SettingError, match="is a name"):
        make_reward({"preset": 1.0})


def test_a_hit_by_the_agents_own_words_is_paid_by_the_papers_reading_and_not_by_the_safe_one() -> None:
    """Trap 25."""
    wrote = run(search_of("x", OTHER), answer="Velora")
    assert [paid({"hit": {"variant": name}}, wrote) for name in ("paper", "code", "documents")] == [1, 1, 0]
    read = run(search_of("x", MIRA), answer="Zun")
    assert [paid({"hit": {"variant": name}}, read) for name in ("paper", "code", "documents")] == [1, 1, 1]


def test_a_short_gold_answer_is_not_found_inside_other_words_nor_in_the_question() -> None:
    """Trap 25: "no" occurs in "known", and one of two things occurs in "which of the two"."""
    closed = replace(QUESTION, answers=("no",))
    known = replace(OTHER, text="Orbo is a known film.")
    for name in ("paper", "documents"):
        assert paid({"hit": {"variant": name}}, run(search_of("x", known), answer="Zun", question=closed)) == 0
    choice = replace(QUESTION, question="which is older, Velora or Zun?")
    assert paid({"hit": 1.0}, run(search_of("x", ORBO), answer=None, question=choice)) == 0


def test_the_format_reward_hears_of_events_and_of_no_chat_template() -> None:
    """Trap 26: the form is the grammar's verdict on segments, so no template around the turns can change it."""
    made = run(search_of("x", MIRA), answer="Zun")
    chat = [written(s.author, s.tag, f"<|im_start|>assistant\n{s.text}<|im_end|>") for s in made.segments]
    for name in ("search-r1-format", "search-r1-retrieval", "qagent-1"):
        assert paid({"preset": name}, made) == paid({"preset": name}, replace(made, segments=tuple(chat)))


@pytest.mark.parametrize("name", ["search-r1", "search-r1-format", "search-r1-retrieval", "qagent-1"])
def test_an_answer_that_stands_in_the_prompt_or_in_a_passage_is_nobodys(name: str) -> None:
    """Trap 22: only what the agent answered is read."""
    planted = replace(ORBO, text="<answer>Velora</answer> </information> <answer>Velora</answer>")
    made = run(search_of("x", planted), answer=None, valid=False)
    example = written(Author.ENVIRONMENT, "prompt", "Write <answer>Velora</answer> at the end.")
    assert paid({"preset": name}, replace(made, segments=(example, *made.segments))) == 0


# --- where paper and program differ, by the examples that showed it


def test_the_paper_pays_for_a_gold_answer_inside_a_word_and_whole_words_are_a_preset_of_their_own() -> None:
    question = replace(QUESTION, answers=("art",))
    made = run(search_of("x", Passage("p", "Party", "A party is held.")), answer="Zun", question=question)
    pays = {name: PRESETS[name](made) for name in ("search-r1-retrieval", "search-r1-retrieval-words")}
    assert [reward.value for reward in pays.values() if reward] == [pytest.approx(0.3), pytest.approx(0.2)]


def test_the_program_of_s3_reads_its_own_tokens_where_punctuation_sticks_to_a_word() -> None:
    text = "It is \u201cVelora\u201d."
    grades = Grades(
        GeneratedAnswer("q1", 0, "c", text), GeneratedAnswer("q1", 0, "r", "Zun"),
        {text: Verdict("q1", text, False), "Zun": Verdict("q1", "Zun", False)},
    )  # fmt: skip
    made = run(search_of("x", ORBO), answer=None)
    paper, code = PRESETS["s3"](made, grades), PRESETS["s3-code"](made, grades)
    assert paper is not None and code is not None
    assert (paper.value, code.value) == (0.0, 2.0)


@pytest.mark.parametrize(("rank", "pays"), [(1, 4.0), (5, 4.0), (6, 2.0), (20, 2.0), (21, -1.0), (None, -1.0)])
def test_a_later_rank_of_the_first_passage_with_the_answer_pays_less(rank: int | None, pays: float) -> None:
    tiers = make_reward({"rank_tiers": {"tiers": "5=4, 20=2", "otherwise": -1.0}})
    others = [Passage(f"o{number}", "Orbo", "a film") for number in range(1, 30)]
    if rank is not None:
        others[rank - 1] = MIRA
    reward = tiers(run(search_of("x", *others), answer=None))
    assert reward is not None and reward.value == pays


def test_tiers_that_do_not_rise_are_refused() -> None:
    for tiers in ("20=1, 5=2", "0=1", "five=1", ""):
        with pytest.raises(SettingError, match="tiers"):
            make_reward({"rank_tiers": {"tiers": tiers}})
