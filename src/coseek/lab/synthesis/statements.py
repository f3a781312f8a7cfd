"""Statements: what English passages say of their subjects, as (subject, phrase, name), by three forms of clauses.

    born in Ulm, born 4 May 1901     a participle with a preposition, or with a date
    a member of the Reichstag        a noun with a preposition
    works for Siemens, stars Ada     a verb in the present

A sentence is about the subject where it begins with its name, a pronoun or its type (`the film`). Clauses on the past
(`until 1926`) and on several names (`starring A, B and C`) state nothing. In `…, the wife of Otto, born in Ulm` the
last clause may be about Otto: it counts where he is of a type of which the phrase is not said.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coseek.agents.scripted.rules import STOP_WORDS
from coseek.data.passage import Passage
from coseek.retrieval.lexical.analyzer import words

Kind = Literal["name", "year", "month", "date"]

_UPPER = "".join(filter(str.isupper, map(chr, range(0x530))))
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_CAPITAL = (
    rf"(?!(?:{_MONTHS}|{_DAYS})\b)(?:[{_UPPER}][a-z]{{0,2}}\.(?=\s?[{_UPPER}])|[{_UPPER}]\w*(?:['’.&-](?!s\b)\w+)*)"
)
_INSIDE = r"(?:\s(?:of|the|de|la|le|du|von|van|der|den|del|da|di|al|el|y|et|&)\b)*"
_RUN = rf"{_CAPITAL}(?:(?:{_INSIDE}\s|(?<=\.)){_CAPITAL}|\s\d{{1,3}}\b)*(?:\s\(\s?[a-z ]+\))?"
_DATE = rf"(?:(?:\d{{1,2}}\s)?(?:{_MONTHS})(?:\s\d{{1,2}},)?\s\d{{4}}|(?:1\d|20)\d\d)\b"
_NAME = re.compile(rf"\b(?:(?P<date>{_DATE})|{_RUN})")
_SENTENCE = re.compile(
    rf"(?<=[.!?])(?<!\b[{_UPPER}]\.)(?<!\b(?:Mr|Dr|St|Jr|Sr|No|Lt|vs)\.)(?<!\b(?:Mrs|Inc|Ltd)\.)\s+(?![a-z,;)])|\n\s*\n"
)

PREPOSITIONS = "in|on|at|by|of|to|for|from|with|under|within|near|into|through"
_PREPOSITIONS = frozenset(PREPOSITIONS.split("|"))
_PARTICIPLE = (
    r"(?:first\s)?(?:\w{3,}ed|begun|born|built|drawn|found|held|known|led|made|run|set|shot|shown|sold|sung|won|written"
    r")\b"
)
_NO_NOUN = (
    rf"(?:{PREPOSITIONS}|about|an?|the|and|or|who|which|that|whose|where|is|was|are|were|\w+ing|formerly|previously|"
    r"originally|once)\b"
)
_TYPE = re.compile(
    rf"(?:an?|the)\s(?:(?!{_NO_NOUN})[^\s,;.()]+\s)*?"
    rf"(?P<type>(?!{_NO_NOUN}|{_PARTICIPLE}|(?:best|first|only|well)\b)[a-z]{{3,}})"
    rf"(?=\s*[,.;:(]|\s*$|\s(?!of\b)(?:{_NO_NOUN}|{_PARTICIPLE}\s(?:{PREPOSITIONS})\b))"
)
"""`a 1937 British film`, before a break, a function word or a participle."""
_COPULA = re.compile(r"\s*(?P<aside>[\"”»'’]?\s*[(,].{0,300}?[),]\s*)?(?P<copula>is|was|are|were)\s")
_FORMS = re.compile(
    rf"\s*(?P<relative>(?:who|which|that)\s)?(?:(?P<copula>is|was|are|were)\s)?(?P<phrase>"
    rf"(?P<participle>{_PARTICIPLE}(?:\s(?!(?:{PREPOSITIONS})\b)[a-z]+){{0,3}}(?:\s(?:{PREPOSITIONS}))?)"
    rf"|(?P<noun>(?:an?|the)\s(?:[a-z-]+\s){{1,3}}(?:of|in|to))"
    rf"|(?P<verb>(?!(?:is|was|has|his|its|this|as|does|whose)\b)"
    rf"[a-z]+[a-rt-z]s(?:\s[a-z]+){{0,2}}))(?:\sthe)?\s+"
)
"""What may stand between a break and a name."""
_BREAK = re.compile(r"([,;:()–—]|\b(?:and|but|or)\b)")
_LISTED = re.compile(
    rf"\s*(?:and|or|&|/)\s+(?:the\s)?{_CAPITAL}|\s*,\s*{_RUN}\s*(?:,?\s*(?:and|or|&)\s|,\s*(?:{_CAPITAL}|and\s|or\s))"
)
_FOLLOWS = re.compile(
    rf"\s*(?:[,.;:!?()]|$)|\s[–—]|\s+(?:{PREPOSITIONS}|as|and|but|or|who|which|that|where|until|up)\b"
)
"""What may stand behind a name that stands for itself: not `British` in `by British singer Ada`."""
_WORD = re.compile(r"[^\W_]+(?:\s?\))?")
_LONGEST = 80
"""Characters of a title that is looked for in a text."""
_NEAR = re.compile(r"(?:\s+[\w-]+){1,4}")
_ASIDE = re.compile(r"\s*[(,]")
_OPENING = re.compile(r"[\"“”'‘’«»*`\s]*(?:(?P<pronoun>He|She|It|They)\b|(?P<article>The|An?)\s)?")
_PAST = re.compile(
    r"\b(?:until|till|former|formerly|previously|once|longer|used|no|not|never|except|unless|before|originally|up)\b"
)
_CALLED = re.compile(r"\b(?:called|known|nicknamed|titled|named|name|alias|dubbed|abbreviated|otherwise)\b")
_ALIAS = re.compile(rf"\b(?:called|known|as|otherwise|alias|dubbed|nicknamed)\s[\"“”'‘’]?(?P<name>{_RUN})")
_SILENT = re.compile(r"\b(?:also|currently|both|then|later|subsequently)\s")
_MIN_TYPED = 2
"""Passages that must be of a type."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What one passage says of its subject."""

    row: int
    subject: str
    """The key of the subject."""
    copula: str
    """What stands between subject and phrase: `is`, `was` …; empty before a verb."""
    phrase: str
    name: str
    """The value as the passage writes it."""
    key: str
    """The key of the value; empty where it is one of several."""
    kind: Kind
    apart: str = ""
    """The key of the name before the comma, of which it may be said instead."""


