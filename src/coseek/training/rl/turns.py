"""Turns of a step's runs: the tree that runs of one question with a common beginning form."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coseek.data.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class TurnNode:
    """A turn that one run made, or several of one group whose tokens are the same up to its end."""

    turn: int
    """From 1."""
    rows: tuple[int, ...]
    """The runs that went through it, in order."""
    parent: int | None
    """Index of the turn before it among the nodes; `None` for a first turn."""


def turn_tree(trajectories: Sequence[Trajectory], groups: Iterable[Sequence[int]]) -> tuple[TurnNode, ...]:
    """The nodes of every group's tree, parents first. A group has a fork wherever runs differ from one turn on, whether
    a sampler forked them there or they were sampled apart."""
    nodes: list[TurnNode] = []
    for group in groups:
        level: list[tuple[tuple[int, ...], int | None]] = [(tuple(group), None)]
        turn = 0
        while level:
            turn += 1
            level = [child for rows, parent in level for child in _split(nodes, trajectories, rows, parent, turn)]
    return tuple(nodes)


def _split(
    nodes: list[TurnNode], trajectories: Sequence[Trajectory], rows: Sequence[int], parent: int | None, turn: int
) -> list[tuple[tuple[int, ...], int | None]]:
    """Add a node for each different turn of these runs; returns the runs of each, with its index."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        spans = trajectories[row].turn_spans
        if len(spans) >= turn:
            alike.setdefault(trajectories[row].ids[: spans[turn - 1][1]], []).append(row)
    found: list[tuple[tuple[int, ...], int | None]] = []
    for same in alike.values():
        found.append((tuple(same), len(nodes)))
        nodes.append(TurnNode(turn, tuple(same), parent))
    return found
