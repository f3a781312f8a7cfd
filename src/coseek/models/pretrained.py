"""Pretrained models: loads and saves Hugging Face folders, with user errors as `DataError`.

A folder without some of the model's weights is refused: transformers initialises missing weights randomly and only logs
a report. Here every load is recorded. Weights that were initialised, or ignored although the model has their layer, are
a `DataError`.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES
from transformers.utils import logging as library_logging

from coseek.core.errors import DataError
from coseek.core.files import atomic_folder, let_all_read
from coseek.hardware.placement import DevicePlacement, Placement, Precision
from coseek.models.model_folder import check_is_model, hidden_size, library_reads, tensor_types
from coseek.models.tokenizer import HfTokenizer

log = logging.getLogger(__name__)

_LOADING = threading.Lock()
"""The library creates empty weights by a process-wide setting, so that two threads would leave some empty."""
_LOADER = "from_pretrained"


class LoadInfo(TypedDict):
    """The part of transformers' `output_loading_info` that is used here."""

    missing_keys: set[str]
    mismatched_keys: set[tuple[str, Sequence[int], Sequence[int]]]
    """(name, shape in the file, shape in the model)"""
    unexpected_keys: set[str]


@dataclass(frozen=True, slots=True)
class Load:
    """The report of one call of `from_pretrained`."""

    model: PreTrainedModel
    missing: tuple[str, ...]
    """Names of floating-point tensors that the folder lacks; integer buffers (position ids) follow from the
    configuration. Tied weights are not missing."""
    mismatched: tuple[str, ...]
    """Tensors of another shape than the configuration says, as `NAME (shape in the file, shape in the model)`."""
    unexpected: tuple[str, ...]
    """Names of tensors in the folder that the model did not load."""


@contextmanager
def recorded_loads() -> Iterator[list[Load]]:
    """Record all loads by transformers inside the block, from any library. One thread loads at a time."""
    loads: list[Load] = []
    original_loader = PreTrainedModel.__dict__[_LOADER]

    def load(cls: type[PreTrainedModel], /, *args: object, **kwargs: object) -> object:
        wants_info = kwargs.pop("output_loading_info", False)
        # Otherwise a shape that differs ends in an error that names neither tensor nor folder.
        kwargs |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = original_loader.__func__(cls, *args, **kwargs)
        loads.append(_load_of(model, info))
        return (model, info) if wants_info else model

    with _LOADING:
        setattr(PreTrainedModel, _LOADER, classmethod(load))
        try:
            yield loads
        finally:
            setattr(PreTrainedModel, _LOADER, original_loader)


def _load_of(model: PreTrainedModel, info: LoadInfo) -> Load:
    state = model.state_dict()
    order = {name: index for index, name in enumerate(state)}
    missing_names = sorted(info["missing_keys"], key=lambda name: (order.get(name, len(order)), name))
    return Load(
        model,
        tuple(name for name in missing_names if name not in state or state[name].is_floating_point()),
        tuple(f"{name} ({_shape(stored)}, {_shape(own)})" for name, stored, own in sorted(info["mismatched_keys"])),
        tuple(sorted(info["unexpected_keys"])),
    )


def _shape(sizes: Sequence[int]) -> str:
    return " × ".join(map(str, sizes))


def check_whole(folder: Path, loads: Sequence[Load], spare: Sequence[str] = ()) -> None:
    """Raise `DataError` for weights that are missing, of another shape, or ignored although the model has their layer.
    Missing weights in `spare` are accepted."""
    for load in loads:
        absent = [name for name in load.missing if name not in spare]
        if absent:
            raise DataError(f"{folder} lacks the weights of {listed(absent)}{_saved_as(load)}; fetch or save it again")
        if load.mismatched:
            raise DataError(
                f"{folder} holds weights of another shape than its config.json says: {listed(load.mismatched)}; fetch "
                "or save it again"
            )
        _check_ignored(folder, load)
        _check_quantized(folder, load)


def _check_quantized(folder: Path, load: Load) -> None:
    """Raise `DataError` for weights that are stored as integers without a quantization in the configuration: they would
    be used without their scales."""
    if getattr(load.model.config, "quantization_config", None) is not None:
        return
    state, prefix = load.model.state_dict(), f"{load.model.base_model_prefix}."
    integers: list[str] = []
    for file in sorted(folder.glob("*.safetensors")):
        for name, kind in tensor_types(file).items():
            tensor = state.get(name, state.get(prefix + name))
            if tensor is not None and tensor.is_floating_point() and kind[0] in "IU":
                integers.append(name)
    if integers:
        raise DataError(
            f"{folder} holds {listed(integers)} as integers, and its config.json names no quantization; fetch the "
            "unquantized model, or its config.json again"
        )


def listed(names: Sequence[str]) -> str:
    """The first names of a list, and the number of the others."""
    first_names = ", ".join(names[:2])
    return f"{first_names} and {len(names) - 2} more" if len(names) > 2 else first_names


