"""A short training of a retriever: what `test_encoder.py` runs here, by several workers, or to be killed."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.tiny_labels import write_labels

from coseek.core.settings import apply_overrides, make_settings
from coseek.pipelines.encoder import RetrieverTraining
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.learner.workers import ALONE, Workers, workers_here

_LIKE_ONE = ("training.steps=3", "training.optimizer={lr: 0.01, eps: 0.0001}")
SETTINGS = {
    "contrastive": (*_LIKE_ONE, "training.micro_batch_tokens=100000"),
    "cached": (*_LIKE_ONE, "training.micro_batch_tokens=40"),
    "tokens": (*_LIKE_ONE, "training.micro_batch_tokens=40", "kind=late-interaction", "token_dimension=8"),
}
"""What two workers must make of it as one does. Adam divides by the gradient's size: without `eps` the rounding of a
gradient near 0 would be a whole step."""


def recipe_of(given: Path, *settings: str, labels: str = "labels") -> RetrieverRecipe:
    """A recipe over the labels and the encoder in `given`."""
    tree = apply_overrides(
        {
            "labels": [str(given / labels)],
            "encoder": str(given / "encoder"),
            "view": "question+query",
            "query_tokens": 48,
            "loss": {"temperature": 0.05},
            "training": {"batch_size": 8, "dropout": 0.0},
            "held_out": {"share": 0.3},
            "threads": 1,
        },
        settings,
    )
    return make_settings(RetrieverRecipe, tree)


def train(
    given: Path, out: Path, *settings: str, labels: str = "labels", workers: Workers = ALONE, resume: bool = False
) -> RetrieverTraining:
    training = RetrieverTraining(recipe_of(given, *settings, labels=labels), out, workers=workers)
    training.begin(resume)
    training.train()
    return training


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def train_every_kind(given: Path, out: Path) -> None:
    """What one of several workers does."""
    for kind, chosen in SETTINGS.items():
        train(given, out / kind, *chosen, workers=workers_here())


def write_given(folder: Path) -> Path:
    """`labels`, `targets` and `encoder` in a folder."""
    write_labels(folder / "labels")
    write_labels(folder / "targets", 8, targets=True)
    make_encoder(folder / "encoder")
    return folder
