"""Log-probabilities: those of selected tokens under a language model, and the entropies of their distributions.

Shapes: B rows · T tokens · N target tokens · D hidden size · V vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from coseek.core.errors import DataError
from coseek.training.learner.workers import layers_of

# Attention: replace the attention function of a network while it runs.

Attention: TypeAlias = Callable[..., object]
"""A function with the arguments of `scaled_dot_product_attention`."""

TORCH_ATTENTION: Attention = F.scaled_dot_product_attention
"""The function that networks call."""


class ReplacedAttention(TorchFunctionMode):
    """In this mode `attend` is called in place of `scaled_dot_product_attention`. Other functions are unchanged."""

    def __init__(self, attend: Attention) -> None:
        super().__init__()
        self.attend = attend

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return (self.attend if func is TORCH_ATTENTION else func)(*args, **(kwargs or {}))


# Autocast: the forward pass in bfloat16, and what makes it fast on a CPU.
#
# - oneDNN recompiles a bfloat16 product for every shape, which takes about ten times as long as the product. Batches
#   differ in length, so every shape would be new. Lengths and numbers of positions are padded to few values.
# - The backward pass of attention takes twice as long in bfloat16 as in float32, so attention runs in float32.
#
# Float32 has neither cost, and a GPU has its own kernels: there nothing changes.

LENGTH_MULTIPLE = 16
"""Rows are padded to a multiple of this many tokens."""
POSITION_MULTIPLE = 64
"""Wanted positions are padded to a multiple of this number."""


@contextmanager
def bfloat16_autocast(device: torch.device, *, gradient_checkpointing: bool) -> Iterator[None]:
    """Run matrix products in bfloat16 in this block. `gradient_checkpointing`: whether layers run again in the backward
    pass, outside of the block; their attention then stays in bfloat16, as it will be there."""
    # A pass uses each weight once, so a cache of the cast weights would only hold them all at the same time.
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
        if device.type != "cpu" or gradient_checkpointing:
            yield
        else:
            with ReplacedAttention(_attention_in_float32):
                yield


def pad_length(values_BT: Tensor) -> Tensor:
    """Pad rows on the right, with 0, to a multiple of `LENGTH_MULTIPLE`, so that few lengths occur."""
    return _pad_to_multiple(values_BT, 1, LENGTH_MULTIPLE)


def pad_positions(values_ND: Tensor) -> Tensor:
    """Append positions of zeros, to a multiple of `POSITION_MULTIPLE`, so that few shapes occur."""
    return _pad_to_multiple(values_ND, 0, POSITION_MULTIPLE)


def _pad_to_multiple(values: Tensor, dim: int, multiple: int) -> Tensor:
    padding = -values.shape[dim] % multiple
    if padding == 0 or values.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return values
    return F.pad(values, (0, 0) * (values.ndim - 1 - dim) + (0, padding))


def _attention_in_float32(*args: object, **kwargs: object) -> object:
    with torch.autocast("cpu", enabled=False):
        return TORCH_ATTENTION(*map(_to_float32, args), **{name: _to_float32(value) for name, value in kwargs.items()})


def _to_float32(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


# Last layer: compute a network's last layer only at the positions whose outputs are needed.
#
# In the last layer a position needs the keys and values of other positions, and nothing else of them. Outputs after
# tokens of prompts and passages are not needed. So queries, attention and the feed-forward part of that layer run only
# at the target positions and return 0 elsewhere. Outputs and gradients stay the same up to floating-point summation
# order.
#
# Shapes: B rows · T tokens · N target positions, of all rows or of one row · H heads · D size.

Change: TypeAlias = Callable[[Tensor], Tensor]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, dict[str, object]], Tensor]
"""(queries, keys, values, other arguments of `scaled_dot_product_attention`) → its output."""

ATTENTION = "attention"
"""Suffix that makes the name of a layer that of its attention, which is a function and not a module."""
TEST_LENGTH = 7
"""Number of positions of the input that tests a network."""
TEST_TARGETS = (2, 5)
"""The target positions among them; others are before, between and after them."""


def reducible_parts(trunk: nn.Module) -> tuple[str, ...]:
    """Return the names of the parts of the last layer that may run at the target positions alone.

    Architectures differ, so each part is tested. The test sets its inputs and outputs at the other positions to NaN,
    which no product with 0 hides. A part may be reduced if no NaN reaches the target outputs, and if these are the same
    when the part receives the target positions only.
    """
    layers = layers_of(trunk)
    if not layers:
        return ()
    last_layer = next(name for name, module in trunk.named_modules() if module is layers[-1])
    ids_BT = torch.arange(TEST_LENGTH, device=next(trunk.parameters()).device)[None, :]
    target_mask_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    target_mask_BT[0, TEST_TARGETS] = True

    def target_outputs() -> Tensor:
        hidden_BTD = trunk(input_ids=ids_BT, use_cache=False).last_hidden_state
        assert isinstance(hidden_BTD, Tensor)
        return hidden_BTD[target_mask_BT]

    def poison(values: Tensor) -> Tensor:
        return values.masked_fill(~target_mask_BT.view(1, TEST_LENGTH, *(1,) * (values.ndim - 2)), math.nan)

    def poisoned_attention(queries: Tensor, keys: Tensor, values: Tensor, kwargs: dict[str, object]) -> Tensor:
        return poison(_attention(queries, keys, values, kwargs).transpose(1, 2)).transpose(1, 2)

    reducible: list[str] = []
    with torch.no_grad():
        candidates, plain_ND = _candidates(trunk, last_layer, target_outputs)
        for name in candidates:
            if any(name.startswith(f"{parent}.") for parent in reducible):
                continue
            with _hooked(trunk, name, poison, poison, poisoned_attention):
                poisoned_ND = target_outputs()
            if _is_close(poisoned_ND, plain_ND):
                with reduced_last_layer(trunk, [name], target_mask_BT):
                    reduced_ND = target_outputs()
                if _is_close(reduced_ND, plain_ND):
                    reducible.append(name)
    return tuple(reducible)


@contextmanager
def reduced_last_layer(trunk: nn.Module, names: Sequence[str], target_mask_BT: Tensor) -> Iterator[None]:
    """In this block the trunk runs these parts only where `target_mask_BT`; hidden states elsewhere are undefined.

    Do not use it with activation checkpointing: the recomputation would run after the end of the block.
    """
    if not names:
        yield
        return
    positions_N = target_mask_BT.flatten().nonzero()[:, 0]

    def gather(values: Tensor) -> Tensor:
        return pad_positions(values.flatten(0, 1).index_select(0, positions_N))[None]

    def scatter(values: Tensor) -> Tensor:
        zeros = values.new_zeros(target_mask_BT.numel(), *values.shape[2:])
        everywhere = zeros.index_copy(0, positions_N, values[0, : len(positions_N)])
        return everywhere.view(*target_mask_BT.shape, *values.shape[2:])

    attend = _attention_at(target_mask_BT)
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(_hooked(trunk, name, gather, scatter, attend))
        yield


def _attention_at(target_mask_BT: Tensor) -> Attend:
    """Return causal attention for the target queries alone. Rows with fewer of them are padded with other queries."""
    width = int(target_mask_BT.sum(dim=1).max())
    positions_BN = (~target_mask_BT).byte().argsort(dim=1, stable=True)[:, :width]
    mask_B1NT = (torch.arange(target_mask_BT.shape[1], device=positions_BN.device) <= positions_BN[:, :, None])[:, None]

    def attend(queries: Tensor, keys: Tensor, values: Tensor, kwargs: dict[str, object]) -> Tensor:
        index_BHND = positions_BN[:, None, :, None].expand(-1, queries.shape[1], -1, queries.shape[3])
        masked = {**kwargs, "attn_mask": mask_B1NT, "is_causal": False}
        outputs_BHND = _attention(queries.gather(2, index_BHND), keys, values, masked)
        # Keep the heads of a position adjacent in memory, the layout that the next operation reads.
        zeros_BTHD = outputs_BHND.new_zeros(*target_mask_BT.shape, *outputs_BHND.shape[1::2])
        index_BNHD = positions_BN[:, :, None, None].expand(-1, -1, *outputs_BHND.shape[1::2])
        return zeros_BTHD.scatter(1, index_BNHD, outputs_BHND.transpose(1, 2)).transpose(1, 2)

    return attend


def _for_causal(attend: Attend) -> Attention:
    """Return a function that calls `attend` for causal attention without a mask, and torch's function for any other."""

    def causal_or_other(*args: object, **kwargs: object) -> object:
        if len(args) == 3 and kwargs.get("is_causal") and kwargs.get("attn_mask") is None:
            queries, keys, values = args
            assert isinstance(queries, Tensor) and isinstance(keys, Tensor) and isinstance(values, Tensor)
            if queries.shape[2] == keys.shape[2]:
                return attend(queries, keys, values, kwargs)
        return TORCH_ATTENTION(*args, **kwargs)

    return causal_or_other


