"""A short training of a retriever: what `test_encoder.py` runs here, by several workers, or to be killed."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.tiny_labels import write_labels

from coseek.core.settings import apply_overrides, make_settings
from coseek.pipelines.encoder import RetrieverTraining
from coseek.pipelines.reranker import RerankerTraining
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.learner.workers import ALONE, Workers, workers_here

_CACHED = ("training.steps=2", "training.optimizer={lr: 0.01, eps: 0.0001}", "training.micro_batch_tokens=40")
RERANKER = ("kind=reranker", "passage_tokens=48", "loss={temperature: 1.0}", "training.optimizer.lr=0.003")
SETTINGS = {
    "cached": _CACHED,
    "tokens": (*_CACHED, "kind=late-interaction", "token_dimension=8"),
    "reranker": (*RERANKER, *_CACHED),
}
"""What two workers must make of it as one does. Adam divides by the gradient's size: without `eps` the rounding of a
gradient near 0 would be a whole step."""


def recipe_of(given: Path, *settings: str, labels: str = "labels") -> RetrieverRecipe:
    """A recipe over the labels and the encoder in `given`."""
    tree = apply_overrides(
        {
            "labels": [str(given / labels)], "encoder": str(given / "encoder"), "view": "question+query",
            "query_tokens": 48, "loss": {"temperature": 0.05}, "training": {"batch_size": 8, "dropout": 0.0},
            "held_out": {"share": 0.3}, "threads": 1,
        },
        settings,
    )  # fmt: skip
    return make_settings(RetrieverRecipe, tree)


def train(
    given: Path, out: Path, *settings: str, labels: str = "labels", workers: Workers = ALONE, resume: bool = False
) -> RetrieverTraining:
    recipe = recipe_of(given, *settings, labels=labels)
    kind = RerankerTraining if recipe.kind == "reranker" else RetrieverTraining
    training = kind(recipe, out, workers=workers)
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
