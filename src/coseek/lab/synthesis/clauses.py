"""Clauses: the sentences about a passage's subject, cut into words before a name, the name, and words behind it.

A sentence is about the subject where it begins with its name, a pronoun or its type (`the film`). Clauses on the past
(`until 1926`, `former`) and names that own something (`X's brother`) are left out.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile

from coseek.agents.scripted.rules import STOP_WORDS
from coseek.data.passage import Passage
from coseek.lab.synthesis.names import ENDS, Name, NameFinder, Token, key_of, sentences

COPULAS = frozenset(["is", "was", "are", "were"])
ARTICLES = frozenset(["a", "an", "the"])
PRONOUNS = frozenset(["he", "she", "it", "they"])
SILENT = frozenset("\"“”'‘’«»*`") | {"also", "currently", "both", "then", "later", "subsequently"}
"""Marks and words that say nothing here."""
_RELATIVE = frozenset(["who", "which", "that"])
_BREAKS = frozenset([",", ";", ":", "(", ")", "[", "]", "–", "—", "and", "but", "or", *ENDS])
"""What ends a clause."""
FUNCTION_WORDS = STOP_WORDS | frozenset(
    re.findall(
        r"\S+",
        "under since until against within without where near over behind via into upon including like through across "
        "along around among because although though whose having",
    )
)
_PAST = frozenset(
    re.findall(
        r"\S+",
        "until till former formerly previously once longer ex used no not never still except unless before originally",
    )
)
"""Words of a clause that may not hold today, or not at all."""
_CALLED = frozenset(
    re.findall(r"\S+", "call calls called known nicknamed titled alias née nee aka dubbed abbreviated short or")
)
"""Words before another name of the same thing."""
_ASIDE = re.compile(r"[(,]")
"""Ends the plain name in a title: `Ed Wood (film)`, `Bath, Maine`."""
_LOW = FUNCTION_WORDS | _PAST | _CALLED
_LONGEST = 12
"""Words of a clause before a name that are read."""
_BEHIND = 4
"""Words behind a name that are read."""


@dataclass(frozen=True, slots=True)
class Clause:
    """Words, a name, words. The words are in lower case; of the verb before them only its form is kept."""

    row: int
    name: Name
    before: tuple[str, ...]
    behind: tuple[str, ...]
    closed: bool
    """The words behind go to the end of the clause, not to another name."""
    copula: str
    """`is`, `was` …, or empty."""
    verbal: bool
    """The words follow the subject, or a pronoun for it, directly: they hold the verb."""
    single: bool
    """The name stands alone, not in a list."""
    apart: Name | None
    """The name before the comma that the words follow: they may be about it instead."""


class ClauseReader:
    """Cuts the sentences about a passage's subject into clauses; collects other names and the words after `is a`."""

    def __init__(self, titles: Sequence[str]) -> None:
        self._titles = titles
        known = set(titles) - {""}
        known |= {bare for bare in (one.removeprefix("the ") for one in known) if " " in bare}
        self._names = NameFinder(known)
        self.aliases: defaultdict[str, set[str]] = defaultdict(set)
        self.written: dict[str, str] = {}
        """Key of another name → the name."""
        self.nouns: Counter[str] = Counter()
        """Word → how often it stands behind an article."""
        self.kinds: list[tuple[str, tuple[str, ...]]] = []
        """(subject, words after `is a` up to the end of the clause)."""

    def read(self, row: int, passage: Passage) -> Iterator[Clause]:
        subject = self._titles[row]
        if not subject:
            return
        plain = key_of(_ASIDE.split(passage.title)[0]).removeprefix("the ").split() or subject.split()
        kinds: Sequence[str] = ()
        for number, tokens in enumerate(sentences(passage.text)):
            self.nouns.update(two.text for one, two in pairwise(tokens) if one.text.lower() in ARTICLES)
            names = [one for one in self._names.find(passage.text, tokens) if not _is_modifier(tokens, one)]
            start = _start(plain, tokens, names, kinds, number == 0)
            if start is None:
                continue
            names = [one for one in names if one.start >= start]
            if number == 0:
                verb = next((at for at in range(start, len(tokens)) if _opens(tokens, at)), start)
                kinds = self._note_kind(subject, tokens, verb)
                names = [one for one in names if not (one.end <= verb and self._is_alias(subject, tokens, one, start))]
                if verb < len(tokens) and tokens[verb].text == ":":
                    start, names = verb + 1, [one for one in names if one.start > verb]
            yield from self._clauses(row, tokens, names, start)

    def _note_kind(self, subject: str, tokens: Sequence[Token], verb: int) -> Sequence[str]:
        """Note the words that follow `is a`."""
        if verb + 1 >= len(tokens) or tokens[verb + 1].text not in ARTICLES:
            return ()
        cut = [token.text for token in tokens[verb + 2 : verb + 2 + _LONGEST]]
        kept = tuple(takewhile(lambda word: word not in _BREAKS, cut))
        if cut[len(kept) : len(kept) + 1] != [":"]:  # in `a dam producer : Ada` it is no producer
            self.kinds.append((subject, kept))
        return [word for word in kept if word.islower() and word not in FUNCTION_WORDS]

    def _is_alias(self, subject: str, tokens: Sequence[Token], name: Name, start: int) -> bool:
        """Whether a name before the verb is another name of the subject, and note it."""
        cut = [token.text.lower() for token in tokens[start : name.start] if token.text not in SILENT]
        # `Ada (dam), otherwise Bea, is`: one word of any kind, between commas
        lone = len(cut) > 1 and cut[-2] == "," and is_content(cut[-1]) and tokens[name.end].text == ","
        lone |= cut[-3:] == [",", "that", "is"] and tokens[name.end].text == ","
        if cut[-1:] in (["as"], ["by"], ["simply"]):
            cut.pop()
        if found := bool(_CALLED & set(cut[-1:])) or lone:
            self.aliases[name.key].add(subject)
            self.written.setdefault(name.key, name.text)
        return found

    def _clauses(self, row: int, tokens: Sequence[Token], names: Sequence[Name], start: int) -> Iterator[Clause]:
        for place, name in enumerate(names):
            after = names[place - 1].end if place else start
            begin = next((at + 1 for at in range(name.start - 1, after - 1, -1) if tokens[at].text in _BREAKS), after)
            if place and begin == after:
                continue  # the words behind another name are about that name
            cut = [_lower(token) for token in tokens[begin : name.start] if token.text not in SILENT]
            following = names[place + 1] if place + 1 < len(names) else None
            last = following.start if following else len(tokens)
            behind = [token.text for token in tokens[name.end : last] if token.text not in SILENT]
            whole = [*takewhile(lambda word: word not in _BREAKS, behind)]
            closed, behind = len(whole) <= _BEHIND and (len(whole) < len(behind) or not following), whole[:_BEHIND]
            owns = name.end + 1 < len(tokens) and tokens[name.end].text in "'’" and tokens[name.end + 1].text == "s"
            named = name.kind == "name" and cut[-1:] in (["born"], ["name"])  # another name of it
            told = 0 < len(cut) <= _LONGEST and cut[0] != "s" and not _CALLED & set(cut[-3:])
            over = bool(_PAST & {*cut, *behind}) or ("up", "to") in pairwise(behind)
            if told and not named and not owns and not over:
                comma = place > 0 and begin == after + 1 and tokens[after].text != "and"
                apart = names[place - 1] if comma and cut[0] not in COPULAS else None
                single = _is_single(tokens, name, following)
                direct = begin == start or cut[0] in PRONOUNS
                yield _clause(Clause(row, name, tuple(cut), tuple(behind), closed, "", direct, single, apart))


