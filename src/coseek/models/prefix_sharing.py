"""Sharing: rows that begin alike are read once as far as they do. Knows slots and ids, no network.

The rows are a tree: what all have in common is read in one of them and copied to those that part from it there, and so
on below. So the G rollouts of a question read its prompt once, and all questions together the words in front of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LEAST = 32
"""Tokens that rows must have in common, beyond what they share already, for a reading of its own to pay."""

PromptPiece: TypeAlias = tuple[int, tuple[int, ...]]
"""A slot and what is to be read in it."""


@dataclass(frozen=True, slots=True)
class SharingRound:
    """Pieces that are read, each in the slot of one row, and the rows that then take over what it holds."""

    pieces: tuple[PromptPiece, ...]
    copies: tuple[tuple[int, int], ...]
    """(from, to)"""


def plan_prefix_sharing(rows: Sequence[PromptPiece]) -> tuple[list[SharingRound], dict[int, tuple[int, ...]]]:
    """How rows that hold nothing yet are read: rounds, one after the other, and what is left for each slot after them.

    A row that begins like no other is in no round: all of it is left.
    """
    rounds: list[SharingRound] = []
    left: dict[int, tuple[int, ...]] = {}
    level = [(0, sorted(rows, key=lambda row: row[1]))]
    while level:
        below: list[tuple[int, list[PromptPiece]]] = []
        pieces: list[PromptPiece] = []
        copies: list[tuple[int, int]] = []
        for depth, alike in level:
            for branch in _branches(alike, depth + LEAST):
                (slot, ids), (_, last) = branch[0], branch[-1]
                if len(branch) == 1:
                    left[slot] = ids[depth:]
                    continue
                reach = _in_common(ids, last)  # rows are sorted, so all between these two have it in common as well
                pieces.append((slot, ids[depth:reach]))
                copies += [(slot, other) for other, _ in branch[1:]]
                below.append((reach, branch))
        if pieces:
            rounds.append(SharingRound(tuple(pieces), tuple(copies)))
        level = below
    return _last_copies(rounds), left


def _branches(rows: Sequence[PromptPiece], least: int) -> Iterator[list[PromptPiece]]:
    """Sorted rows, parted where neighbours have fewer than `least` tokens in common."""
    branch: list[PromptPiece] = []
    for row in rows:
        if branch and _in_common(branch[-1][1], row[1]) < least:
            yield branch
            branch = []
        branch.append(row)
    if branch:
        yield branch


def _in_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two rows begin with alike."""
    if one == other:
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _last_copies(rounds: Sequence[SharingRound]) -> list[SharingRound]:
    """Without the copies to rows that a later round copies to again: nothing is read in these between the two."""
    kept: list[SharingRound] = []
    again: set[int] = set()
    for one in reversed(rounds):
        copies = tuple(pair for pair in one.copies if pair[1] not in again)
        again.update(to for _, to in copies)
        kept.append(SharingRound(one.pieces, copies))
    return kept[::-1]
