"""Prefixes: rows with common prefixes run through a network as one tree, so a shared prefix is computed once.

The trajectories of a question share its prompt, all prompts of a protocol their instructions, and forked trajectories
their turns. All products with weights run over the tree. Attention, which is little of the work and differs from row to
row, runs over the rows: their queries, keys and values are copied out of the tree, and one row's output of a shared
token back into it. Outputs and gradients are those of the rows apart, up to floating-point summation order.

Shapes: B rows · T tokens · U tokens of the tree · H heads · D size.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coseek.core.errors import SettingError
from coseek.training.learner.logprobs import TORCH_ATTENTION, ReplacedAttention

TREE_MULTIPLE = 16
"""Trees are padded to a multiple of this many tokens: few shapes of products (see `logprobs`)."""


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """The distinct prefixes of rows."""

    ids_1U: Tensor
    positions_1U: Tensor
    """Position of each node's token in its rows, from 0."""
    nodes_BT: Tensor
    """Index in the tree of every token of the rows; 0 from their ends on."""
    tokens_U: Tensor
    """For each node, the index of one of its tokens in the flattened rows."""

    @classmethod
    def of(cls, ids_BT: Tensor, ends_B: Tensor) -> "PrefixTree":
        """Make the tree of the first `ends_B` tokens of every row."""
        rows = [row[:end] for row, end in zip(ids_BT.tolist(), ends_B.tolist(), strict=True)]
        width = max(map(len, rows))
        nodes: list[list[int]] = [[]] * len(rows)
        ids, positions, tokens = list[int](), list[int](), list[int]()
        previous, path = list[int](), list[int]()
        for row in sorted(range(len(rows)), key=rows.__getitem__):  # neighbours in this order share the most
            shared = common_prefix(previous, rows[row])
            path = [*path[:shared], *range(len(ids), len(ids) + len(rows[row]) - shared)]
            ids += rows[row][shared:]
            positions += range(shared, len(rows[row]))
            tokens += (row * width + position for position in range(shared, len(rows[row])))
            nodes[row] = [*path, *[0] * (width - len(path))]
            previous = rows[row]
        padding = [0] * (-len(ids) % TREE_MULTIPLE)
        fields = ([ids + padding], [positions + padding], nodes, tokens + padding)
        return cls(*(torch.tensor(field, device=ids_BT.device) for field in fields))

    def hidden(self, trunk: torch.nn.Module) -> Tensor:
        """Return the network's last hidden states of the tree; shape UD."""
        # Without a mask the network would build one.
        unused = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=self.ids_1U.device)
        with ReplacedAttention(self._attend):
            states: Tensor = trunk(
                input_ids=self.ids_1U, position_ids=self.positions_1U, attention_mask=unused, use_cache=False
            ).last_hidden_state
        return states[0]

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor, **kwargs: object) -> Tensor:
        """Return the causal attention of every row; shape 1HUD."""
        rows = (tensor[0][:, self.nodes_BT].transpose(0, 1) for tensor in (queries, keys, values))
        attend = cast(Callable[..., Tensor], TORCH_ATTENTION)
        outputs_BHTD = attend(*rows, **{**kwargs, "attn_mask": None, "is_causal": True})
        return outputs_BHTD.transpose(1, 2).flatten(0, 1)[self.tokens_U].transpose(0, 1)[None]


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Return the length of the common prefix of two rows."""
    shorter = min(len(left), len(right))
    return next((position for position in range(shorter) if left[position] != right[position]), shorter)


def ends_of(target_mask_BT: Tensor) -> Tensor:
    """Return the number of tokens of each row up to its last target; shape B."""
    ends_T = torch.arange(1, target_mask_BT.shape[1] + 1, device=target_mask_BT.device)
    return (target_mask_BT * ends_T).amax(dim=1)


def tree_micro_batches(ids_BT: Tensor, ends_B: Tensor, rows_N: Tensor, max_tokens: int) -> list[Tensor]:
    """Split rows into groups whose trees have at most `max_tokens` tokens, rows with common prefixes together. A longer
    row is a group of its own."""
    rows = {row: ids_BT[row, : ends_B[row]].tolist() for row in rows_N.tolist()}
    groups: list[list[int]] = []
    previous: list[int] = []
    tokens = 0
    for row in sorted(rows, key=rows.__getitem__):
        added = len(rows[row]) - common_prefix(previous, rows[row])
        if not groups or tokens + added > max_tokens:
            groups.append([])
            tokens, added = 0, len(rows[row])
        groups[-1].append(row)
        tokens += added
        previous = rows[row]
    return [torch.tensor(group) for group in groups]


def check_shares(model: PreTrainedModel, has_plain_head: bool) -> None:
    """Raise `SettingError` for a network with other outputs for a tree than for separate rows, such as one with
    convolutions, windows or its own attention."""
    ids_BT = torch.tensor([[1, 2, 3, 4], [1, 2, 3, 5], [1, 5, 3, 2]], device=next(model.parameters()).device)
    trunk, is_same = model.base_model, False
    with suppress(RuntimeError, ValueError, TypeError, IndexError), torch.no_grad():
        tree = PrefixTree.of(ids_BT, torch.tensor([4, 4, 4]))
        shared_BTD = tree.hidden(trunk)[tree.nodes_BT].float()
        apart_BTD: Tensor = trunk(input_ids=ids_BT, use_cache=False).last_hidden_state.float()
        is_same = torch.allclose(shared_BTD, apart_BTD, rtol=1e-2, atol=1e-2 * float(apart_BTD.abs().max()))
    config = model.config.get_text_config()
    layers = getattr(config, "layer_types", None) or ["full_attention"]
    windows = {*layers} != {"full_attention"} or getattr(config, "sliding_window", None)  # wider than these rows
    if windows or not (is_same and has_plain_head):
        raise SettingError(
            f"share_prefixes needs a network of full attention by torch's kernels, unlike {type(model).__name__}; "
            "leave it out"
        )
