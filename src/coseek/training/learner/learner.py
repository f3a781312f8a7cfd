"""Learner: a module in training. It splits a batch, runs the module, accumulates gradients and steps the optimizer.

Policy and critic differ only in their `outputs`. The interface is `forward_backward` with a loss, any number of times,
then `optim_step`; a remote trainer has the same (`rl/tinker_policy.py`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Protocol, TypeAlias, TypedDict

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from coseek.core.errors import SettingError
from coseek.hardware.placement import Precision, Use, precision_of
from coseek.models.model_folder import shape_of_config
from coseek.training.learner.batch import Batch, micro_batches
from coseek.training.learner.logprobs import Entropy, bfloat16_autocast
from coseek.training.learner.optimizer import Optimizer, OptimizerState
from coseek.training.learner.settings import LearnerSettings, micro_batch_tokens
from coseek.training.learner.workers import ALONE, Workers, layers_of, pass_device, shard

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(outputs of the module, shape bt; their rows in the batch, shape b) → a scalar. The scalars of all micro-batches sum
to the loss of the batch. t may be less than the batch's T: a micro-batch is cut to its longest row."""


class LearnerState(TypedDict):
    """State of a learner in a checkpoint: live tensors, of which each worker may hold a shard."""

    module: dict[str, Tensor]
    optimizer: OptimizerState


class ForwardModel(Protocol):
    """A model that is run but not trained."""

    def forward(self, batch: Batch, target_mask_BT: Tensor) -> Tensor:
        """Return one float32 number for each target token, 0 elsewhere; shape BT, without gradients."""

    def weights(self) -> dict[str, Tensor]: ...

    def load_weights(self, weights: dict[str, Tensor]) -> None: ...


class Trainable(ForwardModel, Protocol):
    """A model in training: call `forward_backward` any number of times, then `optim_step`."""

    @property
    def updates_done(self) -> int:
        """Number of updates of the model so far."""

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""

    def forward_backward(self, batch: Batch, target_mask_BT: Tensor, loss: Loss, entropy: Entropy = "off") -> float:
        """Add the gradient of `loss`, summed over the micro-batches. Returns the loss."""

    def optim_step(self) -> float:
        """Make one update. Returns the norm of the gradient; NaN if an engine does not report it."""

    def state(self) -> LearnerState:
        """Return the state of the model and its optimizer for a checkpoint. A resumed training calls it before its
        first update, to learn which tensors to read."""

    def load_state(self, state: LearnerState) -> None: ...


