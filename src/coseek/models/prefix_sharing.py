"""Prefix sharing: plans how rows with common prefixes are read once. Knows slots and ids only.

The rows form a tree: a common prefix is read in one row and copied to the others, recursively. So the G rollouts of a
question read its prompt once, and all questions together their common instructions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

LEAST = 32
"""The minimum length of a shared piece for which a separate pass pays off."""

PromptPiece: TypeAlias = tuple[int, tuple[int, ...]]
"""A slot and the tokens to read into it."""


@dataclass(frozen=True, slots=True)
class SharingRound:
    """Pieces to read, each in one row's slot, then copies to other rows."""

    pieces: tuple[PromptPiece, ...]
    copies: tuple[tuple[int, int], ...]


def plan_prefix_sharing(rows: Sequence[PromptPiece]) -> tuple[list[SharingRound], dict[int, tuple[int, ...]]]:
    """Plan the reading of new rows: consecutive rounds, and the remaining tokens of each slot."""
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
                reach = _in_common(ids, last)  # rows are sorted, so all rows between share it
                pieces.append((slot, ids[depth:reach]))
                copies += [(slot, other) for other, _ in branch[1:]]
                below.append((reach, branch))
        if pieces:
            rounds.append(SharingRound(tuple(pieces), tuple(copies)))
        level = below
    return _last_copies(rounds), left


def _branches(rows: Sequence[PromptPiece], least: int) -> Iterator[list[PromptPiece]]:
    """Split sorted rows where neighbours share fewer than `least` tokens."""
    branch: list[PromptPiece] = []
    for row in rows:
        if branch and _in_common(branch[-1][1], row[1]) < least:
            yield branch
            branch = []
        branch.append(row)
    if branch:
        yield branch


def _in_common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """The length of the common prefix of two rows."""
    if one == other:
        return len(one)
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _last_copies(rounds: Sequence[SharingRound]) -> list[SharingRound]:
    """Drop copies to rows that a later round overwrites."""
    kept: list[SharingRound] = []
    again: set[int] = set()
    for one in reversed(rounds):
        copies = tuple(pair for pair in one.copies if pair[1] not in again)
        again.update(to for _, to in copies)
        kept.append(SharingRound(one.pieces, copies))
    return kept[::-1]
