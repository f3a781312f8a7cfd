"""Rules: a search agent without a model. It searches the question, then follows the passages that it takes.

After every search it takes one more passage, the best by

    score(p) = fusion(p) + 1 · [p's title occurs in the question] + 2 · [p's title occurs in a passage taken before]

where fusion is the reciprocal rank fusion of all searches so far (about the number of searches that found p). It then
searches the question's words that no taken title covers, with the new names in the passage just taken. It stops after
four searches, or when the passage taken is linked to nothing: its title occurs neither in the question nor in a taken
passage, or was taken already. A passage without a title is named by the subject of its text. If the later searches
found nothing new, the evidence is that of the first search. It never sees a gold answer or a gold passage, and uses no
randomness.

Following titles suits encyclopedias, especially questions made along their links (HotpotQA, 2WikiMultihopQA).
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
"""Number of searches after which it answers."""
MAX_NAMES = 12
"""Maximum number of new names that one query takes from a passage."""
NAMED, LINKED = 1.0, 2.0
"""Weights of a title that occurs in the question, and of a title that occurs in a passage taken before."""


class RuleAgent:
    """The rule-based agent: implements `ScriptedAgent`."""

    def __init__(self, max_searches: int = MAX_SEARCHES) -> None:
        self.max_searches = max_searches

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """The next move, a pure function of the question and the searches."""
        question = so_far.question.searched
        if not so_far.searches:
            return Move(thought=" I search the question .", queries=(f" {question}",))
        notes = self._take_notes(question, so_far.searches)
        query = None if self._is_done(notes) else self._query(notes)
        if query is None:
            return self.conclude(so_far, rng)
        return Move(f"{notes.report} I search {query} .", (f" {query}",), selected=notes.taken_ids)

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Answer from the passages found so far."""
        notes = self._take_notes(so_far.question.searched, so_far.searches)
        linked = [passage for index, passage in enumerate(notes.taken) if notes.is_linked(index)]
        answer = guess(so_far.question.question, linked)
        return Move(f"{notes.report} I answer {answer} .", answer=f" {answer}", selected=notes.taken_ids)

    def evidence(self, question: str, searches: Sequence[Search]) -> list[str]:
        """Ids of all passages found, best first: the passages taken, in this order, then the rest by score. If the
        later searches found nothing new, the passages of the first search come first."""
        notes = self._take_notes(question, searches)
        first = [hit.passage.id for hit in searches[0].hits] if notes.found_nothing_new() else []
        best = (passage.id for passage in (*notes.taken, *notes.ranked()))
        return list(dict.fromkeys((*first, *best)))

    def _take_notes(self, question: str, searches: Sequence[Search]) -> "_Notes":
        """Go through the searches in order and take the best passage after each."""
        notes = _Notes(question, (), ())
        for search in searches:
            hits = tuple(Hit(with_subject(hit.passage), hit.score) for hit in search.hits)
            notes = replace(notes, searches=(*notes.searches, replace(search, hits=hits)))
            notes = replace(notes, taken=(*notes.taken, *notes.ranked()[:1]))
        return notes

    def _is_done(self, notes: "_Notes") -> bool:
        """Whether the searches are used up, a search found no new passage, or the last taken passage is linked to
        nothing."""
        is_used_up = len(notes.searches) >= self.max_searches or len(notes.taken) < len(notes.searches)
        return is_used_up or not notes.is_linked(len(notes.taken) - 1)

    def _query(self, notes: "_Notes") -> str | None:
        """The next query; `None` if it was searched already or no words are left."""
        covered_words = STOP_WORDS.union(*(words(_bare_title(passage.title)) for passage in notes.taken))
        open_words = _unknown_words(_split_words(notes.question), covered_words)
        known_words = covered_words | _MONTHS | set(words(notes.question))
        names = _unknown_words([word for word in _split_words(notes.taken[-1].text) if word[0].isupper()], known_words)
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
        """The passages found but not taken, best first."""
        passages = {hit.passage.id: hit.passage for search in self.searches for hit in search.hits}
        fusion = reciprocal_rank_fusion([hit.passage.id for hit in search.hits] for search in self.searches)
        taken_ids = {passage.id for passage in self.taken}

        def score(passage: Passage) -> float:
            name_bonus = NAMED * _occurs_in(passage.title, self.question)
            return fusion[passage.id] + name_bonus + LINKED * _is_named(passage, self.taken)

        return sorted((passages[ident] for ident in fusion if ident not in taken_ids), key=score, reverse=True)

    def is_linked(self, index: int) -> bool:
        """Whether the taken passage at `index` is the first, or is named by the question or by a passage taken before
        it, none of which has its title."""
        passage, earlier = self.taken[index], self.taken[:index]
        if index == 0 or passage.title in {other.title for other in earlier}:
            return index == 0
        return _occurs_in(passage.title, self.question) or _is_named(passage, earlier)

    def found_nothing_new(self) -> bool:
        """Whether the searches after the first were useless: no passage taken since is linked, and the last one neither
        names the first nor contains a word of the question that the first lacks."""
        if len(self.taken) < 2 or any(map(self.is_linked, range(1, len(self.taken)))):
            return False
        first, last = self.taken[0], self.taken[-1]
        missing = _content(self.question) - _content(f"{first.title} {first.text}")
        return missing.isdisjoint(_content(f"{last.title} {last.text}")) and not _occurs_in(first.title, last.text)

    @property
    def report(self) -> str:
        return f" I take {self.taken[-1].title} ." if self.taken else " I found nothing ."

    @property
    def taken_ids(self) -> tuple[str, ...] | None:
        """Ids of the taken passages, for the selection; `None` without any."""
        return tuple(passage.id for passage in self.taken) or None


