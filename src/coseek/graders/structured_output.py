"""Structured output: the base of judges, relevance scorers and rankers; parsing of what a model says, and a second call
if parsing fails."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Generic, Literal, Protocol, TypeAlias, TypeVar

from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, one_line
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.graders.generator import fault_of
from coseek.models.judge_text import unfenced
from coseek.models.text_model import CachedTextModel, CutText, LocalTextModel, TextModel, generate_each, whole_words
from coseek.models.written import visible_after
from coseek.retrieval.llm import neutralise_numbers

T = TypeVar("T")
P = TypeVar("P", bound=PromptFile)

# Call counts: calls, retries and faults of label making, by name.

FAULT = "fault/"
"""Prefix of the name of a part that failed: `fault/retriever`, `fault/scorer`, `fault/agent`, …"""
WHY = "why/"
"""Prefix of the name of a part that failed, with the reason."""


@dataclass
class CallCounts:
    """Counts since the start: calls, retries, branches, faults. Thread-safe."""

    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.counts[name] += count

    def fail(self, part: str, why: str | None) -> None:
        """Count a fault of a part with its reason; `None`: no fault."""
        for name in (FAULT + part, f"{WHY}{part}: {why}") if why is not None else ():
            self.add(name)

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults by part."""
        return {name.removeprefix(FAULT): count for name, count in self.counts.items() if name.startswith(FAULT)}


def neutral_line(text: str, max_words: int | None = None) -> str:
    """At most `max_words` words of a text from outside, on one line, with its numbers in brackets neutralised."""
    return neutralise_numbers(one_line(text, max_words))


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


# Listed answers: one entry for each of n numbered items.
#
# Code fences, thoughts, bold marks and lines of prose around the entries are ignored. Otherwise parsing is strict: an
# output without exactly one entry per number, in the requested format, is unreadable. It is counted, never repaired.

Form: TypeAlias = Literal["numbered", "bare"]
"""`[2] 71 [1] 5 …`, or only the scores, in the order of the passages."""