def _start(
    plain: Sequence[str], tokens: Sequence[Token], names: Sequence[Name], kinds: Sequence[str], first: bool
) -> int | None:
    """Where the words behind the grammatical subject begin, if that is the subject of the passage: its plain name, in
    the first sentence also a longer form of it (`George Richard Torbay`), else a pronoun, its last word or its type."""
    at = 0
    while at < len(tokens) and (tokens[at].text in SILENT or tokens[at].text.lower() in ARTICLES):
        at += 1
    if at == len(tokens):
        return None
    said = tokens[at].text.lower()
    if said in PRONOUNS or (at and said in kinds):  # `he`, `the film`
        return at + 1
    end = _name_end(plain, tokens, at)
    if not end:
        end = _longer_form(plain, tokens, at) if first else 0
        name = next((one for one in names if one.start <= at < one.end), None)
        end = end or (name.end if name is not None and plain[-1:] == [name.key] else 0)
    owns = end + 1 < len(tokens) and tokens[end].text in "'’" and tokens[end + 1].text == "s"
    return end if end and not owns else None


def _name_end(plain: Sequence[str], tokens: Sequence[Token], at: int) -> int:
    """Where a name that begins at `at` ends, marks between its words included; 0 where it does not begin there."""
    count, end = 0, at
    while end < len(tokens) and count < len(plain) and key_of(tokens[end].text) in (plain[count], ""):
        count += bool(key_of(tokens[end].text))
        end += 1
    return end if count == len(plain) else 0


