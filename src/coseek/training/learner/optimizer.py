"""Optimizer: AdamW, or AdamW and Muon, with gradient clipping and a schedule that is a pure function of the update's
number.
"""

import math
from collections.abc import Collection, Iterable
from typing import NotRequired, TypedDict, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grad_norm_

from coseek.core.errors import RunError
from coseek.training.learner.settings import OptimizerSettings
from coseek.training.learner.workers import full_tensor

# Muon: an optimizer of matrices whose update is the orthogonalised momentum (Jordan, 2024).
#
# `torch.optim.Muon` only computes in bfloat16, even on processors without bfloat16 instructions, and one matrix at a
# time.

NEWTON_SCHULZ_STEPS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of the quintic iteration: the steepest at 0 that leaves singular values between .7 and 1.2 (Jordan,
2024)."""
MOMENTUM = 0.95
UPDATE_RMS = 0.2
"""Root mean square of an update over the learning rate, about that of AdamW's (Liu et al., 2025)."""


class Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum. Its learning rates are those of AdamW."""

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        *,
        weight_decay: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """All parameters are matrices; `dtype` is the precision of the orthogonalisation."""
        super().__init__(parameters, {"lr": lr, "momentum": MOMENTUM, "weight_decay": weight_decay})
        self._dtype = dtype
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is ever evaluated here
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Parameter]] = {}
            for parameter in cast("list[Parameter]", group["params"]):
                if parameter.grad is not None:
                    by_shape.setdefault(parameter.shape, []).append(parameter)
            for shape, matrices in by_shape.items():
                momenta_NIO = torch.stack([self._nesterov(matrix, group) for matrix in matrices])
                updates_NIO = orthogonalise(momenta_NIO, self._dtype)
                scale = UPDATE_RMS * math.sqrt(max(shape))
                for matrix, update_IO in zip(matrices, updates_NIO, strict=True):
                    matrix.mul_(1.0 - group["lr"] * group["weight_decay"])
                    matrix.add_(update_IO, alpha=-group["lr"] * scale)

    def _nesterov(self, parameter: Parameter, group: dict[str, float]) -> Tensor:
        gradient, momentum = cast(Tensor, parameter.grad), cast(Tensor, self.state[parameter]["momentum"])
        momentum.lerp_(gradient, 1.0 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"])


def orthogonalise(matrices_NIO: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return roughly the nearest semi-orthogonal matrices: singular values between .7 and 1.2, shape NIO."""
    is_tall = matrices_NIO.shape[1] > matrices_NIO.shape[2]
    x = (matrices_NIO.mT if is_tall else matrices_NIO).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if is_tall else x).to(matrices_NIO.dtype)


def rate_at(settings: OptimizerSettings, update: int, total_updates: int) -> float:
    """Return the learning rate of update `update` (from 0) of `total_updates`, constant after the last one."""
    if update < (warmup := settings.warmup_of(total_updates)):
        return settings.lr * (update + 1) / warmup
    start = settings.decay_from * total_updates
    if settings.lr_scheduler_type == "constant" or update < start:
        return settings.lr
    progress = min(1.0, (update - start) / max(1.0, total_updates - start))
    factor = 1.0 - progress if settings.lr_scheduler_type == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return settings.lr * (settings.min_lr_ratio + (1.0 - settings.min_lr_ratio) * factor)


MOMENTS = {"exp_avg", "exp_avg_sq"}
"""AdamW's names of its moments."""


class OptimizerState(TypedDict):
    """State of an optimizer in a checkpoint."""

    adam: dict[str, object]
    muon: NotRequired[dict[str, object]]
    update: int


def adam_groups(parameters: Iterable[Parameter], settings: OptimizerSettings) -> list[dict[str, object]]:
    """Return AdamW's parameter groups: weight decay on matrices, and on vectors if set."""
    parameters = [*parameters]
    groups: list[dict[str, object]] = []
    for is_matrix, decays in ((True, True), (False, settings.decay_vectors)):
        members = [parameter for parameter in parameters if (parameter.ndim >= 2) == is_matrix]
        if members:
            groups.append({"params": members, "weight_decay": settings.weight_decay if decays else 0.0})
    return groups


class Optimizer:
    """Updates a set of parameters. The schedule's position is the number of updates made.

    Muon updates the matrices among `hidden`, if the settings ask for it, and AdamW all others.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        settings: OptimizerSettings,
        total_updates: int,
        hidden: Collection[Parameter] = (),
        dtype: torch.dtype = torch.float32,
        *,
        offload: bool = False,
    ) -> None:
        """`hidden`: the parameters of a model's layers; `dtype`: the precision of Muon's updates; `offload`: keep the
        moments of AdamW in the host's memory between updates."""
        self.settings = settings
        self.total_updates = total_updates
        self.updates_done = 0
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        muon_ids = {id(parameter) for parameter in hidden if parameter.ndim == 2 and settings.algorithm == "muon"}
        muon = [parameter for parameter in self._parameters if id(parameter) in muon_ids]
        self._adam_parameters = [parameter for parameter in self._parameters if id(parameter) not in muon_ids]
        groups = adam_groups(self._adam_parameters, settings)
        self._adam = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps, fused=True)
        self._offload = offload
        self._muon = Muon(muon, settings.lr, weight_decay=settings.weight_decay, dtype=dtype) if muon else None

    def step(self) -> float:
        """Make one update from the accumulated gradients and clear them. Returns their norm before clipping."""
        max_norm = self.settings.max_grad_norm if self.settings.max_grad_norm > 0 else math.inf
        norm = float(full_tensor(clip_grad_norm_(self._parameters, max_norm)))
        if not math.isfinite(norm):
            raise RunError(
                f"the gradient of update {self.updates_done} is {norm}; start again from the last good weights "
                f"with a learning rate below {self.settings.lr}"
            )
        self._move_moments(to_devices=True)
        for optimizer, factor in ((self._adam, 1.0), (self._muon, self.settings.muon_lr_factor)):
            if optimizer is not None:
                for group in optimizer.param_groups:
                    group["lr"] = factor * self.rate
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self._move_moments(to_devices=False)
        self.updates_done += 1
        return norm

    def _move_moments(self, to_devices: bool) -> None:
        """Move offloaded moments to the devices of their parameters (`to_devices`), or to the host's memory."""
        if not self._offload:
            return
        for parameter, state in self._adam.state.items():
            for name in MOMENTS & state.keys():
                state[name] = state[name].to(parameter.device if to_devices else "cpu")

    @property
    def rate(self) -> float:
        """Learning rate of the next update."""
        return rate_at(self.settings, self.updates_done, self.total_updates)

    def state(self) -> OptimizerState:
        """Return the state for a checkpoint: live tensors, sharded like their parameters.

        A parameter without a gradient so far has the moments that an optimizer begins with, so all states have the same
        names.
        """
        for parameter in self._adam_parameters:
            if not self._adam.state[parameter]:
                self._adam.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }
        self._move_moments(to_devices=False)
        state: OptimizerState = {"adam": self._adam.state_dict(), "update": self.updates_done}
        if self._muon is not None:
            state["muon"] = self._muon.state_dict()
        return state

    def load_state(self, state: OptimizerState) -> None:
        self._adam.load_state_dict(state["adam"])
        self._move_moments(to_devices=False)
        if self._muon is not None:
            self._muon.load_state_dict(state["muon"])
        self.updates_done = state["update"]
