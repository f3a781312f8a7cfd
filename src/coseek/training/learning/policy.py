"""Policy: the language model in training. It says log-probabilities of tokens and is saved as a Hugging Face folder."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from coseek.data.errors import SettingError
from coseek.data.files import atomic_folder
from coseek.models.loading import quiet
from coseek.models.model import Tokenizer
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.training.learning.batch import Batch
from coseek.training.learning.learner import Learner
from coseek.training.rl.losses import Head, target_logprobs
from coseek.training.settings import LearnerSettings


class Policy(Learner):
    """Any Hugging Face causal language model. `outputs` are log-probabilities at the sampling temperature.

    Rows are padded on the right and run without an attention mask: in a causal model nothing in front of the padding
    can see it, and what stands in the padding is never looked at. That keeps the fast causal kernels.
    """

    def __init__(
        self, module: PreTrainedModel, settings: LearnerSettings, updates: int, temperature: float = 1.0
    ) -> None:
        super().__init__(module, settings, updates)
        self.model = module
        self.temperature = temperature
        self._head = _plain_head(module)

    def outputs(self, part: Batch, wanted_BT: Tensor) -> Tensor:
        with self._arithmetic():
            if self._head is None:
                logits_BTV = _tensor(self.model(input_ids=part.ids_BT, use_cache=False).logits)
                return target_logprobs(logits_BTV, _same, part.ids_BT, wanted_BT, self.temperature)
            hidden_BTD = _tensor(self.model.base_model(input_ids=part.ids_BT, use_cache=False).last_hidden_state)
            return target_logprobs(hidden_BTD, self._head, part.ids_BT, wanted_BT, self.temperature)

    def sampler(self, tokenizer: Tokenizer, stops: Sequence[str], settings: SamplerSettings) -> Sampler:
        """A model that writes with the policy's own weights, as they are when a row is opened.

        Its log-probabilities must be those that are trained on: the whole softmax at this policy's temperature.
        """
        if not settings.on_policy or settings.temperature != self.temperature:
            raise SettingError(
                f"rollouts to train on need the whole softmax at temperature {self.temperature}, not temperature "
                f"{settings.temperature}, top_p {settings.top_p}, top_k {settings.top_k}"
            )
        return Sampler(self.model, tokenizer, stops, settings)

    def frozen_copy(self) -> "Policy":
        """The policy as it is now, for a KL to it: never stepped."""
        module = copy.deepcopy(self.model).requires_grad_(False)
        return Policy(module, self.settings, 0, self.temperature)

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        """Write a Hugging Face folder, whole or not at all; `extra` adds files to it (a tokenizer)."""

        def fill(part: Path) -> None:
            with quiet():
                self.model.save_pretrained(part)
            if extra is not None:
                extra(part)

        atomic_folder(folder, fill)


def _plain_head(module: PreTrainedModel) -> Head | None:
    """The output layer, if logits are just it on top of the last hidden state; None for models that do more to them.

    Some architectures scale or cap their logits, so this is tried out on three tokens rather than believed.
    """
    head = module.get_output_embeddings()
    if head is None:
        return None
    device = next(module.parameters()).device
    ids_BT = torch.arange(3, device=device)[None, :]
    with torch.no_grad():
        logits = _tensor(module(input_ids=ids_BT, use_cache=False).logits)
        plain = _tensor(head(_tensor(module.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state)))
    return head if plain.shape == logits.shape and torch.allclose(plain, logits, rtol=1e-4, atol=1e-5) else None


def _same(logits: Tensor) -> Tensor:
    return logits


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
