"""Fears about rewards with frozen models: repeated calls, too many calls, and faults that become a 0."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tests.agents.playing import QUESTION as ADAS, WIDE, Shelf, play
from tests.examples_drawn import at_most
from tests.measure.samples import MIRA, ORBO, OTHER, QUESTION, fault, run, search_of
from tests.scripted import Failing, Scripted, generator, judge

from coseek.agents.limits import Limits
from coseek.agents.sources import served_context
from coseek.core.cache import TextCache
from coseek.core.errors import DataError, ModelError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.passage import Corpus, Passage
from coseek.data.trajectory import StopReason, Trajectory
from coseek.data.trajectory_checks import check_trajectory
from coseek.graders.factory import GraderSettings, check_graders, open_graders
from coseek.graders.judge import Claim, VerdictKey
from coseek.graders.rag_baseline import FILE, RagBaselines, baseline_cache, is_closed, make_baselines, unsolved_by_rag
from coseek.graders.scoring import TrajectoryScorer, dev_metrics
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.models.text_model import CachedTextModel
from coseek.pipelines.agent_recipe import load_recipe
from coseek.retrieval.retriever import FixedRetriever
from coseek.rewards.grades import Accuracy
from coseek.rewards.reward import Reward, RewardFault, RewardSpec, make_reward

GBR: RewardSpec = {"gbr": 1.0}
NOWHERE = Path("baselines.jsonl")


def reads(prompt: str) -> str:
    """A generator that answers Velora if a passage names it as a place of birth, and else guesses."""
    return "Velora" if "born in Velora" in prompt else "Zun"


def baselines(answers: Mapping[str, str], verdicts: Mapping[VerdictKey, Verdict] | None = None) -> RagBaselines:
    question_digest = digest_of(QUESTION.question)
    replies = {(ident, question_digest): GeneratedAnswer(ident, 0, "", answer) for ident, answer in answers.items()}
    return RagBaselines(replies, verdicts, NOWHERE)


def values(scored: list[Reward | RewardFault]) -> list[float | str]:
    return [reward.value if isinstance(reward, Reward) else reward.part for reward in scored]


def test_a_gain_over_a_scripted_generator_is_what_a_hand_would_compute() -> None:
    hard, easy = QUESTION, replace(QUESTION, id="q2")
    scoring = TrajectoryScorer(
        make_reward({"preset": "s3-code"}),
        generator(Scripted(reads)),
        judge(Scripted(lambda prompt: "no")),
        baselines({"q1": "Zun", "q2": "in Velora"}),
    )
    runs = [
        run(search_of("m", MIRA), question=hard),  # 2·1 − 0
        run(search_of("o", ORBO), question=hard),  # 2·0 − 0
        run(search_of("m", MIRA), question=easy),  # 2·1 − 1
        run(search_of("o", ORBO), question=easy),  # 2·0 − 1
    ]
    assert values(scoring(runs)) == [2, 0, 1, -1]
    chosen = replace(search_of("m", ORBO, MIRA), selected=("orbo",))
    assert values(scoring([run(chosen, question=hard)])) == [0]  # unselected passages are not served


def test_a_steps_prompts_are_one_batch_and_equal_ones_are_written_once() -> None:
    writer, marker = Scripted(reads), Scripted(lambda prompt: "no")
    scoring = TrajectoryScorer(make_reward(GBR), generator(writer), judge(marker), baselines({"q1": "Zun"}))
    scoring([run(search_of("o", ORBO)), run(search_of("o", ORBO), seed=1), run(search_of("m", MIRA)), fault()])
    assert [len(batch) for batch in writer.calls] == [2]
    # "Velora" is decided by matching; "Zun" is both the generator's answer and the baseline's.
    assert [len(batch) for batch in marker.calls] == [1]


def test_a_verdict_that_was_precomputed_on_the_baseline_is_not_asked_again() -> None:
    marker = Scripted(lambda prompt: "no")
    known = {Claim(QUESTION, "the town").key: Verdict("q1", "the town", True)}
    scoring = TrajectoryScorer(
        make_reward(GBR), generator(Scripted(reads)), judge(marker), baselines({"q1": "the town"}, known)
    )
    assert values(scoring([run(search_of("m", MIRA))])) == [0]
    assert not marker.calls
    failed = {Claim(QUESTION, "the town").key: Verdict("q1", "the town", None, fault="overloaded")}
    again = TrajectoryScorer(scoring.reward, scoring.generator, scoring.judge, baselines({"q1": "the town"}, failed))
    assert values(again([run(search_of("m", MIRA))])) == [1]
    assert len(marker.calls) == 1


def test_a_cache_hit_is_the_same_reward_and_asks_nobody(tmp_path: Path) -> None:
    runs = [run(search_of("o", ORBO)), run(search_of("m", MIRA)), run(search_of("x", OTHER), seed=2), fault()]
    scored = []
    for _ in range(2):
        writer, marker, store = Scripted(reads), Scripted(lambda prompt: "yes"), TextCache(tmp_path / "cache.sqlite")
        parts = generator(CachedTextModel(writer, store)), judge(CachedTextModel(marker, store))
        scored.append(TrajectoryScorer(make_reward({"preset": "s3-code"}), *parts, baselines({"q1": "hm"}))(runs))
        counts = (len(writer.calls), len(marker.calls))
    assert scored[0] == scored[1]
    assert counts == (0, 0)


def test_faults_are_counted_by_name_and_take_no_sibling_along() -> None:
    from coseek.training.rl.rollout import rollout_metrics, score

    def generates(prompt: str) -> str:
        if "Zun" in prompt:
            raise ModelError("overloaded")
        return "Velora" if "born in" in prompt else "unclear"

    scoring = TrajectoryScorer(
        make_reward(GBR),
        generator(Scripted(generates)),
        judge(Scripted(lambda prompt: "maybe" if "unclear" in prompt else "no")),
        baselines({"q1": "Zun"}),
    )
    runs = [
        run(search_of("m", MIRA)),
        run(search_of("x", OTHER)),
        run(search_of("o", ORBO)),
        fault(),
        run(search_of("m", MIRA), seed=1),
    ]
    assert values(scoring(runs)) == [1, "generator", "judge", "retriever_error", 1]
    described = rollout_metrics(score([0, 0, 1, 1, 1], runs, scoring))
    assert described["faults"] == 3 and described["trajectories"] == 5
    assert [described[f"faults/{name}"] for name in ("generator", "judge", "retriever_error")] == [1, 1, 1]
    assert described["reward"] == described["reward/gbr"] == described["reward/gbr/agent"] == 1


def test_where_every_dev_question_has_a_fault_its_reason_is_said() -> None:
    runs = [replace(fault(seed=seed), stop=StopReason.MODEL_ERROR, stop_detail="no choices") for seed in range(2)]
    with pytest.raises(DataError, match="2 of 2: model_error: no choices"):
        dev_metrics(runs, TrajectoryScorer(make_reward({"exact_match": 1.0})))


def test_the_dev_curve_of_an_agent_that_only_searches_has_no_exact_match() -> None:
    scoring = TrajectoryScorer(make_reward({"answer_hit": 1.0}))
    for protocol, has_em in (("s3", False), ("search-r1", True)):
        metrics = dev_metrics([replace(run(search_of("o", ORBO), answer=None), protocol=protocol)], scoring)
        assert ("exact_match" in metrics) is has_em and metrics["reward"] == 0


def test_what_only_some_runs_have_is_a_mean_over_those() -> None:
    from coseek.training.rl.rollout import rollout_metrics, score

    scoring = TrajectoryScorer(
        make_reward({"gen_acc": 1.0}), generator(Scripted(reads)), judge(Scripted(lambda prompt: "yes"))
    )
    described = rollout_metrics(
        score([0, 0, 0], [run(search_of("m", MIRA)), run(search_of("m", MIRA)), run()], scoring)
    )
    assert described["reward/gen_acc/span"] == pytest.approx(2 / 3)
    assert described["reward/gen_acc/judge"] == 1  # of the only run that was judged


@given(served=st.lists(st.sampled_from([MIRA, ORBO, OTHER, None]), min_size=1, max_size=8))
@settings(max_examples=at_most(40))
def test_a_runs_reward_depends_on_that_run_alone(served: list[Passage | None]) -> None:
    """`None` stands for a run that ended by a fault."""
    scoring = TrajectoryScorer(
        make_reward(GBR), generator(Scripted(reads)), judge(Scripted(lambda prompt: "no")), baselines({"q1": "Zun"})
    )
    runs = [
        fault(seed=seed) if passage is None else run(search_of("q", passage), seed=seed)
        for seed, passage in enumerate(served)
    ]
    assert scoring(runs) == [paid for trajectory in runs for paid in scoring([trajectory])]


@pytest.mark.parametrize("reply", ["Yes.", "no", "yesterday", "yes, because it is", "", "Yes\n\nNo"])
def test_a_verdict_that_cannot_be_read_is_a_fault_and_never_a_0(reply: str) -> None:
    """Trap 28: "yes" stands in "yesterday"."""
    scoring = TrajectoryScorer(make_reward({"gen_acc": {"of": "own"}}), judge=judge(Scripted(lambda prompt: reply)))
    (paid,) = values(scoring([run(answer="a town")]))
    assert paid == {"Yes.": 1, "no": 0, "yes, because it is": 1}.get(reply, "judge")


@pytest.mark.parametrize(
    ("spec", "tree", "says"),
    [
        (GBR, {}, "'gbr' needs a frozen generator"),
        (GBR, {"generator": {"model": "m"}}, "'gbr' needs a judge"),
        (GBR, {"generator": {"model": "m"}, "judge": {"model": "oracle"}}, "in laptop worlds only"),
        ({"gen_acc": {"of": "own"}}, {"generator": {"model": "m"}}, "'gen_acc' needs a judge"),
    ],
)
def test_a_reward_without_its_part_is_refused_before_anything_is_opened(
    spec: RewardSpec, tree: dict[str, object], says: str
) -> None:
    with pytest.raises(SettingError, match=says):
        check_graders(GraderSettings.model_validate(tree), make_reward(spec), world=False)


def test_a_reward_that_needs_nothing_needs_no_settings() -> None:
    check_graders(GraderSettings(), make_reward({"preset": "search-r1"}), world=False)
    parts = GraderSettings.model_validate({"generator": {"model": "m"}})
    check_graders(parts, make_reward({"preset": "s3", "gbr": {"accuracy": "cover_match"}}), world=False)
    with pytest.raises(SettingError, match=r"needs a naive-RAG baseline.*graders\.baseline"):
        TrajectoryScorer(make_reward({"gbr": {"accuracy": "cover_match"}}), generator(Scripted(reads)))


def test_the_oracle_of_the_runs_world_judges(tmp_path: Path) -> None:
    world = make_world(WorldSettings(size="tiny"))
    world.save(tmp_path / "world")
    named = GraderSettings.model_validate({"judge": {"model": "oracle"}})
    parts = open_graders(named, tmp_path, tmp_path / "world")
    question = next(question for question in world.questions["train"] if question.answers not in (("yes",), ("no",)))
    scoring = parts.scoring(make_reward({"gen_acc": {"of": "own"}}))
    runs = [run(question=question, answer=answer) for answer in (question.answers[0], "no such place")]
    assert values(scoring(runs)) == [1, 0]
    with pytest.raises(SettingError, match="in laptop worlds only"):
        open_graders(named, tmp_path)
    with pytest.raises(SettingError, match=r"graders\.generator\.model"):
        parts.baselines([], FixedRetriever(Corpus([ORBO]), {}), "gen_acc")


# --- s3's opening search


EARTH = [
    Passage(f"e{n}", title, f"{title} is about houses of earth.") for n, title in enumerate(("Clay", "Reno", "Turf"))
]
FILM = [Passage("f0", "Tyre Walls", "Tyre Walls is a film."), Passage("f1", "Tyre Walls", "It was shown in 1815.")]
REST = [Passage(f"r{n}", f"Rest {n}", f"nothing {n}") for n in range(10)]
EVERY = Corpus([*EARTH, *FILM, *REST])
QUERY = "film about the builder of houses of earth"
SHELF = Shelf(EVERY, {
    ADAS.question: [passage.id for passage in (*EARTH, *REST)],
    QUERY: [passage.id for passage in (*FILM, EARTH[0], *REST[:5])],
})  # fmt: skip
TURNS = (
    f'<search_complete> False </search_complete>\n<query>{{"query": "{QUERY}"}}</query>',
    "<important_info>[1, 2]</important_info>\n<search_complete> True </search_complete>",
)
"""The shape of table 7: nothing is selected of the opening search, and two documents of the next."""


def limits(preset: str) -> Limits:
    """Limits of the paper's recipe, with room for tokens that are bytes."""
    own = load_recipe("s3", [f"preset={preset}"]).limits
    return WIDE.model_copy(update={name: getattr(own, name) for name in ("opening_passages", "passages_per_search")})


