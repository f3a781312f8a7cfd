"""Rules: a search agent without a model. It searches the question, then what the passages it takes lead to.

After every search it takes one more passage, the best by

    score(p) = fusion(p) + 1 · [p's title occurs in the question] + 2 · [p's title occurs in a passage taken before]

where fusion is the reciprocal rank fusion of all searches so far (about the number of searches that found p). It then
searches the question's words that no taken title covers, with the new names in the passage just taken. It stops when
the passage taken is tied to nothing: named neither by the question nor by a taken passage, or of a title that was taken
already; or after four searches. Where a passage has no title, the name of its subject in the text takes its place. If
all that followed the first search brought nothing new, the evidence is that of the first search. It never sees a gold
answer or a gold passage, and uses no randomness.

Following titles suits encyclopedias, above all questions made along their links (HotpotQA, 2WikiMultihopQA).
"""

import random
import re
import unicodedata
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from coseek.agents.scripted_agent import Move
from coseek.data.passage import Hit, Passage
from coseek.data.trajectory import Search
from coseek.models.model import EpisodeState
from coseek.retrieval.lexical.analyzer import singular, word_runs, words
from coseek.retrieval.ranking import reciprocal_rank_fusion

PROMPT_TEMPLATE = "default"


MAX_SEARCHES = 4
"""Searches after which it answers."""
MAX_NAMES = 12
"""New names that one query takes from a passage."""
NAMED, LINKED = 1.0, 2.0
"""Weights of a title that occurs in the question, and of one that occurs in a passage taken before."""


class RuleAgent:
    """The rule-based agent: implements `ScriptedAgent`."""

    def __init__(self, max_searches: int = MAX_SEARCHES) -> None:
        self.max_searches = max_searches

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """The next move; a pure function of the question and the searches."""
        question = so_far.question.searched
        if not so_far.searches:
            return Move(thought=" I search the question .", queries=(f" {question}",))
        notes = self._read(question, so_far.searches)
        query = None if self._is_done(notes) else self._query(notes)
        if query is None:
            return self.conclude(so_far, rng)
        return Move(f"{_report(notes)} I search {query} .", (f" {query}",), selected=_worth(notes))

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """An answer from what was found so far."""
        notes = self._read(so_far.question.searched, so_far.searches)
        tied = [passage for index, passage in enumerate(notes.taken) if notes.is_tied(index)]
        answer = guess(so_far.question.question, tied)
        return Move(f"{_report(notes)} I answer {answer} .", answer=f" {answer}", selected=_worth(notes))

    def evidence(self, question: str, searches: Sequence[Search]) -> list[str]:
        """Ids of all passages found, best first: those taken, in the order taken, then the rest by score; those of the
        first search come first where the others brought nothing new."""
        notes = self._read(question, searches)
        first = [hit.passage.id for hit in searches[0].hits] if notes.brought_nothing() else []
        best = (passage.id for passage in (*notes.taken, *notes.ranked()))
        return list(dict.fromkeys((*first, *best)))

    def _read(self, question: str, searches: Sequence[Search]) -> "_Notes":
        """Go through the searches as they came and take the best passage after each."""
        notes = _Notes(question, (), ())
        for search in searches:
            hits = tuple(Hit(with_subject(hit.passage), hit.score) for hit in search.hits)
            notes = replace(notes, searches=(*notes.searches, replace(search, hits=hits)))
            notes = replace(notes, taken=(*notes.taken, *notes.ranked()[:1]))
        return notes

    def _is_done(self, notes: "_Notes") -> bool:
        """The searches are used up, brought nothing new, or the passage just taken is tied to nothing."""
        used_up = len(notes.searches) >= self.max_searches or len(notes.taken) < len(notes.searches)
        return used_up or not notes.is_tied(len(notes.taken) - 1)

    def _query(self, notes: "_Notes") -> str | None:
        """The next query; `None` when it was searched already, or no words are left."""
        met = {word for passage in notes.taken for word in words(_plain(passage.title))}
        open_words = _once(_cut(notes.question), met | STOP_WORDS)
        known = met | STOP_WORDS | _MONTHS | set(words(notes.question))
        names = _once([word for word in _cut(notes.taken[-1].text) if word[0].isupper()], known)
        query = " ".join([*open_words, *names[:MAX_NAMES]])
        return query if query and query not in {search.query.strip() for search in notes.searches} else None