@dataclass(frozen=True, slots=True)
class Name:
    """A name or a date in a text."""

    text: str
    kind: Kind
    start: int
    end: int

    @property
    def key(self) -> str:
        return key_of(self.text)


def key_of(name: str) -> str:
    """The words of a name, in lower case, joined by blanks: names are equal when their keys are."""
    return " ".join(words(name))


def names_in(text: str, titles: Collection[str]) -> Iterator[Name]:
    """Dates and names, in order: titles, whose keys are known, and runs of capitalised words that no sentence and no
    stop word begins."""
    end = 0
    for match in _NAME.finditer(text):
        name, start = match[0], match.start()
        if start < end:
            continue
        if match["date"]:
            kind: Kind = "year" if len(name) == 4 else "month" if name[0].isalpha() and "," not in name else "date"
        else:
            kind, title = "name", _title_at(text, start, titles)
            if len(title) >= len(name) or (title and name.startswith(f"{title} of ")):  # `Jack Endino of Skin Yard`
                name = title
            first, _, rest = name.partition(" ")
            if key_of(name) not in titles:
                name = name.rpartition("(")[0].rstrip() if name.endswith(")") else name
                opens = text[max(0, start - 3) : start].rstrip()[-1:] in ("", ".", "!", "?")
                if first.lower() in STOP_WORDS or (opens and not rest):
                    name, start = "" if rest.isdigit() else rest, start + len(first) + 1
        end = start + len(name)
        if name:
            yield Name(name, kind, start, end)


