"""Muon: an optimizer of matrices whose update is the orthogonalised momentum (Jordan, 2024).

`torch.optim.Muon` computes in bfloat16 alone, also on processors without bfloat16 instructions, and one matrix at a
time.
"""

import math
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter

STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration: the steepest at 0 that leaves singular values between .7 and 1.2 (Jordan, 2024)."""
RMS = 0.2
"""Root mean square of an update over the learning rate, about that of AdamW's (Liu et al., 2025)."""


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum. Its learning rates are those of AdamW."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        *,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """All parameters are matrices; `dtype` is the precision of the orthogonalisation."""
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is ever evaluated here
        for group in self.param_groups:
            alike: dict[torch.Size, list[Parameter]] = {}
            for parameter in cast("list[Parameter]", group["params"]):
                if parameter.grad is not None:
                    alike.setdefault(parameter.shape, []).append(parameter)
            for shape, matrices in alike.items():
                updates_NIO = orthogonalise(torch.stack([self._nesterov(one, group) for one in matrices]), self._dtype)
                scale = RMS * math.sqrt(max(shape))
                for matrix, update_IO in zip(matrices, updates_NIO, strict=True):
                    matrix.mul_(1.0 - group["lr"] * group["weight_decay"])
                    matrix.add_(update_IO, alpha=-group["lr"] * scale)

    def prepare(self) -> None:
        """Give every parameter its momentum, 0 before its first gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                self._momentum(parameter)

    def _momentum(self, parameter: Parameter) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return cast(Tensor, state["momentum"])

    def _nesterov(self, parameter: Parameter, group: dict[str, float]) -> Tensor:
        gradient, momentum = cast(Tensor, parameter.grad), self._momentum(parameter)
        momentum.lerp_(gradient, 1.0 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"])


def orthogonalise(matrices_NIO: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The nearest semi-orthogonal matrices, roughly: singular values between .7 and 1.2, shape NIO."""
    flipped = matrices_NIO.shape[1] > matrices_NIO.shape[2]
    x = (matrices_NIO.mT if flipped else matrices_NIO).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if flipped else x).to(matrices_NIO.dtype)
