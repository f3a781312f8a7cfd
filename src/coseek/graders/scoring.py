"""Trajectory scorer: rewards all trajectories of a step, with one batch of calls per frozen model.

Rewards are pure functions (`coseek.rewards`); this module calls the generator and the judge for them. The judge is
called only if a reward cannot be decided without it. A fault leaves its trajectory without a reward and affects no
other trajectory.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from coseek.agents.sources import served_context
from coseek.core.errors import DataError, SettingError, commonest
from coseek.data.answers import can_match, exact_match
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.trajectory import Trajectory
from coseek.graders.generator import Generator
from coseek.graders.grading import generated_answer
from coseek.graders.judge import Claim, Judge
from coseek.graders.rag_baseline import RagBaselines
from coseek.measure.question_groups import MACRO, datasets_of
from coseek.measure.retrieval import run_recall
from coseek.measure.score import answers_itself
from coseek.rewards.grades import WAY_OUT, Grades, Need
from coseek.rewards.reward import Reward, RewardFault, RewardFunction


@dataclass(frozen=True)
class TrajectoryScorer:
    """A reward with the frozen models that it needs. Question ids must be unique."""

    reward: RewardFunction
    generator: Generator | None = None
    judge: Judge | None = None
    baselines: RagBaselines | None = None

    def __post_init__(self) -> None:
        graders = {"component": self.generator, "judge": self.judge, "baseline": self.baselines}
        check_needs(self.reward, {need for need, grader in graders.items() if grader is not None})

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Reward | RewardFault]:
        """A reward, or a fault, for every trajectory in order. Each depends only on its own trajectory."""
        grades = self._grades(trajectories)
        claims = {
            (trajectory.question.id, response): Claim(trajectory.question, response)
            for trajectory, trajectory_grades in zip(trajectories, grades, strict=True)
            if trajectory.fault is None
            for response in self.reward.to_judge(trajectory, trajectory_grades)
        }
        if claims and self.judge is not None:
            verdicts = dict(zip(claims, self.judge.judge(list(claims.values())), strict=True))
            grades = [
                _with_verdicts(trajectory_grades, trajectory.question.id, verdicts)
                for trajectory, trajectory_grades in zip(trajectories, grades, strict=True)
            ]
        return [self.reward.compute(*pair) for pair in zip(trajectories, grades, strict=True)]

    def _grades(self, trajectories: Sequence[Trajectory]) -> list[Grades]:
        """Grades of each trajectory before the judge is called."""
        replies = self._replies(trajectories) if "component" in self.reward.needs else {}
        baselines = self.baselines if "baseline" in self.reward.needs else None
        grades = []
        for index, trajectory in enumerate(trajectories):
            baseline = baselines.of(trajectory.question) if baselines is not None else None
            verdicts = (baselines.verdicts_on(trajectory.question) or {}) if baselines is not None else {}
            grades.append(Grades(replies.get(index), baseline, verdicts if self.judge is not None else None))
        return grades

    def _replies(self, trajectories: Sequence[Trajectory]) -> dict[int, GeneratedAnswer]:
        """The generator's answers from the passages of the trajectories without a fault, by index."""
        assert self.generator is not None
        faultless = {index: trajectory for index, trajectory in enumerate(trajectories) if trajectory.fault is None}
        contexts = [
            self.generator.context(trajectory.question.question, served_context(trajectory))
            for trajectory in faultless.values()
        ]
        answers = zip(faultless.items(), contexts, self.generator.answer(contexts), strict=True)
        return {
            index: generated_answer(trajectory.question.id, trajectory.seed, context, output)
            for (index, trajectory), context, output in answers
        }


def check_needs(reward: RewardFunction, available: set[str]) -> None:
    """Raise `SettingError` for a reward that needs a grade which is not `available`."""
    order: tuple[Need, ...] = ("component", "baseline", "judge")
    missing = [need for need in order if need in reward.needs and need not in available]
    if missing:
        parts = {need: next(part.name for part in reward.parts if need in part.needs) for need in missing}
        raise SettingError(*(f"the reward {part!r} needs {WAY_OUT[need]}" for need, part in parts.items()))


def _with_verdicts(grades: Grades, question_id: str, verdicts: dict[tuple[str, str], Verdict]) -> Grades:
    """Add the verdicts on this question to the grades."""
    question_verdicts = {response: verdict for (ident, response), verdict in verdicts.items() if ident == question_id}
    return replace(grades, verdicts={**(grades.verdicts or {}), **question_verdicts})


def dev_metrics(trajectories: Sequence[Trajectory], scoring: TrajectoryScorer) -> dict[str, float]:
    """Mean reward, strict EM and gold-passage recall of the trajectories without a fault; a metric without values is
    left out. With several data sets also the metrics of each (`exact_match/nq`) and their macro mean
    (`exact_match/macro`). Raises `DataError` if every trajectory has a fault."""
    scored = [trajectory for trajectory in trajectories if trajectory.fault is None]
    if not scored:
        faults = Counter(": ".join(filter(None, trajectory.fault)) for trajectory in trajectories if trajectory.fault)
        raise DataError(f"every trajectory of the dev questions has a fault, {commonest(faults) or 'or there is none'}")
    values_of: dict[str, list[float | None]] = {
        "reward": [reward.value if isinstance(reward, Reward) else None for reward in scoring(scored)],
        "exact_match": [
            float(exact_match(trajectory.answer, golds))
            if can_match(golds := trajectory.question.answers) and answers_itself(trajectory.protocol)
            else None
            for trajectory in scored
        ],
        "recall": [run_recall(trajectory) for trajectory in scored],
    }
    sets = {group: set(idents) for group, idents in datasets_of(trajectory.question for trajectory in scored).items()}
    metrics: dict[str, float] = {}
    for name, values in values_of.items():
        pairs = zip(scored, values, strict=True)
        id_values = [(trajectory.question.id, value) for trajectory, value in pairs if value is not None]
        if not id_values:
            continue
        metrics[name] = fmean(value for _, value in id_values)
        groups = {name: [value for ident, value in id_values if ident in idents] for name, idents in sets.items()}
        means = {f"{name}/{group}": fmean(values) for group, values in groups.items() if values}
        if means and len(means) == len(sets):
            means[f"{name}/{MACRO}"] = fmean(means.values())
        metrics |= means
    return metrics