def _attention(queries: Tensor, keys: Tensor, values: Tensor, kwargs: dict[str, object]) -> Tensor:
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention
    return attend(queries, keys, values, **kwargs)


@contextmanager
def _hooked(trunk: nn.Module, name: str, change_input: Change, change_output: Change, attend: Attend) -> Iterator[None]:
    """Apply `change_input` to a part's input and `change_output` to its output; replace an attention by `attend`."""
    parent, _, child = name.rpartition(".")
    if child == ATTENTION:
        module, stack = trunk.get_submodule(parent), ExitStack()

        def enter(*_: object) -> None:
            stack.enter_context(ReplacedAttention(_for_causal(attend)))

        hooks = [
            module.register_forward_pre_hook(enter),
            # Called even if the layer fails before the mode was entered.
            module.register_forward_hook(lambda *_: stack.close(), always_call=True),
        ]
    else:
        module = trunk.get_submodule(name)
        hooks = [
            module.register_forward_pre_hook(lambda _, inputs: (change_input(inputs[0]),)),
            module.register_forward_hook(lambda _, __, output: change_output(output)),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _candidates(trunk: nn.Module, layer: str, forward: Callable[[], Tensor]) -> tuple[list[str], Tensor]:
    """Return the candidates for reduction, and the output of `forward`.

    Candidates are the layer's attention and its parts with weights that are called once and map one tensor of positions
    to another. A part comes before its own parts.
    """
    attention = f"{layer}.{ATTENTION}"
    modules = trunk.get_submodule(layer).named_modules()
    names = [f"{layer}.{name}" for name, module in modules if name and any(True for _ in module.parameters())]
    calls: dict[str, list[bool]] = {name: [] for name in [attention, *names]}

    def watch(name: str) -> Callable[[nn.Module, tuple[object, ...], dict[str, object], object], None]:
        def hook(_: nn.Module, args: tuple[object, ...], kwargs: dict[str, object], output: object) -> None:
            calls[name].append(len(args) == 1 and not kwargs and _is_per_position(args[0]) and _is_per_position(output))

        return hook

    def attend(queries: Tensor, keys: Tensor, values: Tensor, kwargs: dict[str, object]) -> Tensor:
        # On a GPU the kernels without a mask are faster than attention with a mask on fewer queries.
        calls[attention].append(queries.device.type == "cpu")
        return _attention(queries, keys, values, kwargs)

    hooks = [trunk.get_submodule(name).register_forward_hook(watch(name), with_kwargs=True) for name in names]
    try:
        with _hooked(trunk, attention, nn.Identity(), nn.Identity(), attend):
            outputs = forward()
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name, outcomes in calls.items() if outcomes == [True]], outputs


