"""Forks: groups of trajectories that share beginnings. Some begin at the question; the others continue from a search of
one of them (Tree-GRPO, Ji et al. 2025, arXiv 2509.21240, section 3.2), which costs only the tokens after the fork."""

import random
from collections.abc import Sequence

from coseek.agents.branching import Branch, branch, searches_by_turn
from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits, Tree
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.retrieval.retriever import Retriever


def rollout_groups(
    agent: Agent,
    retriever: Retriever,
    questions: Sequence[Question],
    seeds: Sequence[int],
    limits: Limits,
    tree: Tree | None,
    *,
    concurrency: int = 256,
    overlap: bool = False,
) -> list[Trajectory]:
    """Run groups of `tree.group_size` equal questions. The first `tree.roots` of each group begin at the question;
    without a tree all of them do.

    Each other trajectory forks from one of these roots in turn, after a search that its seed draws. If the root did not
    search, or failed, it also begins at the question.
    """
    if tree is None:
        return rollout(agent, retriever, questions, seeds, limits, concurrency=concurrency, overlap=overlap)

    def roll_out(indices: Sequence[int]) -> dict[int, Trajectory]:
        rows = [questions[index] for index in indices], [seeds[index] for index in indices]
        trajectories = rollout(agent, retriever, *rows, limits, concurrency=concurrency, overlap=overlap)
        return dict(zip(indices, trajectories, strict=True))

    trajectories = roll_out([index for index in range(len(questions)) if index % tree.group_size < tree.roots])
    forks: dict[int, Branch] = {}
    lone_indices: list[int] = []
    for index in range(len(questions)):
        number = index % tree.group_size
        if number >= tree.roots:
            root = trajectories[index - number + number % tree.roots]
            searches = [] if root.fault else [*searches_by_turn(root).values()]
            if searches:
                search = random.Random(seeds[index]).choice(searches)
                passages = tuple(hit.passage for hit in root.searches[search].hits)
                forks[index] = Branch(root, search, passages, seeds[index])
            else:
                lone_indices.append(index)
    trajectories |= roll_out(lone_indices)
    ends = branch(agent, retriever, [*forks.values()], limits, concurrency=concurrency)
    trajectories |= dict(zip(forks, ends, strict=True))
    return [trajectories[index] for index in range(len(questions))]
