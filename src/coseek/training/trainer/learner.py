"""Learner: a module in training. It cuts a batch up, runs the module, gathers gradients and steps.

The policy and the critic differ only in what they say of a token (`outputs`). The way in is always
`forward_backward` with a loss, as often as wanted, then `optim_step`: the shape that a remote trainer would have too.
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
from coseek.training.trainer.workers import ALONE, Workers, layers_of, shard, spread_like, whole

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""(what the module says of the tokens, shape bt; the rows of the batch that these are, shape b) → a scalar that adds
up over the parts of a batch. t may be shorter than the batch's T: the rows come cut to the longest of them."""


Entropy: TypeAlias = Literal["no", "seen", "trained"]
"""Whether a policy also says the entropy at each wanted token: not at all, to be looked at, or with a gradient."""


class LearnerState(TypedDict):
    """What a checkpoint holds of a learner: the same for one worker and for many."""

    module: dict[str, Tensor]
    optimiser: OptimiserState


class ForwardModel(Protocol):
    """A model that is only run."""

    def forward(self, batch: Batch, wanted_BT: Tensor) -> Tensor:
        """One float32 number for each wanted token, 0 elsewhere; shape BT, without gradients."""
        ...

    def weights(self) -> dict[str, Tensor]: ...

    def load_weights(self, weights: dict[str, Tensor]) -> None: ...