def guess(question: str, taken: Sequence[Passage]) -> str:
    """Guess `yes`, a date or number of the last passage, or a title that the question does not name.

    Only the form of the question is used, so this is a lower bound for answers.
    """
    if not taken:
        return "unknown"
    terms = words(question)
    if terms and terms[0] in _YES_NO and "or" not in terms:
        return "yes"
    pattern = _DATE if {"when", "date", "year", "born", "died"} & set(terms) else _NUMBER if "how" in terms else None
    if pattern and (match := pattern.search(taken[-1].text)):
        return match.group()
    named_passages = [passage for passage in taken if _occurs_in(passage.title, question)]
    others = [passage for passage in taken if passage not in named_passages]
    return _bare_title((named_passages or others)[0].title if "or" in terms or not others else others[-1].title)


_YES_NO = frozenset(["are", "is", "was", "were", "do", "does", "did", "has", "have", "had", "can", "could"])
_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
_MONTHS = frozenset(_MONTH.lower().split("|"))
_DATE = re.compile(rf"\b(?:(?:{_MONTH}) \d{{1,2}}, \d{{4}}|\d{{1,2}} (?:{_MONTH}) \d{{4}}|[12]\d{{3}})\b")
_NUMBER = re.compile(r"\b\d[\d,.]*\d\b|\b\d\b")


def _split_words(text: str) -> list[str]:
    """Words in NFC, in their case, so that a policy that learns from these runs can copy them. Single letters
    (initials, the s of a genitive) are left out."""
    runs = word_runs().findall(unicodedata.normalize("NFC", text))
    return [word for word in runs if len(word) > 1 or not word.isascii() or word.isdigit()]


def _unknown_words(tokens: Sequence[str], known_words: Set[str]) -> list[str]:
    """Each unknown word once, in order; case is ignored."""
    return list({word.lower(): word for word in reversed(tokens) if word.lower() not in known_words}.values())[::-1]


def _bare_title(title: str) -> str:
    """Strip the disambiguation from a title: `Ed Wood (film)` → `Ed Wood`. In linear time, unlike a pattern."""
    kept: list[str] = []
    start = position = 0
    closing = -1
    while (opening := title.find("(", position)) >= 0:
        closing = closing if closing > opening else title.find(")", opening)
        if closing < 0:
            break
        if (line := title.find("\n", opening, closing)) >= 0:  # brackets may not span lines
            position = line
        else:
            kept.append(title[start:opening].rstrip())
            start = position = closing + 1
    return "".join([*kept, title[start:]]).strip() or title


def _is_named(passage: Passage, others: Sequence[Passage]) -> bool:
    """Whether one of the others contains this passage's title."""
    return any(_occurs_in(passage.title, other.text) for other in others)


@lru_cache(maxsize=50_000)
def _occurs_in(title: str, text: str) -> bool:
    """Whether the plain title occurs in the text as whole words. False for a title of stop words."""
    title_words = words(_bare_title(title))
    return not STOP_WORDS.issuperset(title_words) and f" {' '.join(title_words)} " in _padded(text)


@lru_cache(maxsize=5_000)
def _content(text: str) -> frozenset[str]:
    """The words except stop words, in the singular."""
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
"""Words that are not part of a name or topic."""
_INSIDE = frozenset(["of", "the", "and", "for", "in", "on", "at", "de", "la", "le", "du", "von", "van", "der", "del",
                     "da", "di", "al", "el", "y", "et", "&"])  # fmt: skip
"""Lower-case words inside names."""
_TOKEN = re.compile(r"[^\W_](?:[\w'’&-]|\.(?=\w))*\.?|\S")
_MARKS = frozenset("\"'“”‘’«»*#`(")
"""Marks that may precede a name."""
_OPENING = 400
"""Characters in which a name is looked for."""
_LONGEST = 12
"""Maximum number of words of a name."""
_INITIAL = 3
"""Maximum characters of an initial or abbreviation (`M.`, `St.`); a longer word with a full stop ends a sentence."""
_HEADING = 120
"""Maximum characters of a heading."""


def with_subject(passage: Passage) -> Passage:
    """The passage, with its subject as the title if it has none."""
    if passage.title.strip():
        return passage
    text = passage.text.strip()
    return replace(passage, title=heading(text) or opening_name(text))


def heading(text: str) -> str:
    """The first line without Markdown's marks; empty if that is a sentence, a row of a table or the whole text."""
    line, _, rest = text.partition("\n")
    line = line.strip().strip("#=*_ \t") if len(line) <= _HEADING else ""
    return line if line and rest.strip() and line[-1] not in ".!?;:,。！？" and " | " not in line else ""


def opening_name(text: str) -> str:
    """The run of capitalised words and numbers that the text opens with, without stop words before it."""
    name: list[str] = []
    pending_tokens: list[str] = []
    for match in _TOKEN.finditer(text[:_OPENING]):
        token = match.group()
        if not name and (token in _MARKS or token.lower() in STOP_WORDS):
            continue
        if token in name[:1] or len(name) >= _LONGEST:
            break  # a repeated first word means that a title runs into the text: `Ed Wood Ed D. Wood was …`
        if token[0].isupper() or token[0].isdigit():
            name += [*pending_tokens, token]
            pending_tokens = []
        elif name and token.lower() in _INSIDE:
            pending_tokens.append(token)
        else:
            break
        if token[-1] == "." and len(token) > _INITIAL:
            break
    title = " ".join(name).rstrip(".")
    return "" if title.isdigit() else title
