"""Policy: the language model in training, its LoRA adapters, and the critic of PPO. It computes log-probabilities and
is saved as a Hugging Face folder."""

import copy
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from coseek.core.errors import SettingError, nearest
from coseek.core.files import atomic_folder, write_json
from coseek.hardware.placement import Placement, Use, precision_of
from coseek.models.engine import Engine, allocate_weights, free_weights
from coseek.models.lora import LoraLinear, adapted_layers, adapters_disabled, merge_adapters, merged_state_dict
from coseek.models.model import Tokenizer
from coseek.models.model_folder import hidden_size
from coseek.models.pretrained import DTYPES, load_model, quiet
from coseek.models.sampler import Sampler, SamplerSettings, make_engine
from coseek.training.learner.batch import Batch, before
from coseek.training.learner.learner import Learner, untied
from coseek.training.learner.logprobs import (
    Entropy,
    Head,
    check_target_mask,
    logprobs_at,
    pad_length,
    reduced_last_layer,
    reducible_parts,
    scatter_targets,
    target_logprobs,
)
from coseek.training.learner.prefixes import PrefixTree, check_shares, ends_of, tree_micro_batches
from coseek.training.learner.settings import LearnerSettings, LoraSettings
from coseek.training.learner.workers import ALONE, Workers, full_tensor

M = TypeVar("M", bound=nn.Module)

# LoRA: attach adapters to a model for training, and save them.

ADAPTER = "adapter"
"""Subfolder of the adapter in a policy's folder. In the same folder as the merged weights, loaders would apply it
again."""


def learner_placement(placement: Placement, settings: LearnerSettings, workers: Workers, width: int) -> Placement:
    """Device and precision with which a model to train is loaded; `width` is its hidden size.

    Trained weights are float32. Weights that adapters freeze are bfloat16 if forward pass and sampler, whose precision
    is the placement's, both are: one copy serves both. A shard has one number type, float32.
    """
    float32 = placement.in_float32()
    if settings.strategy == "fsdp2" and workers.world_size > 1:
        return float32.model_copy(update={"device": "cpu"})
    training_precision = precision_of(settings.precision, Use.TRAINING, device=placement.device)
    if settings.lora is None or {training_precision, placement.precision_at(width)} != {"bfloat16"}:
        return float32
    return float32.model_copy(update={"precision": "bfloat16"})


def load_learner(folder: Path, placement: Placement, settings: LearnerSettings, workers: Workers) -> PreTrainedModel:
    """Load a model to train, as `learner_placement` says."""
    return load_model(folder, learner_placement(placement, settings, workers, hidden_size(folder)))


def attach(module: nn.Module, settings: LoraSettings, head: nn.Module | None = None) -> None:
    """Freeze the module and adapt its linear layers in place, except `head`. A module with adapters is not changed.

    The output layer gets no adapter: it often shares its weights with the embedding.
    """
    if adapted_layers(module):
        return
    linear = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and layer is not head
    }
    layer_names = {name.rpartition(".")[2] for name in linear}
    for target in settings.target_modules:
        if target not in layer_names:
            hint = nearest(target, layer_names)
            raise SettingError(
                f"lora.target_modules: no linear layer is called {target!r}{hint} Known: "
                f"{', '.join(sorted(layer_names))}"
            )
    module.requires_grad_(False)
    generator = torch.Generator().manual_seed(settings.seed)
    for name, layer in linear.items():
        parent, _, child = name.rpartition(".")
        if not settings.target_modules or child in settings.target_modules:
            adapted = LoraLinear(layer, settings.rank, settings.alpha / settings.rank, generator)
            setattr(module.get_submodule(parent), child, adapted.train(layer.training))


def adapter_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the live weights of all adapters, as the library `peft` names them."""
    return {
        f"base_model.model.{name}.lora_{letter}.weight": weight
        for name, layer in adapted_layers(module).items()
        for letter, weight in (("A", layer.lora_A), ("B", layer.lora_B))
    }


def adapter_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the whole weights of all adapters, on the CPU; empty if none differs from its initial value. All
    workers must call it."""
    tensors = adapter_tensors(module).items()
    weights = {name: full_tensor(weight).detach().cpu().contiguous() for name, weight in tensors}
    has_changed = any(bool(weight.any()) for name, weight in weights.items() if name.endswith("lora_B.weight"))
    return weights if has_changed else {}


