"""Curriculum: which demonstration comes next, as a function of how far training is."""

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from coseek.data.errors import DataError
from coseek.data.trajectory import Trajectory
from coseek.training.settings import Phase

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
        phase = next((phase for phase in phases if done < phase.until), phases[-1] if phases else None)
        shares = (
            {hops: share for hops, share in sorted(phase.hops.items()) if hops in by_hops and share > 0}
            if phase
            else {}
        )
        if not shares:
            return anything(done, rng)
        hops = rng.choices(list(shares), weights=list(shares.values()))[0]
        return rng.choice(by_hops[hops])

    return draw