def make() -> RuleAgent:
    """Make the rule-based agent with its default settings."""
    return RuleAgent()


@dataclass(frozen=True, slots=True)
class _Notes:
    """The agent's state after some searches."""

    question: str
    searches: tuple[Search, ...]
    taken: tuple[Passage, ...]

    def ranked(self) -> list[Passage]:
        """The passages found and not yet taken, best first."""
        passages = {hit.passage.id: hit.passage for search in self.searches for hit in search.hits}
        fusion = reciprocal_rank_fusion([hit.passage.id for hit in search.hits] for search in self.searches)
        taken = {passage.id for passage in self.taken}

        def score(passage: Passage) -> float:
            named = NAMED * _stands_in(passage.title, self.question)
            return fusion[passage.id] + named + LINKED * _is_linked(passage, self.taken)

        return sorted((passages[ident] for ident in fusion if ident not in taken), key=score, reverse=True)

    def is_tied(self, index: int) -> bool:
        """Whether the taken passage at `index` is the first, or is named by the question or by one taken before it and
        has another title than these."""
        passage, before = self.taken[index], self.taken[:index]
        if index == 0 or passage.title in {other.title for other in before}:
            return index == 0
        return _stands_in(passage.title, self.question) or _is_linked(passage, before)

    def brought_nothing(self) -> bool:
        """Whether the searches after the first led to nothing: no passage taken since is tied, and the last one neither
        names the first nor holds a word of the question that the first lacks."""
        if len(self.taken) < 2 or any(map(self.is_tied, range(1, len(self.taken)))):
            return False
        first, last = self.taken[0], self.taken[-1]
        wanted = _content(self.question) - _content(f"{first.title} {first.text}")
        return wanted.isdisjoint(_content(f"{last.title} {last.text}")) and not _stands_in(first.title, last.text)


def _report(notes: _Notes) -> str:
    return f" I take {notes.taken[-1].title} ." if notes.taken else " I found nothing ."


def _worth(notes: _Notes) -> tuple[str, ...] | None:
    """Select all that was taken; make no selection where nothing was."""
    return tuple(passage.id for passage in notes.taken) or None


def guess(question: str, taken: Sequence[Passage]) -> str:
    """Guess `yes`, a date or number of the last passage, or a title that the question does not name.

    Only the form of the question is read, so this is a lower bound for answers.
    """
    if not taken:
        return "unknown"
    asked = words(question)
    newest = taken[-1]
    if asked[:1] and asked[0] in _YES_NO and "or" not in asked:
        return "yes"
    pattern = _DATE if {"when", "date", "year", "born", "died"} & set(asked) else _NUMBER if "how" in asked else None
    match = pattern.search(newest.text) if pattern else None
    if match:
        return match.group()
    named = [passage for passage in taken if _stands_in(passage.title, question)]
    new = [passage for passage in taken if passage not in named]
    return _plain((named or new)[0].title if "or" in asked or not new else new[-1].title)


_YES_NO = frozenset(["are", "is", "was", "were", "do", "does", "did", "has", "have", "had", "can", "could"])
_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTHS = frozenset(_MONTH.lower().split("|"))
_DATE = re.compile(rf"\b(?:(?:{_MONTH}) \d{{1,2}}, \d{{4}}|\d{{1,2}} (?:{_MONTH}) \d{{4}}|[12]\d{{3}})\b")
_NUMBER = re.compile(r"\b\d[\d,.]*\d\b|\b\d\b")


def _cut(text: str) -> list[str]:
    """Words in NFC, with their case, which a policy that learns from these runs can copy. Single letters (initials, the
    s of a genitive) are left out."""
    runs = word_runs().findall(unicodedata.normalize("NFC", text))
    return [word for word in runs if len(word) > 1 or not word.isascii() or word.isdigit()]


def _once(tokens: Sequence[str], known: Set[str]) -> list[str]:
    """Each word once, in order, without the known ones; case is ignored."""
    return list({word.lower(): word for word in reversed(tokens) if word.lower() not in known}.values())[::-1]