def _title_at(text: str, start: int, titles: Collection[str]) -> str:
    """The longest title that begins there; empty without one."""
    following = words(text[start : start + _LONGEST])
    title = next((key for size in range(len(following), 0, -1) if (key := " ".join(following[:size])) in titles), None)
    ends = (match.end() for match in _WORD.finditer(text, start))
    return next((text[start:end] for end in ends if key_of(text[start:end]) == title), "") if title else ""


@dataclass
class Facts:
    """What a corpus states, and the type of each subject (`film`), where its passage tells it."""

    statements: list[Statement]
    types: dict[str, str]
    aliases: dict[str, tuple[str, str]]
    """Key of another name → the subject that alone has it, and the name."""


def read_facts(passages: Sequence[Passage], titles: Sequence[str]) -> Facts:
    """Read titled passages. `titles` are the keys of their subjects."""
    title_keys = frozenset(titles) - {""}
    all_titles = title_keys | {title.removeprefix("the ") for title in title_keys}
    types: dict[str, str] = {}
    aliased: defaultdict[str, dict[str, str]] = defaultdict(dict)
    statements: list[Statement] = []
    for row, passage in enumerate(passages):
        if titles[row].startswith("the "):
            aliased[titles[row][4:]][titles[row]] = passage.title.strip()[4:]
        if titles[row]:
            statements += _Passage(row, titles[row], all_titles, types, aliased).read(passage)
    unique = {key: bearers for key, bearers in aliased.items() if len(bearers) == 1 and key not in title_keys}
    aliases = {key: next(iter(bearers.items())) for key, bearers in unique.items()}
    statements = [replace(statement, key=aliases.get(statement.key, (statement.key,))[0]) for statement in statements]
    type_counts = Counter(types.values())
    types = {subject: kind for subject, kind in types.items() if type_counts[kind] >= _MIN_TYPED}
    names_by_phrase, types_by_phrase = defaultdict[tuple[str, str], set[str]](set), defaultdict[str, set[str]](set)
    for statement in statements:
        names_by_phrase[statement.subject, statement.phrase].add(statement.key)
        types_by_phrase[statement.phrase].update([] if statement.apart else [types.get(statement.subject, "")])
    kept: dict[tuple[str, str], Statement] = {}
    for statement in statements:
        kind = types.get(aliases.get(statement.apart, (statement.apart,))[0])
        is_its = not statement.apart or (kind is not None and kind not in types_by_phrase[statement.phrase])
        if (
            is_its
            and names_by_phrase[statement.subject, statement.phrase] == {statement.key}
            and statement.key not in ("", statement.subject)
        ):
            kept.setdefault((statement.subject, statement.phrase), statement)
    return Facts([*kept.values()], types, aliases)


