"""Curriculum: which demonstration comes next, as a function of how far training is."""

import random
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.data.trajectory import Trajectory
from coseek.training.sft.settings import Phase

Draw: TypeAlias = Callable[[float, random.Random], Trajectory]
"""(share of training that is over, randomness) → a demonstration. Nothing else may decide, or a run cannot resume."""


def draw_any(demonstrations: Sequence[Trajectory]) -> Draw:
    """Any demonstration at any time."""
    if not demonstrations:
        raise DataError("there are no demonstrations to train on; give at least one")
    return lambda _done, rng: rng.choice(demonstrations)


def draw_by_hops(demonstrations: Sequence[Trajectory], phases: Sequence[Phase]) -> Draw:
    """First a question's number of hops by the phase's shares, then any demonstration of such a question.

    Hops that no demonstration has are passed over. Without phases, or where no question says its hops: any of all.
    """
    anything = draw_any(demonstrations)
    by_hops: dict[int, list[Trajectory]] = {}
    for run in demonstrations:
        if run.question.hops is not None:
            by_hops.setdefault(run.question.hops, []).append(run)

    def draw(done: float, rng: random.Random) -> Trajectory:
        hops = hops_at(phases, done, by_hops, rng)
        return anything(done, rng) if hops is None else rng.choice(by_hops[hops])

    return draw


def hops_at(phases: Sequence[Phase], done: float, known: Collection[int], rng: random.Random) -> int | None:
    """A number of hops by the shares of the phase that `done` lies in; `None` when it names none that are known."""
    phase = next((phase for phase in phases if done < phase.until), phases[-1] if phases else None)
    named = sorted(phase.hops.items()) if phase else []
    shares = {hops: share for hops, share in named if hops in known and share > 0}
    return rng.choices(list(shares), weights=list(shares.values()))[0] if shares else None