def _plain(title: str) -> str:
    """Strip the disambiguation from a title: `Ed Wood (film)` → `Ed Wood`."""
    kept: list[str] = []
    start = at = 0
    closed = -1
    while (opened := title.find("(", at)) >= 0:
        closed = closed if closed > opened else title.find(")", opened)
        if closed < 0:
            break
        if (line := title.find("\n", opened, closed)) >= 0:  # brackets hold no line break
            at = line
        else:
            kept.append(title[start:opened].rstrip())
            start = at = closed + 1
    return "".join([*kept, title[start:]]).strip() or title


def _is_linked(passage: Passage, others: Sequence[Passage]) -> bool:
    """Whether one of the others names this passage's title."""
    return any(_stands_in(passage.title, other.text) for other in others)


@lru_cache(maxsize=50_000)
def _stands_in(title: str, text: str) -> bool:
    """Whether the plain title occurs in the text as whole words; a title of stop words never does."""
    cut = words(_plain(title))
    return not STOP_WORDS.issuperset(cut) and f" {' '.join(cut)} " in _padded(text)


@lru_cache(maxsize=5_000)
def _content(text: str) -> frozenset[str]:
    """The words that are no stop words, in the singular."""
    return frozenset(singular(word) for word in words(text) if word not in STOP_WORDS)


@lru_cache(maxsize=5_000)
def _padded(text: str) -> str:
    return f" {' '.join(words(text))} "


STOP_WORDS = frozenset(
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with what which who whom whose when where why how did does do has have had were been being both from
    also same its his her he she him you your i we than more most other one two first name named many much between
    about after before during while""".split()  # noqa: SIM905 (a list of quoted words reads worse)
)
"""Words that name nothing."""
_INSIDE = frozenset(["of", "the", "and", "for", "in", "on", "at", "de", "la", "le", "du", "von", "van", "der", "del",
                     "da", "di", "al", "el", "y", "et", "&"])  # fmt: skip
"""Words that names hold in lower case."""
_TOKEN = re.compile(r"[^\W_](?:[\w'’&-]|\.(?=\w))*\.?|\S")
_MARKS = frozenset("\"'“”‘’«»*#`(")
"""Marks that may stand before a name."""
_OPENING = 400
"""Characters in which a name is looked for."""
_LONGEST = 12
"""Words of a name."""
_INITIAL = 3
"""Characters of an initial or a short form (`M.`, `St.`); a longer word with a full stop ends a sentence."""
_HEADING = 120
"""Characters of a heading."""


def with_subject(passage: Passage) -> Passage:
    """The passage with its subject for a title; one that has a title stays as it is."""
    return passage if passage.title.strip() else _titled(passage)


@lru_cache(maxsize=20_000)
def _titled(passage: Passage) -> Passage:
    text = passage.text.strip()
    return replace(passage, title=heading(text) or opening_name(text))


def heading(text: str) -> str:
    """The first line, without Markdown's marks; empty where that is a sentence, a row of a table or the whole text."""
    line, _, rest = text.partition("\n")
    line = line.strip().strip("#=*_ \t") if len(line) <= _HEADING else ""
    return line if line and rest.strip() and line[-1] not in ".!?;:,。！？" and " | " not in line else ""


def opening_name(text: str) -> str:
    """The run of capitalised words and numbers that the text opens with, without stop words before it."""
    name: list[str] = []
    inside: list[str] = []
    for match in _TOKEN.finditer(text[:_OPENING]):
        token = match.group()
        if not name and (token in _MARKS or token.lower() in STOP_WORDS):
            continue
        if token in name[:1] or len(name) >= _LONGEST:
            break  # where the first word comes again, a title ran into the text: `Ed Wood Ed D. Wood was …`
        if token[0].isupper() or token[0].isdigit():
            name += [*inside, token]
            inside = []
        elif name and token.lower() in _INSIDE:
            inside.append(token)
        else:
            break
        if token[-1] == "." and len(token) > _INITIAL:
            break
    title = " ".join(name).rstrip(".")
    return "" if title.isdigit() else title