def _is_per_position(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.ndim >= 3
        and value.shape[:2] == (1, TEST_LENGTH)
        and value.is_floating_point()
    )


def _is_close(values: Tensor, expected: Tensor) -> bool:
    """Whether the tensors are equal up to rounding. NaN equals nothing."""
    tolerance = float(expected.abs().max()) * math.sqrt(torch.finfo(expected.dtype).eps)
    return bool(((values - expected).abs() <= tolerance).all())


Head: TypeAlias = Callable[[Tensor], Tensor]
Entropy: TypeAlias = Literal["off", "detached", "with_grad"]
"""Whether a policy also returns the entropy at each target token, and whether with a gradient."""


def target_logprobs(
    hidden_BTD: Tensor,
    head: Head,
    ids_BT: Tensor,
    target_mask_BT: Tensor,
    temperature: float = 1.0,
    entropy: Entropy = "off",
) -> Tensor:
    """Return log softmax(head(h[t-1]) / temperature)[ids[t]] at the target tokens, 0 elsewhere; shape BT. With
    `entropy` also the exact entropy of the distribution of each target token; shape 2BT."""
    check_target_mask(target_mask_BT)
    # The head runs only there: logits of retrieved tokens are not needed.
    hidden_ND, targets_N = hidden_BTD[:, :-1][target_mask_BT[:, 1:]], ids_BT[:, 1:][target_mask_BT[:, 1:]]
    return scatter_targets(logprobs_at(hidden_ND, head, targets_N, temperature, entropy), target_mask_BT)