class Trainable(ForwardModel, Protocol):
    """A model in training: `forward_backward` as often as wanted, then `optim_step`."""

    @property
    def updates_done(self) -> int:
        """Updates that the model has had."""
        ...

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next update."""
        ...

    def forward_backward(self, batch: Batch, wanted_BT: Tensor, loss: Loss, entropy: Entropy = "no") -> float:
        """Add the gradient of `loss`, summed over the parts of the batch; returns the loss."""
        ...

    def optim_step(self) -> float:
        """One update; returns the norm of the gradient."""
        ...

    def state(self) -> LearnerState:
        """What a checkpoint holds of the model and its optimiser."""
        ...

    def load_state(self, state: LearnerState) -> None: ...


class Learner(ABC):
    """A module with its optimiser. Dropout is off: what is trained must be what was sampled from.

    `module` is whole on every worker and always holds the trained weights: it is what samplers write with, and what is
    saved. Where the workers share the weights out (`fsdp2`), a copy of it is trained, and each update is copied back.
    """

    def __init__(self, module: nn.Module, settings: LearnerSettings, updates: int, workers: Workers = ALONE) -> None:
        self.module = module.eval()
        self.settings = settings
        self.updates = updates
        self.workers = workers
        self._is_spread = settings.workers == "fsdp2" and workers.world > 1
        if settings.checkpointing:
            _prepare_recomputing(module)

    @cached_property
    def optimiser(self) -> Optimiser:
        """Made when first needed: a frozen copy never steps."""
        return Optimiser(self._trained.parameters(), self.settings.optimiser, self.updates)

    @cached_property
    def _trained(self) -> nn.Module:
        """The module whose weights are stepped: `entry(...)` of the module itself, or of a copy that is spread."""
        if not self._is_spread:
            return self.entry(self.module)
        entry = self.entry(copy.deepcopy(self.module))
        shard(entry, self.workers)
        return entry

    def entry(self, module: nn.Module) -> nn.Module:
        """What is called with a batch: the module, or something around it."""
        return module

    @property
    def updates_done(self) -> int:
        return self.optimiser.update

    @property
    def learning_rate(self) -> float:
        return self.optimiser.rate

    @abstractmethod
    def outputs(self, entry: nn.Module, part: Batch, wanted_BT: Tensor, entropy: Entropy = "no") -> Tensor:
        """One float32 number for each wanted token, 0 elsewhere; shape BT. With entropies, which only a policy has,
        shape 2BT."""

    def forward(self, batch: Batch, wanted_BT: Tensor) -> Tensor:
        """`outputs` of a whole batch, without gradients."""
        said_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.float32)
        entry = self.entry(self.module)
        with torch.no_grad():
            for rows_B in self.workers.mine(self._parts(batch, wanted_BT)):
                part, wanted = self._part(batch, wanted_BT, rows_B)
                said_BT[rows_B, : part.ids_BT.shape[1]] = self.outputs(entry, part, wanted).cpu()
        return self.workers.add_up(said_BT)

    def forward_backward(self, batch: Batch, wanted_BT: Tensor, loss: Loss, entropy: Entropy = "no") -> float:
        """Add the gradient of `loss`, summed over the parts of the batch; returns the loss.

        Rows without a wanted token are passed over. With many workers each runs its own parts, and all return the loss
        of the whole batch.
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
            if self._is_spread and len(mine) < math.ceil(len(parts) / self.workers.world):
                # The others fetch shares of the weights from this worker as they run one part more.
                part, wanted = self._part(batch, wanted_BT, parts[-1])
                (self.outputs(self._trained, part, wanted).sum() * 0.0).backward()
        return float(self.workers.add_up(total))

    def optim_step(self) -> float:
        """One update; returns the norm of the gradient."""
        if not self._is_spread:
            self.workers.add_up_gradients(self.module.parameters())
        norm = self.optimiser.step()
        if self._is_spread:
            self._fetch()
        return norm

    def weights(self) -> dict[str, Tensor]:
        """What training changes, by name: all of the module, or adapters and whatever else is not frozen."""
        weights: dict[str, Tensor] = self.module.state_dict()
        if self.settings.lora is None:
            return weights
        named = self.module.named_parameters(remove_duplicate=False)  # a tied weight has two names
        frozen = {name for name, weight in named if not weight.requires_grad}
        return {name: weight for name, weight in weights.items() if name not in frozen}

    def load_weights(self, weights: dict[str, Tensor]) -> None:
        self.module.load_state_dict({**self.module.state_dict(), **weights})
        if "_trained" in self.__dict__ and self._is_spread:
            self._hand_out()

    def state(self) -> LearnerState:
        """Every worker has to ask, as each may hold a share."""
        return {"module": self.weights(), "optimiser": self.optimiser.state()}

    def load_state(self, state: LearnerState) -> None:
        self.load_weights(state["module"])
        self.optimiser.load_state(state["optimiser"])

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @torch.no_grad()
    def _fetch(self) -> None:
        """Bring the whole module up to date with the shares."""
        for mine, spread in self._pairs():
            mine.copy_(whole(spread))

    @torch.no_grad()
    def _hand_out(self) -> None:
        """Bring the shares up to date with the whole module."""
        for mine, spread in self._pairs():
            spread.copy_(spread_like(mine, spread))

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Each weight that training changes: whole, and spread."""
        both = zip(self.entry(self.module).parameters(), self._trained.parameters(), strict=True)
        return ((mine, spread) for mine, spread in both if spread.requires_grad)

    def _parts(self, batch: Batch, wanted_BT: Tensor) -> list[Tensor]:
        rows_N = wanted_BT.any(dim=1).nonzero()[:, 0]
        return [rows_N[part] for part in micro_batches(batch.lengths_B[rows_N], self.settings.micro_batch_tokens)]

    def _part(self, batch: Batch, wanted_BT: Tensor, rows_B: Tensor) -> tuple[Batch, Tensor]:
        part = batch.select(rows_B)
        return part.to(self.device), wanted_BT[rows_B, : part.ids_BT.shape[1]].to(self.device)

    @cached_property
    def precision(self) -> Precision:
        """What the forward pass computes in."""
        return precision_of(self.settings.precision, Use.TRAINING, device=self.device.type)

    def _arithmetic(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    @contextmanager
    def _recomputing(self) -> Iterator[None]:
        """Layers throw activations away and compute them again, where the settings ask for it.

        Hugging Face's layers do so in training mode alone. They are put into it one by one, without the dropouts inside
        them, and only for as long as gradients are taken: in that mode they would take a sampler's cache from it.
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
                    f"{type(model).__name__} cannot recompute its layers; take checkpointing=false"
                ) from None
            return
