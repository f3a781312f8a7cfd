"""Loading and saving models: Hugging Face folders in and out, with mistakes as sentences."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as library_logging

from coseek.core.errors import DataError
from coseek.core.files import atomic_folder
from coseek.core.hub import missing
from coseek.hardware.precision import Precision
from coseek.models.tokenizer import HfTokenizer

DTYPES: dict[Precision, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Weights, configuration and architecture are read by four libraries, each with its own kinds of error.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError, SafetensorError)


def load_model(folder: Path, dtype: Precision = "float32") -> PreTrainedModel:
    """Open the causal language model in a folder. Nothing is ever fetched from a network."""
    if not folder.is_dir():
        raise DataError(missing("model folder", folder))
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} is not a model folder: it has no config.json")
    try:
        with quiet():
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype], local_files_only=True)
    except _UNREADABLE as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise DataError(f"{folder} holds no language model that can be opened: {first}") from None
    assert isinstance(model, PreTrainedModel)
    model.eval()
    return model


def save_model(model: PreTrainedModel, tokenizer: HfTokenizer, folder: Path) -> None:
    """Write weights and tokenizer as one Hugging Face folder, in one rename."""

    def fill(part: Path) -> None:
        with quiet():
            model.save_pretrained(part)
        tokenizer.save(part)
        for file in part.iterdir():  # the weights alone come readable by their owner only
            file.chmod(0o644)

    atomic_folder(folder, fill)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars: small models need none, and a face shows its own."""
    shown = library_logging.is_progress_bar_enabled()
    library_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            library_logging.enable_progress_bar()


def _is_news(record: logging.LogRecord) -> bool:
    # Short convolutions have a faster kernel for GPUs; on a laptop its absence is no news, and it cannot be installed.
    return "causal_conv1d" not in record.getMessage()


logging.getLogger("transformers.integrations.hub_kernels").addFilter(_is_news)
