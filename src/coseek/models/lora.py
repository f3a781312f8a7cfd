"""LoRA: low-rank adapters on linear layers (Hu et al. 2021): y = W x + b + s · B A x, with W and b frozen.

An adapted layer keeps its parameter names; `merged_state_dict` adds the adapters to the weights. There is no dropout,
so that training and sampling use the same network.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LoraLinear(nn.Linear):
    """A linear layer with an adapter of rank r. A (r × inputs) starts uniform, B (outputs × r) at 0."""

    def __init__(self, linear: nn.Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__(linear.in_features, linear.out_features, linear.bias is not None, device="meta")
        self.weight, self.bias = linear.weight, linear.bias
        bound = 1.0 / math.sqrt(linear.in_features)
        down = torch.empty(rank, linear.in_features).uniform_(-bound, bound, generator=generator)
        # float32 even with bfloat16 weights, where small updates would be rounded away.
        self.lora_A = nn.Parameter(down.to(linear.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(linear.out_features, rank, device=linear.weight.device))
        self.scale = scale
        self.on = True

    def forward(self, input: Tensor) -> Tensor:
        base_output = F.linear(input, self.weight, self.bias)
        if not self.on:
            return base_output
        low_rank = F.linear(input.to(self.lora_A.dtype), self.lora_A)
        return base_output + (F.linear(low_rank, self.lora_B) * self.scale).to(base_output.dtype)

    @torch.no_grad()
    def merged(self) -> Tensor:
        """The merged weight W + s · B A, rounded once to the number type of W."""
        return (self.lora_B @ self.lora_A * self.scale + self.weight).to(self.weight.dtype)


def adapted_layers(module: nn.Module) -> dict[str, LoraLinear]:
    """The adapted layers by name."""
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, LoraLinear)}


def merged_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The state of the module with the adapters merged into their weights."""
    weights = cast(dict[str, Tensor], module.state_dict())
    for name, layer in adapted_layers(module).items():
        weights[f"{name}.weight"] = layer.merged()
        del weights[f"{name}.lora_A"], weights[f"{name}.lora_B"]
    return weights


def merge_adapters(module: nn.Module) -> None:
    """Replace adapted layers by plain ones with merged weights."""
    for name, layer in adapted_layers(module).items():
        linear = nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
        linear.weight, linear.bias = nn.Parameter(layer.merged()), layer.bias
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, linear.train(layer.training))


@contextmanager
def adapters_disabled(module: nn.Module) -> Iterator[None]:
    """Disable the adapters inside the block."""
    layers = adapted_layers(module).values()
    for layer in layers:
        layer.on = False
    try:
        yield
    finally:
        for layer in layers:
            layer.on = True
