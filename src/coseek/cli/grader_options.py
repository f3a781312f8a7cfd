"""Graders of a command: opens the models of `--answer-with` and `--judge`, and scores runs with them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from coseek.agents.protocol import stored_protocol
from coseek.agents.sources import SELECTED
from coseek.cli.terminal import progress_bar, resumable, say
from coseek.core.cluster import Cluster
from coseek.core.errors import SettingError, UserError
from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.data.dataset import EVERY, QuestionFilter
from coseek.data.digests import KEY, questions_digest
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import open_generator, open_judge
from coseek.graders.generator import ContextBudget, Generator, GeneratorSettings
from coseek.graders.grading import BATCH, Tell, generate_answers, judge_claims
from coseek.graders.judge import Claim, Judge, JudgeSettings
from coseek.hardware.device import AUTO
from coseek.measure.agreement import Agreement, agreements
from coseek.measure.component_scores import Answers, component_run
from coseek.measure.score import JUDGED, ScoredRun, Verdicts, check_metrics, score_run
from coseek.models.text_model import CachedTextModel, TextModelSettings
from coseek.pipelines.agent_run import load_run_questions, recorded_settings


def open_parts(
    metrics: Sequence[str],
    answer_with: str | None,
    budget: int,
    prompt: str | None,
    judges: Sequence[str | None],
    judge_prompt: str,
    cache: Path | None,
    device: str | None = None,
    cluster: Cluster | None = None,
) -> "GraderSet":
    """Open the named generator and judges, in the processes of a `cluster` if there is one. Raises `SettingError` for
    an unknown metric, and for one that needs a judge if there is none."""
    writing = TextModelSettings(device=device or AUTO)
    check_metrics(metrics)
    judged_metrics = [name for name in metrics if name in JUDGED]
    if judged_metrics and not judges:
        raise SettingError(f"{judged_metrics[0]} needs a judge: name one with --judge")
    generator = None
    if answer_with is not None:
        tree = {"model": answer_with, "prompt": prompt, "max_context_tokens": budget}
        generator = open_generator(make_settings(GeneratorSettings, tree), cache, writing, cluster)
    judge_settings = (make_settings(JudgeSettings, {"model": name, "prompt": judge_prompt}) for name in judges if name)
    opened_judges = tuple(open_judge(settings, cache, writing, cluster) for settings in judge_settings)
    return GraderSet(budget, generator, opened_judges, BATCH if cluster is None else 4 * BATCH * cluster.workers)


@dataclass(frozen=True)
class GraderSet:
    """The generator and the judges of a command. Scores use the verdicts of the first judge."""

    budget: int
    """Tokens of passages for `budgeted_recall`, counted as in `ContextBudget`."""
    generator: Generator | None = None
    judges: tuple[Judge, ...] = ()
    size: int = BATCH
    """Number of prompts in a batch."""

    def names(self) -> list[str]:
        """Names of the judges in tables."""
        return [f"judge {number}: {_judge_name(judge)}" for number, judge in enumerate(self.judges, start=1)]

    def notes(self) -> list[str]:
        """Lines below a table that name its generator and judge."""
        lines = []
        if self.generator is not None:
            lines.append(f"Generator: {self.generator.settings.model} ({self.generator.identity[:12]}).")
        if self.judges:
            lines.append(f"Judge: {_judge_name(self.judges[0])} ({self.judges[0].identity[:12]}).")
        return lines

    def to_json(self) -> JsonObject:
        """The same as JSON, with everything that a score depends on."""
        tree: JsonObject = {"budget_tokens": self.budget}
        if self.generator is not None:
            tree["generator"] = {"identity": self.generator.identity, **self.generator.card}
        if self.judges:
            tree["judges"] = [{"identity": judge.identity, **judge.card} for judge in self.judges]
        return tree


@dataclass(frozen=True)
class ScoredBothWays:
    """A run scored by its own answers, and by the generator's answers from its passages (as a component)."""

    own: ScoredRun
    component: ScoredRun | None
    verdicts: tuple[Verdicts, ...] = ()
    """One mapping per judge, over both kinds of answers."""
    servings: tuple[ScoredRun, ...] = ()
    """The component by each serving, the first of which is `component`. Empty if only the selection is served."""