def s3(*turns: str, preset: str = "paper", protocol: str = "s3") -> Trajectory:
    return play(protocol, *turns, limits=limits(preset), retriever=SHELF)


@pytest.mark.parametrize(("preset", "protocol"), [("paper", "s3"), ("code", "s3-code")])
def test_the_worked_example_of_the_paper_serves_its_five_passages(preset: str, protocol: str) -> None:
    trajectory = s3(*TURNS, preset=preset, protocol=protocol)
    assert [len(search.hits) for search in trajectory.searches] == [3, 8]
    assert [passage.id for passage in served_context(trajectory)] == ["e0", "e1", "e2", "f0", "f1"]
    assert not list(check_trajectory(trajectory))


def test_a_run_that_completes_at_once_gains_nothing_over_naive_rag(tmp_path: Path) -> None:
    # A generator that is right only with the fourth passage: with eight passages, doing nothing would earn 1.
    writer = Scripted(lambda prompt: "1815" if "Rest 0" in prompt else "a house")
    parts = generator(writer), judge(Scripted(lambda _: "no"))
    recipe = load_recipe("s3")
    made = make_baselines(tmp_path, [ADAS], SHELF, parts[0], recipe.graders.baseline.passages, parts[1])
    scoring = TrajectoryScorer(make_reward(recipe.reward), *parts, made)
    trajectory = s3("<search_complete>True</search_complete>")
    assert tuple(passage.id for passage in served_context(trajectory)) == made.of(ADAS).passage_ids
    [paid] = scoring([trajectory])
    assert isinstance(paid, Reward) and paid.value == 0
    assert len({prompt for batch in writer.calls for prompt in batch}) == 1  # the same context, to the letter


