"""Runs in the tests of this folder: a command as it is typed, a training from its beginning to its end, and the weights
that it left."""

from pathlib import Path
from typing import Protocol, TypeVar

import torch
from safetensors.torch import load_file

from coseek.cli.main import main


class Training(Protocol):
    def begin(self, resume: bool) -> object: ...
    def train(self) -> object: ...


T = TypeVar("T", bound=Training)


def typed(*words: str) -> None:
    assert main([*words]) == 0


def trained(training: T, resume: bool = False) -> T:
    training.begin(resume)
    training.train()
    return training


def weights(folder: Path, name: str = "trained") -> dict[str, torch.Tensor]:
    """Those of a policy in the folder of a training."""
    return load_file(folder / "policy" / name / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)
