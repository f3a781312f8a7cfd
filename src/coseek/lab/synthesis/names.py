"""Names: the names, years and dates in a sentence, found by their form and by the titles of the corpus."""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from coseek.agents.scripted.rules import STOP_WORDS
from coseek.retrieval.lexical.analyzer import words

Kind = Literal["name", "year", "month", "date"]

_TOKEN = re.compile(r"[^\W_]+(?:['’&.-](?!s\b)[^\W_]+)*|[^\s\w]|_")
_INSIDE = frozenset(re.findall(r"\S+", "of the de la le du von van der den del da di al el y et & - ' ’"))
"""What may stand between two words of a name."""
_ABBREVIATED = frozenset(
    re.findall(r"\S+", "mr mrs ms dr st jr sr mt no vs inc ltd co lit ca prof gen col capt lt sgt rev hon")
)
_MONTHS = frozenset(
    re.findall(r"\S+", "january february march april may june july august september october november december")
)
_DAYS = frozenset(re.findall(r"\S+", "monday tuesday wednesday thursday friday saturday sunday"))
_TIMES = _MONTHS | _DAYS
_YEAR = re.compile(r"1\d{3}|20\d\d")
_LONGEST = 12
"""Words of a title that is looked for in a text."""
ENDS = frozenset(".!?")


@dataclass(frozen=True, slots=True)
class Token:
    """A word or a mark, with its place in the text."""

    text: str
    start: int
    end: int

    @property
    def is_capital(self) -> bool:
        return self.text[0].isupper()


@dataclass(frozen=True, slots=True)
class Name:
    """A name, a year or a date; `start` and `end` count tokens of the sentence."""

    text: str
    key: str
    """Its words in lower case, between blanks: names are equal when their keys are."""
    kind: Kind
    start: int
    end: int


def key_of(name: str) -> str:
    """The words of a name, in lower case, joined by blanks."""
    return " ".join(words(name))


def sentences(text: str) -> Iterator[list[Token]]:
    """The tokens of each sentence, its final mark included."""
    found: list[Token] = []
    for match in _TOKEN.finditer(text):
        token = Token(match.group(), match.start(), match.end())
        if found and ("\n\n" in text[found[-1].end : token.start] or _ends(found, token)):
            yield found
            found = []
        found.append(token)
    if found:
        yield found


def _ends(found: Sequence[Token], following: Token) -> bool:
    """Whether a sentence ends before the following token."""
    last, before = found[-1], found[-2] if len(found) > 1 else None
    if last.text not in ENDS or following.text[0].islower() or following.text in ",;)":
        return False
    return last.text != "." or before is None or not _takes_stop(before)


def _takes_stop(token: Token) -> bool:
    """Whether a full stop behind this token is part of it: an initial or an abbreviation."""
    return (len(token.text) == 1 and token.is_capital) or token.text.lower() in _ABBREVIATED or "." in token.text


class NameFinder:
    """Finds names. A title counts where it is no part of a longer name."""

    def __init__(self, titles: Collection[str]) -> None:
        """`titles` are keys."""
        self._titles = titles
        self._longest: dict[str, int] = {}
        for title in titles:
            first, _, rest = title.partition(" ")
            length = min(_LONGEST, rest.count(" ") + 2 if rest else 1)
            self._longest[first] = max(length, self._longest.get(first, 0))

    def find(self, text: str, tokens: Sequence[Token]) -> list[Name]:
        """The names of a sentence of `text`, in order, without overlaps."""
        found: list[Name] = []
        at = 0
        while at < len(tokens):
            end, kind = self._at(tokens, at)
            if end > at:
                said = text[tokens[at].start : tokens[end - 1].end]
                found.append(Name(said, key_of(said), kind, at, end))
            at = max(end, at + 1)
        return found

    def _at(self, tokens: Sequence[Token], at: int) -> tuple[int, Kind]:
        """The end of the name that begins at `at`, or `at` without one."""
        first = tokens[at]
        if end := _date(tokens, at):
            return end, "date" if end - at > 2 else "month"
        if _YEAR.fullmatch(first.text):
            return at + 1, "year"
        if not first.is_capital or first.text.lower() in _TIMES:
            return at, "name"
        run = _run(tokens, at)
        titled = self._titled(tokens, at)
        if titled >= run or (titled and tokens[titled].text == "of"):  # `Jack Endino of Skin Yard`
            return titled, "name"
        alone = at == 0 and run == 1  # the first word of a sentence is written with a capital anyway
        if first.text.lower() in STOP_WORDS or alone or not key_of(first.text):
            return at, "name"
        return run, "name"

    def _titled(self, tokens: Sequence[Token], at: int) -> int:
        """The end of the longest title that begins at `at`; 0 without one."""
        cut = words(tokens[at].text)
        longest = self._longest.get(cut[0], 0) if cut else 0
        best, key, count = 0, "", 0
        for end in range(at, min(len(tokens), at + 2 * longest + 2)):
            cut = words(tokens[end].text)
            count += len(cut)
            if count > longest:
                break
            key = " ".join([*([key] if key else []), *cut])
            if cut and key in self._titles:
                best = end + 1
        if best and best < len(tokens) and tokens[best].text == ")" and any(one.text == "(" for one in tokens[at:best]):
            best += 1
        return best


def _run(tokens: Sequence[Token], at: int) -> int:
    """The end of the run of capitalised words from `at` on, with the small words inside it."""
    end = at + 1
    place = end
    while place < min(len(tokens), at + 2 * _LONGEST):
        token = tokens[place]
        stop = token.text == "." and _takes_stop(tokens[place - 1]) and place + 1 < len(tokens)
        numbered = token.text.isdigit() and len(token.text) < 4 and place == end
        if numbered or (token.is_capital and token.text.lower() not in _MONTHS):
            end = place + 1
        elif not (stop or token.text.lower() in _INSIDE):
            break
        place += 1
    return end


def _date(tokens: Sequence[Token], at: int) -> int:
    """The end of `4 May 1901`, `May 4, 1901` or `May 1901` at `at`; 0 without one."""
    said = [token.text.lower() for token in tokens[at : at + 4]]
    shapes = ["y" if len(one) == 4 and one.isdigit() else "d" if len(one) < 3 and one.isdigit()
              else "m" if one in _MONTHS else one for one in said]  # fmt: skip
    for shape in (["m", "d", ",", "y"], ["d", "m", "y"], ["m", "d", "y"], ["m", "y"]):
        if shapes[: len(shape)] == shape:
            return at + len(shape)
    return 0
