"""Trimming: the end of a network runs only where somebody looks at what comes out.

In the last layer a position asks others for their keys and values and is on its own from there on. Nobody asks what
the network says after a token of a prompt or of a passage. So queries, attention and the feed-forward part of that
layer are run for the positions that are looked at, and give 0 at the others. No output and no gradient changes, but for
the order in which floats are added.

Shapes: B rows · T tokens · N positions that are looked at, of all rows or of a row · H heads · D size.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from coseek.training.trainer.workers import layers_of

Change: TypeAlias = Callable[[Tensor], Tensor]
Attend: TypeAlias = Callable[[Tensor, Tensor, Tensor, dict[str, object]], Tensor]
"""(queries, keys, values, what else `scaled_dot_product_attention` was called with) → what it gives."""

ATTENTION = "attention"
"""Stands behind the name of a layer for its attention, which is a function and no part of the network."""
TRIED = 7
"""Positions of the text that a network is tried out on."""
LOOKED_AT = (2, 5)
"""Those of them that are looked at: others are before, between and behind them."""


def reducible_parts(trunk: nn.Module) -> tuple[str, ...]:
    """Names of the parts of the last layer that may run for some positions alone.

    Architectures differ, so this is tried out part by part rather than believed: what is put in and comes out at the
    other positions is made NaN, which no product with 0 hides. A part may be trimmed if none of that arrives where
    somebody looks, and if it says the same when it is only shown the positions that are looked at.
    """
    layers = layers_of(trunk)
    if not layers:
        return ()
    last = next(name for name, module in trunk.named_modules() if module is layers[-1])
    ids_BT = torch.arange(TRIED, device=next(trunk.parameters()).device)[None, :]
    looked_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    looked_BT[0, LOOKED_AT] = True

    def arrives() -> Tensor:
        hidden_BTD = trunk(input_ids=ids_BT, use_cache=False).last_hidden_state
        assert isinstance(hidden_BTD, Tensor)
        return hidden_BTD[looked_BT]

    def poison(values: Tensor) -> Tensor:
        return values.masked_fill(~looked_BT.view(1, TRIED, *(1,) * (values.ndim - 2)), math.nan)

    def poisoned_attention(queries: Tensor, keys: Tensor, values: Tensor, named: dict[str, object]) -> Tensor:
        return poison(_attention(queries, keys, values, named).transpose(1, 2)).transpose(1, 2)

    found: list[str] = []
    with torch.no_grad():
        candidates, plain_ND = _candidates(trunk, last, arrives)
        for name in candidates:
            if any(name.startswith(f"{whole}.") for whole in found):
                continue
            with _around(trunk, name, poison, poison, poisoned_attention):
                poisoned_ND = arrives()
            if _same(poisoned_ND, plain_ND):
                with reduced_last_layer(trunk, [name], looked_BT):
                    trimmed_ND = arrives()
                if _same(trimmed_ND, plain_ND):
                    found.append(name)
    return tuple(found)


@contextmanager
def reduced_last_layer(trunk: nn.Module, names: Sequence[str], looked_BT: Tensor) -> Iterator[None]:
    """In here the trunk runs these parts where `looked_BT` alone; its hidden states are to be read nowhere else.

    Not for layers that are recomputed on the way back, which is behind the end of this.
    """
    if not names:
        yield
        return
    at_N = looked_BT.flatten().nonzero()[:, 0]

    def pick(values: Tensor) -> Tensor:
        return values.flatten(0, 1).index_select(0, at_N)[None]

    def put_back(values: Tensor) -> Tensor:
        everywhere = values.new_zeros(looked_BT.numel(), *values.shape[2:])
        return everywhere.index_copy(0, at_N, values[0]).view(*looked_BT.shape, *values.shape[2:])

    attend = _attention_at(looked_BT)
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(_around(trunk, name, pick, put_back, attend))
        yield


def _attention_at(looked_BT: Tensor) -> Attend:
    """Causal attention for these queries alone. Rows with fewer of them than others are filled up with some more."""
    most = int(looked_BT.sum(dim=1).max())
    at_BN = (~looked_BT).byte().argsort(dim=1, stable=True)[:, :most]
    sees_B1NT = (torch.arange(looked_BT.shape[1], device=at_BN.device) <= at_BN[:, :, None])[:, None]

    def attend(queries: Tensor, keys: Tensor, values: Tensor, named: dict[str, object]) -> Tensor:
        at_BHND = at_BN[:, None, :, None].expand(-1, queries.shape[1], -1, queries.shape[3])
        chosen = _attention(
            queries.gather(2, at_BHND), keys, values, {**named, "attn_mask": sees_B1NT, "is_causal": False}
        )
        # In memory the heads of a position lie together, as what follows reads them.
        everywhere = chosen.new_zeros(*looked_BT.shape, *chosen.shape[1::2])
        at_BNHD = at_BN[:, :, None, None].expand(-1, -1, *chosen.shape[1::2])
        return everywhere.scatter(1, at_BNHD, chosen.transpose(1, 2)).transpose(1, 2)

    return attend


class _Attention(TorchFunctionMode):
    """Takes the place of causal attention without a mask; what is called in another way is left alone."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend
        self._on = ExitStack()

    def enter(self) -> None:
        self._on.enter_context(self)

    def leave(self) -> None:
        """Also where it was never entered: a layer may fail before that."""
        self._on.close()

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        named = kwargs or {}
        if func is F.scaled_dot_product_attention and len(args) == 3 and named.get("is_causal"):
            queries, keys, values = args
            assert isinstance(queries, Tensor) and isinstance(keys, Tensor) and isinstance(values, Tensor)
            if named.get("attn_mask") is None and queries.shape[2] == keys.shape[2]:
                return self.attend(queries, keys, values, named)
        return func(*args, **named)


