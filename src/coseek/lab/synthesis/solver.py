"""Solver: tries questions, so that those at the edge of what it can do are kept."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coseek.agents.drivers import Agent, Limits, rollout
from coseek.agents.run_questions import row_seed
from coseek.data.answers import exact_match
from coseek.data.question import Question
from coseek.retrieval.retriever import Retriever


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
