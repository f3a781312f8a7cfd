"""Curriculum: chooses the next demonstration, as a function of the progress of training."""

import random
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.data.trajectory import Trajectory
from coseek.training.sft.settings import Phase

Draw: TypeAlias = Callable[[float, random.Random], Trajectory]
"""(share of training that is done, random generator) → a demonstration. It uses no other state, so runs can resume."""


def draw_any(demonstrations: Sequence[Trajectory]) -> Draw:
    """Draw uniformly from all demonstrations at any time. Raises `DataError` if there are none."""
    if not demonstrations:
        raise DataError("there are no demonstrations to train on; give at least one")
    return lambda _done, rng: rng.choice(demonstrations)


def draw_by_hops(demonstrations: Sequence[Trajectory], phases: Sequence[Phase]) -> Draw:
    """Draw a number of hops by the phase's shares, then a demonstration with that many hops.

    Numbers of hops without a demonstration are skipped. Demonstrations of unknown hops, which no phase can name, keep
    their share of the draws. Without phases, or without known hops, draw from all.
    """
    draw_from_all = draw_any(demonstrations)
    by_hops: dict[int, list[Trajectory]] = {}
    unknown: list[Trajectory] = []
    for run in demonstrations:
        (unknown if run.question.hops is None else by_hops.setdefault(run.question.hops, [])).append(run)
    share = len(unknown) / len(demonstrations)

    def draw(done: float, rng: random.Random) -> Trajectory:
        hops = hops_at(phases, done, by_hops, rng)
        if hops is None:
            return draw_from_all(done, rng)
        if unknown and rng.random() < share:  # a draw more would change what a seed gives where all hops are known
            return rng.choice(unknown)
        return rng.choice(by_hops[hops])

    return draw


def hops_at(phases: Sequence[Phase], done: float, known: Collection[int], rng: random.Random) -> int | None:
    """Draw a number of hops by the shares of the phase at `done`; `None` if the phase has no known number of hops."""
    phase = next((phase for phase in phases if done < phase.until), phases[-1] if phases else None)
    named = sorted(phase.hops.items()) if phase else []
    shares = {hops: share for hops, share in named if hops in known and share > 0}
    return rng.choices(list(shares), weights=list(shares.values()))[0] if shares else None
