"""Self-play: a proposer that finds the questions at the edge of what a solver can do.

The proposer draws the number of hops and the phrases of a chain. A question pays 1 where the share of the solver's
tries that are right lies within `edge`, else 0. From that is taken the mean of the questions of its batch with as many
hops (the hop-grouped baseline of Dr. Zero, Yue et al. 2026), so that a phrase is not blamed for the length of its
chains; a phrase is then drawn by the softmax of what it was paid, and a number of hops by its share of questions at the
edge. The proposer knows neither how a solver works nor what a model does with its questions.
"""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coseek.agents.drivers import Agent, Limits, rollout
from coseek.agents.run_questions import row_seed
from coseek.data.answers import exact_match
from coseek.data.question import Question
from coseek.lab.synthesis.graph import Chain, Hop
from coseek.retrieval.retriever import Retriever

_STEP = 0.5
"""What one question adds to the preference of its phrases, at most."""


class Solver(Protocol):
    """Tries questions several times."""

    def solved(self, questions: Sequence[Question]) -> list[float | None]:
        """The share of right tries of each question, in [0, 1]; `None` where a part failed in every try."""
        ...


@dataclass(frozen=True)
class AgentSolver:
    """An agent with its retriever, which should draw its text: tries at temperature 0 are all alike."""

    agent: Agent
    retriever: Retriever
    limits: Limits
    tries: int
    seed: int

    def solved(self, questions: Sequence[Question]) -> list[float | None]:
        asked = [replace(one, id=f"q{place}") for place, one in enumerate(questions) for _ in range(self.tries)]
        seeds = [row_seed(self.seed, one.question, place % self.tries) for place, one in enumerate(asked)]
        right: dict[str, list[bool]] = {f"q{place}": [] for place in range(len(questions))}
        for run in rollout(self.agent, self.retriever, asked, seeds, self.limits):
            if run.fault is None:
                right[run.question.id].append(exact_match(run.answer, run.question.answers))
        return [sum(tries) / len(tries) if tries else None for tries in right.values()]


class Proposer:
    """Draws chains for a solver, and learns from what it solves."""

    def __init__(self, hop_mix: Sequence[float]) -> None:
        self._mix = {hops: weight for hops, weight in enumerate(hop_mix, start=1) if weight}
        self._asked: Counter[int] = Counter()
        self._paid: Counter[int] = Counter()
        self._preferences: defaultdict[str, float] = defaultdict(float)

    def choose(self, ways: Sequence[Hop], rng: random.Random) -> Hop:
        """One of several hops, by the softmax of the preferences of their phrases."""
        return rng.choices(ways, [math.exp(self._preferences[str(hop.phrase)]) for hop in ways])[0]

    def shares(self, open_hops: Collection[int], count: int) -> dict[int, int]:
        """Number of hops → how many questions of it to draw next, about `count` in all and at least one of each."""
        weights = {hops: self._mix[hops] * (self._paid[hops] + 1) / (self._asked[hops] + 2) for hops in open_hops}
        total = sum(weights.values())
        return {hops: max(1, round(count * weight / total)) for hops, weight in weights.items()}

    def learn(self, paid: Sequence[tuple[Chain, bool]]) -> None:
        """Take one batch of chains, and whether each lies at the edge."""
        asked, sums = (
            Counter(len(chain) for chain, _ in paid),
            Counter(len(chain) for chain, at_edge in paid if at_edge),
        )
        for chain, at_edge in paid:
            advantage = at_edge - sums[len(chain)] / asked[len(chain)]
            for hop in chain:
                self._preferences[str(hop.phrase)] += _STEP * advantage / len(chain)
        self._asked += asked
        self._paid += sums
