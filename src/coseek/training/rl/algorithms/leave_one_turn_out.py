"""Leave one turn out: adds to GRPO's advantage what the gold answer loses when a turn is missing from the context.

The credit of a turn is the policy's mean log-probability of the gold answer before the last turn, less that without
the turn and what it found. With `gated` it is standardised and gated by its sign as in LAPO (Zhu et al. 2026, arXiv
2607.13501, from its abstract), which puts [DELETE] where the turn stood; here nothing stands there. The sum with GRPO's
advantage is ours. Costs a forward pass of the context for every turn.
"""

from collections.abc import Sequence
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
    """Weight of the credit, in nats a token or standardised, beside GRPO's advantage."""
    gated: bool = False
    """Standardise the credit over the group's turns, and keep it only where its sign stays what it was (LAPO)."""


SETTINGS = LeaveOneTurnOutSettings


def advantages(step: StepRewards, settings: LeaveOneTurnOutSettings) -> "Tensor":
    """Return GRPO's advantage + weight · what the gold answer loses without the turn; shape BT. The last turn, whose
    context ends before it, adds 0."""
    from coseek.training.rl.losses import group_advantages

    whole_B = step.compare_groups(group_advantages)
    asked = [(run, context) for run in step.trajectories for context in _contexts(run)]
    measured = iter(step.gold_logprobs(asked))
    credits: list[list[float]] = []
    for run in step.trajectories:
        levels = [next(measured) for _ in run.turn_spans]  # the whole context first
        credits.append([levels[0] - level for level in levels[1:]])
    if settings.gated:
        for group in step.compared:
            _gate(credits, group)
    return step.every_turn(
        [
            [float(whole_B[row]) + settings.weight * credit for credit in (*turns, 0.0)][: len(spans)]
            for row, (turns, spans) in enumerate(zip(credits, step.turn_spans, strict=True))
        ]
    )


def _gate(credits: list[list[float]], group: Sequence[int]) -> None:
    """Standardise the credits of a group's turns in place; one whose sign changes becomes 0."""
    import torch

    from coseek.training.rl.losses import group_advantages

    given = [credit for row in group for credit in credits[row]]
    standard = iter(group_advantages(torch.tensor(given)).tolist() if given else [])
    for row in group:
        pairs = [(credit, next(standard)) for credit in credits[row]]
        credits[row] = [one if one * credit > 0 else 0.0 for credit, one in pairs]


def _contexts(run: Trajectory) -> list[tuple[Segment, ...]]:
    """What stands before the last turn, and the same without each earlier turn and what followed it."""
    starts = [place for place, segment in enumerate(run.segments) if segment.author is Author.AGENT]
    if not starts:
        return []
    whole = run.segments[: starts[-1]]
    return [whole, *(whole[:start] + whole[end:] for start, end in pairwise(starts))]
