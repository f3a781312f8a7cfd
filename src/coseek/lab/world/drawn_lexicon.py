"""Drawn lexicons: invented names, relations and wordings for worlds that models are trained in before any other.

A drawn lexicon shares the kinds and literals of the laptop lexicon as keys, and none of its content words. About half
of its relations are English, the others invented. Question and passage mostly name a relation by words of one root;
an English relation sometimes has a synonym, which is the same in all worlds and never held out.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from coseek.lab.world import english
from coseek.lab.world.lexicon import LAPTOP, Lexicon
from coseek.lab.world.names import LITERALS, TITLED
from coseek.lab.world.relations import Constraint, Relation
from coseek.lab.world.settings import KINDS, WorldSettings

INVENTED = 0.5
"""Share of relations, kinds and title words that are invented."""
SYNONYM = 0.25
"""Share of English relations that have a second noun. Invented ones have none: nothing would tell what it means."""
STEM = 3
"""Letters that a noun shares with its verb in a held-out lexicon."""
HELD_OUT = 5
"""Every fifth English relation is in held-out lexicons alone."""
RELATIONS_PER_KIND = 5
ENTITY_VALUES = 0.65
"""Share of relations whose value is an entity, so that chains can go on."""
CHANGEABLE = 0.35

_ONSETS, _VOWELS, _CODAS = (
    row.split()
    for row in (
        "b c d f g h j k l m n p r s t v w y z br bl ch cl cr dr fl fr gl gr kl kr pl pr qu sc sh sk sl sm sn sp st "
        "str sw th tr tw v w wh",
        "a e i o u a e i o u a e i o u a e i o u ai ea oo y",
        "b ck d g l ll m n nd ng nk nt p r rd rk rn rt s ss st t th x l m n r s t n r",
    )
)
"""Parts of syllables, common ones more than once."""
_ENDINGS = ("", "er", "or", "ist", "ed", "s")
"""What may follow an invented word."""

_OPENINGS = (
    "{title}{alias} is {article} {word} {clauses} .",
    "{title}{alias} : {article} {word} {clauses} .",
    "There is {article} {word} named {title}{alias} {clauses} .",
    "{article} {word} {clauses} is {title}{alias} .",
    "{title}{alias} ( {word} ) {clauses} .",
    "Of {title}{alias} we read : it is {article} {word} {clauses} .",
)
_ALIASES = (
    "or {alias}", "nicknamed {alias}", "formerly {alias}", "whom some call {alias}", "in short {alias}",
    "otherwise {alias}", "better known as {alias}", "that is {alias}",
)  # fmt: skip
_BESIDE = (
    "having {before} as {noun} up to {until} and {value} afterwards",
    "whose {noun} was {before} before {until} and is {value} today",
    "where {value} became {noun} when {before} left in {until}",
)
_APART = (
    "A note from {until} : the {noun} of {name} is {before} . It is no longer true .",
    "Back in {until} {before} was {noun} of {name} . That has ended .",
    "{before} used to be the {noun} of {name} , at least until {until} .",
    "People of {until} knew {name} with {before} as {noun} . Times have moved on .",
)
_FRAMES = (
    "Tell me {x} .", "Say which is {x} .", "Give {x} .", "I wonder which is {x} .", "Which is {x} ?", "Find {x} .",
    "Please write {x} .", "I want to know {x} .", "Do you know {x} ?", "We need {x} .", "Could you give me {x} ?",
)  # fmt: skip
_SAME = (
    "Is there one {noun} for {a} and {b} ?", "Have {a} and {b} an equal {noun} ?", "{a} and {b} : one {noun} or two ?",
    "Does the {noun} of {a} equal the {noun} of {b} ?", "Are the {noun} of {a} and the {noun} of {b} identical ?",
)  # fmt: skip
_FIRST = (
    "Which has the earlier {noun} , {a} or {b} ?", "Whose {noun} is earlier , {a} or {b} ?",
    "Of {a} and {b} , which comes earlier by {noun} ?", "{a} or {b} : which has the lower {noun} ?",
)  # fmt: skip
_TWO_VALUES = (
    "Which {word} with the {first} {{a}} has the {second} {{b}} ?",
    "Name the {word} whose {first} is {{a}} and whose {second} is {{b}} .",
    "What {word} has {{a}} as {first} and {{b}} as {second} ?",
)


@dataclass(frozen=True, slots=True)
class _Root:
    """The words of one relation."""

    noun: str
    other: str
    """A synonym, or the noun again."""
    past: str = ""
    present: str = ""

    def clauses(self, literal: bool) -> Iterator[str]:
        """How passages state it."""
        for noun in dict.fromkeys((self.noun, self.other)):
            yield from (
                f"with {{o}} as {noun}", f"whose {noun} is {{o}}", f"having the {noun} {{o}}",
                f"its {noun} being {{o}}", f"which has {{o}} for {noun}", f"and the {noun} is {{o}}", f"{noun} : {{o}}",
            )  # fmt: skip
        if self.past:
            yield from (f"{self.past} in {{o}}", f"first {self.past} in {{o}}") if literal else (
                f"{self.past} by {{o}}", f"which {{o}} {self.present}", f"that was {self.past} by {{o}}",
            )  # fmt: skip

    def phrases(self, target: str, literal: bool) -> Iterator[str]:
        """How questions nest it, besides `the NOUN of {x}`."""
        yield from (
            f"the {self.noun} for {{x}}",
            f"the {self.noun} that belongs to {{x}}",
            f"the {self.other} of {{x}}",
        )
        if self.past and not literal:
            yield from (f"the {target} that {self.present} {{x}}", f"whoever {self.present} {{x}}")

    def asks(self, target: str, literal: bool) -> Iterator[str]:
        """Whole questions."""
        yield from (
            f"What is the {self.noun} of {{x}} ?", f"Which {self.noun} has {{x}} ?", f"{{x}} has which {self.noun} ?",
            f"Which {target} is the {self.noun} of {{x}} ?", f"What {self.other} has {{x}} ?",
            f"Of {{x}} , what is the {self.noun} ?",
        )  # fmt: skip
        if self.past:
            yield from (f"When was {{x}} {self.past} ?", f"In which {target} was {{x}} {self.past} ?") if literal else (
                f"Which {target} {self.present} {{x}} ?", f"Who or what {self.present} {{x}} ?",
                f"By what {target} was {{x}} {self.past} ?",
            )  # fmt: skip


@cache
def _measured() -> frozenset[str]:
    """The words of the laptop lexicon, which measures: an invented word must be none of them."""
    texts = [name for pools in LAPTOP.pools.values() for pool in pools for name in pool]
    texts += [*LAPTOP.words.values(), *LAPTOP.occupations, *(form for forms in LAPTOP.forms.values() for form in forms)]
    texts += [LAPTOP.beside, *LAPTOP.apart, *LAPTOP.introductions, *LAPTOP.frames, *LAPTOP.same]
    for relation in LAPTOP.relations:
        texts += [relation.noun, relation.first, *relation.clauses, *relation.synonyms, *relation.asks]
    return frozenset(" ".join(texts).lower().split())


def lexicon_of(settings: WorldSettings) -> Lexicon:
    """The lexicon of a world."""
    return LAPTOP if settings.lexicon == "laptop" else drawn_lexicon(settings.seed, settings.lexicon == "held-out")


def drawn_lexicon(seed: int, held_out: bool = False) -> Lexicon:
    """The lexicon of a seed, with the English relations that are held out or with the others."""
    return _Drawer(random.Random(f"{seed} lexicon {held_out}"), held_out).lexicon()


class _Drawer:
    """Draws one lexicon; no word has two meanings in it."""

    def __init__(self, rng: random.Random, held_out: bool) -> None:
        self._rng, self._held_out = rng, held_out
        self._onsets = rng.sample(_ONSETS, 14)
        self._vowels = rng.sample(_VOWELS, 7)
        self._codas = rng.sample(_CODAS, 9)
        self._used: set[str] = set()

    def lexicon(self) -> Lexicon:
        rng = self._rng
        kind_words = self._take(english.KIND_WORDS.split(), len(KINDS))
        words = dict(zip(KINDS, kind_words, strict=True))
        occupations = tuple(self._take(english.ROLES.split(), 10))
        literals = dict(zip(("river", "currency", "language"), self._take(english.KIND_WORDS.split(), 3), strict=True))
        targets = words | literals | {"year": "year"}
        roots = self._roots()
        # The first relation of a kind is a year, so that every world has something to compare.
        relations = tuple(
            self._relation(next(roots), kind, "year" if number == 0 else self._target(), targets, occupations)
            for kind in KINDS
            for number in range(RELATIONS_PER_KIND)
        )
        return Lexicon(
            words=words,
            occupations=occupations,
            relations=relations,
            constraints=tuple(self._constraints(relations, words)),
            pools=self._pools(),
            forms={"city": self._title_words(english.FORM_WORDS, 6)},
            opening=rng.choice(_OPENINGS),
            introductions=tuple(rng.sample(_ALIASES, 3)),
            beside=rng.choice(_BESIDE),
            apart=tuple(rng.sample(_APART, 2)),
            frames=tuple(rng.sample(_FRAMES, 4)),
            same=tuple(rng.sample(_SAME, 3)),
        )

    # Words

    def _invent(self, syllables: int | None = None) -> str:
        """A pseudo-word that this lexicon has not yet."""
        rng = self._rng
        while True:
            count = syllables or rng.choice((1, 2, 2))
            parts = [rng.choice(self._onsets) + rng.choice(self._vowels) for _ in range(count)]
            word = "".join(parts) + (rng.choice(self._codas) if rng.random() < 0.7 else "")
            if len(word) > 2 and word not in self._used and _measured().isdisjoint(word + end for end in _ENDINGS):
                self._used.add(word)
                return word

    def _take(self, words: list[str], count: int) -> list[str]:
        """Words of a list or invented ones, `count` in all, none of them used before."""
        free = [word for word in words if word not in self._used]
        self._rng.shuffle(free)
        taken = []
        for _ in range(count):
            word = self._invent() if self._rng.random() < INVENTED else free.pop()
            self._used.add(word)
            taken.append(word)
        return taken

    def _pools(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        rng = self._rng
        year = rng.randint(900, 1900)
        places = self._names(220)
        title = self._title_words(english.ADJECTIVES, 90), self._title_words(english.NOUNS, 90)
        return {
            "year": (tuple(str(value) for value in range(year, year + 100)),),
            "river": (self._names(36),),
            "currency": (self._names(20),),
            "language": (self._names(20),),
            "person": (self._names(80), self._names(90)),
            "city": (places,),
            "university": (places, self._title_words(english.HOUSE_WORDS, 6)),
            "country": (self._names(90),),
            **dict.fromkeys(TITLED, title),
        }

    def _names(self, count: int) -> tuple[str, ...]:
        return tuple(self._invent().capitalize() for _ in range(count))

    def _title_words(self, known: str, count: int) -> tuple[str, ...]:
        """Words for names, which may have another meaning elsewhere."""
        words = known.split()
        chosen = self._rng.sample(words, min(len(words), round(count * (1 - INVENTED))))
        chosen += [self._invent() for _ in range(count - len(chosen))]
        return tuple(word.capitalize() for word in chosen)

    # Relations

    def _roots(self) -> Iterator[_Root]:
        """Roots without end, English ones at most once."""
        rng = self._rng
        rows = [row.split() for row in (*english.ROOTS.split(" | "), *english.BARE_ROOTS.split(" | "))]
        known = [row for number, row in enumerate(rows) if (number % HELD_OUT == 0) == self._held_out]
        rng.shuffle(known)
        while True:
            if known and rng.random() >= INVENTED:
                row = known.pop()
                if not self._used.isdisjoint(row):
                    continue
                noun, other, *verb = row
                if self._held_out:  # nothing would tell that two words that were never met mean the same
                    other, verb = noun, verb if verb and verb[0][:STEM] == noun[:STEM] else []
                root = _Root(noun, other if rng.random() < SYNONYM else noun, *verb)
            else:
                stem = self._invent(rng.choice((1, 2)))
                noun = stem if rng.random() < 0.4 else f"{stem}{rng.choice(('er', 'or', 'ist', ''))}"
                root = _Root(noun, noun) if noun == stem else _Root(noun, noun, f"{stem}ed", f"{stem}s")
                row = [noun, root.past, root.present]
            self._used.update(row)
            yield root

    def _target(self) -> str:
        if self._rng.random() < ENTITY_VALUES:
            return self._rng.choice(KINDS)
        return self._rng.choice(("year", "river", "currency", "language"))

    def _relation(
        self, root: _Root, kind: str, target: str, targets: dict[str, str], occupations: tuple[str, ...]
    ) -> Relation:
        rng = self._rng
        kinds = [kind, *rng.sample(KINDS[1:], rng.choice((0, 0, 1, 2)))] if kind != "person" else [kind]
        literal = target in LITERALS
        word = targets[target]
        phrases, asks = list(root.phrases(word, literal)), list(root.asks(word, literal))
        clauses = list(root.clauses(literal))
        return Relation(
            noun=root.noun,
            subjects=tuple(dict.fromkeys(kinds)),
            target=target,
            clauses=tuple(rng.sample(clauses, 3)),
            synonyms=tuple(dict.fromkeys(rng.sample(phrases, 2))),
            asks=tuple(rng.sample(asks, 3)),
            occupation=rng.choice(occupations) if target == "person" and rng.random() < 0.5 else "",
            changes=not literal and rng.random() < CHANGEABLE,
            first=rng.choice(_FIRST).replace("{noun}", root.noun) if target == "year" else "",
        )

    def _constraints(self, relations: tuple[Relation, ...], words: dict[str, str]) -> Iterator[Constraint]:
        """One question with two values for each kind that has two relations, the first of which names an entity."""
        for kind in KINDS[1:]:
            own = [one for one in relations if kind in one.subjects]
            firsts = [one for one in own if not one.is_literal]
            if firsts and len(own) > 1:
                first = self._rng.choice(firsts)
                second = self._rng.choice([one for one in own if one is not first])
                ask = self._rng.choice(_TWO_VALUES).format(word=words[kind], first=first.noun, second=second.noun)
                yield kind, first.noun, second.noun, ask
