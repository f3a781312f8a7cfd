"""Structured output: parse the output of a model, and call it once more where parsing fails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from coseek.graders.call_counts import FAULT, CallCounts
from coseek.graders.generator import fault_of
from coseek.graders.listed_answer import Unreadable
from coseek.models.text_model import CachedTextModel, LocalTextModel, TextModel, generate_each

T = TypeVar("T")

CALLS, RETRIES = "scorer_calls", "scorer_retries"
"""Names in the counts; a retry is also a call."""
SCORER = FAULT + "scorer"
TOO_LONG = "the prompt is too long for the model"


@dataclass(frozen=True, slots=True)
class OutputRequest(Generic[T]):
    """A prompt and the parser of its output."""

    prompt: str
    again: str
    """Appended to the prompt for the second call: greedy decoding would repeat the first output."""
    read: Callable[[str], T | Unreadable]


@dataclass(frozen=True, slots=True)
class ParsedOutput(Generic[T]):
    """Result of one request."""

    found: T | None
    texts: tuple[str, ...]
    """Outputs of the model."""
    unreadable: str = ""
    """Why parsing failed, or that the prompt is too long for the model."""
    fault: str | None = None
    """Why there is no output; the next start sends the request again."""


def ask_with_retry(
    model: TextModel, asked: Sequence[OutputRequest[T]], max_tokens: int, tally: CallCounts
) -> list[ParsedOutput[T]]:
    """The parsed output of each request, in order; unreadable ones are sent once more, in one batch.

    A prompt longer than the model's context is not sent, because it would be truncated and passages would be scored
    unseen.
    """
    outputs = _asked(model, asked, [one.prompt for one in asked], max_tokens, tally)
    twice = [place for place, one in enumerate(outputs) if one.unreadable and one.texts]
    tally.add(RETRIES, len(twice))
    prompts = [asked[place].prompt + asked[place].again for place in twice]
    second = _asked(model, [asked[place] for place in twice], prompts, max_tokens, tally)
    for place, one in zip(twice, second, strict=True):
        outputs[place] = ParsedOutput(one.found, (*outputs[place].texts, *one.texts), one.unreadable, one.fault)
    return outputs


def _asked(
    model: TextModel, asked: Sequence[OutputRequest[T]], prompts: Sequence[str], max_tokens: int, tally: CallCounts
) -> list[ParsedOutput[T]]:
    held = [place for place, prompt in enumerate(prompts) if _holds(model, prompt, max_tokens)]
    texts = generate_each(model, [prompts[place] for place in held], max_tokens)
    tally.add(CALLS, len(held))
    outputs: list[ParsedOutput[T]] = [ParsedOutput(None, (), TOO_LONG) for _ in asked]
    for place, text in zip(held, texts, strict=True):
        if not isinstance(text, str):
            tally.add(SCORER)
            outputs[place] = ParsedOutput(None, (), fault=fault_of(text, "max_tokens"))
            continue
        found = asked[place].read(text)
        wrong = found.why if isinstance(found, Unreadable) else ""
        outputs[place] = ParsedOutput(None if isinstance(found, Unreadable) else found, (text,), wrong)
    return outputs


def _holds(model: TextModel, prompt: str, max_tokens: int) -> bool:
    """Whether the prompt fits a local model. A server refuses a prompt that is too long, which is a fault."""
    if isinstance(model, CachedTextModel):
        return _holds(model.model, prompt, max_tokens)
    return not isinstance(model, LocalTextModel) or model.holds(prompt, max_tokens)
