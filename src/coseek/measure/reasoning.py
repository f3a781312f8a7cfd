"""Reasoning: how much of all that an agent's reasonings hold its latest ones still hold (AgentIR, section 5.3).

Figure 3b: of the clues that the reasonings named so far, the share that the k latest ones name. Figure 4b: how many
right and wrong claims the k latest ones hold. What a reasoning names is read by a laptop world's oracle
(`Oracle.claims`) or by a model (`graders.reasoning`):

    read = {run.question.id: [oracle.claims(run.question, reasonings_of(run, protocol))] for run in runs}
    for point in reasoning_curve(read, np.random.default_rng(0)): ...
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

import numpy as np

from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import replay_queries, turn_number
from coseek.data.trajectory import Trajectory
from coseek.measure.intervals import Interval, bootstrap_mean

LATEST: tuple[int | None, ...] = (1, 2, 5, 9, 17, None)
"""The paper's k; `None` for all reasonings."""


@dataclass(frozen=True, slots=True)
class ReasoningClaims:
    """What one reasoning holds."""

    clues: frozenset[int]
    """Numbers of the run's clues that it names."""
    correct: int = 0
    incorrect: int = 0
    """Claims and hypotheses that it makes, without what the question says."""


@dataclass(frozen=True, slots=True)
class ReasoningPoint:
    """The k latest reasonings of a turn, mean over turns, then runs of a question, then questions."""

    latest: int | None
    coverage: Interval | None
    """Share of the clues named so far, in [0, 1]; over turns with a clue, `None` without any."""
    correct: Interval | None
    incorrect: Interval | None
    """Claims in the k reasonings together: one that two of them make counts twice, as the paper counts."""


def reasonings_of(trajectory: Trajectory, protocol: Protocol) -> list[str]:
    """The reasoning of each turn that searched, oldest first, as its retriever was given it; empty where the agent
    wrote none. The search that opens a run has none and is left out."""
    found: dict[int, str] = {}
    for place, query in enumerate(replay_queries(trajectory, protocol)):
        if turn := turn_number(trajectory, place, protocol):
            found[turn] = query.reasoning
    return list(found.values())


def reasoning_curve(
    runs: Mapping[str, Sequence[Sequence[ReasoningClaims]]],
    rng: np.random.Generator,
    latest: Sequence[int | None] = LATEST,
) -> list[ReasoningPoint]:
    """A point for each k of `latest`. `runs` are the read reasonings of each question's runs, by question id; runs
    without a search are left out."""
    return [_point([[run for run in each if run] for each in runs.values()], k, rng) for k in latest]


def _point(
    runs: Sequence[Sequence[Sequence[ReasoningClaims]]], latest: int | None, rng: np.random.Generator
) -> ReasoningPoint:
    shares, right, wrong = list[float](), list[float](), list[float]()
    for each in runs:
        windows = [[_latest(run, end, latest) for end in range(1, len(run) + 1)] for run in each]
        covered = [found for run, turns in zip(each, windows, strict=True) if (found := _coverage(run, turns))]
        if covered:
            shares.append(fmean(map(fmean, covered)))
        if windows:
            right.append(fmean(fmean(sum(one.correct for one in some) for some in turns) for turns in windows))
            wrong.append(fmean(fmean(sum(one.incorrect for one in some) for some in turns) for turns in windows))
    return ReasoningPoint(latest, *(bootstrap_mean(values, rng) for values in (shares, right, wrong)))


def _latest(run: Sequence[ReasoningClaims], end: int, latest: int | None) -> Sequence[ReasoningClaims]:
    return run[max(0, end - latest) if latest is not None else 0 : end]


def _coverage(run: Sequence[ReasoningClaims], turns: Sequence[Sequence[ReasoningClaims]]) -> list[float]:
    """The share of each turn that has a clue, its own or an earlier one."""
    known = [_clues(run[:end]) for end in range(1, len(run) + 1)]
    return [len(_clues(some)) / len(all_) for some, all_ in zip(turns, known, strict=True) if all_]


def _clues(some: Sequence[ReasoningClaims]) -> frozenset[int]:
    return frozenset(chain.from_iterable(one.clues for one in some))