@dataclass(frozen=True, slots=True)
class _Passage:
    """Reads the sentences of one passage."""

    row: int
    subject: str
    known: frozenset[str]
    types: dict[str, str]
    called: defaultdict[str, dict[str, str]]
    """Key of another name → the subjects that have it, with the name."""

    def read(self, passage: Passage) -> Iterator[Statement]:
        plain, kind = _ASIDE.split(passage.title.strip())[0].removeprefix("The "), ""
        for number, text in enumerate(_SENTENCE.split(passage.text)):
            sentence = _SILENT.sub("", text.strip())
            start = _subject_end(sentence, plain, kind, number == 0)
            if start and not sentence.startswith(("'s", "’s"), start):
                copula = _COPULA.match(sentence, start)
                described = _TYPE.match(sentence, copula.end()) if copula else None
                if described is not None and number == 0:
                    kind = self.types.setdefault(self.subject, described["type"])
                for alias in _ALIAS.finditer(copula["aside"] or "" if copula and number == 0 else ""):
                    self.called[key_of(alias["name"])].setdefault(self.subject, alias["name"])
                opening = copula.start("copula") if copula else start
                yield from self._clauses(sentence, start, opening, described.end() if described else opening)

    def _clauses(self, sentence: str, start: int, opening: int, body: int) -> Iterator[Statement]:
        """The statements of a sentence whose subject ends at `start` and whose verb begins at `opening`; what it tells
        of the subject's type ends at `body`."""
        verb = sentence[opening:].partition(" ")[0]
        before: Name | None = None
        for name in names_in(sentence, self.known):
            aside = name.start < opening  # `Ada Stone (born 4 May 1901) is`
            if name.start < start or opening <= name.start < body or (aside and name.kind == "name"):
                continue
            *breaks, cut = _BREAK.split(sentence[start if aside else before.end if before else body : name.start])
            opens = not (breaks or before)
            form = _FORMS.fullmatch(cut) if breaks or opens else None
            if opens and (body == opening or cut.strip() in _PREPOSITIONS):  # `is a member of`, `is a village in`
                form = _FORMS.fullmatch(sentence, opening, name.start) or form
            joint = breaks[-1] if breaks else ""
            if form is not None and _states(form, name, sentence[name.end :], joint, is_described=body > opening):
                copula = form["copula"] or (verb if verb in ("is", "was", "are", "were") else "is")
                follows = before and before.kind == "name" and [text.strip() for text in breaks] == ["", ","]
                yield Statement(
                    self.row, self.subject, "" if form["verb"] else copula,
                    " ".join(form["phrase"].split()), name.text,
                    "" if _LISTED.match(sentence, name.end) else name.key, name.kind,
                    before.key if before and follows and not form["copula"] else "",
                )  # fmt: skip
            before = before if aside else name


def _states(form: re.Match[str], name: Name, after: str, joint: str, *, is_described: bool) -> bool:
    """Whether the words around a name state something of its subject that holds today. `joint` is the break before
    them; `is_described`: the sentence says what its subject is."""
    phrase, _, last = form["phrase"].rstrip().rpartition(" ")
    joins = last in _PREPOSITIONS if phrase else bool(form["verb"]) or name.kind != "name"
    if form["verb"]:
        fits = form["relative"] or (not form["copula"] and joint in ("", "and", "but"))
    elif form["participle"]:  # `played for Ulm` says what the subject did
        fits = form["copula"] or last == "by" or (is_described and not form["relative"] and joint in ("", ","))
        fits = (fits or joint == "(") and (name.kind == "name" or last in ("in", "on") or not phrase)
    else:
        fits = not joint or (is_described and joint == ",")
    near = _NEAR.match(after)
    past = _PAST.search(f"{form[0]} {near[0] if near else ''}") or _CALLED.search(form[0])
    return bool(joins and fits) and not past and bool(_FOLLOWS.match(after))


def _subject_end(sentence: str, plain: str, kind: str, is_first: bool) -> int:
    """Where the words on the subject begin, if a sentence begins with it: its plain name, in the first sentence also a
    longer form of it (`George Richard Torbay`), else a pronoun, its last word or its type; 0 otherwise."""
    opened = _OPENING.match(sentence)
    assert opened is not None
    at, last = opened.end(), plain.rpartition(" ")[2]
    if opened["pronoun"]:
        return at
    for name in (plain, *([] if is_first else [last, *([kind] if opened["article"] else [])])):
        end = at + len(name)
        if name and sentence[at:end].casefold() == name.casefold() and not sentence[end : end + 1].isalnum():
            return end
    longer = re.match(_RUN, sentence[at:]) if is_first else None
    return at + longer.end() if longer and last and longer[0].endswith(f" {last}") else 0