def logprobs_at(
    hidden_ND: Tensor, head: Head, targets_N: Tensor, temperature: float, entropy: Entropy = "off"
) -> Tensor:
    """Return the log-probability of each target, shape N; with `entropy` also that of its distribution, shape 2N.
    Logits are at least float32."""
    logits_NV = head(pad_positions(hidden_ND))[: len(hidden_ND)]
    if logits_NV.dtype is not torch.float64:
        logits_NV = logits_NV.float()
    if temperature != 1.0:
        logits_NV = logits_NV / temperature
    logprobs_N = -F.cross_entropy(logits_NV, targets_N, reduction="none")
    if entropy == "off":
        return logprobs_N
    return torch.stack([logprobs_N, entropies(logits_NV if entropy == "with_grad" else logits_NV.detach())])


def entropies(logits_NV: Tensor, rows: int = 512) -> Tensor:
    """Return -Σ p log p of each row of logits, in nats; shape N.

    Computes `rows` rows at a time and recomputes them in the backward pass: only the logits, which the
    log-probabilities need anyway, stay in memory.
    """
    chunks: list[Tensor] = [checkpoint(_entropy, chunk, use_reentrant=False) for chunk in logits_NV.split(rows)]
    return torch.cat(chunks)


def _entropy(logits_NV: Tensor) -> Tensor:
    logprobs_NV = logits_NV.log_softmax(dim=1)
    # A token of probability 0 has log-probability -inf, and 0 · -inf is NaN.
    return -(logprobs_NV.exp() * logprobs_NV.clamp(min=torch.finfo(logits_NV.dtype).min)).sum(dim=1)


def check_target_mask(target_mask_BT: Tensor) -> None:
    """Raise `DataError` where a row's first token is a target."""
    if bool(target_mask_BT[:, 0].any()):
        raise DataError("the first token of a row has nothing before it, so it has no log-probability")


def scatter_targets(values_N: Tensor, target_mask_BT: Tensor) -> Tensor:
    """Put values at the target positions, row by row, 0 elsewhere; shape N → BT, 2N → 2BT."""
    zeros = values_N.new_zeros(*values_N.shape[:-1], *target_mask_BT.shape)
    return zeros.masked_scatter(target_mask_BT, values_N)
