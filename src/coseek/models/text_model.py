"""Asking: language models that only write texts, asked so that one failure takes no others along, and nothing twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from coseek.core.cache import TextCache
from coseek.core.errors import ModelError
from coseek.core.fingerprint import digest_of


class TextModel(Protocol):
    """A language model as a generator of texts: prompts in, texts out, in the same order."""

    @property
    def identity(self) -> str:
        """A digest of all that the texts depend on besides the prompt."""
        ...

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]: ...


def generate_each(model: TextModel, prompts: Sequence[str], max_tokens: int) -> list[str | ModelError]:
    """One text or one fault a prompt, in order; equal prompts are asked once.

    A batch that fails is asked again in halves, down to the prompts that fail alone.
    """
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
    """A model whose texts are kept under its identity, the prompt and the budget. Failures are not kept."""

    model: TextModel
    store: TextCache

    @property
    def identity(self) -> str:
        """The model's own: remembering changes no text."""
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
