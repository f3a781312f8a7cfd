"""Asking: a scorer whose answer cannot be read is asked once more; then its turn has no scores. Nothing is guessed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coseek.graders.call_counts import FAULT, CallCounts
from coseek.graders.generator import fault_of
from coseek.graders.listed_answer import Unreadable
from coseek.models.local_text import LocalTextModel
from coseek.models.text_model import CachedTextModel, TextModel, generate_each

T = TypeVar("T")

CALLS, RETRIES = "scorer_calls", "scorer_retries"
"""Names in the tally; every retry is a call, too."""
SCORER = FAULT + "scorer"
TOO_LONG = "the prompt is too long for the model"


@dataclass(frozen=True, slots=True)
class OutputRequest(Generic[T]):
    """A prompt, and how its answer is read."""

    prompt: str
    again: str
    """Put behind the prompt when the answer could not be read: a greedy model would write the same again."""
    read: Callable[[str], T | Unreadable]


@dataclass(frozen=True, slots=True)
class ParsedOutput(Generic[T]):
    """What came of it."""

    found: T | None
    texts: tuple[str, ...]
    """All that the model wrote."""
    unreadable: str = ""
    """Why nothing was found, where the model did answer, or could not be shown all of the prompt."""
    fault: str | None = None
    """Why there is no answer; then it is asked again at the next start."""


def ask_with_retry(
    model: TextModel, asked: Sequence[OutputRequest[T]], max_tokens: int, tally: CallCounts
) -> list[ParsedOutput[T]]:
    """What is read of each answer, in order; those that cannot be read are asked once more, together.

    A prompt that the model cannot hold is not asked: it would lose its middle, and what is not seen is not scored.
    """
    said = _asked(model, asked, [one.prompt for one in asked], max_tokens, tally)
    twice = [place for place, one in enumerate(said) if one.unreadable and one.texts]
    tally.add(RETRIES, len(twice))
    prompts = [asked[place].prompt + asked[place].again for place in twice]
    second = _asked(model, [asked[place] for place in twice], prompts, max_tokens, tally)
    for place, one in zip(twice, second, strict=True):
        said[place] = ParsedOutput(one.found, (*said[place].texts, *one.texts), one.unreadable, one.fault)
    return said


def _asked(
    model: TextModel, asked: Sequence[OutputRequest[T]], prompts: Sequence[str], max_tokens: int, tally: CallCounts
) -> list[ParsedOutput[T]]:
    held = [place for place, prompt in enumerate(prompts) if _holds(model, prompt, max_tokens)]
    texts = generate_each(model, [prompts[place] for place in held], max_tokens)
    tally.add(CALLS, len(held))
    said: list[ParsedOutput[T]] = [ParsedOutput(None, (), TOO_LONG) for _ in asked]
    for place, text in zip(held, texts, strict=True):
        if not isinstance(text, str):
            tally.add(SCORER)
            said[place] = ParsedOutput(None, (), fault=fault_of(text))
            continue
        found = asked[place].read(text)
        wrong = found.why if isinstance(found, Unreadable) else ""
        said[place] = ParsedOutput(None if isinstance(found, Unreadable) else found, (text,), wrong)
    return said


def _holds(model: TextModel, prompt: str, max_tokens: int) -> bool:
    """Whether a local model can read the prompt whole. A server refuses what is too long for it, which is a fault."""
    if isinstance(model, CachedTextModel):
        return _holds(model.model, prompt, max_tokens)
    return not isinstance(model, LocalTextModel) or model.holds(prompt, max_tokens)
