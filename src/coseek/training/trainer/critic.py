"""Critic: the value model of PPO. It predicts the return of a row from the state before each token."""

import copy

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coseek.models.lora import merge_adapters
from coseek.training.trainer.batch import Batch, before
from coseek.training.trainer.learner import Entropy, Learner
from coseek.training.trainer.logprobs import pad_length, reduced_last_layer, reducible_parts
from coseek.training.trainer.lora import attach
from coseek.training.trainer.settings import LearnerSettings
from coseek.training.trainer.workers import ALONE, Workers


class ValueModule(nn.Module):
    """A trunk with one linear output, initialised to zero, so all initial values are 0."""

    def __init__(self, policy: PreTrainedModel, reduce: bool, *, adapted: bool = False) -> None:
        """With `adapted` the trunk is frozen below adapters of its own and keeps the policy's number type; else its
        weights are trained in float32."""
        super().__init__()
        self.trunk = copy.deepcopy(policy.base_model)
        merge_adapters(self.trunk)
        if not adapted and self.trunk.dtype == torch.bfloat16:
            nn.Module.float(self.trunk)
        self.reduced = reducible_parts(self.trunk.eval()) if reduce else ()
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        self.trunk.requires_grad_(True)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids_BT: Tensor, wanted_BT: Tensor) -> Tensor:
        """Return a value at each position, shape BT; undefined where the next token is not wanted."""
        with reduced_last_layer(self.trunk, self.reduced, before(pad_length(wanted_BT))):
            hidden_BTD: Tensor = self.trunk(input_ids=pad_length(ids_BT), use_cache=False).last_hidden_state
        values_BT: Tensor = self.head(hidden_BTD)[:, : ids_BT.shape[1], 0]
        return values_BT


class Critic(Learner):
    """A copy of the policy's trunk with a linear head and an optimizer of its own.

    The trunk is not shared: the value loss would then change the policy's features, and its weight would need tuning.
    The cost is a second forward and backward pass. Search-R1 also trains two models (actor lr 1e-6, critic lr 1e-5).
    """

    def __init__(
        self, policy: PreTrainedModel, settings: LearnerSettings, updates: int, workers: Workers = ALONE
    ) -> None:
        module = ValueModule(policy, reduce=not settings.checkpointing, adapted=settings.lora is not None)
        if settings.lora is not None:
            attach(module.trunk, settings.lora)
        super().__init__(module, settings, updates, workers)

    def outputs(self, entry: nn.Module, part: Batch, wanted_BT: Tensor, entropy: Entropy = "no") -> Tensor:
        """Return the value of the state *before* each wanted token, the output one position to its left; shape BT."""
        with self._autocast():
            values_BT = entry(part.ids_BT, wanted_BT).float()
        before_BT = torch.cat([torch.zeros_like(values_BT[:, :1]), values_BT[:, :-1]], dim=1)
        return torch.where(wanted_BT, before_BT, 0.0)
