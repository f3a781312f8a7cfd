"""Credit: how well a signal identifies the turns of a search agent that deserve the reward.

The value of a turn is E[outcome | the run up to its end] - E[outcome | the run up to its beginning], each the mean
outcome of continuations of the same policy. With K continuations of each the standard error of a value is at most
sqrt(1 / (2 K)): .125 for 32. A turn is *decisive* if its value is at least `DECISIVE`.

A signal is scored by the probability that it ranks a decisive turn above another one (`auc`: .5 by chance, 1 for the
truth), over all turns and within the runs of each question; by rank correlation with the values; by the share of
decisive turns among the N that it ranks highest, for N decisive turns (`precision`); and by the turns that it favours
(`bias`).

Executed replay (Zhang 2026, arXiv 2608.19760, read in reviews: its text was not at hand) compares a turn's outcome with
that of four other actions which the policy samples there, each replayed three times or more, and leaves out turns where
it samples no four. The policy mixes both: where it repeats a turn with chance p, a value here is 1 - p times the one
there. Its signals are scored by Spearman's correlation within a run against shuffled ones, by agreement of signs, and
by partial correlation given the log-probability of the turn; a turn is pivotal there if it makes any difference.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from coseek.core.record import OMIT_EMPTY, OMIT_NONE, Record
from coseek.measure.intervals import TAIL, Interval, bootstrap_mean

N = TypeVar("N", bound=Hashable)

METRICS = {"auc": "chance that a decisive turn is ranked above another of its question, in [0, 1]"}
"""Metric of a question → description."""
DECISIVE = 0.25
"""The least value of a decisive turn."""
RESAMPLES = 1000
Floats: TypeAlias = NDArray[np.float64]
TurnKey: TypeAlias = tuple[str, int, int]
"""Question id, the run's seed, and the turn from 1."""


@dataclass(frozen=True, slots=True)
class StateOutcome(Record):
    """How one continuation of a run from the end of one of its turns ended."""

    question_id: str
    seed: int
    """Seed of the run; of turn 0, which all runs of a question share, it is 0."""
    turn: int
    """The agent's turns that stand, from 0."""
    number: int
    outcome: float | None
    """In [0, 1]; `None` for a fault."""
    tokens: int = 0
    """Tokens that the agent wrote in it."""
    fault: Annotated[str | None, OMIT_NONE] = None
    state: Annotated[str, OMIT_EMPTY] = ""
    """Digest of the gold answers and of what the run did up to there; empty in older files, which are not read."""

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, str(self.seed), str(self.turn), str(self.number), self.state


def turn_values(
    turns: Iterable[TurnKey], continuations: Iterable[StateOutcome], half: int | None = None
) -> dict[TurnKey, float]:
    """The values of the turns whose beginning and end were both continued.

    `half` 0 or 1 takes every second continuation, from that number on. The two halves estimate the same values
    independently, so one half is a signal as good as the measurement itself.
    """
    outcomes: dict[TurnKey, list[float]] = {}
    for state in continuations:
        if state.outcome is not None and half in (None, state.number % 2):
            outcomes.setdefault((state.question_id, state.seed, state.turn), []).append(state.outcome)
    means = {key: fmean(scores) for key, scores in outcomes.items()}
    values = {}
    for question, seed, turn in turns:
        before, after = (question, seed if turn > 1 else 0, turn - 1), (question, seed, turn)
        if before in means and after in means:
            values[question, seed, turn] = means[after] - means[before]
    return values


@dataclass(frozen=True, slots=True)
class SignalScore:
    """How well a signal identifies decisive turns. Intervals are over questions."""

    auc: Interval | None
    """Over all turns; `None` without a decisive turn, or without another."""
    within: Interval | None
    """Mean AUC among the turns of one question, over the questions that have both kinds."""
    correlation: Interval | None
    """Spearman's, over all turns."""
    precision: float | None
    bias: Mapping[int, float]
    """Turn number → mean rank that the signal gives it less its mean rank by value, both in [0, 1]."""