def _saved_as(load: Load) -> str:
    """The architecture that the folder was saved from, if it is not the one that it is loaded as."""
    saved = [str(name) for name in getattr(load.model.config, "architectures", None) or ()]
    class_name = type(load.model).__name__
    return f" (it was saved from {saved[0]} and is opened as {class_name})" if saved and class_name not in saved else ""


def _check_ignored(folder: Path, load: Load) -> None:
    """Raise `DataError` for weights that were ignored although the model has their layer: adapters, biases or scales
    that the configuration does not mention. A whole unused module (another head, an image encoder) is accepted."""
    layers = dict(load.model.named_modules())
    # Tensors of a layer of the model, or below one: `q_proj.bias`, `q_proj.lora_A.weight`.
    ignored = [name for name in load.unexpected if _is_in_layer(name, layers)]
    if adapters := [name for name in load.unexpected if ".lora_" in name or "lora_A" in name]:
        raise DataError(
            f"{folder} holds a LoRA adapter beside its weights ({listed(adapters)}), which would be left out; merge "
            "it: PeftModel.from_pretrained(…).merge_and_unload()"
        )
    if ignored:
        raise DataError(
            f"{folder} holds weights that its config.json leaves out: {listed(ignored)}; correct config.json, or fetch "
            "or save the folder again"
        )
    if extra := [name for name in load.unexpected if _is_extra_layer(name, layers)]:
        log.warning("%s: config.json asks for fewer layers than are stored; left out: %s", folder, listed(extra))


def _is_in_layer(name: str, layers: dict[str, nn.Module]) -> bool:
    """Whether the tensor is in or below a layer of the model that has weights and no sublayers."""
    while name := name.rpartition(".")[0]:
        if (layer := layers.get(name)) is not None:
            return not any(layer.children()) and any(True for _ in layer.parameters(recurse=False))
    return False


def _is_extra_layer(name: str, layers: dict[str, nn.Module]) -> bool:
    """Whether the tensor belongs to a list of layers that is longer in the folder than in the model."""
    while name:
        parent, _, number = name.rpartition(".")
        if name not in layers and number.isdigit() and isinstance(layers.get(parent), nn.ModuleList):
            return True
        name = parent
    return False


DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(folder: Path, placement: Placement) -> PreTrainedModel:
    """Load the causal language model of a folder onto its device, in evaluation mode. Nothing is downloaded.

    The weights are of the placement's precision, whatever their number type on disk.
    """
    check_is_model(folder)
    device = placement.torch_device()
    dtype = DTYPES[placement.precision_at(hidden_size(folder))]
    model = _load(folder, dtype, kernel_of(placement))
    model.eval()
    nn.Module.to(model, device)
    config = model.config.get_text_config()
    if 0 < (limit := position_limit(config)) < config.max_position_embeddings:
        log.warning("%s: rows hold at most %d tokens, since its rotary factors change beyond", folder, limit)
    return model


def position_limit(config: PreTrainedConfig) -> int:
    """Maximum tokens of a row; 0 if the configuration does not say. Of a LongRoPE model (Phi-3, Phi-4-mini) those of
    its short factors: the library takes the long ones for a whole batch as soon as one row needs them, although keys in
    the cache have the short ones."""
    limit = int(getattr(config, "max_position_embeddings", 0) or 0)
    rope = getattr(config, "rope_parameters", None) or {}
    return min(limit, rope["original_max_position_embeddings"]) if rope.get("rope_type") == "longrope" else limit


def check_weights(folder: Path) -> None:
    """Raise `DataError` unless `load_model` can load the folder. Weights in safetensors are mapped and not read."""
    check_is_model(folder)
    _load(folder, "auto", None)


def _load(folder: Path, dtype: torch.dtype | str, kernel: str | None) -> PreTrainedModel:
    """Load and check a folder's weights. An encoder, whose tokens attend to later ones, is a `DataError`."""
    with library_reads(folder, "language model"), recorded_loads() as loads, quiet():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=kernel, local_files_only=True
        )
    assert isinstance(model, PreTrainedModel)
    check_whole(folder, loads)
    config = model.config
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and getattr(config, "is_decoder", True) is False:
        raise DataError(
            f"{folder} holds an encoder ({config.model_type}), which cannot write text; name the folder of a causal "
            "language model"
        )
    return model


def kernel_of(placement: DevicePlacement) -> str | None:
    """The attention kernel as transformers takes it: `None` is sdpa, or eager for architectures without it."""
    return None if placement.attention == "sdpa" else placement.attention


def save_model(model: PreTrainedModel, tokenizer: HfTokenizer, folder: Path) -> None:
    """Write weights and tokenizer as a Hugging Face folder, atomically."""

    def fill(target: Path) -> None:
        with quiet():
            model.save_pretrained(target)
        tokenizer.save(target)
        let_all_read(target)  # the library makes the weights private

    atomic_folder(folder, fill)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the library's progress bars inside the block."""
    was_enabled = library_logging.is_progress_bar_enabled()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            library_logging.enable_progress_bar()


# The faster GPU kernel of short convolutions cannot be installed on a laptop, so its absence is not reported.
logging.getLogger("transformers.integrations.hub_kernels").addFilter(
    lambda record: "causal_conv1d" not in record.getMessage()
)
