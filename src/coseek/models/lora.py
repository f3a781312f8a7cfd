"""Low-rank adapters on linear layers (Hu et al. 2021, "LoRA"): y = W x + b + s · B A x, with W and b frozen.

An adapted layer keeps the names of what it adapts, so every reader of a model's weights finds them where they were;
`merged_state_dict` adds the adapters to them. Dropout is left out on purpose: what is trained is what was sampled from.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LoraLinear(nn.Linear):
    """A linear layer with an adapter of rank r: A is r × inputs and begins uniform, B is outputs × r and begins at 0,
    so that the layer begins as it was."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        bound = 1.0 / math.sqrt(linear.in_features)
        down = torch.empty(rank, linear.in_features).uniform_(-bound, bound, generator=generator)
        # float32 also beside bfloat16 weights: small steps would be rounded away.
        self.lora_A = nn.Parameter(down.to(linear.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank, device=linear.weight.device))
        self.scale = scale
        self.on = True

    def forward(self, input: Tensor) -> Tensor:
        plain = F.linear(input, self.weight, self.bias)
        if not self.on:
            return plain
        low = F.linear(input.to(self.lora_A.dtype), self.lora_A)
        return plain + (F.linear(low, self.lora_B) * self.scale).to(plain.dtype)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """The weight of the plain layer that computes the same: W + s · B A."""
        return self.weight + (self.lora_B @ self.lora_A * self.scale).to(self.weight.dtype)


def adapted_layers(module: nn.Module) -> dict[str, LoraLinear]:
    """The layers that have an adapter, by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLinear)}


def merged_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """State of the module as if it had never been adapted: adapters are added to their weights."""
    weights = cast(dict[str, Tensor], module.state_dict())
    for name, layer in adapted_layers(module).items():
        weights[f"{name}.weight"] = layer.merged()
        del weights[f"{name}.lora_A"], weights[f"{name}.lora_B"]
    return weights


def merge_adapters(module: nn.Module) -> None:
    """Make adapted layers plain ones that compute the same."""
    for name, layer in adapted_layers(module).items():
        plain = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        plain.weight, plain.bias = nn.Parameter(layer.merged()), layer.bias
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, plain.train(layer.training))


@contextmanager
def adapters_disabled(module: nn.Module) -> Iterator[None]:
    """The module as it was before its adapters learnt anything."""
    layers = adapted_layers(module).values()
    for layer in layers:
        layer.on = False
    try:
        yield
    finally:
        for layer in layers:
            layer.on = True
