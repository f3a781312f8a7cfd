"""Mistakes: all that is wrong with what a user gave, said in one go. Who mends one mistake should not meet the next one
only at the next start."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from coseek.core.errors import SettingError, UserError

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class ErrorList:
    """Collects refusals of several checks. `refuse` raises what was found."""

    errors: list[UserError] = field(default_factory=list)

    def of(self, check: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What the check returns; `None` where it refuses, which is noted. Other errors pass."""
        try:
            return check(*args, **kwargs)
        except UserError as error:
            self.errors.append(error)
            return None

    def say(self, sentence: str) -> None:
        """One more mistake in the settings."""
        self.errors.append(SettingError(sentence))

    @property
    def sentences(self) -> list[str]:
        """One a mistake, each once, in the order of the checks."""
        return list(dict.fromkeys(sentence for error in self.errors for sentence in error.sentences))

    def refuse(self) -> None:
        """Raise the mistake, or one error that names all of them."""
        sentences = self.sentences
        if len(sentences) == 1:
            raise self.errors[0]
        if sentences:
            raise SettingError(*sentences)
