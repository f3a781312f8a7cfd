"""IG-Search: adds to GRPO's advantage what a turn's passages add to the policy's log-probability of the gold answer,
beyond what passages that others found add (Liang et al. 2026, arXiv 2604.15148).

IG = log p(gold | context with what the turn read) - mean log p(gold | context with what another turn read in its
place), as the authors' published `ig_reward.py` has it: earlier turns stay, later ones are left out, and the others
are drawn from all runs of the step. A log-probability is the mean over the answer's tokens, of which the authors weigh
the first three by 3. They let the gain modulate the advantage of the query's tokens; the sum, over the whole turn, is
ours. Costs 1 + `others` forward passes of the context for every turn.
"""

import random
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import Field

from coseek.data.trajectory import Segment, Trajectory
from coseek.training.rl.algorithm import GroupSettings, StepRewards

if TYPE_CHECKING:
    from torch import Tensor


class IgSearchSettings(GroupSettings):
    """Settings of IG-Search."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of the gain, in nats a token, beside GRPO's advantage."""
    others: int = Field(default=3, ge=1)
    """What at most this many other turns read is put in a turn's place."""


SETTINGS = IgSearchSettings


def advantages(step: StepRewards, settings: IgSearchSettings) -> "Tensor":
    """Return GRPO's advantage + weight · IG; shape BT. A turn that read nothing, and the last one, adds 0."""
    from coseek.training.rl.losses import group_advantages

    whole_B = step.compare_groups(group_advantages)
    values = [[float(whole_B[row])] * len(turns) for row, turns in enumerate(step.turn_spans)]
    pool = [shown for run in step.trajectories for shown in _shown(run).values()]
    asked = {
        (row, turn): [(run, context) for context in _contexts(run, turn, shown, pool, settings.others)]
        for row, run in enumerate(step.trajectories)
        for turn, shown in _shown(run).items()
    }
    measured = iter(step.gold_logprobs([one for contexts in asked.values() for one in contexts]) if asked else [])
    for (row, turn), contexts in asked.items():
        real, *others = [next(measured) for _ in contexts]
        if others:
            values[row][turn] += settings.weight * (real - fmean(others))
    return step.every_turn(values)


def _shown(run: Trajectory) -> dict[int, tuple[Segment, ...]]:
    """Turn, from 0 → what its searches showed to the next turn."""
    found = {search.turn for search in run.searches if search.hits}
    steps = enumerate(pairwise(run.contexts))
    return {turn: after[len(before) + 1 :] for turn, (before, after) in steps if turn + 1 in found}


def _contexts(
    run: Trajectory, turn: int, shown: tuple[Segment, ...], pool: Sequence[tuple[Segment, ...]], others: int
) -> list[tuple[Segment, ...]]:
    """The context after a turn, and the same with what drawn others read."""
    begun = run.contexts[turn + 1][: len(run.contexts[turn]) + 1]
    rest = [one for one in pool if one != shown]
    # by the run's seed, so that the same runs get the same credit
    drawn = random.Random(f"{run.question.id}/{run.seed}/{turn}").sample(rest, min(others, len(rest)))
    return [(*begun, *one) for one in (shown, *drawn)]