def ask(
    run: Run, name: str, parts: GraderSet, select: QuestionFilter = EVERY, servings: Sequence[str] = (SELECTED,)
) -> ScoredBothWays:
    """Score a run. The generator answers from its passages, and the judges judge all answers; cached results are
    reused.

    Without generator and judges, trajectories are streamed and not kept in memory.
    """
    stored_protocol(run)
    budget = ContextBudget(parts.budget).fill
    if parts.generator is None and not parts.judges:
        return ScoredBothWays(score_run(name, _chosen_trajectories(run, select), budget=budget), None)
    trajectories = list(_chosen_trajectories(run, select))
    answers: dict[str, Answers] = {}
    if parts.generator is not None:
        for serving in servings:
            with _progress_of(f"{name}: answers" if serving == SELECTED else f"{name}: answers, {serving}") as tell:
                answers[serving] = generate_answers(
                    parts.generator, trajectories, run.folder, tell, parts.size, serving
                )
        warn_of_cuts(parts.generator)
    claims = claims_of(trajectories, *answers.values())
    verdicts: list[Verdicts] = []
    for judge in parts.judges:
        with _progress_of(f"{name}: verdicts") as tell:
            verdicts.append(judge_claims(judge, claims, run.folder, tell, parts.size))
    first = verdicts[0] if verdicts else None
    runs = [component_run(f"{name}, {key}", trajectories, texts, first, budget) for key, texts in answers.items()]
    return ScoredBothWays(
        score_run(name, trajectories, first, budget),
        replace(runs[0], name=name) if runs else None,
        tuple(verdicts),
        tuple(runs) if tuple(servings) != (SELECTED,) else (),
    )


def _chosen_trajectories(run: Run, question_filter: QuestionFilter) -> Iterator[Trajectory]:
    """The trajectories of a run whose questions pass the filter."""
    if question_filter == EVERY:
        return run.trajectories()
    questions = {trajectory.question.id: trajectory.question for trajectory in run.trajectories()}
    chosen_ids = {question.id for question in question_filter.apply(list(questions.values()))}
    return (trajectory for trajectory in run.trajectories() if trajectory.question.id in chosen_ids)


def claims_of(trajectories: Sequence[Trajectory], *answers: Answers) -> list[Claim]:
    """All answers to judge: the agent's own and the generator's."""
    claims = [Claim(run.question, run.answer) for run in trajectories if run.fault is None and run.answer is not None]
    questions = {trajectory.question.id: trajectory.question for trajectory in trajectories}
    entries = (entry for by_trajectory in answers for entry in by_trajectory.values())
    return claims + [Claim(questions[entry.question_id], entry.answer) for entry in entries if entry.answer]


def agreements_over(scored: Sequence[ScoredBothWays], parts: GraderSet) -> dict[tuple[str, str], Agreement]:
    """Pairwise agreement of the judges over the responses of all runs."""
    verdicts: dict[str, Verdicts] = {}
    for number, name in enumerate(parts.names()):
        # The same response to a question in several runs counts once.
        verdicts[name] = {key: verdict for run in scored for key, verdict in run.verdicts[number].items()}
    return agreements(verdicts)


def warn_of_cuts(generator: Generator) -> None:
    """Print how many prompts were too long for a local model, which then read less than was recorded."""
    model = generator.model.model if isinstance(generator.model, CachedTextModel) else generator.model
    if cut_count := getattr(model, "cut_prompts", 0):
        say(f"{cut_count} prompts were too long for {generator.settings.model} and lost their middle; lower --budget")


@contextmanager
def _progress_of(task: str) -> Iterator[Tell]:
    """A progress bar as a callback of (done, total)."""
    with resumable("the same command"), progress_bar() as bars:
        yield partial(bars.report, task)


def _judge_name(judge: Judge) -> str:
    card = judge.card
    return str(card["model"]) if "model" in card else f"the oracle of {card['oracle']}"


def intended(runs: Sequence[Run], select: QuestionFilter = EVERY) -> list[Question]:
    """The questions that the runs were to answer, if their files still exist. A stopped run lacks some of them."""
    questions: list[Question] = []
    for run in runs:
        path, identities = run.settings.get("questions"), run.record.get(KEY)
        if not isinstance(path, str) or not Path(path).exists():
            continue
        drawn: list[Question] = []
        with suppress(UserError):
            drawn = load_run_questions(recorded_settings(run.settings))
        recorded = identities.get("questions") if isinstance(identities, dict) else None
        if drawn and recorded in (None, questions_digest(drawn)):
            questions += drawn
        else:
            say(f"{run.folder}: {path} has changed since, so questions that the run lacks are not counted")
    return questions if select == EVERY else select.apply(questions)
