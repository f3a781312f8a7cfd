"""Learner: a module in training. It cuts a batch up, runs the module, gathers gradients and steps.

The policy and the critic differ only in what they say of a token (`outputs`). The way in is always
`forward_backward` with a loss, as often as wanted, then `optim_step`: the shape that a remote trainer would have too.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from coseek.training.learning.batch import Batch, micro_batches
from coseek.training.learning.optimiser import Optimiser, OptimiserState
from coseek.training.settings import LearnerSettings

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(what the module says of the tokens, shape bt; the rows of the batch that these are, shape b) → a scalar that adds
up over the parts of a batch. t may be shorter than the batch's T: the rows come cut to the longest of them."""


class LearnerState(TypedDict):
    """What a checkpoint holds of a learner."""

    module: dict[str, Tensor]
    optimiser: OptimiserState


class Learner(ABC):
    """A module with its optimiser. Dropout is off: what is trained must be what was sampled from."""

    def __init__(self, module: nn.Module, settings: LearnerSettings, updates: int) -> None:
        self.module = module.eval()
        self.settings = settings
        self.updates = updates

    @cached_property
    def optimiser(self) -> Optimiser:
        """Made when first needed: a frozen copy never steps."""
        return Optimiser(self.module.parameters(), self.settings.optimiser, self.updates)

    @abstractmethod
    def outputs(self, part: Batch, wanted_BT: Tensor) -> Tensor:
        """One float32 number for each wanted token, 0 elsewhere; shape BT."""

    def forward(self, batch: Batch, wanted_BT: Tensor) -> Tensor:
        """`outputs` of a whole batch, without gradients."""
        said_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.float32)
        with torch.no_grad():
            for rows_B in self._parts(batch, wanted_BT):
                part, wanted = self._part(batch, wanted_BT, rows_B)
                said_BT[rows_B, : part.ids_BT.shape[1]] = self.outputs(part, wanted).cpu()
        return said_BT

    def forward_backward(self, batch: Batch, wanted_BT: Tensor, loss: Loss) -> float:
        """Add the gradient of `loss`, summed over the parts of the batch; returns the loss.

        Rows without a wanted token are passed over.
        """
        total = 0.0
        for rows_B in self._parts(batch, wanted_BT):
            part, wanted = self._part(batch, wanted_BT, rows_B)
            value = loss(self.outputs(part, wanted), rows_B)
            value.backward()
            total += float(value.detach())
        return total

    def optim_step(self) -> float:
        """One update; returns the norm of the gradient."""
        return self.optimiser.step()

    def state(self) -> LearnerState:
        return {"module": self.module.state_dict(), "optimiser": self.optimiser.state()}

    def load_state(self, state: LearnerState) -> None:
        self.module.load_state_dict(state["module"])
        self.optimiser.load_state(state["optimiser"])

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def _parts(self, batch: Batch, wanted_BT: Tensor) -> list[Tensor]:
        rows_N = wanted_BT.any(dim=1).nonzero()[:, 0]
        return [rows_N[part] for part in micro_batches(batch.lengths_B[rows_N], self.settings.micro_batch_tokens)]

    def _part(self, batch: Batch, wanted_BT: Tensor, rows_B: Tensor) -> tuple[Batch, Tensor]:
        part = batch.select(rows_B)
        return part.to(self.device), wanted_BT[rows_B, : part.ids_BT.shape[1]].to(self.device)

    def _arithmetic(self) -> AbstractContextManager[object]:
        if self.settings.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)
