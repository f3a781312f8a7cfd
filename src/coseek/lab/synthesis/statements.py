"""Statements: what passages say of their subjects, as (subject, phrase, name), by phrases learnt from the corpus.

A *phrase* is the words before a name that come in clauses about at least `support` subjects, such as `directed by` or
`whose mayor is`, with the words behind it where these mostly follow (`with … as chief`). In `is a 1937 film directed by
X` the best known phrase is taken, and the word before it is the type of the subject, `film`.

A phrase that a subject has with two names states nothing, nor does a name in a list (`starring A, B and C`). In `…, the
wife of Otto, born in Ulm` the last clause may be about Otto: it is left out where his type also comes with the phrase.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from coseek.data.passage import Passage
from coseek.lab.synthesis.clauses import ARTICLES, FUNCTION_WORDS, Clause, ClauseReader, is_content
from coseek.lab.synthesis.names import Kind

_PHRASE = 7
"""Words of a phrase before its name."""
_MOSTLY = 0.5
"""Share of a phrase's clauses with the same words behind the name, from which these belong to it."""
_NO_TYPES = frozenset(["best", "well", "given", "first", "only", "former", "late", "retired", "single"])
"""Words that end what a subject is and tell nothing alone."""
_PARTICIPLES = frozenset(
    ["born", "built", "drawn", "found", "held", "led", "made", "set", "shot", "sold", "sung", "won", "written"]
)
"""Those without the ending `ed`."""
_LISTING = frozenset(["as", "including", "like"])
_OWNERS = frozenset(["his", "her", "their", "my", "our"])
_END = 2
"""Weight of the end of `a … TYPE phrase` beside the whole."""
_MANY = 10
"""Names of a phrase from which it tells something that no passage is about one of them."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """The words before and behind a name."""

    before: str
    behind: str = ""

    def __str__(self) -> str:
        return f"{self.before} … {self.behind}" if self.behind else self.before


@dataclass(frozen=True, slots=True)
class Statement:
    """What one passage says of its subject."""

    row: int
    subject: str
    """The key of the subject."""
    phrase: Phrase
    name: str
    """The value as the passage writes it."""
    key: str
    """The key of the value; that of the subject it names, where it is another name of one."""
    kind: Kind


@dataclass
class Style:
    """How a phrase is used."""

    copulas: Counter[str] = field(default_factory=Counter)
    verbal: int = 0
    """Clauses in which it follows its subject without a copula."""
    subjects: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    behind: Counter[str] = field(default_factory=Counter)
    subject_types: Counter[str] = field(default_factory=Counter)
    value_types: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Facts:
    """What a corpus states."""

    statements: tuple[Statement, ...]
    types: dict[str, str]
    """Key of a subject → what it is (`film`), where its passage says so."""
    aliases: dict[str, str]
    """Key of another name → key of the subject, where one subject alone has it."""
    written: dict[str, str]
    """Key of another name → the name."""
    styles: dict[Phrase, Style]
    openers: dict[str, Style]
    """First word of phrases → how these follow their subjects, together."""


def state(passages: Iterable[tuple[int, Passage]], titles: Sequence[str], support: int) -> Facts:
    """Read titled passages with their rows. `titles` are the keys of the subjects, by row."""
    reader = ClauseReader(titles)
    clauses = [clause for row, passage in passages for clause in reader.read(row, passage)]
    return _PhraseLearner(clauses, titles, reader, support).learn()


class _PhraseLearner:
    """Counts phrases, then takes the statements."""

    def __init__(self, clauses: Sequence[Clause], titles: Sequence[str], reader: ClauseReader, support: int) -> None:
        self._clauses, self._titles, self._support = clauses, titles, support
        known = set(titles)
        self._aliases = {
            alias: min(whose) for alias, whose in reader.aliases.items() if len(whose) == 1 and alias not in known
        }
        self._counts: defaultdict[str, Style] = defaultdict(Style)
        self._styles: dict[Phrase, Style] = {}
        for clause in clauses:
            self._count(clause)
        self._verbs = self._find_verbs(reader)
        self._types = self._find_types(reader)
        self._written = reader.written

    def learn(self) -> Facts:
        """Take the clauses that hold a phrase, where it states one thing of the subject."""
        phrased = [(clause, phrase) for clause in self._clauses if (phrase := self._phrase(clause)) is not None]
        for clause, phrase in phrased:
            self._use(clause, phrase)
        phrase_of = {id(clause.name): phrase for clause, phrase in phrased}
        said: defaultdict[tuple[str, Phrase], set[str]] = defaultdict(set)
        found: dict[tuple[str, Phrase], Statement] = {}
        for clause, phrase in phrased:
            subject, key = self._titles[clause.row], self._key(clause)
            said[subject, phrase].add(key if clause.single else f"{key} and others")
            if not self._may_be_elsewhere(clause, phrase, phrase_of) and key != subject:
                name = clause.name
                found.setdefault((subject, phrase), Statement(clause.row, subject, phrase, name.text, key, name.kind))
        statements = (one for place, one in found.items() if len(said[place]) == 1)
        lone = (one for one in statements if said[one.subject, one.phrase] == {one.key})
        return Facts(tuple(lone), self._types, self._aliases, self._written, self._styles, self._openers())

    def _openers(self) -> dict[str, Style]:
        found: defaultdict[str, Style] = defaultdict(Style)
        for before, style in self._counts.items():
            together = found[before.partition(" ")[0]]
            together.copulas += style.copulas
            together.verbal += style.verbal
        return dict(found)

    def _key(self, clause: Clause) -> str:
        return self._aliases.get(clause.name.key, clause.name.key)

    def _count(self, clause: Clause) -> None:
        cut = clause.before
        if not cut or len(cut) > _PHRASE or cut[-1] in ("a", "an") or cut[-1][-1].isdigit() or _OWNERS & {*cut}:
            return
        if cut[0] in ("a", "an") and clause.verbal:  # `Red Dawn: a film whose maker is` tells what it is, too
            return
        starts = [at for at in range(2, len(cut)) if clause.copula and cut[0] in ARTICLES and is_participle(cut[at])]
        for start in (0, *starts[:1]):
            style = self._counts[" ".join(cut[start:])]
            style.subjects.add(self._titles[clause.row])
            style.values.add(clause.name.key)
            style.behind[" ".join(clause.behind)] += 1
            if clause.copula and not start:
                style.copulas[clause.copula] += 1
            style.verbal += clause.verbal

    def _use(self, clause: Clause, phrase: Phrase) -> None:
        """Count the phrase as it is used."""
        style, counted = self._styles.setdefault(phrase, Style()), self._counts[phrase.before]
        style.copulas, style.verbal = counted.copulas, counted.verbal
        subject, key = self._titles[clause.row], self._key(clause)
        style.subjects.add(subject)
        style.values.add(key)
        if clause.apart is None and subject in self._types:
            style.subject_types[self._types[subject]] += 1
        if key in self._types:
            style.value_types[self._types[key]] += 1

    def _may_be_elsewhere(self, clause: Clause, phrase: Phrase, phrase_of: dict[int, Phrase]) -> bool:
        """Whether the clause may be about the name before it."""
        other = clause.apart
        if other is None or other.kind != "name":
            return False
        whose = self._styles[phrase].subject_types
        own = self._types.get(self._aliases.get(other.key, other.key))
        if own is not None:
            return whose[own] > 0
        before = self._styles.get(phrase_of[id(other)]) if id(other) in phrase_of else None
        if before is None:
            return True
        if before.value_types:
            return any(whose[one] for one in before.value_types)
        return len(before.values) < _MANY

    def _is_known(self, style: Style | None) -> bool:
        return style is not None and len(style.subjects) >= self._support and len(style.values) > 1

    def _counted(self, before: str) -> Style | None:
        """The counts of a phrase that is known. One word is a verb or nothing (`, drummer Ada`)."""
        style = self._counts.get(before)
        if style is None or not self._is_known(style):
            return None
        verb = " " in before or before.endswith(("ed", "ing")) or before in self._verbs
        return style if verb or before in FUNCTION_WORDS else None

    def _phrase(self, clause: Clause) -> Phrase | None:
        """The phrase of a clause: all its words, or the end of `a … TYPE phrase`, whichever more subjects have; what
        follows the subject directly is a phrase that one subject may have alone."""
        cut = clause.before
        starts = [0, *(at for at in range(1, len(cut)) if clause.copula and _is_noun_group(cut[:at]))]
        known: list[tuple[int, int, str]] = []
        for start in starts:
            style = self._counted(" ".join(cut[start:]))
            if style is not None:
                known.append((len(style.subjects) * (_END if start else 1), -start, " ".join(cut[start:])))
        wholes = (self._whole(before, self._counts[before], clause.behind) for *_, before in sorted(known)[::-1])
        found = next((whole for whole in wholes if whole is not None and (clause.closed or not whole.behind)), None)
        return self._alone(clause) if found is None and not known else found

    def _alone(self, clause: Clause) -> Phrase | None:
        """The words between the subject and the name, where they are a phrase that no other subject has."""
        cut = clause.before
        direct = (clause.copula or clause.verbal) and clause.apart is None and " ".join(cut) in self._counts
        ends = len(cut) > 1 and cut[-1] in (FUNCTION_WORDS | self._verbs) - _LISTING
        if not (direct and ends and "".join(cut).isalpha() and _tells(*cut)):
            return None
        return Phrase(" ".join(cut)) if not clause.behind or clause.behind[0] in FUNCTION_WORDS else None

    def _whole(self, before: str, style: Style, behind: Sequence[str]) -> Phrase | None:
        """The phrase with the words behind the name where they belong to it; one of them must tell something."""
        said = " ".join(behind)
        usual, times = style.behind.most_common(1)[0]
        if _tells(usual) and times >= _MOSTLY * style.behind.total():
            return Phrase(before, usual) if said == usual else None
        if _tells(before):
            return Phrase(before) if not behind or behind[0] in FUNCTION_WORDS else None
        return Phrase(before, said) if style.behind[said] >= self._support and _tells(said) else None

    def _find_verbs(self, reader: ClauseReader) -> set[str]:
        """Words that begin what is said of a subject (`directed`) more often than they follow an article."""
        begins = Counter[str]()
        for before, style in self._counts.items():
            begins[before.partition(" ")[0]] += style.behind.total()
        return {word for word, count in begins.items() if is_content(word) and count > reader.nouns[word]}

    def _find_types(self, reader: ClauseReader) -> dict[str, str]:
        """What each subject is: the last word before a function word or a verb. A word that mostly comes before `of`
        (`member of`) tells nothing."""
        found: dict[str, str] = {}
        sure, total = Counter[str](), Counter[str]()
        for subject, cut in reader.kinds:
            stops = (at for at, word in enumerate(cut) if word in FUNCTION_WORDS or (at and word in self._verbs))
            size = next(stops, len(cut))
            head = cut[size - 1] if size else ""
            if head.isalpha() and head.islower() and len(head) > 2 and head not in self._verbs | _NO_TYPES:
                found.setdefault(subject, head)
                total[head] += 1
                sure[head] += cut[size : size + 1] != ("of",)
        return {
            subject: head for subject, head in found.items()
            if sure[head] >= self._support and 2 * sure[head] >= total[head]
        }  # fmt: skip


def _tells(*stretches: str) -> bool:
    return any(is_content(word) for stretch in stretches for word in stretch.split())


def is_participle(word: str) -> bool:
    return word in _PARTICIPLES or (word.endswith("ed") and len(word) > 4)


def _is_noun_group(cut: Sequence[str]) -> bool:
    """Whether words are an article and what may follow it up to a noun."""
    rest = cut[1:]
    return (
        bool(rest) and cut[0] in ARTICLES and all(is_content(word) or "-" in word or word[0].isdigit() for word in rest)
    )
