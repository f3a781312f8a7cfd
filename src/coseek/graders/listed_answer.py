"""Listed answer: parses a model's output with one entry for each of n numbered items.

Code fences, thoughts, bold marks and lines of prose around the entries are left out. Otherwise parsing is strict: an
output without exactly one entry per number, in the requested format, is unreadable. It is counted and never repaired.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.models.judge_text import unfenced
from coseek.models.written import visible_after

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
