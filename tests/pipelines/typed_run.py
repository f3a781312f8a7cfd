"""Runs in the tests of this folder: a command as it is typed, and a training from its beginning to its end."""

from typing import Protocol, TypeVar

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
