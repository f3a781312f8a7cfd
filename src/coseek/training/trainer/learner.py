"""Learner: a module in training. It splits a batch, runs the module, accumulates gradients and steps the optimiser.

Policy and critic differ only in their `outputs`. The interface is `forward_backward` with a loss, any number of times,
then `optim_step`; a remote trainer could have the same.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Literal, Protocol, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coseek.core.errors import SettingError
from coseek.hardware.precision import Precision, Use
from coseek.hardware.speed import precision_of
from coseek.training.trainer.batch import Batch, micro_batches
from coseek.training.trainer.optimiser import Optimiser, OptimiserState
from coseek.training.trainer.settings import LearnerSettings
from coseek.training.trainer.workers import ALONE, Workers, layers_of, shard, shard_like, whole

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs of the module, shape bt; their rows in the batch, shape b) → a scalar. The scalars of all parts sum to the
loss of the batch. t may be less than the batch's T: a part is cut to its longest row."""


Entropy: TypeAlias = Literal["no", "seen", "trained"]
"""Whether a policy also returns the entropy at each wanted token: `seen` without a gradient, `trained` with one."""


class LearnerState(TypedDict):
    """State of a learner in a checkpoint, the same for any number of workers."""

    module: dict[str, Tensor]
    optimiser: OptimiserState


class ForwardModel(Protocol):
    """A model that is run but not trained."""

    def forward(self, batch: Batch, wanted_BT: Tensor) -> Tensor:
        """Return one float32 number for each wanted token, 0 elsewhere; shape BT, without gradients."""
        ...

    def weights(self) -> dict[str, Tensor]: ...

    def load_weights(self, weights: dict[str, Tensor]) -> None: ...


class Trainable(ForwardModel, Protocol):
    """A model in training: call `forward_backward` any number of times, then `optim_step`."""

    @property
    def updates_done(self) -> int:
        """Number of updates of the model so far."""
        ...

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        ...

    def forward_backward(self, batch: Batch, wanted_BT: Tensor, loss: Loss, entropy: Entropy = "no") -> float:
        """Add the gradient of `loss`, summed over the parts of the batch. Returns the loss."""
        ...

    def optim_step(self) -> float:
        """Make one update. Returns the norm of the gradient."""
        ...

    def state(self) -> LearnerState:
        """Return the state of the model and its optimiser for a checkpoint."""
        ...

    def load_state(self, state: LearnerState) -> None: ...


