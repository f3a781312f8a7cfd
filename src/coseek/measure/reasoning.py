"""Reasoning: how much of all that an agent's reasonings hold its latest ones still hold (AgentIR, section 5.3).

Figure 3b: of the clues that the reasonings named so far, the share that the k latest ones name. Figure 4b: how many
right and wrong claims the k latest ones hold. What a reasoning names is read by a laptop world's oracle
(`Oracle.claims`) or by a model (`graders.reasoning`):

    read = {run.question.id: [oracle.claims(run.question, reasonings_of(run, protocol))] for run in runs}
    first = reasoning_values(read, latest=1)

`coseek reasoning` does so for a stored run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean

from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import replay_queries, turn_number
from coseek.data.trajectory import Trajectory

METRICS = {
    "coverage": "share of the clues named so far, in [0, 1]",
    "correct": "right claims in the latest reasonings together; one in two of them counts twice, as in the paper",
    "incorrect": "wrong claims and hypotheses, counted so, too",
    "noise": "wrong claims less right ones",
}
"""Metric → description."""


@dataclass(frozen=True, slots=True)
class ReasoningClaims:
    """What one reasoning holds."""

    clues: frozenset[int]
    """Numbers of the run's clues that it names."""
    correct: int = 0
    incorrect: int = 0
    """Claims and hypotheses that it makes, without what the question says."""


def reasonings_of(trajectory: Trajectory, protocol: Protocol) -> list[str]:
    """The reasoning of each turn that searched, oldest first, as its retriever was given it; empty where the agent
    wrote none. The search that opens a run has none and is left out."""
    found: dict[int, str] = {}
    for place, query in enumerate(replay_queries(trajectory, protocol)):
        if turn := turn_number(trajectory, place, protocol):
            found[turn] = query.reasoning
    return list(found.values())


def reasoning_values(
    runs: Mapping[str, Sequence[Sequence[ReasoningClaims]]], latest: int | None
) -> dict[str, dict[str, float]]:
    """Question → `METRICS` of the `latest` reasonings of a turn, mean over turns, then over runs.

    `runs` are the read reasonings of each question's runs, by question id; runs without a search are left out.
    `coverage` is over turns with a clue, and undefined without any.
    """
    found: dict[str, dict[str, float]] = {}
    for ident, several in runs.items():
        each = [run for run in several if run]
        windows = [[_latest(run, end, latest) for end in range(1, len(run) + 1)] for run in each]
        if not windows:
            continue
        values = {
            name: fmean(fmean(sum(getattr(one, name) for one in some) for some in turns) for turns in windows)
            for name in ("correct", "incorrect")
        }
        values["noise"] = values["incorrect"] - values["correct"]
        covered = [shares for run, turns in zip(each, windows, strict=True) if (shares := _coverage(run, turns))]
        found[ident] = values | ({"coverage": fmean(map(fmean, covered))} if covered else {})
    return found


def _latest(run: Sequence[ReasoningClaims], end: int, latest: int | None) -> Sequence[ReasoningClaims]:
    return run[max(0, end - latest) if latest is not None else 0 : end]


def _coverage(run: Sequence[ReasoningClaims], turns: Sequence[Sequence[ReasoningClaims]]) -> list[float]:
    """The share of each turn that has a clue, its own or an earlier one."""
    known = [_clues(run[:end]) for end in range(1, len(run) + 1)]
    return [len(_clues(some)) / len(all_) for some, all_ in zip(turns, known, strict=True) if all_]


def _clues(some: Sequence[ReasoningClaims]) -> frozenset[int]:
    return frozenset(chain.from_iterable(one.clues for one in some))
