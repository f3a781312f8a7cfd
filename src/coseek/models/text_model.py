"""Text model: the interface of models that map prompts to texts, faults of single prompts, and a cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeAlias

from coseek.core.cache import TextCache
from coseek.core.errors import ModelError
from coseek.core.fingerprint import digest_of

Output: TypeAlias = str | ModelError
"""A text, or why there is none."""
_MOST_KEPT = 10_000
"""Texts that are kept for prompts that may be asked again."""


class TextModel(Protocol):
    """Maps prompts to texts, in order. A failure is a `ModelError`; a model that knows which prompts failed raises
    `PartialFailure`, which holds the texts of the others."""

    @property
    def identity(self) -> str:
        """A digest of everything besides the prompt that the texts depend on."""

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]: ...


class OutOfTokens(ModelError):
    """The tokens of a reply were used up, by reasoning, before an answer."""


class PartialFailure(ModelError):
    """Some prompts of a batch failed."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        """`outputs` holds a text or an error for every prompt, in order, and at least one error."""
        super().__init__(str(next(one for one in outputs if isinstance(one, ModelError))))
        self.outputs = list(outputs)


def texts_of(outputs: Sequence[Output]) -> list[str]:
    """The texts. Raises `PartialFailure` where one is missing."""
    texts = [one for one in outputs if isinstance(one, str)]
    if len(texts) < len(outputs):
        raise PartialFailure(outputs)
    return texts


def generate_each(model: TextModel, prompts: Sequence[str], max_tokens: int) -> list[Output]:
    """One text or error per prompt, in order. Equal prompts are sent once. No prompt is sent again because another one
    failed, except to a model that cannot tell which one did: it gets the batch in halves."""
    unique = list(dict.fromkeys(prompts))
    written = dict(zip(unique, _each(model, unique, max_tokens), strict=True))
    return [written[prompt] for prompt in prompts]


def _each(model: TextModel, prompts: list[str], max_tokens: int) -> list[Output]:
    if not prompts:
        return []
    try:
        return list(model.write(prompts, max_tokens))
    except PartialFailure as error:
        return error.outputs
    except ModelError as error:
        if len(prompts) == 1:
            return [error]
    middle = len(prompts) // 2
    return _each(model, prompts[:middle], max_tokens) + _each(model, prompts[middle:], max_tokens)


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
        known: dict[str, Output] = dict(self.store.read(list(dict.fromkeys(keys))) or {})
        missing = {key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in known}
        if missing:
            fresh = dict(zip(missing, generate_each(self.model, list(missing.values()), max_tokens), strict=True))
            self.store.write({key: text for key, text in fresh.items() if isinstance(text, str)})
            known |= fresh
        return texts_of([known[key] for key in keys])


class KeptTexts:
    """Writes with a model, and keeps the texts of a batch of which some prompts failed until they are asked for again,
    as callers do with the batch's other queries: no prompt is paid for twice."""

    def __init__(self, model: TextModel) -> None:
        self._model = model
        self._kept: dict[tuple[str, int], str] = {}

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """`TextModel.write`."""
        kept = {prompt: self._kept.pop((prompt, max_tokens), None) for prompt in dict.fromkeys(prompts)}
        missing = [prompt for prompt in prompts if kept[prompt] is None]
        try:
            fresh = iter(self._model.write(missing, max_tokens) if missing else [])
        except ModelError as error:
            outputs = error.outputs if isinstance(error, PartialFailure) else []
            texts = {**kept, **dict(zip(missing, outputs, strict=False))}
            self._kept |= {(prompt, max_tokens): text for prompt, text in texts.items() if isinstance(text, str)}
            for old in [*islice(self._kept, max(0, len(self._kept) - _MOST_KEPT))]:
                del self._kept[old]
            raise
        return [next(fresh) if (text := kept[prompt]) is None else text for prompt in prompts]
