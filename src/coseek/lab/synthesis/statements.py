"""Statements: facts that English passages state of their subjects, and questions for them in the same words.

    Red Hour is a film directed by Ada Stone.      Which director was Red Hour directed by?
    Ada Stone is a director born in Ulm.           Which town was Ada Stone born in?
    both                            Red Hour was directed by a director. Which town was this director born in?

Two forms of clauses are parsed, a participle (`directed by`, `born on`) and a noun (`a member of`), each before a
single name or date. A sentence must begin with its subject or a pronoun, and each clause must directly follow the one
before. Parsing ends after a noun, since the next clause may be about another subject (`the wife of Otto, born in Ulm`).
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coseek.data.passage import Passage
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.synthesis.graph import CAPITAL, MONTHS, NAME, HopGraph, key_of
from coseek.lab.synthesis.proposals import BATCH, Proposal, shuffled

_PREPOSITIONS = "in|on|at|by|of|to|for|from|with|under|within|near|into|through"
_DATE = rf"(?:(?:\d{{1,2}}\s)?(?:{MONTHS})(?:\s\d{{1,2}},)?\s)?(?:1\d|20)\d\d\b"
_PARTICIPLE = (
    r"(?!(?:called|known|named|titled|used)\b)(?:first\s)?(?:\w{3,}ed|begun|born|built|drawn|found|held|led|made|run|"
    r"set|shot|shown|sold|sung|won|written)\b"
)
_NO_NOUN = (
    rf"(?:{_PREPOSITIONS}|about|an?|the|and|or|who|which|that|whose|where|is|was|are|were|\w+ing|former|formerly|"
    r"previously|originally|once)\b"
)
_COPULA = re.compile(r"\s*(?P<aside>[\"”»'’]?\s*[(,].{0,300}?[),]\s*)?(?P<copula>is|was|are|were)\s")
_TYPE = re.compile(
    rf"(?:an?|the)\s(?:(?!{_NO_NOUN})[^\s,;.()]+\s)*?"
    rf"(?P<type>(?!{_NO_NOUN}|{_PARTICIPLE}|(?:best|first|only|well)\b)[a-z]{{3,}})"
    rf"(?=\s*[,.;:(]|\s*$|\s(?!of\b)(?:{_NO_NOUN}|{_PARTICIPLE}\s(?:{_PREPOSITIONS})\b))"
)
"""`a 1937 British film`, before a break, a function word or a participle."""
_CLAUSE = re.compile(
    rf"\s*(?:[,;(]\s*|\band\s+)?(?:(?:who|which|that)\s(?=(?:is|was|are|were)\s))?(?:(?P<copula>is|was|are|were)\s)?"
    rf"(?P<phrase>(?P<participle>{_PARTICIPLE}(?:\s(?!(?:{_PREPOSITIONS})\b)[a-z]+){{0,3}}"
    rf"(?:\s(?P<preposition>{_PREPOSITIONS}))?)|(?:an?|the)\s(?:(?!{_NO_NOUN})[a-z-]+\s){{1,3}}(?:of|in|to))"
    rf"(?:\sthe)?\s+(?:(?P<date>{_DATE})|(?P<name>{NAME}))(?=\s*[,.;:()–—]|\s*$|\sand\b)"
)
_LIST = re.compile(
    rf"\s*(?:and|or|&|/)\s+(?:the\s)?{CAPITAL}|\s*,\s*{NAME}\s*(?:,?\s*(?:and|or|&)\s|,\s*(?:{CAPITAL}|and\s|or\s))"
)
_SENTENCE = re.compile(
    r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\b(?:Mr|Dr|St|Jr|Sr|No|Lt|vs)\.)(?<!\b(?:Mrs|Inc|Ltd)\.)\s+(?![a-z,;)])|\n\s*\n"
)
_PRONOUN = r"[\"“”'‘’«»*`\s]*(?:(?:He|She|It|They)\b"
_GUESSED = 0.2
"""Share of the names of a phrase from which the most frequent one can be guessed."""
_MIN_TYPED = 2
"""Passages that must be of a type."""


@dataclass(frozen=True, slots=True)
class Statement:
    """A fact that one passage states of its subject."""

    row: int
    copula: str
    phrase: str
    name: str
    """The value as the passage writes it."""
    kind: str
    """`year` or `date`; empty for a name."""


class StatementWriter:
    """Writes questions in the words of the passages."""

    def __init__(self, graph: HopGraph) -> None:
        self._titles = [passage.title.strip() for passage in graph.passages]
        self._keys = [key_of(title) for title in self._titles]
        self._types: dict[str, str] = {}
        """Key of a subject → its type (`film`), if its passage states one."""
        read = [statement for row, passage in enumerate(graph.passages) for statement in self._parse(row, passage)]
        counts = Counter(self._types.values())
        self._types = {subject: kind for subject, kind in self._types.items() if counts[kind] >= _MIN_TYPED}
        by_phrase: defaultdict[tuple[str, str], dict[str, Statement]] = defaultdict(dict)
        for statement in read:
            by_phrase[self._keys[statement.row], statement.phrase].setdefault(key_of(statement.name), statement)
        self._statements: defaultdict[int, list[Statement]] = defaultdict(list)
        self._values: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Phrase → how often it gives each value, by key."""
        for (subject, phrase), values in by_phrase.items():
            if len(values) == 1 and subject not in values:
                for key, statement in values.items():
                    self._statements[statement.row].append(statement)
                    self._values[phrase][key] += 1

    def propose(self, graph: HopGraph, hops: int, settings: SynthesisSettings) -> Iterator[list[Proposal]]:
        """At most `proposals` questions about every passage or pair, in a seeded order."""
        rng = random.Random(f"{settings.seed} statements {hops}")
        groups = shuffled(graph.groups(hops), settings.seed, hops)
        for start in range(0, len(groups), BATCH):
            about = [self._proposals_about(group.rows) for group in groups[start : start + BATCH]]
            yield [each for every in about for each in rng.sample(every, min(len(every), settings.proposals))]

    def _proposals_about(self, rows: tuple[int, ...]) -> list[Proposal]:
        """The proposals about one passage, or about two of which the first leads to the second."""
        *leading_rows, last = rows
        if not leading_rows:
            questions = [
                (self._question(statement, self._titles[last]), statement) for statement in self._statements[last]
            ]
            return [self._proposal([statement], question, "", [question]) for question, statement in questions]
        subject, kind = self._keys[last], self._types.get(self._keys[last])
        hops = [hop for hop in self._statements[leading_rows[0]] if kind and key_of(hop.name) == subject]
        return [self._two_hops(hop, kind or "", statement) for hop in hops for statement in self._statements[last]]

    def _two_hops(self, hop: Statement, kind: str, statement: Statement) -> Proposal:
        title, article = self._titles[hop.row], "an" if kind[0] in "aeio" else "a"
        question = self._question(statement, f"this {kind}")
        steps = [self._question(hop, title), self._question(statement, hop.name)]
        text = f"{title[:1].upper()}{title[1:]} {hop.copula} {hop.phrase} {article} {kind}. {question}"
        return self._proposal([hop, statement], text, hop.name, steps)

    def _proposal(self, path: Sequence[Statement], question: str, link: str, steps: Sequence[str]) -> Proposal:
        last_statement, values = path[-1], self._values[path[-1].phrase]
        ((guess, count),) = values.most_common(1)
        is_guessed = guess == key_of(last_statement.name) and count > max(1, _GUESSED * values.total())
        rows, phrases = zip(*((hop.row, hop.phrase) for hop in path), strict=True)
        return Proposal(rows, question, last_statement.name, link, tuple(steps), phrases, is_guessed)

    def _question(self, statement: Statement, subject: str) -> str:
        """`Which town was Ada Stone born in?`, `When was Ada Stone born?`, `What was Red Hour directed by?`"""
        kind = statement.kind or self._types.get(key_of(statement.name), "")
        ends_in_preposition = statement.phrase.rpartition(" ")[2] in _PREPOSITIONS.split("|")
        word = "When" if not ends_in_preposition else f"Which {kind}" if kind else "What"
        return f"{word} {statement.copula} {subject} {statement.phrase}?"

    def _parse(self, row: int, passage: Passage) -> Iterator[Statement]:
        """Yield the statements of a passage, and store its type."""
        title = re.split(r"\s*[(,]", self._titles[row])[0].removeprefix("The ")
        subject = re.compile(rf"{_PRONOUN}|(?:The\s)?{re.escape(title)}(?!\w)(?!['’]s\b))", re.IGNORECASE)
        for number, sentence in enumerate(_SENTENCE.split(passage.text) if title else ()):
            opening = subject.match(sentence)
            copula = _COPULA.match(sentence, opening.end()) if opening else None
            if copula is None:
                continue
            described = _TYPE.match(sentence, copula.end())
            if described and number == 0:
                self._types.setdefault(self._keys[row], described["type"])
            if copula["aside"]:
                yield from _clauses(row, sentence, copula.start("aside"), copula["copula"])
            yield from _clauses(row, sentence, (described or copula).end(), copula["copula"])


def _clauses(row: int, sentence: str, start: int, copula: str) -> Iterator[Statement]:
    """The statements of consecutive clauses from `start` on."""
    while clause := _CLAUSE.match(sentence, start):
        start = clause.end()
        value, participle = clause["date"] or clause["name"], clause["participle"]
        if (participle and not clause["preposition"] and not clause["date"]) or _LIST.match(sentence, start):
            return
        kind = "" if clause["name"] else "year" if len(value) == 4 else "date"
        copula_said = clause["copula"] or ("was" if participle else copula)
        yield Statement(row, copula_said, " ".join(clause["phrase"].split()), " ".join(value.split()), kind)
        if not participle:
            return
