"""Pretrained models: loads and saves Hugging Face folders, with user errors as `DataError`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as library_logging

from coseek.core.errors import DataError
from coseek.core.files import atomic_folder
from coseek.hardware.placement import DevicePlacement, Placement
from coseek.hardware.precision import Precision
from coseek.models.download_hint import missing
from coseek.models.model_folder import check_is_model, library_reads
from coseek.models.shape import hidden_size
from coseek.models.shipped import shipped_models
from coseek.models.tokenizer import HfTokenizer
from coseek.models.whole_weights import check_language_model, recorded_loads

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_model(folder: Path, placement: Placement) -> PreTrainedModel:
    """Load the causal language model of a folder onto its device, in evaluation mode. Nothing is downloaded.

    The weights are of the placement's precision, whatever their number type on disk.
    """
    if not folder.is_dir():
        raise DataError(missing("model folder", folder, known=shipped_models()))
    check_is_model(folder)
    device = placement.torch_device()
    dtype = DTYPES[placement.precision_at(hidden_size(folder))]
    model = _load(folder, dtype, kernel_of(placement))
    model.eval()
    nn.Module.to(model, device)
    return model


def check_weights(folder: Path) -> None:
    """Raise `DataError` unless `load_model` can load the folder. Weights in safetensors are mapped and not read."""
    check_is_model(folder)
    _load(folder, "auto", None)


def _load(folder: Path, dtype: torch.dtype | str, kernel: str | None) -> PreTrainedModel:
    with library_reads(folder, "language model"), recorded_loads() as loads, quiet():
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=kernel, local_files_only=True
        )
    assert isinstance(model, PreTrainedModel)
    check_language_model(folder, model, loads)
    return model


def kernel_of(placement: DevicePlacement) -> str | None:
    """The attention kernel as transformers takes it: `None` is sdpa, or eager for architectures without it."""
    return None if placement.attention == "sdpa" else placement.attention


def save_model(model: PreTrainedModel, tokenizer: HfTokenizer, folder: Path) -> None:
    """Write weights and tokenizer as a Hugging Face folder, atomically."""

    def fill(part: Path) -> None:
        with quiet():
            model.save_pretrained(part)
        tokenizer.save(part)
        for file in part.iterdir():  # the library makes the weights private
            file.chmod(0o644)

    atomic_folder(folder, fill)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the library's progress bars inside the block."""
    shown = library_logging.is_progress_bar_enabled()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library_logging.enable_progress_bar()


def _is_relevant(record: logging.LogRecord) -> bool:
    # The faster GPU kernel of short convolutions cannot be installed on a laptop, so its absence is not reported.
    return "causal_conv1d" not in record.getMessage()


logging.getLogger("transformers.integrations.hub_kernels").addFilter(_is_relevant)
