"""Policy: the language model in training. It computes log-probabilities and is saved as a Hugging Face folder."""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from coseek.core.errors import SettingError
from coseek.core.files import atomic_folder
from coseek.hardware.precision import Use
from coseek.hardware.speed import precision_of
from coseek.models.engine import Engine, allocate_weights, free_weights
from coseek.models.lora import adapters_disabled, merge_adapters, merged_state_dict
from coseek.models.model import Tokenizer
from coseek.models.pretrained import DTYPES, quiet
from coseek.models.sampler import Sampler, SamplerSettings, make_engine
from coseek.training.trainer.batch import Batch, before
from coseek.training.trainer.learner import Entropy, Learner, untied
from coseek.training.trainer.logprobs import (
    Head,
    logprobs_and_entropy,
    pad_length,
    reduced_last_layer,
    reducible_parts,
    target_logprobs,
)
from coseek.training.trainer.lora import ADAPTER, adapter_weights, attach, save_adapter
from coseek.training.trainer.settings import LearnerSettings
from coseek.training.trainer.workers import ALONE, Workers, whole


class Policy(Learner):
    """Any Hugging Face causal language model. `outputs` are log-probabilities at the sampling temperature.

    Rows are padded on the right and run without an attention mask, which allows the fast causal kernels. In a causal
    model no token attends to padding after it, and outputs at the padding are never used.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        settings: LearnerSettings,
        updates: int,
        temperature: float = 1.0,
        workers: Workers = ALONE,
    ) -> None:
        if settings.lora is not None:
            attach(module, settings.lora, module.get_output_embeddings())
        super().__init__(module, settings, updates, workers)
        self.model = module
        self.temperature = temperature
        if self.is_sharded:
            self._skeleton = _copy_with(module, lambda weight: torch.empty_like(weight, device="meta"))
            merge_adapters(self._skeleton)
        self._copies: dict[torch.dtype, PreTrainedModel] = {}
        """Whole copies of a sharded module, for samplers."""
        self._engines: dict[torch.dtype, Engine] = {}
        self._is_plain = _has_plain_head(module)
        self._reduced = reducible_parts(module.base_model) if self._is_plain and not settings.checkpointing else ()

    def entry(self, module: nn.Module) -> nn.Module:
        assert isinstance(module, PreTrainedModel)
        return Scorer(module, self.temperature, self._is_plain, self._reduced)

    def outputs(self, entry: nn.Module, part: Batch, wanted_BT: Tensor, entropy: Entropy = "no") -> Tensor:
        with self._autocast():
            return _tensor(entry(part.ids_BT, wanted_BT, entropy))

    def sampler(
        self, tokenizer: Tokenizer, stops: Sequence[str], settings: SamplerSettings, *, on_policy: bool = True
    ) -> Sampler:
        """Return a model that samples with the policy's own weights, as they are when a row is opened.

        All samplers of one precision share an engine and its copy of the weights, so only one may have open rows. All
        workers must call this. With `on_policy` its log-probabilities must be those of training: of the full softmax at
        the policy's temperature. Raises `SettingError` for other settings.
        """
        hidden = int(self.model.config.get_text_config().hidden_size)
        if on_policy and (not settings.on_policy or settings.temperature != self.temperature):
            raise SettingError(
                f"rollouts to train on need the whole softmax at temperature {self.temperature}, not temperature "
                f"{settings.temperature}, top_p {settings.top_p}, top_k {settings.top_k}"
            )
        dtype = DTYPES[precision_of(settings.dtype, Use.SAMPLING, hidden, self.device.type)]
        model = self.whole_model(dtype)
        if dtype not in self._engines:
            self._engines[dtype] = make_engine(model, dtype)
        return Sampler(model, tokenizer, stops, settings, self._engines[dtype])

    def release(self) -> None:
        """Free what only samplers need: caches and copies of weights. Raises `ValueError` while rows are open."""
        for engine in self._engines.values():
            engine.release()
        for model in self._copies.values():
            free_weights(model)

    def refresh(self) -> None:
        """Give all samplers the current weights. All workers must call it after updates and before sampling."""
        for model in self._copies.values():
            allocate_weights(model)
        if self._copies:
            self._gather([*self._copies.values()])

    def whole_model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return the module with all its weights: itself, or a copy in `dtype` of a sharded one, which `refresh`
        updates. All workers must call this."""
        if not self.is_sharded:
            return self.model
        if dtype not in self._copies:
            self._copies[dtype] = self._empty(dtype, self.device)
            self._gather([self._copies[dtype]])
        return self._copies[dtype]

    def _empty(self, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """A module without adapters and with undefined weights."""
        copied = _copy_with(
            self._skeleton,
            lambda weight: torch.empty(
                weight.shape, dtype=dtype if weight.is_floating_point() else None, device=device
            ),
        )
        nn.Module.to(copied, device)  # buffers
        copied.requires_grad_(False)
        copied.eval()
        return copied

    @torch.no_grad()
    def _gather(self, targets: Sequence[PreTrainedModel]) -> None:
        """Copy all weights to these modules, one at a time, with adapters merged. All workers must call this."""
        states = [target.state_dict() for target in targets]
        own = untied(self._held.state_dict(keep_vars=True))
        for name, weight in merged_state_dict(self.model).items():
            if name in own:
                gathered = whole(weight)
                for state in states:
                    state[name].copy_(gathered)

    def frozen_copy(self) -> "Policy":
        """Return a frozen copy of the policy, for a KL to it. With LoRA the copy is the policy without its adapter and
        shares the weights."""
        if self.settings.lora is not None:
            return AdapterOff(self)
        module = copy.deepcopy(self.model).requires_grad_(False)
        return Policy(module, self.settings, 0, self.temperature, self.workers)

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        """Write a Hugging Face folder, atomically; `extra` adds files to it (a tokenizer).

        An adapter is merged into the weights, and also saved in a folder of its own. All workers must call this; the
        first writes.
        """
        model, adapter = self.model, adapter_weights(self.model)
        if self.is_sharded:
            model = self._empty(torch.float32, torch.device("cpu")) if self.workers.first else self._skeleton
            self._gather([model] if self.workers.first else [])

        def fill(part: Path) -> None:
            with quiet():
                model.save_pretrained(part, state_dict=merged_state_dict(model))
            if adapter:
                save_adapter(self.model, adapter, part / ADAPTER)
            if extra is not None:
                extra(part)

        if self.workers.first:
            atomic_folder(folder, fill)
        self.workers.wait()


class AdapterOff(Policy):
    """A policy with its adapter disabled, which is the initial policy. Shares the policy's weights."""

    def __init__(self, policy: Policy) -> None:
        plain = policy.settings.model_copy(update={"lora": None})
        super().__init__(policy.model, plain, 0, policy.temperature, policy.workers)
        self._policy = policy

    @cached_property
    def _trained(self) -> nn.Module:
        return self._policy._trained

    def outputs(self, entry: nn.Module, part: Batch, wanted_BT: Tensor, entropy: Entropy = "no") -> Tensor:
        with adapters_disabled(entry):
            return super().outputs(entry, part, wanted_BT, entropy)

    def weights(self) -> dict[str, Tensor]:
        """Return no weights: they are the policy's."""
        return {}


class Scorer(nn.Module):
    """A model and its log-probabilities in one forward call, so that FSDP gathers weights around the whole of it."""

    def __init__(self, model: PreTrainedModel, temperature: float, is_plain: bool, reduced: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.is_plain = is_plain
        self.reduced = reduced

    def forward(self, ids_BT: Tensor, wanted_BT: Tensor, entropy: Entropy = "no") -> Tensor:
        length = ids_BT.shape[1]
        return self._outputs(pad_length(ids_BT), pad_length(wanted_BT), entropy)[..., :length]

    def _outputs(self, ids_BT: Tensor, wanted_BT: Tensor, entropy: Entropy) -> Tensor:
        if self.is_plain:
            trunk = self.model.base_model
            with reduced_last_layer(trunk, self.reduced, before(wanted_BT)):
                hidden = _tensor(trunk(input_ids=ids_BT, use_cache=False).last_hidden_state)
            head: Head = self.model.get_output_embeddings()
        else:
            hidden, head = _tensor(self.model(input_ids=ids_BT, use_cache=False).logits), _same
        if entropy == "no":
            return target_logprobs(hidden, head, ids_BT, wanted_BT, self.temperature)
        return logprobs_and_entropy(hidden, head, ids_BT, wanted_BT, self.temperature, gradient=entropy == "trained")


def _copy_with(model: PreTrainedModel, make: Callable[[Tensor], Tensor]) -> PreTrainedModel:
    """A copy of a module with weights that `make` returns. Tied weights stay tied; buffers are copied."""
    memo: dict[int, object] = {
        id(weight): nn.Parameter(make(weight.detach()), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    copied: PreTrainedModel = copy.deepcopy(model, memo)
    return copied


def _has_plain_head(module: PreTrainedModel) -> bool:
    """Whether logits are the output layer applied to the last hidden state, with no further operation.

    Some architectures scale or cap their logits, so this is tested on three tokens.
    """
    head = module.get_output_embeddings()
    if head is None:
        return False
    device = next(module.parameters()).device
    ids_BT = torch.arange(3, device=device)[None, :]
    with torch.no_grad():
        logits = _tensor(module(input_ids=ids_BT, use_cache=False).logits)
        plain = _tensor(head(_tensor(module.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state)))
    return plain.shape == logits.shape and torch.allclose(plain, logits, rtol=1e-4, atol=1e-5)


def _same(logits: Tensor) -> Tensor:
    return logits


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value
