"""Text model: the interface of models that map prompts to texts, with batching of failures and a cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coseek.core.cache import TextCache
from coseek.core.errors import ModelError
from coseek.core.fingerprint import digest_of


class TextModel(Protocol):
    """Maps prompts to texts, in order."""

    @property
    def identity(self) -> str:
        """A digest of everything besides the prompt that the texts depend on."""

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]: ...


def generate_each(model: TextModel, prompts: Sequence[str], max_tokens: int) -> list[str | ModelError]:
    """One text or error per prompt, in order. Equal prompts are sent once; a failed batch is retried in halves."""
    unique = list(dict.fromkeys(prompts))
    written = dict(zip(unique, _halving(model, unique, max_tokens), strict=True))
    return [written[prompt] for prompt in prompts]


def _halving(model: TextModel, prompts: list[str], max_tokens: int) -> list[str | ModelError]:
    if not prompts:
        return []
    try:
        return list(model.write(prompts, max_tokens))
    except ModelError as error:
        if len(prompts) == 1:
            return [error]
    middle = len(prompts) // 2
    return _halving(model, prompts[:middle], max_tokens) + _halving(model, prompts[middle:], max_tokens)


@dataclass(frozen=True)
class CachedTextModel:
    """Caches the texts of a model by identity, prompt and `max_tokens`. Failures are not cached."""

    model: TextModel
    store: TextCache

    @property
    def identity(self) -> str:
        """The identity of the cached model."""
        return self.model.identity

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        keys = [digest_of(self.identity, prompt, str(max_tokens)) for prompt in prompts]
        known = dict(self.store.read(list(dict.fromkeys(keys))) or {})
        missing = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in known}
        if missing:
            fresh = dict(zip(missing, self.model.write(list(missing.values()), max_tokens), strict=True))
            self.store.write(fresh)
            known |= fresh
        return [known[key] for key in keys]