def _opens(tokens: Sequence[Token], at: int) -> bool:
    """Whether what the subject is follows: behind a copula, or behind the colon in `Red Dawn: a film`."""
    following = tokens[at + 1].text if at + 1 < len(tokens) else ""
    return tokens[at].text in COPULAS or (tokens[at].text == ":" and following in ARTICLES)


def _longer_form(plain: Sequence[str], tokens: Sequence[Token], at: int) -> int:
    """The end of a run of capitalised words that holds a word of the name and ends with its last one; 0 without."""
    for end in range(at, min(len(tokens), at + 8)):
        token = tokens[end]
        if key_of(token.text) == plain[-1]:
            return end + 1
        if not (token.is_capital or token.text in SILENT or token.text == "."):
            return 0
    return 0


def _is_single(tokens: Sequence[Token], name: Name, following: Name | None) -> bool:
    """Whether no other name is listed beside this one; `Buffalo, New York` is one place."""

    def joins(at: int) -> bool:
        return at < len(tokens) and tokens[at].text in ("and", "or", "&", "/")

    if following is None or following.start > name.end + 2:
        return True
    if joins(name.end) or following.start == name.end:
        return False
    if tokens[name.end].text != ",":
        return True
    end = following.end
    return not joins(end) and not (end + 1 < len(tokens) and tokens[end].text == "," and
                                   (joins(end + 1) or tokens[end + 1].is_capital))  # fmt: skip


def _lower(token: Token) -> str:
    """A function word in lower case; another word as it is (`American`)."""
    return low if (low := token.text.lower()) in _LOW else token.text


def _is_modifier(tokens: Sequence[Token], name: Name) -> bool:
    """Whether a name or a year is a part of `a 1937 American film`."""
    at, least = name.start - 1, max(0, name.start - _LONGEST)
    while at >= least and tokens[at].text not in _BREAKS and tokens[at].text.lower() not in FUNCTION_WORDS:
        at -= 1
    following = tokens[name.end].text if name.end < len(tokens) else ""
    adjective = name.kind == "year" and following[:1].isupper()  # `a 1937 American film`
    goes_on = adjective or following == "-" or (following.islower() and is_content(following))
    return goes_on and at >= 0 and tokens[at].text in ("a", "an")


def _clause(found: Clause) -> Clause:
    """Take the pronoun and the copula off the words before the name."""
    cut, verbal = found.before, found.verbal
    relative = next((at for at in range(1, len(cut)) if cut[at] in _RELATIVE), 0)
    if relative and cut[0] in COPULAS:  # `is a scholar who studied at`
        cut = cut[relative:]
    if cut[0] in PRONOUNS | _RELATIVE:
        cut, verbal = cut[1:], True
    copula = cut[0] if cut and cut[0] in COPULAS else ""
    cut = cut[1:] if copula else cut
    return replace(found, before=cut, copula=copula, verbal=verbal and not copula)


def is_content(word: str) -> bool:
    """Whether a word tells something."""
    return word not in FUNCTION_WORDS and word.isalpha()
