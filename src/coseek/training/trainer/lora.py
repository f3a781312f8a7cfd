"""LoRA: attach adapters to a model for training, and save them."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from coseek.core.errors import SettingError, nearest
from coseek.core.files import write_json
from coseek.hardware.placement import Placement
from coseek.hardware.precision import Use
from coseek.hardware.speed import precision_of
from coseek.models.lora import LoraLinear, adapted_layers
from coseek.models.model_folder import hidden_size
from coseek.models.pretrained import load_model
from coseek.training.trainer.settings import LearnerSettings, LoraSettings
from coseek.training.trainer.workers import Workers, whole

ADAPTER = "adapter"
"""Folder of the adapter inside a policy's folder. Beside the merged weights, a loader would apply it twice."""


def learner_placement(placement: Placement, settings: LearnerSettings, workers: Workers, width: int) -> Placement:
    """Device and precision to load a model with that is trained; `width` is its hidden size.

    Trained weights are float32. Those that adapters freeze are bfloat16 where forward pass and sampler are, whose
    precision is the placement's: one copy serves both. Shards hold float32, since all of a shard has one number type.
    """
    whole = placement.in_float32()
    if settings.workers == "fsdp2" and workers.world > 1:
        return whole.model_copy(update={"device": "cpu"})
    trained = precision_of(settings.precision, Use.TRAINING, device=placement.device)
    if settings.lora is None or {trained, placement.precision_at(width)} != {"bfloat16"}:
        return whole
    return whole.model_copy(update={"precision": "bfloat16"})


def load_learner(folder: Path, placement: Placement, settings: LearnerSettings, workers: Workers) -> PreTrainedModel:
    """Load a model that is trained, as `learner_placement` says."""
    return load_model(folder, learner_placement(placement, settings, workers, hidden_size(folder)))


def attach(
    module: nn.Module, settings: LoraSettings, head: nn.Module | None = None, frozen: Sequence[nn.Module] = ()
) -> None:
    """Freeze the module and adapt its linear layers in place, except `head` and those inside `frozen`. A module with
    adapters is not changed.

    The output layer gets no adapter: it often shares its weights with the embedding.
    """
    if adapted_layers(module):
        return
    bare = {id(head), *(id(part) for one in frozen for part in one.modules())}
    linear = {
        name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear) and id(layer) not in bare
    }
    known = {name.rpartition(".")[2] for name in linear}
    for target in settings.targets:
        if target not in known:
            hint = nearest(target, known)
            raise SettingError(
                f"lora.targets: no linear layer is called {target!r}{hint} Known: {', '.join(sorted(known))}"
            )
    module.requires_grad_(False)
    generator = torch.Generator().manual_seed(settings.seed)
    for name, layer in linear.items():
        parent, _, child = name.rpartition(".")
        if not settings.targets or child in settings.targets:
            adapted = LoraLinear(layer, settings.rank, settings.alpha / settings.rank, generator)
            setattr(module.get_submodule(parent), child, adapted.train(layer.training))


def adapter_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return the whole weights of all adapters, as the library `peft` names them; empty if none differs from its
    initial value. All workers must call it."""
    weights = {
        f"base_model.model.{name}.lora_{letter}.weight": whole(layer.lora_A if letter == "A" else layer.lora_B)
        .detach()
        .cpu()
        .contiguous()
        for name, layer in adapted_layers(module).items()
        for letter in "AB"
    }
    learnt = any(bool(weight.any()) for name, weight in weights.items() if name.endswith("lora_B.weight"))
    return weights if learnt else {}


def save_adapter(model: PreTrainedModel, weights: dict[str, Tensor], folder: Path) -> None:
    """Write the adapter, as `adapter_weights` returns it, to a new folder in the format of the library `peft`."""
    layers = adapted_layers(model)
    first = next(iter(layers.values()))
    rank = first.lora_A.shape[0]
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": rank,
            "lora_alpha": first.scale * rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": [*sorted(layers)],
        },
    )