def save_adapter(model: PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    """Write the adapter, as `adapter_weights` returns it, to a new folder in the format of the library `peft`."""
    layers = adapted_layers(model)
    layer = next(iter(layers.values()))
    rank = layer.lora_A.shape[0]
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": rank,
            "lora_alpha": layer.scale * rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": [*sorted(layers)],
        },
    )


class Policy(Learner):
    """Any Hugging Face causal language model. `outputs` are log-probabilities at the sampling temperature.

    Rows are padded on the right and run without an attention mask, which allows the fast causal kernels. In a causal
    model no token attends to padding after it, and outputs at the padding are never used.
    """

    def __init__(
        self,
        module: PreTrainedModel,
        settings: LearnerSettings,
        total_updates: int,
        temperature: float = 1.0,
        workers: Workers = ALONE,
    ) -> None:
        if settings.lora is not None:
            attach(module, settings.lora, module.get_output_embeddings())
        super().__init__(module, settings, total_updates, workers)
        self.model = module
        self.temperature = temperature
        if self.is_sharded:
            self._skeleton = _copy_with(module, lambda weight: torch.empty_like(weight, device="meta"))
            merge_adapters(self._skeleton)
        self._copies: dict[torch.dtype, PreTrainedModel] = {}
        """Whole copies of a sharded module, for samplers."""
        self._engines: dict[torch.dtype, Engine] = {}
        self._is_plain = _has_plain_head(module)
        self._reduced = (
            reducible_parts(module.base_model) if self._is_plain and not settings.gradient_checkpointing else ()
        )
        if settings.share_prefixes:
            check_shares(module, self._is_plain)

    def entry(self) -> nn.Module:
        return LogprobModule(self.model, self.temperature, self._is_plain, self._reduced, self.settings.share_prefixes)

    def outputs(self, batch: Batch, target_mask_BT: Tensor, entropy: Entropy = "off") -> Tensor:
        with self._autocast():
            return _tensor(self._entry(batch.ids_BT, target_mask_BT, entropy))

    def _split(self, batch: Batch, target_mask_BT: Tensor) -> list[Tensor]:
        if not self.settings.share_prefixes:
            return super()._split(batch, target_mask_BT)
        rows_N = target_mask_BT.any(dim=1).nonzero()[:, 0]
        return tree_micro_batches(batch.ids_BT, ends_of(target_mask_BT), rows_N, self._micro_batch_tokens)

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
            self._gather_weights([*self._copies.values()])

    def whole_model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """Return the module with all its weights: itself, or a copy in `dtype` of a sharded one, which `refresh`
        updates. All workers must call this."""
        if not self.is_sharded:
            return self.model
        if dtype not in self._copies:
            self._copies[dtype] = self._empty_module(dtype, self.device)
            self._gather_weights([self._copies[dtype]])
        return self._copies[dtype]

    def _empty_module(self, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
        """Return a module without adapters and with undefined weights."""
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
    def _gather_weights(self, targets: Sequence[PreTrainedModel]) -> None:
        """Copy all weights to these modules, one at a time, with adapters merged. All workers must call this."""
        states = [target.state_dict() for target in targets]
        untied_names = untied(self._ready_module.state_dict(keep_vars=True))
        for name, weight in merged_state_dict(self.model).items():
            if name in untied_names:
                full_weight = full_tensor(weight)
                for state in states:
                    state[name].copy_(full_weight)

    def frozen_copy(self) -> "Policy":
        """Return a frozen copy of the policy, for a KL to it. With LoRA the copy is the policy without its adapter and
        shares the weights."""
        if self.settings.lora is not None:
            return AdapterOff(self)
        module = _copy_to_train(self.model, self.is_sharded).requires_grad_(False)
        offload = ("weights",) if "reference" in self.settings.offload else ()
        return Policy(module, self.settings.model_copy(update={"offload": offload}), 0, self.temperature, self.workers)

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        """Write a Hugging Face folder, atomically; `extra` adds files to it (a tokenizer).

        An adapter is merged into the weights, and also saved in the subfolder `ADAPTER`. All workers must call this;
        the first writes.
        """
        model, adapter = self.model, adapter_weights(self.model)
        if self.is_sharded:
            model = self._empty_module(torch.float32, torch.device("cpu")) if self.workers.is_main else self._skeleton
            self._gather_weights([model] if self.workers.is_main else [])

        def write(temp_folder: Path) -> None:
            with quiet():
                model.save_pretrained(temp_folder, state_dict=merged_state_dict(model))
            if adapter:
                save_adapter(self.model, adapter, temp_folder / ADAPTER)
            if extra is not None:
                extra(temp_folder)

        if self.workers.is_main:
            atomic_folder(folder, write)
        self.workers.barrier()


class AdapterOff(Policy):
    """A policy with its adapter disabled, which is the initial policy. Shares the policy's weights."""

    def __init__(self, policy: Policy) -> None:
        settings = policy.settings.model_copy(update={"lora": None})
        super().__init__(policy.model, settings, 0, policy.temperature, policy.workers)
        self._policy = policy

    @cached_property
    def _entry(self) -> nn.Module:
        return self._policy._entry

    def outputs(self, batch: Batch, target_mask_BT: Tensor, entropy: Entropy = "off") -> Tensor:
        with adapters_disabled(self._entry):
            return super().outputs(batch, target_mask_BT, entropy)

    def weights(self) -> dict[str, Tensor]:
        """Return no weights: they are the policy's."""
        return {}


class LogprobModule(nn.Module):
    """A model and its log-probabilities in one forward call, so that FSDP gathers weights around the whole of it."""

    def __init__(
        self, model: PreTrainedModel, temperature: float, is_plain: bool, reduced: Sequence[str], shares: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.is_plain = is_plain
        self.reduced = reduced
        self.shares = shares
        """Whether rows run as one tree of their prefixes."""

    def forward(self, ids_BT: Tensor, target_mask_BT: Tensor, entropy: Entropy = "off") -> Tensor:
        if self.shares:
            return self._tree_outputs(ids_BT, target_mask_BT, entropy)
        length = ids_BT.shape[1]
        return self._outputs(pad_length(ids_BT), pad_length(target_mask_BT), entropy)[..., :length]

    def _tree_outputs(self, ids_BT: Tensor, target_mask_BT: Tensor, entropy: Entropy) -> Tensor:
        """Return the outputs, with shared prefixes computed once."""
        check_target_mask(target_mask_BT)
        tree = PrefixTree.of(ids_BT, ends_of(target_mask_BT))
        cut_BT = target_mask_BT[:, : tree.nodes_BT.shape[1]]
        nodes_M, node_of_N = tree.nodes_BT[cut_BT].unique(return_inverse=True)
        parents_M = torch.empty_like(nodes_M)
        parents_M[node_of_N] = tree.nodes_BT[:, :-1][cut_BT[:, 1:]]
        needed_1U = torch.zeros_like(tree.ids_1U, dtype=torch.bool)
        needed_1U[0, parents_M] = True
        with reduced_last_layer(self.model.base_model, self.reduced, needed_1U):
            hidden_MD = tree.hidden(self.model.base_model)[parents_M]
        head: Head = self.model.get_output_embeddings()
        values_M = logprobs_at(hidden_MD, head, tree.ids_1U[0, nodes_M], self.temperature, entropy)
        return scatter_targets(values_M[..., node_of_N], target_mask_BT)

    def _outputs(self, ids_BT: Tensor, target_mask_BT: Tensor, entropy: Entropy) -> Tensor:
        if self.is_plain:
            trunk = self.model.base_model
            with reduced_last_layer(trunk, self.reduced, before(target_mask_BT)):
                hidden = _tensor(trunk(input_ids=ids_BT, use_cache=False).last_hidden_state)
            head: Head = self.model.get_output_embeddings()
        else:
            hidden, head = _tensor(self.model(input_ids=ids_BT, use_cache=False).logits), nn.Identity()
        return target_logprobs(hidden, head, ids_BT, target_mask_BT, self.temperature, entropy)


def _copy_with(model: M, make: Callable[[Tensor], Tensor]) -> M:
    """Copy a module, with the weights that `make` returns. Tied weights stay tied; buffers are copied."""
    memo: dict[int, object] = {
        id(weight): nn.Parameter(make(weight.detach()), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, memo)


def _copy_to_train(model: M, sharded: bool) -> M:
    """Copy a model. A copy that will be sharded shares the weights until then: sharding copies the shards that it
    keeps, so no worker holds a large model twice."""
    return _copy_with(model, lambda weight: weight) if sharded else copy.deepcopy(model)


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
        head_logits = _tensor(head(_tensor(module.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state)))
    return head_logits.shape == logits.shape and torch.allclose(head_logits, logits, rtol=1e-4, atol=1e-5)


def _tensor(value: object) -> Tensor:
    assert isinstance(value, Tensor)
    return value


# Critic: the value model of PPO. It predicts the return of a row from the state before each token.


class ValueModule(nn.Module):
    """A trunk with one linear output, initialised to zero, so all initial values are 0."""

    def __init__(self, policy: PreTrainedModel, reduce: bool, *, adapted: bool = False, sharded: bool = False) -> None:
        """With `adapted` the trunk keeps the policy's number type, since only adapters are trained; otherwise its
        weights are trained in float32. `sharded`: see `_copy_to_train`."""
        super().__init__()
        self.trunk = _copy_to_train(policy.base_model, sharded)
        merge_adapters(self.trunk)
        if not adapted and self.trunk.dtype == torch.bfloat16:
            nn.Module.float(self.trunk)
        self.reduced = reducible_parts(self.trunk.eval()) if reduce else ()
        self.head = nn.Linear(policy.config.get_text_config().hidden_size, 1, device=policy.device)
        self.trunk.requires_grad_(True)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids_BT: Tensor, target_mask_BT: Tensor) -> Tensor:
        """Return a value at each position, shape BT; undefined where the next token is no target."""
        with reduced_last_layer(self.trunk, self.reduced, before(pad_length(target_mask_BT))):
            hidden_BTD: Tensor = self.trunk(input_ids=pad_length(ids_BT), use_cache=False).last_hidden_state
        values_BT: Tensor = self.head(hidden_BTD)[:, : ids_BT.shape[1], 0]
        return values_BT


class Critic(Learner):
    """A copy of the policy's trunk with a linear head and an optimizer of its own.

    The trunk is not shared: the value loss would then change the policy's features, and its weight would need tuning.
    The cost is a second forward and backward pass. Search-R1 also trains two models (actor lr 1e-6, critic lr 1e-5).
    """

    def __init__(
        self, policy: PreTrainedModel, settings: LearnerSettings, total_updates: int, workers: Workers = ALONE
    ) -> None:
        sharded = settings.strategy == "fsdp2" and workers.world_size > 1
        adapted = settings.lora is not None
        module = ValueModule(policy, not settings.gradient_checkpointing, adapted=adapted, sharded=sharded)
        if settings.lora is not None:
            attach(module.trunk, settings.lora)
        super().__init__(module, settings, total_updates, workers)

    def outputs(self, batch: Batch, target_mask_BT: Tensor, entropy: Entropy = "off") -> Tensor:
        """Return the value of the state *before* each target token, the output one position to its left; shape BT."""
        with self._autocast():
            values_BT = self._entry(batch.ids_BT, target_mask_BT).float()
        shifted_BT = torch.cat([torch.zeros_like(values_BT[:, :1]), values_BT[:, :-1]], dim=1)
        return torch.where(target_mask_BT, shifted_BT, 0.0)
