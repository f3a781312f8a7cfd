"""Abstention: how often an agent declines, how often its answers are right and what they cost, and its calibration;
and why runs and answers have no score.

Right is strict EM; no answer to an unanswerable question is right. Questions without gold answers that are not marked
as unanswerable are left out. Several runs of one question are averaged first.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from coseek.data.answers import exact_match
from coseek.data.question import Question
from coseek.data.trajectory import Author, Trajectory
from coseek.measure.intervals import Interval, bootstrap_mean, bootstrap_ratio

if TYPE_CHECKING:
    from coseek.data.grade_cache import Verdict

BINS = 10
"""Bins of the calibration, each with as many answers as the others as far as equal confidences allow."""


@dataclass(frozen=True, slots=True)
class QuestionOutcome:
    """The outcome of one question: shares of its runs."""

    answerable: bool
    answered: float
    declined: float
    right: float
    tokens: float | None
    """Tokens that the agent wrote, a run; `None` where they are not known."""
    confidence: float | None
    """Mean confidence of its answers; `None` where it is not known."""


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """Answers of similar confidence."""

    low: float
    high: float
    """The lowest and the highest confidence."""
    answers: float
    """Questions answered; a question that some of its runs answer counts as their share."""
    confidence: float
    right: float
    """Share of right answers."""


@dataclass(frozen=True, slots=True)
class Abstention:
    """The measures of one run. `None`: not defined, such as the accuracy of no answers."""

    questions: int
    unanswerable: int
    answered: Interval | None
    """Share of all questions that get an answer."""
    right_when_answered: Interval | None
    """Share of the answers that are right."""
    tokens_per_right: Interval | None
    """Tokens that the agent wrote over all questions, for each right answer."""
    declined_unanswerable: Interval | None
    invented: Interval | None
    """Share of the unanswerable questions that get an answer."""
    declined_answerable: Interval | None
    bins: tuple[CalibrationBin, ...]
    """By rising confidence; empty where none is known."""

    @property
    def calibration_error(self) -> float | None:
        """ECE: mean over the answers of |share of right ones − mean confidence| in their bin; 0 is calibrated."""
        total_answers = math.fsum(bin_.answers for bin_ in self.bins)
        gap_sum = math.fsum(bin_.answers * abs(bin_.right - bin_.confidence) for bin_ in self.bins)
        return gap_sum / total_answers if total_answers else None


def ended_right(trajectory: Trajectory) -> bool:
    """Whether a run gives a right answer, or declines a question that has none."""
    question = trajectory.question
    return exact_match(trajectory.answer, question.answers) or (trajectory.declined and not question.answerable)


def confidence(trajectory: Trajectory) -> float | None:
    """The agent's confidence in its answer: the geometric mean probability of the tokens of the turn that gives it.

    `None` without an answer, and without log-probabilities: servers that return text only, and scripted agents, which
    do not sample.
    """
    logprobs = [segment.logprobs for segment in trajectory.segments if segment.author is Author.AGENT]
    if trajectory.answer is None or not trajectory.exact or not any(map(any, logprobs)) or not logprobs[-1]:
        return None
    return math.exp(min(0.0, fmean(logprobs[-1])))


def outcome_of(question: Question, metrics: Mapping[str, float]) -> QuestionOutcome | None:
    """The outcome of a question by its metrics (`measure.score`); `None` where its agent writes no answers, or where
    it does not tell what a right one is."""
    if "declined" not in metrics or (question.answerable and "em" not in metrics):
        return None
    right = metrics["em"] if question.answerable else 0.0
    tokens_and_confidence = metrics.get("agent_tokens"), metrics.get("confidence")
    return QuestionOutcome(question.answerable, metrics["answered"], metrics["declined"], right, *tokens_and_confidence)


def abstention_of(outcomes: Sequence[QuestionOutcome], seed: int = 0) -> Abstention:
    """The measures of a run, with bootstrap intervals over questions."""
    answerable = [outcome for outcome in outcomes if outcome.answerable]
    unanswerable = [outcome for outcome in outcomes if not outcome.answerable]
    with_tokens = [(outcome.tokens, outcome.right) for outcome in outcomes if outcome.tokens is not None]

    def mean(values: Sequence[float]) -> Interval | None:
        return bootstrap_mean(values, np.random.default_rng(seed))

    def ratio(parts: Sequence[float], wholes: Sequence[float]) -> Interval | None:
        return bootstrap_ratio(parts, wholes, np.random.default_rng(seed))

    return Abstention(
        questions=len(outcomes),
        unanswerable=len(unanswerable),
        answered=mean([outcome.answered for outcome in outcomes]),
        right_when_answered=ratio([outcome.right for outcome in outcomes], [outcome.answered for outcome in outcomes]),
        tokens_per_right=ratio([tokens for tokens, _ in with_tokens], [right for _, right in with_tokens]),
        declined_unanswerable=mean([outcome.declined for outcome in unanswerable]),
        invented=mean([outcome.answered for outcome in unanswerable]),
        declined_answerable=mean([outcome.declined for outcome in answerable]),
        bins=calibration(outcomes),
    )


def calibration(outcomes: Sequence[QuestionOutcome]) -> tuple[CalibrationBin, ...]:
    """Bins of the answers by rising confidence. Equal confidences share a bin, so that their order does not matter."""
    pairs = [(row.confidence, row) for row in outcomes if row.answered > 0 and row.confidence is not None]
    pairs.sort(key=lambda pair: pair[0])
    members: dict[int, list[tuple[float, QuestionOutcome]]] = {}
    first = 0
    for rank, pair in enumerate(pairs):
        if rank and pair[0] > pairs[rank - 1][0]:
            first = rank
        members.setdefault(first * BINS // len(pairs), []).append(pair)
    bins = []
    for rows in members.values():
        answers = math.fsum(outcome.answered for _, outcome in rows)
        confidence_sum = math.fsum(confidence * outcome.answered for confidence, outcome in rows)
        right = math.fsum(outcome.right for _, outcome in rows)
        bins.append(CalibrationBin(rows[0][0], rows[-1][0], answers, confidence_sum / answers, right / answers))
    return tuple(bins)


# Faults: why trajectories and answers of a run have no score, for the notes below its table.


@dataclass(frozen=True, slots=True)
class Faults:
    """Each reason with its number."""

    trajectories: Counter[str] = field(default_factory=Counter)
    no_reply: Counter[str] = field(default_factory=Counter)
    """Of verdicts for which the judge's model wrote nothing."""
    unreadable: Counter[str] = field(default_factory=Counter)
    """Of verdicts that could not be read."""
    read: Counter[bool] = field(default_factory=Counter)
    """The verdicts that there are."""

    def __add__(self, other: "Faults") -> "Faults":
        return Faults(
            self.trajectories + other.trajectories,
            self.no_reply + other.no_reply,
            self.unreadable + other.unreadable,
            self.read + other.read,
        )

    def add(self, trajectory: Trajectory, verdicts: Mapping[tuple[str, str], "Verdict"] | None) -> None:
        """Count the verdict on an answer, or the reason why it is missing."""
        verdict = (verdicts or {}).get((trajectory.question.id, trajectory.answer or ""))
        if verdict is not None and verdict.right is not None:
            self.read[verdict.right] += 1
        elif verdict is not None and verdict.fault:
            (self.unreadable if verdict.text else self.no_reply)[verdict.fault] += 1
