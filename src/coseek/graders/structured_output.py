"""Structured output: parse the output of a model, and call it once more where parsing fails."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Literal, TypeAlias, TypeVar

from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.graders.generator import fault_of
from coseek.models.judge_text import unfenced
from coseek.models.text_model import CachedTextModel, CutText, LocalTextModel, TextModel, generate_each, whole_words
from coseek.models.written import visible_after

T = TypeVar("T")

# Call counts: calls, retries and faults of label making, by name.

FAULT = "fault/"
"""Prefix of the name of a part that failed: `fault/retriever`, `fault/scorer`, `fault/agent`, …"""
WHY = "why/"
"""Prefix of a part and the reason why it failed."""


@dataclass
class CallCounts:
    """Counts of one start: calls, retries, branches, faults. Thread-safe."""

    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.counts[name] += count

    def fail(self, part: str, why: str | None) -> None:
        """Count a fault of a part with its reason; `None` is no fault."""
        for name in (FAULT + part, f"{WHY}{part}: {why}") if why is not None else ():
            self.add(name)

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults by part."""
        return {name.removeprefix(FAULT): count for name, count in self.counts.items() if name.startswith(FAULT)}


# Listed answers: one entry for each of n numbered items.
#
# Code fences, thoughts, bold marks and lines of prose around the entries are left out. Otherwise parsing is strict: an
# output without exactly one entry per number, in the requested format, is unreadable. It is counted and never repaired.

Form: TypeAlias = Literal["numbered", "bare"]
"""`[2] 71 [1] 5 …`, or the scores alone in the order of the passages."""

# Only ASCII digits: int() would also read those of other scripts.
# Possessive (`*+`): a model decides how many blanks there are, and backtracking over them would take quadratic time.
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
    """Whole scores from 0 to 100 in the order of the passages 1 … count.

    Entries are separated by white space, commas or semicolons. A JSON object of numbers and scores is read, too. Text
    without digits may stand around the entries, and a label in front of them.
    """
    text = unfenced(text).replace("*", "")
    pairs = _json_pairs(text)
    if pairs is None:
        entries = _entries(_without_prose(text), _NUMBERED if form == "numbered" else _BARE)
        if isinstance(entries, Unreadable):
            return entries
        pairs = [
            (int(found[1]), int(found[2])) if form == "numbered" else (place, int(found[1]))
            for place, found in enumerate(entries, start=1)
        ]
    wrong = _miscounted([number for number, _ in pairs], count)
    if wrong is None and any(score > HIGHEST for _, score in pairs):
        wrong = Unreadable(f"a score above {HIGHEST}")
    return wrong or tuple(score for _, score in sorted(pairs))


def read_lines(text: str, count: int) -> tuple[str, ...] | Unreadable:
    """One text for each number 1 … count, each on its own line after its number; empty lines, and lines in front that
    end with a colon, are skipped."""
    lines = [line.strip() for line in unfenced(text).splitlines() if line.strip()]
    while lines and lines[0].endswith(":") and not _LINE.fullmatch(lines[0]):
        del lines[0]
    found = [_LINE.fullmatch(line) for line in lines]
    pairs = [(int(line[1]), line[2].strip()) for line in found if line is not None]
    if len(pairs) < len(lines):
        return Unreadable("a line without its number")
    wrong = _miscounted([number for number, _ in pairs], count)
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
    """A text without the lines in front of its first digit and behind its last, and without a label in front."""
    lines = text.splitlines()
    told = [place for place, line in enumerate(lines) if any(map(str.isdigit, line))]
    if not told:
        return text
    first = lines[told[0]]
    label, colon, rest = first.partition(":")
    if colon and not any(letter.isdigit() or letter in "[]" for letter in label):
        first = rest
    return "\n".join([first, *lines[told[0] + 1 : told[-1] + 1]]).strip()


def _entries(text: str, entry: re.Pattern[str]) -> list[re.Match[str]] | Unreadable:
    """The whole text as entries with separators between them."""
    found: list[re.Match[str]] = []
    at = 0
    while at < len(text):
        one = entry.match(text, at)
        gap = None if one is None else _BETWEEN.match(text, one.end())
        if one is None or gap is None:
            return Unreadable(f"words that are no score: {text[at : at + 40]!r}")
        found.append(one)
        at = gap.end()
    return found


def _miscounted(numbers: list[int], count: int) -> Unreadable | None:
    """Why the numbers are not 1 … count, each once; `None` where they are."""
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
    again: str
    """Appended to the prompt for the second call: greedy decoding would repeat the first output."""
    read: Callable[[str], T | Unreadable]


@dataclass(frozen=True, slots=True)
class ParsedOutput(Generic[T]):
    """Result of one request."""

    found: T | None
    texts: tuple[str, ...] = ()
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
            outputs[place] = ParsedOutput(None, (), fault=fault_of(text, "max_tokens"))
            tally.fail("scorer", outputs[place].fault)
            continue
        found = asked[place].read(whole_words(text))
        if isinstance(found, Unreadable) and isinstance(text, CutText):
            found = Unreadable(f"the text was cut at max_tokens={max_tokens}")
        wrong = found.why if isinstance(found, Unreadable) else ""
        outputs[place] = ParsedOutput(None if isinstance(found, Unreadable) else found, (text,), wrong)
    return outputs


def _holds(model: TextModel, prompt: str, max_tokens: int) -> bool:
    """Whether the prompt fits a local model. A server refuses a prompt that is too long, which is a fault."""
    if isinstance(model, CachedTextModel):
        return _holds(model.model, prompt, max_tokens)
    return not isinstance(model, LocalTextModel) or model.holds(prompt, max_tokens)