# --- the naive-RAG baseline: another generator's, a missing one, a fault that counts as a failure of RAG


FIRST = QUESTION
SECOND = replace(QUESTION, id="q2", question="who founded Orbo?", answers=("Mira Tan",))
CLOSED = replace(QUESTION, id="q3", question="is Orbo a film?", answers=("No",))
CORPUS = Corpus([ORBO, MIRA, OTHER])
RESULTS = {FIRST.question: ["other", "orbo"], SECOND.question: ["orbo", "mira", "other"], CLOSED.question: ["other"]}
RETRIEVER = FixedRetriever(CORPUS, RESULTS)


def reader(prompt: str) -> str:
    return "Mira Tan" if "founded by Mira Tan" in prompt and "who founded" in prompt else "a town"


def test_naive_rag_is_one_search_for_the_question_and_its_first_k_passages_in_order(tmp_path: Path) -> None:
    made = make_baselines(tmp_path, [FIRST, SECOND], RETRIEVER, generator(Scripted(reader)), 2)
    assert made.of(FIRST).passage_ids == ("other", "orbo") and made.of(FIRST).answer == "a town"
    assert made.of(SECOND).passage_ids == ("orbo", "mira") and made.of(SECOND).answer == "Mira Tan"


def test_a_second_start_asks_only_what_is_missing_and_a_killed_line_is_dropped(tmp_path: Path) -> None:
    make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reader)), 2)
    with (tmp_path / FILE).open("a") as file:
        file.write('{"question_id": "q2", "se')
    model = Scripted(reader)
    made = make_baselines(tmp_path, [FIRST, SECOND, SECOND], RETRIEVER, generator(model), 2)
    assert [len(batch) for batch in model.calls] == [1]
    assert {ident for ident, _ in made.replies} == {"q1", "q2"}
    model.calls.clear()
    assert make_baselines(tmp_path, [SECOND], RETRIEVER, generator(model), 2).replies == made.replies
    assert not model.calls


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"k": 3}, "another passages;"),
        ({"max_context_tokens": 9}, "another generator, max_context_tokens;"),
        ({"prompt": "generator-laptop"}, "another generator, prompt;"),
        ({"model": "else"}, "another generator, model_identity;"),
        ({"corpus": "else"}, "another retriever;"),
    ],
)
def test_a_baseline_of_another_part_is_refused_by_name(tmp_path: Path, changed: dict[str, object], says: str) -> None:
    """Trap 27: same generator, prompt, k, order and retriever, or no gain."""
    make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reader)), 2)
    model = Scripted(reader, identity=str(changed.get("model", "scripted")))
    other = generator(model, **{name: value for name, value in changed.items() if name not in ("k", "model", "corpus")})
    retriever = FixedRetriever(Corpus([ORBO]), RESULTS) if "corpus" in changed else RETRIEVER
    with pytest.raises(DataError, match=says):
        baseline_cache(tmp_path, retriever, other, 3 if "k" in changed else 2)


