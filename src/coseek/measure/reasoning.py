"""Reasoning: how much of what an agent's reasonings state its latest ones repeat (AgentIR, section 5.3).

Figure 3b: of the clues that the reasonings named so far, the share that the k latest ones name. Figure 4b: how many
right and wrong claims the k latest ones hold. What a reasoning names is read by a laptop world's oracle
(`Oracle.claims`) or by a model (`graders.reasoning`):

    read = {run.question.id: [oracle.claims(run.question, reasonings_of(run, protocol))] for run in runs}
    first = reasoning_values(read, latest=1)

`coseek reasoning` does so for a stored run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import replay_queries
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
    queries = zip(trajectory.searches, replay_queries(trajectory, protocol), strict=True)
    return list({search.turn: query.reasoning for search, query in queries if search.turn}.values())


def reasoning_values(
    claims_by_question: Mapping[str, Sequence[Sequence[ReasoningClaims]]], latest: int | None
) -> dict[str, dict[str, float]]:
    """Question → `METRICS` of the `latest` reasonings of a turn, mean over turns, then over runs.

    `claims_by_question` are those of each trajectory of a question, by id; trajectories without a search are left out.
    `coverage` is over turns with a clue, and undefined without any.
    """
    by_question: dict[str, dict[str, float]] = {}
    for ident, trajectories in claims_by_question.items():
        lists = [claims for claims in trajectories if claims]
        windows = [
            [claims[max(0, end - latest) if latest is not None else 0 : end] for end in range(1, len(claims) + 1)]
            for claims in lists
        ]
        if not windows:
            continue
        values = {
            name: fmean(fmean(sum(getattr(claim, name) for claim in window) for window in turns) for turns in windows)
            for name in ("correct", "incorrect")
        }
        values["noise"] = values["incorrect"] - values["correct"]
        covered = [shares for claims, turns in zip(lists, windows, strict=True) if (shares := _coverage(claims, turns))]
        by_question[ident] = values | ({"coverage": fmean(map(fmean, covered))} if covered else {})
    return by_question


def _coverage(claims: Sequence[ReasoningClaims], windows: Sequence[Sequence[ReasoningClaims]]) -> list[float]:
    """For each turn up to which a clue was named: the share of these clues that its window names."""
    shares = []
    named_clues: set[int] = set()
    for reasoning, window in zip(claims, windows, strict=True):
        named_clues |= reasoning.clues
        if named_clues:
            shares.append(len(frozenset[int]().union(*(latest.clues for latest in window))) / len(named_clues))
    return shares
