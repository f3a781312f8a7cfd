"""Leave one turn out: adds to GRPO's advantage what the gold answer loses when a turn is missing from the context.

The credit of a turn is the policy's mean log-probability of the gold answer before the last turn, less that without
the turn and what it found. This is the idea of LAPO and of ablations of evidence; the form is ours. Costs a forward
pass of the context for every turn.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.training.rl.algorithm import GroupSettings, StepRewards

if TYPE_CHECKING:
    from torch import Tensor


class LeaveOneTurnOutSettings(GroupSettings):
    """Settings of leaving one turn out."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of the credit, in nats a token, beside GRPO's advantage."""


SETTINGS = LeaveOneTurnOutSettings


def advantages(step: StepRewards, settings: LeaveOneTurnOutSettings) -> "Tensor":
    """Return GRPO's advantage + weight · what the gold answer loses without the turn; shape BT. The last turn, whose
    context ends before it, adds 0."""
    from coseek.training.rl.losses import group_advantages

    whole_B = step.compare_groups(group_advantages)
    asked = [(run, context) for run in step.trajectories for context in _contexts(run)]
    measured = iter(step.gold_logprobs(asked))
    values: list[list[float]] = []
    for row, run in enumerate(step.trajectories):
        levels = [next(measured) for _ in run.turn_spans]  # the whole context first
        credit = [*(levels[0] - level for level in levels[1:]), *([0.0] if levels else [])]
        values.append([float(whole_B[row]) + settings.weight * one for one in credit])
    return step.every_turn(values)


def _contexts(run: Trajectory) -> list[tuple[Segment, ...]]:
    """What stands before the last turn, and the same without each earlier turn and what followed it."""
    starts = [place for place, segment in enumerate(run.segments) if segment.author is Author.AGENT]
    if not starts:
        return []
    whole = run.segments[: starts[-1]]
    return [whole, *(whole[:start] + whole[end:] for start, end in pairwise(starts))]