def test_a_question_without_a_baseline_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    """Trap 27: a missing baseline is never a zero-shot answer."""
    made = make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reader)), 2)
    with pytest.raises(DataError, match=r"'q2' has no baseline in .*compute the baselines"):
        made.of(SECOND)
    with pytest.raises(DataError, match="'q1' has no baseline"):
        made.of(replace(FIRST, question="worded otherwise?"))


def test_a_baseline_of_another_question_with_this_id_is_not_taken(tmp_path: Path) -> None:
    model, other = Scripted(reader), replace(SECOND, id=FIRST.id)
    make_baselines(tmp_path, [FIRST], RETRIEVER, generator(model), 2)
    for _ in range(2):  # both are kept, so neither is paid for twice
        assert make_baselines(tmp_path, [other], RETRIEVER, generator(model), 2).of(other).answer == "Mira Tan"
        assert make_baselines(tmp_path, [FIRST], RETRIEVER, generator(model), 2).of(FIRST).answer == "a town"
    assert sum(map(len, model.calls)) == 2


def test_a_part_that_failed_is_no_failure_of_rag(tmp_path: Path) -> None:
    broken = {FIRST.question}
    retriever = Failing(RETRIEVER, lambda query: query.text in broken)
    made = make_baselines(tmp_path, [FIRST, SECOND], retriever, generator(Scripted(reader)), 2)
    assert made.of(FIRST).fault == "search: the disk is gone" and made.of(SECOND).fault is None
    chosen = unsolved_by_rag([FIRST, SECOND], made, "cover_match")
    assert (chosen.kept, chosen.solved, chosen.failed) == ((), 1, 1)
    broken.clear()
    mended = make_baselines(tmp_path, [FIRST, SECOND], retriever, generator(Scripted(reader)), 2)
    assert mended.of(FIRST).fault is None
    assert unsolved_by_rag([FIRST, SECOND], mended, "cover_match").kept == (FIRST,)


