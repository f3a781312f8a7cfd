"""Grader: the base of judges, relevance scorers and rankers."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Generic, Protocol, TypeVar

from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile
from coseek.graders.structured_output import CallCounts
from coseek.models.text_model import TextModel

P = TypeVar("P", bound=PromptFile)


class Grader(Protocol):
    """A frozen model or rule that grades passages or answers."""

    @property
    def identity(self) -> str:
        """Digest of everything that a grade depends on besides the graded text."""
        ...

    @property
    def card(self) -> JsonObject:
        """Description for the first line of a grade cache."""
        ...


@dataclass(frozen=True)
class ModelGrader(Generic[P]):
    """A language model with a prompt from a file."""

    kind: ClassVar[str]
    """First part of the identity."""
    model: TextModel
    prompt: P
    max_tokens: int
    max_words: int
    """Maximum number of words shown of one passage or observation."""
    tally: CallCounts

    @cached_property
    def identity(self) -> str:
        prompt = self.prompt.model_dump_json(exclude={"about"})
        return digest_of(self.kind, self.model.identity, prompt, str(self.max_tokens), str(self.max_words))

    @property
    def card(self) -> JsonObject:
        return {"model_identity": self.model.identity, "prompt": self.prompt.about, "max_words": self.max_words}
