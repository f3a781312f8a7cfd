"""Leave one turn out: adds to GRPO's advantage what the gold answer loses when a turn is missing from the context.

The credit of a turn is the policy's mean log-probability of the gold answer before the last turn, less that without
the turn and what it found. With `gated` it is standardised and gated by its sign as in LAPO (Zhu et al. 2026, arXiv
2607.13501, from its abstract), which puts [DELETE] where the turn stood; here nothing stands there. The sum with GRPO's
advantage is ours. Costs a forward pass of the context for every turn.
"""

from collections.abc import Sequence
from itertools import pairwise

from pydantic import Field

from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.training.rl.algorithm import StepRewards, TokenAdvantages, TurnSettings


class LeaveOneTurnOutSettings(TurnSettings):
    """Settings of leaving one turn out."""

    weight: float = Field(default=1.0, ge=0)
    """Weight of the credit, in nats a token or standardised, beside GRPO's advantage."""
    gated: bool = False
    """Standardise the credit over the group's turns, and keep it only where its sign stays what it was (LAPO)."""


SETTINGS = LeaveOneTurnOutSettings


def advantages(step: StepRewards, settings: LeaveOneTurnOutSettings) -> TokenAdvantages:
    """Return GRPO's advantage + weight · what the gold answer loses without the turn; shape BT. The last turn, whose
    context ends before it, adds 0."""
    episode_B = step.standardised()
    contexts = [(trajectory, context) for trajectory in step.trajectories for context in _contexts(trajectory)]
    logprobs = iter(step.gold_logprobs(contexts))
    credits: list[list[float]] = []
    for trajectory in step.trajectories:
        context_logprobs = [next(logprobs) for _ in trajectory.turn_spans]  # the whole context first
        credits.append([context_logprobs[0] - logprob for logprob in context_logprobs[1:]])
    if settings.gated:
        for group in step.comparable_groups:
            _standardise(credits, group)
    return step.every_turn(
        [
            [float(episode_B[row]) + settings.weight * credit for credit in (*turns, 0.0)][: len(spans)]
            for row, (turns, spans) in enumerate(zip(credits, step.turn_spans, strict=True))
        ]
    )


def _standardise(credits: list[list[float]], group: Sequence[int]) -> None:
    """Standardise the credits of a group's turns in place; one whose sign changes becomes 0."""
    import torch

    from coseek.training.rl.losses import group_advantages

    raw = [credit for row in group for credit in credits[row]]
    standardised = iter(group_advantages(torch.tensor(raw)).tolist() if raw else [])
    for row in group:
        pairs = [(credit, next(standardised)) for credit in credits[row]]
        credits[row] = [scaled if scaled * credit > 0 else 0.0 for credit, scaled in pairs]


def _contexts(trajectory: Trajectory) -> list[tuple[Segment, ...]]:
    """Return the context before the last turn, and variants without each earlier turn and its observation."""
    starts = [index for index, segment in enumerate(trajectory.segments) if segment.author is Author.AGENT]
    if not starts:
        return []
    full_context = trajectory.segments[: starts[-1]]
    return [full_context, *(full_context[:start] + full_context[end:] for start, end in pairwise(starts))]
