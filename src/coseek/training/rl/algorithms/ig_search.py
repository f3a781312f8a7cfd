"""IG-Search: adds to GRPO's advantage what a turn's passages add to the policy's log-probability of the gold answer,
beyond what passages that others found add (Liang et al. 2026, arXiv 2604.15148).

IG = log p(gold | context with the turn's passages) - mean log p(gold | context with another turn's passages in their
place), as in the authors' published `ig_reward.py`: earlier turns stay, later ones are left out, and the other turns
are drawn from all runs of the step. A log-probability is the mean over the answer's tokens, of which the authors weigh
the first three by 3. They let the gain modulate the advantage of the query's tokens; the sum, over the whole turn, is
ours. Costs 1 + `others` forward passes of the context for every turn.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

from pydantic import Field

from coseek.data.trajectory import Segment, Trajectory
from coseek.training.rl.algorithm import StepRewards, TokenAdvantages, TurnSettings


class IgSearchSettings(TurnSettings):
    """Settings of IG-Search."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of the gain, in nats a token, beside GRPO's advantage."""
    others: int = Field(default=3, ge=1)
    """Maximum number of other turns whose passages replace those of a turn."""


SETTINGS = IgSearchSettings


def advantages(step: StepRewards, settings: IgSearchSettings) -> TokenAdvantages:
    """Return GRPO's advantage + weight · IG; shape BT. IG is 0 for a turn without passages and for the last turn."""
    episode_B = step.standardised()
    values = [[float(episode_B[row])] * len(spans) for row, spans in enumerate(step.turn_spans)]
    observations = [_observations(trajectory) for trajectory in step.trajectories]
    pool = [observation for by_turn in observations for observation in by_turn.values()]
    contexts = {
        (row, turn): _contexts(trajectory, turn, observation, pool, settings.others)
        for row, (trajectory, by_turn) in enumerate(zip(step.trajectories, observations, strict=True))
        for turn, observation in by_turn.items()
    }
    probes = [(step.trajectories[row], context) for (row, _), variants in contexts.items() for context in variants]
    logprobs = iter(step.gold_logprobs(probes) if probes else [])
    for (row, turn), variants in contexts.items():
        real, *others = [next(logprobs) for _ in variants]
        if others:
            values[row][turn] += settings.weight * (real - fmean(others))
    return step.every_turn(values)


def _observations(trajectory: Trajectory) -> dict[int, tuple[Segment, ...]]:
    """Return turn, from 0 → the results of its searches in the next turn's context."""
    turns_with_hits = {search.turn for search in trajectory.searches if search.hits}
    steps = enumerate(pairwise(trajectory.contexts))
    return {turn: after[len(before) + 1 :] for turn, (before, after) in steps if turn + 1 in turns_with_hits}


def _contexts(
    trajectory: Trajectory, turn: int, observation: tuple[Segment, ...], pool: Sequence[tuple[Segment, ...]], count: int
) -> list[tuple[Segment, ...]]:
    """Return the context after a turn, and variants with observations from the pool in place of the turn's."""
    up_to_turn = trajectory.contexts[turn + 1][: len(trajectory.contexts[turn]) + 1]
    candidates = [other for other in pool if other != observation]
    # by the trajectory's seed, so that the same trajectories get the same credit
    rng = random.Random(f"{trajectory.question.id}/{trajectory.seed}/{turn}")
    replacements = rng.sample(candidates, min(count, len(candidates)))
    return [(*up_to_turn, *segments) for segments in (observation, *replacements)]