class Learner(ABC):
    """A module with its optimizer. Dropout is off, as in sampling.

    If the workers shard the weights (`fsdp2`), `module` itself is sharded at its first use: make copies of it before.
    """

    def __init__(
        self, module: nn.Module, settings: LearnerSettings, total_updates: int, workers: Workers = ALONE
    ) -> None:
        self.module = module.eval()
        self.settings = settings
        self.total_updates = total_updates
        self.workers = workers
        self.is_sharded = settings.strategy == "fsdp2" and workers.world_size > 1
        if settings.gradient_checkpointing:
            checkpoint_activations(module)

    @cached_property
    def optimizer(self) -> Optimizer:
        """Created on first use: a frozen copy never needs one."""
        entry = self._entry
        hidden = [weight for layer in layers_of(entry) for weight in layer.parameters()]
        dtype = torch.float32 if self.precision == "float32" else torch.bfloat16
        offload = self.is_sharded and "moments" in self.settings.offload
        return Optimizer(
            entry.parameters(), self.settings.optimizer, self.total_updates, hidden, dtype, offload=offload
        )

    @cached_property
    def _entry(self) -> nn.Module:
        """`entry()`, which is sharded here if the workers shard the weights."""
        entry = self.entry()
        if self.is_sharded:
            shard(entry, self.workers, offload="weights" in self.settings.offload)
        return entry

    def entry(self) -> nn.Module:
        """Return the callable for a batch: the module, or a wrapper of it."""
        return self.module

    @property
    def updates_done(self) -> int:
        return self.optimizer.updates_done

    @property
    def learning_rate(self) -> float:
        return self.optimizer.rate

    @abstractmethod
    def outputs(self, batch: Batch, target_mask_BT: Tensor, entropy: Entropy = "off") -> Tensor:
        """Return one float32 number for each target token, 0 elsewhere; shape BT. With entropies, which only a policy
        has, shape 2BT."""

    def forward(self, batch: Batch, target_mask_BT: Tensor) -> Tensor:
        """Return `outputs` of a whole batch, without gradients."""
        outputs_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.float32)
        with torch.no_grad():
            for outputs_bt, rows_b in self._micro_batch_outputs(batch, target_mask_BT):
                if rows_b is not None:
                    outputs_BT[rows_b, : outputs_bt.shape[1]] = outputs_bt.cpu()
        if isinstance(self._entry, FSDPModule):
            self._entry.reshard()  # without a backward pass the weights outside the layers would stay whole
        return self.workers.all_reduce(outputs_BT)

    def forward_backward(self, batch: Batch, target_mask_BT: Tensor, loss: Loss, entropy: Entropy = "off") -> float:
        """Add the gradient of `loss`, summed over the micro-batches. Returns the loss.

        Rows without a target token are skipped. Each worker runs its own micro-batches, and all return the loss of the
        whole batch.
        """
        total = torch.zeros((), dtype=torch.float64)
        with self._recomputing():
            for outputs_bt, rows_b in self._micro_batch_outputs(batch, target_mask_BT, entropy):
                value = outputs_bt.sum() * 0.0 if rows_b is None else loss(outputs_bt, rows_b)
                value.backward()
                total += float(value.detach())
        return float(self.workers.all_reduce(total))

    def optim_step(self) -> float:
        """Make one update. Returns the norm of the gradient."""
        if not self.is_sharded:
            self.workers.all_reduce_gradients(self.module.parameters())
        return self.optimizer.step()

    def restart(self, settings: LearnerSettings, total_updates: int) -> None:
        """Begin a new schedule with a new optimizer, from the current weights. Only optimizer and sizes may differ."""
        self.settings, self.total_updates = settings, total_updates
        self.__dict__.pop("optimizer", None)
        self.__dict__.pop("_micro_batch_tokens", None)

    def weights(self) -> dict[str, Tensor]:
        """Return the trained weights by name, once each: all of the module, or the adapters and other unfrozen weights.

        They are the live tensors, sharded if the workers shard them.
        """
        state: dict[str, Tensor] = self._ready_module.state_dict(keep_vars=True)
        skips_frozen = self.settings.lora is not None
        untied_names = untied(state)
        return {
            name: weight.detach()
            for name, weight in state.items()
            if name in untied_names
            and not (skips_frozen and isinstance(weight, nn.Parameter) and not weight.requires_grad)
        }

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self._ready_module.load_state_dict({**self._ready_module.state_dict(), **weights})

    def state(self) -> LearnerState:
        return {"module": self.weights(), "optimizer": self.optimizer.state()}

    def load_state(self, state: LearnerState) -> None:
        self.load_weights(state["module"])
        self.optimizer.load_state(state["optimizer"])

    @property
    def device(self) -> torch.device:
        """Device of the passes."""
        return pass_device(next(self._ready_module.parameters()))

    def shard(self) -> None:
        """Shard the module now, if the workers shard it, rather than at its first use."""
        _ = self._entry

    @property
    def _ready_module(self) -> nn.Module:
        """The module, sharded if the workers shard it."""
        self.shard()
        return self.module

    def _micro_batch_outputs(
        self, batch: Batch, target_mask_BT: Tensor, entropy: Entropy = "off"
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield the outputs of each of this worker's micro-batches, with its rows. If others run one more micro-batch,
        for which they need this worker's shards, it also runs one, without rows."""
        splits = self._split(batch, target_mask_BT)
        share = self.workers.strided_share(splits)
        for rows_b in share:
            yield self.outputs(*self._micro_batch(batch, target_mask_BT, rows_b), entropy), rows_b
        if self.is_sharded and len(share) < math.ceil(len(splits) / self.workers.world_size):
            yield self.outputs(*self._micro_batch(batch, target_mask_BT, splits[-1])), None

    def _split(self, batch: Batch, target_mask_BT: Tensor) -> list[Tensor]:
        """Return the rows of each micro-batch: those with a target token."""
        rows_N = target_mask_BT.any(dim=1).nonzero()[:, 0]
        return [rows_N[chosen] for chosen in micro_batches(batch.lengths_B[rows_N], self._micro_batch_tokens)]

    @cached_property
    def _micro_batch_tokens(self) -> int:
        if self.settings.micro_batch_gib is None:
            return self.settings.micro_batch_tokens
        model = next(module for module in self.module.modules() if isinstance(module, PreTrainedModel))
        return micro_batch_tokens(shape_of_config(model.config.get_text_config().to_dict()), self.settings)

    def _micro_batch(self, batch: Batch, target_mask_BT: Tensor, rows_b: Tensor) -> tuple[Batch, Tensor]:
        micro_batch = batch.select(rows_b)
        return micro_batch.to(self.device), target_mask_BT[rows_b, : micro_batch.ids_BT.shape[1]].to(self.device)

    @cached_property
    def precision(self) -> Precision:
        """Precision of the forward pass."""
        return precision_of(self.settings.precision, Use.TRAINING, device=str(self.device))

    def _autocast(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        return bfloat16_autocast(self.device, gradient_checkpointing=self.settings.gradient_checkpointing)

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Recompute activations in this block, if `gradient_checkpointing` is set.

        Hugging Face's layers do so in training mode only. They are switched to it without their dropout modules, and
        only while gradients are computed: that mode would disable a sampler's cache.
        """
        layers = layers_of(self._entry) if self.settings.gradient_checkpointing else []
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False


def untied(state: Mapping[str, Tensor]) -> set[str]:
    """Return the first name of each tensor: tied weights have several."""
    first_names: dict[int, str] = {}
    for name, tensor in state.items():
        first_names.setdefault(id(tensor), name)
    return set(first_names.values())


def checkpoint_activations(module: nn.Module) -> None:
    """Recompute the activations of a model's layers in the backward pass. Raises `SettingError` if it cannot."""
    if not isinstance(module, PreTrainedModel):
        for child in module.children():
            checkpoint_activations(child)
    elif module.supports_gradient_checkpointing:
        # Not reentrant: that kind drops the gradients of layers above frozen ones.
        module.activation_checkpointing_enable({"use_reentrant": False})
    else:
        raise SettingError(f"{type(module).__name__} cannot recompute its layers; set gradient_checkpointing=false")