def test_trained_on_is_what_naive_rag_fails(tmp_path: Path) -> None:
    made = make_baselines(tmp_path, [FIRST, SECOND], RETRIEVER, generator(Scripted(reader)), 2)
    chosen = unsolved_by_rag([FIRST, SECOND], made, "cover_match")
    assert (chosen.kept, chosen.solved, chosen.failed) == ((FIRST,), 1, 0)
    with pytest.raises(SettingError, match="needs a judge"):
        unsolved_by_rag([FIRST], made)


@pytest.mark.parametrize(("says", "kept", "failed"), [("yes", 0, 0), ("no", 1, 0), ("perhaps", 0, 1)])
def test_the_judge_has_his_say_on_what_rag_solves(tmp_path: Path, says: str, kept: int, failed: int) -> None:
    made = make_baselines(tmp_path, [FIRST], RETRIEVER, generator(Scripted(reader)), 2, judge(Scripted(lambda _: says)))
    chosen = unsolved_by_rag([FIRST], made)
    assert (len(chosen.kept), chosen.failed) == (kept, failed)


@pytest.mark.parametrize(
    ("accuracy", "judged"), [("gen_acc", ["q1"]), ("judge", ["q1", "q2"]), ("cover_match", []), ("exact_match", [])]
)
def test_a_judge_is_shown_no_baseline_that_words_settle(tmp_path: Path, accuracy: Accuracy, judged: list[str]) -> None:
    who = judge(Scripted(lambda _: "yes"))
    made = make_baselines(tmp_path, [FIRST, SECOND], RETRIEVER, generator(Scripted(reader)), 2, who, accuracy)
    assert made.verdicts is not None and sorted(ident for ident, *_ in made.verdicts) == judged


@pytest.mark.parametrize(("answer", "closed"), [("Yes.", True), ("no", True), ("False", True), ("Nora", False)])
def test_closed_questions_are_known_by_their_gold_answers(answer: str, closed: bool) -> None:
    """Trap 25: their gold answers occur in almost any text."""
    assert is_closed(replace(QUESTION, answers=("Velora", answer))) is closed