# Only ASCII digits: int() would also accept those of other scripts.
# Possessive (`*+`): a model may write any number of blanks, and backtracking over them would take quadratic time.
_NUMBERED = re.compile(r"\[\s*+([0-9]{1,4})\s*+\]\s*+(?:[:=]\s*+)?([0-9]{1,3})(?![0-9.])")
_BARE = re.compile(r"([0-9]{1,3})(?![0-9.])")
_BETWEEN = re.compile(r"[\s,;]++|\Z")
_LINE = re.compile(r"\[\s*+([0-9]{1,4})\s*+\]\s*+(?:[:=]\s*+)?(\S.*)")
_NAME = re.compile(r"\[?([0-9]{1,4})\]?")
HIGHEST = 100


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why an output could not be parsed."""

    why: str


def after_mark(text: str, mark: str) -> str | Unreadable:
    """The visible text after the last `mark`, for models that reason first; all of it for an empty mark."""
    answer = visible_after(text, mark)
    return Unreadable(f"no {mark!r}") if answer is None else answer


def read_scores(text: str, count: int, form: Form = "numbered") -> tuple[int, ...] | Unreadable:
    """Parse integer scores from 0 to 100 in the order of the passages 1 … count.

    Entries are separated by white space, commas or semicolons. A JSON object of numbers and scores is also accepted.
    Text without digits may surround the entries, and a label may precede them.
    """
    text = unfenced(text).replace("*", "")
    pairs = _json_pairs(text)
    if pairs is None:
        entries = _entries(_without_prose(text), _NUMBERED if form == "numbered" else _BARE)
        if isinstance(entries, Unreadable):
            return entries
        if form == "numbered":
            pairs = [(int(entry[1]), int(entry[2])) for entry in entries]
        else:
            pairs = [(number, int(entry[1])) for number, entry in enumerate(entries, start=1)]
    wrong = _count_problem([number for number, _ in pairs], count)
    if wrong is None and any(score > HIGHEST for _, score in pairs):
        wrong = Unreadable(f"a score above {HIGHEST}")
    return wrong or tuple(score for _, score in sorted(pairs))


def read_lines(text: str, count: int) -> tuple[str, ...] | Unreadable:
    """Parse one text for each number 1 … count, each on a line after its number. Empty lines, and lines before the
    first that end with a colon, are skipped."""
    lines = [line.strip() for line in unfenced(text).splitlines() if line.strip()]
    while lines and lines[0].endswith(":") and not _LINE.fullmatch(lines[0]):
        del lines[0]
    pairs = [(int(match[1]), match[2].strip()) for line in lines if (match := _LINE.fullmatch(line))]
    if len(pairs) < len(lines):
        return Unreadable("a line without its number")
    wrong = _count_problem([number for number, _ in pairs], count)
    return wrong or tuple(text for _, text in sorted(pairs))


def _json_pairs(text: str) -> list[tuple[int, int]] | None:
    """The numbers and scores of an object such as `{"1": 71, "2": 5}`; `None` for any other text."""
    try:
        row = parse_lenient(text) if text.startswith("{") else None
    except InvalidJson:
        return None
    if not isinstance(row, dict):
        return None
    pairs = [(_NAME.fullmatch(name), score) for name, score in row.items()]
    if any(name is None or type(score) is not int or score < 0 for name, score in pairs):
        return None
    return [(int(name[1]), score) for name, score in pairs if name is not None and isinstance(score, int)]


def _without_prose(text: str) -> str:
    """A text without the lines before its first digit and after its last, and without a label before the digits."""
    lines = text.splitlines()
    with_digits = [index for index, line in enumerate(lines) if any(map(str.isdigit, line))]
    if not with_digits:
        return text
    first, *other_lines = lines[with_digits[0] : with_digits[-1] + 1]
    label, colon, rest = first.partition(":")
    if colon and not any(letter.isdigit() or letter in "[]" for letter in label):
        first = rest
    return "\n".join([first, *other_lines]).strip()


def _entries(text: str, entry: re.Pattern[str]) -> list[re.Match[str]] | Unreadable:
    """Split the whole text into entries with separators between them."""
    entries: list[re.Match[str]] = []
    position = 0
    while position < len(text):
        match = entry.match(text, position)
        separator = match and _BETWEEN.match(text, match.end())
        if match is None or separator is None:
            return Unreadable(f"words that are no score: {text[position : position + 40]!r}")
        entries.append(match)
        position = separator.end()
    return entries


def _count_problem(numbers: list[int], count: int) -> Unreadable | None:
    """Why the numbers are not 1 … count, each once; `None` if they are."""
    if len(numbers) != count:
        return Unreadable(f"{len(numbers)} entries for {count}")
    if len(set(numbers)) < count:
        return Unreadable("a number twice")
    if set(numbers) != set(range(1, count + 1)):
        return Unreadable("a number that was not asked for")
    return None


CALLS, RETRIES = "scorer_calls", "scorer_retries"
"""Names in the counts; a retry is also a call."""
TOO_LONG = "the prompt is too long for the model"


@dataclass(frozen=True, slots=True)
class OutputRequest(Generic[T]):
    """A prompt and the parser of its output."""

    prompt: str
    retry_prompt: str
    """Appended to the prompt for the second call: greedy decoding would repeat the first output."""
    read: Callable[[str], T | Unreadable]


@dataclass(frozen=True, slots=True)
class ParsedOutput(Generic[T]):
    """Result of one request."""

    value: T | None
    texts: tuple[str, ...] = ()
    """Outputs of the model."""
    unreadable: str = ""
    """Why parsing failed, or that the prompt is too long for the model."""
    fault: str | None = None
    """Why there is no output; the next start repeats the request."""


def ask_with_retry(
    model: TextModel, asked: Sequence[OutputRequest[T]], max_tokens: int, tally: CallCounts
) -> list[ParsedOutput[T]]:
    """The parsed output of each request, in order. Unreadable outputs are requested once more, in one batch.

    A prompt longer than the model's context is not sent, because it would be truncated and passages would be scored
    unseen.
    """
    outputs = _ask(model, asked, max_tokens, tally)
    retry_indices = [index for index, output in enumerate(outputs) if output.unreadable and output.texts]
    tally.add(RETRIES, len(retry_indices))
    retry_requests = [
        replace(asked[index], prompt=asked[index].prompt + asked[index].retry_prompt) for index in retry_indices
    ]
    for index, output in zip(retry_indices, _ask(model, retry_requests, max_tokens, tally), strict=True):
        outputs[index] = replace(output, texts=outputs[index].texts + output.texts)
    return outputs


def _ask(
    model: TextModel, requests: Sequence[OutputRequest[T]], max_tokens: int, tally: CallCounts
) -> list[ParsedOutput[T]]:
    sent_indices = [index for index, request in enumerate(requests) if _fits(model, request.prompt, max_tokens)]
    texts = generate_each(model, [requests[index].prompt for index in sent_indices], max_tokens)
    tally.add(CALLS, len(sent_indices))
    outputs: list[ParsedOutput[T]] = [ParsedOutput(None, (), TOO_LONG) for _ in requests]
    for index, text in zip(sent_indices, texts, strict=True):
        if not isinstance(text, str):
            outputs[index] = ParsedOutput(None, (), fault=fault_of(text, "max_tokens"))
            tally.fail("scorer", outputs[index].fault)
            continue
        parsed = requests[index].read(whole_words(text))
        if not isinstance(parsed, Unreadable):
            outputs[index] = ParsedOutput(parsed, (text,))
        else:
            is_cut = isinstance(text, CutText)
            reason = f"the text was cut at max_tokens={max_tokens}" if is_cut else parsed.why
            outputs[index] = ParsedOutput(None, (text,), reason)
    return outputs


def _fits(model: TextModel, prompt: str, max_tokens: int) -> bool:
    """Whether the prompt fits a local model. A server refuses a prompt that is too long, which is a fault."""
    if isinstance(model, CachedTextModel):
        return _fits(model.model, prompt, max_tokens)
    return not isinstance(model, LocalTextModel) or model.holds(prompt, max_tokens)
