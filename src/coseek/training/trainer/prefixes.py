"""Prefixes: rows that begin alike run through a network as one tree, so what they share is computed once.

The runs of a question share its prompt, all prompts of a protocol their instructions, and forked runs their turns. A
token of the tree attends to its ancestors and has the position that it has in its rows, so outputs and gradients are
those of the rows apart, up to floating-point summation order.

Shapes: B rows · T tokens · U tokens of the tree · D hidden size.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coseek.core.errors import SettingError

MULTIPLE = 16
"""Trees are filled up to a multiple of this many tokens: few shapes of products (see `logprobs`)."""
CAP = 2
"""Most tokens of a tree, in hidden sizes: attention, which grows with their square, then stays below about a third of
the other products."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The distinct beginnings of rows."""

    ids_1U: Tensor
    positions_1U: Tensor
    """Of a token in its rows, from 0."""
    sees_11UU: Tensor
    """True where the token of the third index attends to that of the fourth: itself and its ancestors."""
    places_BT: Tensor
    """Index in the tree of every token of the rows; 0 from their ends on."""

    @classmethod
    def of(cls, ids_BT: Tensor, ends_B: Tensor) -> "PrefixTree":
        """The tree of the first `ends_B` tokens of every row."""
        rows = [row[:end] for row, end in zip(ids_BT.tolist(), ends_B.tolist(), strict=True)]
        places_BT = torch.zeros(ids_BT.shape, dtype=torch.long)
        ids: list[int] = []
        positions: list[int] = []
        branches: list[tuple[int, int, Tensor]] = []
        """Start and end in the tree of what a row adds, and what it adds it to."""
        before: list[int] = []
        path = places_BT[0, :0]
        for row in sorted(range(len(rows)), key=rows.__getitem__):  # neighbours in this order share the most
            shared, start = common_prefix(before, rows[row]), len(ids)
            ids += rows[row][shared:]
            positions += range(shared, len(rows[row]))
            path = torch.cat([path[:shared], torch.arange(start, len(ids))])
            branches.append((start, len(ids), path[:shared]))
            places_BT[row, : len(path)] = path
            before = rows[row]
        filler = -len(ids) % MULTIPLE
        size = len(ids) + filler
        sees_UU = torch.eye(size, dtype=torch.bool)
        for start, end, ancestors in branches:
            sees_UU[start:end, start:end] = torch.ones(end - start, end - start, dtype=torch.bool).tril()
            sees_UU[start:end, ancestors] = True
        tree = cls(
            torch.tensor([ids + [0] * filler]), torch.tensor([positions + [0] * filler]), sees_UU[None, None], places_BT
        )
        return tree.to(ids_BT.device)

    def to(self, device: torch.device) -> "PrefixTree":
        return replace(
            self,
            ids_1U=self.ids_1U.to(device),
            positions_1U=self.positions_1U.to(device),
            sees_11UU=self.sees_11UU.to(device),
            places_BT=self.places_BT.to(device),
        )

    def hidden(self, trunk: torch.nn.Module) -> Tensor:
        """The network's last hidden states of the tree; shape UD."""
        states: Tensor = trunk(
            input_ids=self.ids_1U, position_ids=self.positions_1U, attention_mask=self.sees_11UU, use_cache=False
        ).last_hidden_state
        return states[0]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two rows begin with in common."""
    most = min(len(one), len(other))
    return next((at for at in range(most) if one[at] != other[at]), most)


def ends_of(wanted_BT: Tensor) -> Tensor:
    """The number of tokens of each row up to its last wanted one; shape B."""
    places_T = torch.arange(1, wanted_BT.shape[1] + 1, device=wanted_BT.device)
    return (wanted_BT * places_T).amax(dim=1)


def tree_parts(ids_BT: Tensor, ends_B: Tensor, rows_N: Tensor, most: int) -> list[Tensor]:
    """Split rows into parts whose trees have at most `most` tokens, rows that begin alike together. A longer row is a
    part of its own."""
    rows = {row: ids_BT[row, : ends_B[row]].tolist() for row in rows_N.tolist()}
    parts: list[list[int]] = []
    before: list[int] = []
    size = 0
    for row in sorted(rows, key=rows.__getitem__):
        added = len(rows[row]) - common_prefix(before, rows[row])
        if not parts or size + added > most:
            parts.append([])
            size, added = 0, len(rows[row])
        parts[-1].append(row)
        size += added
        before = rows[row]
    return [torch.tensor(part) for part in parts]


def check_shares(model: PreTrainedModel, has_plain_head: bool) -> None:
    """Raise `SettingError` for a network whose tokens of a tree are not those of the rows apart: one with convolutions
    or windows, or with an attention kernel that takes no mask."""
    ids_BT = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5], [1, 5, 3, 2]], device=next(model.parameters()).device)
    trunk, same = model.base_model, False
    with suppress(RuntimeError, ValueError, TypeError, IndexError), torch.no_grad():
        tree = PrefixTree.of(ids_BT, torch.tensor([4, 4, 4]))
        shared_BTD = tree.hidden(trunk)[tree.places_BT].float()
        apart_BTD: Tensor = trunk(input_ids=ids_BT, use_cache=False).last_hidden_state.float()
        same = torch.allclose(shared_BTD, apart_BTD, rtol=1e-2, atol=1e-2 * float(apart_BTD.abs().max()))
    same = same and has_plain_head
    if not same:
        raise SettingError(
            f"share_prefixes needs a network of full attention that takes a mask; {type(model).__name__} is none here: "
            "leave it out"
        )
