"""Progress: what a long piece of work tells whoever watches. Knows no terminal."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

Evaluate: TypeAlias = Callable[[int], Mapping[str, float]]
"""(steps that are over) → named numbers of the model as it is now."""


class Progress(Protocol):
    """Hears where the work is."""

    def stage(self, name: str, total: int) -> None:
        """A new stage of `total` steps begins; the one before it is over."""
        ...

    def advance(self, done: int, note: str = "") -> None:
        """`done` steps of the stage are over; `note` is a short reading such as `EM .41`."""
        ...

    def say(self, line: str) -> None:
        """A line worth keeping on the screen."""
        ...


class NoProgress:
    """Tells nobody."""

    def stage(self, name: str, total: int) -> None:
        pass

    def advance(self, done: int, note: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        pass