class Learner(ABC):
    """A module with its optimiser. Dropout is off, as in sampling.

    Every worker holds the whole `module` with the current weights, for samplers and for saving. If the workers shard
    the weights (`fsdp2`), a sharded copy is trained, and each update is copied back.
    """

    def __init__(self, module: nn.Module, settings: LearnerSettings, updates: int, workers: Workers = ALONE) -> None:
        self.module = module.eval()
        self.settings = settings
        self.updates = updates
        self.workers = workers
        self._is_sharded = settings.workers == "fsdp2" and workers.world > 1
        if settings.checkpointing:
            _prepare_recomputing(module)

    @cached_property
    def optimiser(self) -> Optimiser:
        """Created on first use: a frozen copy never needs one."""
        return Optimiser(self._trained.parameters(), self.settings.optimiser, self.updates)

    @cached_property
    def _trained(self) -> nn.Module:
        """The trained module: `entry(...)` of the module itself, or of a sharded copy."""
        if not self._is_sharded:
            return self.entry(self.module)
        entry = self.entry(copy.deepcopy(self.module))
        shard(entry, self.workers)
        return entry

    def entry(self, module: nn.Module) -> nn.Module:
        """Return the callable for a batch: the module, or a wrapper of it."""
        return module

    @property
    def updates_done(self) -> int:
        return self.optimiser.update

    @property
    def learning_rate(self) -> float:
        return self.optimiser.rate

    @abstractmethod
    def outputs(self, entry: nn.Module, part: Batch, wanted_BT: Tensor, entropy: Entropy = "no") -> Tensor:
        """Return one float32 number for each wanted token, 0 elsewhere; shape BT. With entropies, which only a policy
        has, shape 2BT."""

    def forward(self, batch: Batch, wanted_BT: Tensor) -> Tensor:
        """Return `outputs` of a whole batch, without gradients."""
        outputs_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.float32)
        entry = self.entry(self.module)
        with torch.no_grad():
            for rows_B in self.workers.mine(self._parts(batch, wanted_BT)):
                part, wanted = self._part(batch, wanted_BT, rows_B)
                outputs_BT[rows_B, : part.ids_BT.shape[1]] = self.outputs(entry, part, wanted).cpu()
        return self.workers.add_up(outputs_BT)

    def forward_backward(self, batch: Batch, wanted_BT: Tensor, loss: Loss, entropy: Entropy = "no") -> float:
        """Add the gradient of `loss`, summed over the parts of the batch. Returns the loss.

        Rows without a wanted token are skipped. Each worker runs its own parts, and all return the loss of the whole
        batch.
        """
        total = torch.zeros((), dtype=torch.float64)
        parts = self._parts(batch, wanted_BT)
        mine = self.workers.mine(parts)
        with self._recomputing():
            for rows_B in mine:
                part, wanted = self._part(batch, wanted_BT, rows_B)
                value = loss(self.outputs(self._trained, part, wanted, entropy), rows_B)
                value.backward()
                total += float(value.detach())
            if self._is_sharded and len(mine) < math.ceil(len(parts) / self.workers.world):
                # Other workers run one more part, for which they need this worker's shards.
                part, wanted = self._part(batch, wanted_BT, parts[-1])
                (self.outputs(self._trained, part, wanted).sum() * 0.0).backward()
        return float(self.workers.add_up(total))

    def optim_step(self) -> float:
        """Make one update. Returns the norm of the gradient."""
        if not self._is_sharded:
            self.workers.add_up_gradients(self.module.parameters())
        norm = self.optimiser.step()
        if self._is_sharded:
            self._copy_from_shards()
        return norm

    def weights(self) -> dict[str, Tensor]:
        """Return the trained weights by name: all of the module, or the adapters and other unfrozen weights."""
        weights: dict[str, Tensor] = self.module.state_dict()
        if self.settings.lora is None:
            return weights
        named = self.module.named_parameters(remove_duplicate=False)  # a tied weight has two names
        frozen = {name for name, weight in named if not weight.requires_grad}
        return {name: weight for name, weight in weights.items() if name not in frozen}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.module.load_state_dict({**self.module.state_dict(), **weights})
        if "_trained" in self.__dict__ and self._is_sharded:
            self._copy_to_shards()

    def state(self) -> LearnerState:
        """Return the state for a checkpoint. All workers must call it, as each may hold a shard."""
        return {"module": self.weights(), "optimiser": self.optimiser.state()}

    def load_state(self, state: LearnerState) -> None:
        self.load_weights(state["module"])
        self.optimiser.load_state(state["optimiser"])

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @torch.no_grad()
    def _copy_from_shards(self) -> None:
        """Copy the shards to the whole module."""
        for mine, sharded in self._pairs():
            mine.copy_(whole(sharded))

    @torch.no_grad()
    def _copy_to_shards(self) -> None:
        """Copy the whole module to the shards."""
        for mine, sharded in self._pairs():
            sharded.copy_(shard_like(mine, sharded))

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each trained weight, whole and sharded."""
        both = zip(self.entry(self.module).parameters(), self._trained.parameters(), strict=True)
        return ((mine, sharded) for mine, sharded in both if sharded.requires_grad)

    def _parts(self, batch: Batch, wanted_BT: Tensor) -> list[Tensor]:
        rows_N = wanted_BT.any(dim=1).nonzero()[:, 0]
        return [rows_N[part] for part in micro_batches(batch.lengths_B[rows_N], self.settings.micro_batch_tokens)]

    def _part(self, batch: Batch, wanted_BT: Tensor, rows_B: Tensor) -> tuple[Batch, Tensor]:
        part = batch.select(rows_B)
        return part.to(self.device), wanted_BT[rows_B, : part.ids_BT.shape[1]].to(self.device)

    @cached_property
    def precision(self) -> Precision:
        """Precision of the forward pass."""
        return precision_of(self.settings.precision, Use.TRAINING, device=str(self.device))

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Recompute activations in this block, if the settings ask for it.

        Hugging Face's layers do so in training mode only. The layers are switched to it without their dropout modules,
        and only while gradients are computed: in that mode they would disable a sampler's cache.
        """
        layers = layers_of(self._trained) if self.settings.checkpointing else []
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


def _prepare_recomputing(module: nn.Module) -> None:
    for model in module.modules():
        if isinstance(model, PreTrainedModel):
            try:
                model.activation_checkpointing_enable({"use_reentrant": False})
            except ValueError:
                raise SettingError(
                    f"{type(model).__name__} cannot recompute its layers; set checkpointing=false"
                ) from None
            return