def _attention(queries: Tensor, keys: Tensor, values: Tensor, named: dict[str, object]) -> Tensor:
    attend: Callable[..., Tensor] = F.scaled_dot_product_attention
    return attend(queries, keys, values, **named)


@contextmanager
def _around(trunk: nn.Module, name: str, before: Change, after: Change, attend: Attend) -> Iterator[None]:
    """The part of that name, with what goes in and what comes out changed; of an attention, another one instead."""
    whole, _, last = name.rpartition(".")
    if last == ATTENTION:
        module, mode = trunk.get_submodule(whole), _Attention(attend)
        hooks = [
            module.register_forward_pre_hook(lambda *_: mode.enter()),
            module.register_forward_hook(lambda *_: mode.leave(), always_call=True),
        ]
    else:
        module = trunk.get_submodule(name)
        hooks = [
            module.register_forward_pre_hook(lambda _, given: (before(given[0]),)),
            module.register_forward_hook(lambda _, __, said: after(said)),
        ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _candidates(trunk: nn.Module, layer: str, run: Callable[[], Tensor]) -> tuple[list[str], Tensor]:
    """The layer's attention, and its parts with weights that turn one tensor of positions into another, once; and what
    a run gives. A part stands in front of what it consists of."""
    inside = trunk.get_submodule(layer).named_modules()
    names = [f"{layer}.{name}" for name, part in inside if name and any(True for _ in part.parameters())]
    calls: dict[str, list[bool]] = {name: [] for name in [f"{layer}.{ATTENTION}", *names]}

    def watch(name: str) -> Callable[[nn.Module, tuple[object, ...], dict[str, object], object], None]:
        def hook(_: nn.Module, given: tuple[object, ...], named: dict[str, object], said: object) -> None:
            calls[name].append(len(given) == 1 and not named and _is_of_positions(given[0]) and _is_of_positions(said))

        return hook

    def attend(queries: Tensor, keys: Tensor, values: Tensor, named: dict[str, object]) -> Tensor:
        # On a GPU the kernels that know no mask are faster than fewer queries.
        calls[f"{layer}.{ATTENTION}"].append(queries.device.type == "cpu")
        return _attention(queries, keys, values, named)

    def same(value: Tensor) -> Tensor:
        return value

    hooks = [trunk.get_submodule(name).register_forward_hook(watch(name), with_kwargs=True) for name in names]
    try:
        with _around(trunk, f"{layer}.{ATTENTION}", same, same, attend):
            plain = run()
    finally:
        for hook in hooks:
            hook.remove()
    return [name for name, called in calls.items() if called == [True]], plain


def _is_of_positions(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim >= 3 and value.shape[:2] == (1, TRIED) and value.is_floating_point()


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding; nothing is equal to NaN."""
    tolerance = float(other.abs().max()) * math.sqrt(torch.finfo(other.dtype).eps)
    return bool(((one - other).abs() <= tolerance).all())