@dataclass(frozen=True, slots=True)
class CreditScores:
    """The values of a run's turns, and the scores of signals."""

    values: Mapping[TurnKey, float]
    scores: Mapping[str, SignalScore]
    """By signal; the last is a half of the continuations, scored by the other half."""
    within: Mapping[str, Mapping[str, float]]
    """Signal → question → AUC among its turns."""
    tokens: Mapping[str, float]
    """Signal → tokens that it reads or writes for each valued turn."""
    faults: int
    """Continuations that failed."""


def score_signal(
    values: Mapping[TurnKey, float], signal: Mapping[TurnKey, float], decisive: float = DECISIVE
) -> SignalScore:
    """Score a signal on the turns of `values`. Raises `KeyError` for a turn that it lacks."""
    keys = sorted(values)
    truth, scores = np.array([values[key] for key in keys]), np.array([signal[key] for key in keys])
    positive = truth >= decisive
    count = int(positive.sum())
    least = np.sort(scores)[-count] if count else 0.0
    above, tied = scores > least, scores == least  # the turns that tie for the last ranks share them
    ranks_of_signal, ranks_of_truth = _ranks(scores), _ranks(truth)
    size = max(1, len(keys) - 1)
    bias = {
        turn: float(np.mean([(ranks_of_signal[index] - ranks_of_truth[index]) / size for index in indices]))
        for turn, indices in _indices(key[2] for key in keys).items()
    }
    return SignalScore(
        _bootstrap(lambda rows: auc(scores[rows], positive[rows]), keys),
        bootstrap_mean([*within_questions(values, signal, decisive).values()], np.random.default_rng(0)),
        _bootstrap(lambda rows: _correlation(scores[rows], truth[rows]), keys),
        float(positive[above].sum() + positive[tied].mean() * (count - above.sum())) / count if count else None,
        bias,
    )


def within_questions(
    values: Mapping[TurnKey, float], signal: Mapping[TurnKey, float], decisive: float = DECISIVE
) -> dict[str, float]:
    """Question → AUC among its turns. Questions without both kinds of turns are left out."""
    by_question: dict[str, float] = {}
    keys = sorted(values)
    for name, indices in _indices(key[0] for key in keys).items():
        question_keys = [keys[index] for index in indices]
        scores = np.array([signal[key] for key in question_keys])
        value = auc(scores, np.array([values[key] >= decisive for key in question_keys]))
        if value is not None:
            by_question[name] = value
    return by_question


def auc(scores: Floats, positive: NDArray[np.bool_]) -> float | None:
    """The chance that a positive has a larger number than a negative, ties half; `None` without one of them."""
    count, negative_count = int(positive.sum()), int((~positive).sum())
    if not count or not negative_count:
        return None
    return float((_ranks(scores)[positive].sum() - count * (count - 1) / 2) / (count * negative_count))


def _correlation(first: Floats, second: Floats) -> float | None:
    ranks = [_ranks(values) for values in (first, second)]
    return None if any(rank.std() == 0 for rank in ranks) else float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Floats) -> Floats:
    """Ranks from 0, the mean of equal numbers' ranks for each of them."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)
    return (last_ranks - (counts + 1) / 2)[inverse] if len(values) else values


def _indices(names: Iterable[N]) -> dict[N, list[int]]:
    indices: dict[N, list[int]] = {}
    for index, name in enumerate(names):
        indices.setdefault(name, []).append(index)
    return indices


def _bootstrap(measure: Callable[[NDArray[np.int_]], float | None], keys: Sequence[TurnKey]) -> Interval | None:
    """A statistic of turns, with the percentile interval over questions drawn with replacement."""
    groups = [np.array(indices) for indices in _indices(key[0] for key in keys).values()]
    estimate = measure(np.arange(len(keys))) if keys else None
    if estimate is None:
        return None
    rng = np.random.default_rng(0)
    draws = (rng.integers(len(groups), size=len(groups)) for _ in range(RESAMPLES))
    resampled = [value for draw in draws if (value := measure(np.concatenate([groups[i] for i in draw]))) is not None]
    if len(groups) < 2 or not resampled:
        return Interval(estimate, None, None, len(groups))
    low, high = np.quantile(resampled, [TAIL, 1 - TAIL])
    return Interval(estimate, float(low), float(high), len(groups))
