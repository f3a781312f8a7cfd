"""Episode scorer: rewards all runs of a step, with one batch of calls per frozen model.

Rewards are pure functions (`coseek.rewards`); this module calls the generator and the judge for them. The judge is
called only for what a reward cannot decide without it. A fault leaves its run without a reward and affects no other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coseek.agents.sources import served_context
from coseek.core.errors import SettingError
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.trajectory import Trajectory
from coseek.graders.generator import Generator, ReadingInput
from coseek.graders.grading import generated_answer
from coseek.graders.judge import Claim, Judge
from coseek.graders.rag_baseline import RagBaselines
from coseek.rewards.grades import WAY_OUT, Grades, Need
from coseek.rewards.reward import Reward, RewardFault, RewardFunction


@dataclass(frozen=True)
class EpisodeScorer:
    """A reward with the frozen models that it needs. Question ids must be unique."""

    reward: RewardFunction
    generator: Generator | None = None
    judge: Judge | None = None
    baselines: RagBaselines | None = None

    def __post_init__(self) -> None:
        there = {"component": self.generator, "judge": self.judge, "baseline": self.baselines}
        check_needs(self.reward, {need for need, part in there.items() if part is not None})

    def __call__(self, runs: Sequence[Trajectory]) -> list[Reward | RewardFault]:
        """A reward, or a fault, for every run in order. Each depends on its own run only."""
        grades = self._grades(runs)
        claims = {
            (run.question.id, response): Claim(run.question, response)
            for run, given in zip(runs, grades, strict=True)
            if run.fault is None
            for response in self.reward.to_judge(run, given)
        }
        known = self._judged(claims)
        return [
            self.reward.pay(run, _with_verdicts(given, run.question.id, known))
            for run, given in zip(runs, grades, strict=True)
        ]

    def _grades(self, runs: Sequence[Trajectory]) -> list[Grades]:
        """Grades of each run before the judge is called."""
        replies = self._replies(runs) if "component" in self.reward.needs else {}
        baselines = self.baselines if "baseline" in self.reward.needs else None
        grades = []
        for place, run in enumerate(runs):
            baseline = baselines.of(run.question) if baselines is not None else None
            verdicts = (baselines.verdicts_on(run.question) or {}) if baselines is not None else {}
            grades.append(Grades(replies.get(place), baseline, verdicts if self.judge is not None else None))
        return grades

    def _replies(self, runs: Sequence[Trajectory]) -> dict[int, GeneratedAnswer]:
        """The generator's answers from the passages of the runs without a fault, by index."""
        assert self.generator is not None
        places = [place for place, run in enumerate(runs) if run.fault is None]
        contexts = [
            self.generator.context(ReadingInput(runs[place].question.question, tuple(served_context(runs[place]))))
            for place in places
        ]
        return {
            place: generated_answer(runs[place].question.id, runs[place].seed, context, written)
            for place, context, written in zip(places, contexts, self.generator.answer(contexts), strict=True)
        }

    def _judged(self, claims: dict[tuple[str, str], Claim]) -> dict[tuple[str, str], Verdict]:
        if not claims:
            return {}
        assert self.judge is not None
        return dict(zip(claims, self.judge.judge(list(claims.values())), strict=True))


def check_needs(reward: RewardFunction, there: set[str]) -> None:
    """Raise `SettingError` for a reward with unmet needs; `there` are the needs that are met."""
    order: tuple[Need, ...] = ("component", "baseline", "judge")
    lacking = [need for need in order if need in reward.needs and need not in there]
    if lacking:
        named = {need: next(part.name for part in reward.parts if need in part.needs) for need in lacking}
        raise SettingError(*(f"the reward {part!r} needs {WAY_OUT[need]}" for need, part in named.items()))


def _with_verdicts(grades: Grades, question_id: str, known: dict[tuple[str, str], Verdict]) -> Grades:
    """The grades with the verdicts on this question added; those without a judge as they are."""
    if grades.verdicts is None:
        return grades
    fresh = {response: verdict for (ident, response), verdict in known.items() if ident == question_id}
    return Grades(grades.reply, grades.baseline, {**grades.verdicts, **fresh})
