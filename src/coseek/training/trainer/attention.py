"""Attention: replace the attention function of a network while it runs."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

Attention: TypeAlias = Callable[..., object]
"""A function with the arguments of `scaled_dot_product_attention`."""

KNOWN: Attention = F.scaled_dot_product_attention
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
        return (self.attend if func is KNOWN else func)(*args, **(kwargs or {}))
