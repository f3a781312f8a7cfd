"""Grader: what judges, relevance scorers and rankers have in common."""

import json
from dataclasses import dataclass, fields
from functools import cached_property
from typing import ClassVar, Generic, Protocol, Self, TypeVar, cast

from pydantic import TypeAdapter

from coseek.agents.search_turns import TurnId
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile
from coseek.graders.call_counts import CallCounts
from coseek.models.text_model import TextModel
from coseek.world.oracle import Oracle

P = TypeVar("P", bound=PromptFile)


class CacheEntry:
    """Base of dataclasses that are lines of a grade cache, with one JSON name per field.

    A field `turn` (`TurnId`) is written as its own three names.
    """

    __slots__ = ()

    def to_json(self) -> JsonObject:
        row = cast(JsonObject, _adapter(type(self)).dump_python(self, mode="json"))
        return {**cast(JsonObject, row.pop("turn", {})), **row}

    @classmethod
    def from_json(cls, row: JsonObject) -> Self:
        """Raises `KeyError` or `ValueError` for a row of another form."""
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # subclasses are dataclasses
        values = {name: TurnId.from_json(row) if name == "turn" else row[name] for name in names}
        return cast(Self, _adapter(cls).validate_python(values))


_ADAPTERS: dict[type[CacheEntry], TypeAdapter[CacheEntry]] = {}


def _adapter(kind: type[CacheEntry]) -> TypeAdapter[CacheEntry]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


class Grader(Protocol):
    """A frozen part that grades passages or answers."""

    @property
    def identity(self) -> str:
        """A digest of all that a grade depends on besides what is graded."""
        ...

    @property
    def card(self) -> JsonObject:
        """Description for the first line of a grade cache."""
        ...


@dataclass(frozen=True)
class OracleGrader:
    """The oracle of a laptop world, which makes no errors."""

    oracle: Oracle
    source: str

    @cached_property
    def identity(self) -> str:
        return digest_of("oracle", json.dumps(self.oracle.to_json(), sort_keys=True))

    @property
    def card(self) -> JsonObject:
        return {"oracle": self.source}


@dataclass(frozen=True)
class ModelGrader(Generic[P]):
    """A language model with a prompt from a file."""

    kind: ClassVar[str]
    """First part of the identity."""
    model: TextModel
    prompt: P
    max_tokens: int
    max_words: int
    """Words of one passage or observation that are shown."""
    tally: CallCounts

    @cached_property
    def identity(self) -> str:
        prompt = self.prompt.model_dump_json(exclude={"about"})
        return digest_of(self.kind, self.model.identity, prompt, str(self.max_tokens), str(self.max_words))

    @property
    def card(self) -> JsonObject:
        return {"model_identity": self.model.identity, "prompt": self.prompt.about, "max_words": self.max_words}
