"""Drawn lexicons: invented names, relations and wordings for worlds that models are trained in before any other.

A drawn lexicon has the kinds and literals of the laptop lexicon as keys, but none of its content words. About half of
its relations are English, the others invented. Question and passage mostly name a relation by words of one root. An
English relation sometimes has a synonym, the same in all worlds, but not in a held-out lexicon.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import cast

from coseek.core.files import JsonObject, read_yaml
from coseek.lab.world.lexicon import LITERALS, TITLED, Constraint, Lexicon, Relation, laptop_lexicon
from coseek.lab.world.settings import KINDS, WorldSettings

INVENTED = 0.5
"""Share of relations, kinds and title words that are invented."""
SYNONYM = 0.25
"""Share of English relations with a second noun. Invented ones have none, since its meaning could not be learnt."""
STEM = 3
"""Letters that a noun shares with its verb in a held-out lexicon."""
HELD_OUT = 5
"""Every fifth English relation is in held-out lexicons only."""
RELATIONS_PER_KIND = 5
ENTITY_VALUES = 0.65
"""Share of relations whose value is an entity, so that chains can go on."""
CHANGEABLE = 0.35

_ENDINGS = ("", "er", "or", "ist", "ed", "s")
"""Possible endings of an invented word."""


@cache
def _word_lists() -> JsonObject:
    return read_yaml(Path(__file__).with_name("drawn.yaml"), "word lists")


@cache
def english(name: str) -> tuple[str, ...]:
    """The words, or the rows of words, of a list in `drawn.yaml`."""
    entry = _word_lists()[name]
    return tuple(entry.split() if isinstance(entry, str) else cast(list[str], entry))


@dataclass(frozen=True, slots=True)
class _Root:
    """The words of one relation."""

    noun: str
    other: str
    """A synonym, or the noun again."""
    past: str = ""
    present: str = ""

    def clauses(self, kind: str) -> list[str]:
        """Clauses that state it in passages. `kind` is that of its values: `literal` or `entity`."""
        nouns = dict.fromkeys((self.noun, self.other))
        by_noun = [clause.format(noun=noun) for noun in nouns for clause in english("noun_clauses")]
        return by_noun + (self._fill(f"{kind}_clauses") if self.past else [])

    def phrases(self, kind: str, target: str) -> list[str]:
        """Phrases that nest it in questions, besides `the NOUN of {x}`."""
        by_verb = self._fill("verb_phrases", target) if self.past and kind == "entity" else []
        return self._fill("noun_phrases", target) + by_verb

    def asks(self, kind: str, target: str) -> list[str]:
        """Whole questions."""
        return self._fill("noun_asks", target) + (self._fill(f"{kind}_asks", target) if self.past else [])

    def _fill(self, name: str, target: str = "") -> list[str]:
        words = {"noun": self.noun, "other": self.other, "past": self.past, "present": self.present}
        return [template.format(**words, target=target) for template in english(name)]


@cache
def _measured() -> frozenset[str]:
    """The words of the laptop lexicon, on which models are measured. No invented word may be one of them."""
    laptop = laptop_lexicon()
    texts = [name for pools in laptop.pools.values() for pool in pools for name in pool]
    texts += [*laptop.words.values(), *laptop.occupations, *chain.from_iterable(laptop.forms.values())]
    texts += [laptop.beside, *laptop.apart, *laptop.introductions, *laptop.frames, *laptop.same]
    for relation in laptop.relations:
        texts += [relation.noun, relation.first, *relation.clauses, *relation.synonyms, *relation.asks]
    return frozenset(" ".join(texts).lower().split())


def lexicon_of(settings: WorldSettings) -> Lexicon:
    """The lexicon of a world."""
    if settings.lexicon == "laptop":
        return laptop_lexicon()
    return drawn_lexicon(settings.seed, settings.lexicon == "held-out")


def drawn_lexicon(seed: int, held_out: bool = False) -> Lexicon:
    """The lexicon of a seed, with the held-out English relations or with the others."""
    return _Drawer(random.Random(f"{seed} lexicon {held_out}"), held_out).lexicon()


class _Drawer:
    """Draws one lexicon; no word has two meanings in it."""

    def __init__(self, rng: random.Random, held_out: bool) -> None:
        self._rng, self._held_out = rng, held_out
        self._onsets = rng.sample(english("onsets"), 14)
        self._vowels = rng.sample(english("vowels"), 7)
        self._codas = rng.sample(english("codas"), 9)
        self._used: set[str] = set()

    def lexicon(self) -> Lexicon:
        rng = self._rng
        kind_words = self._take_words(english("kind_words"), len(KINDS))
        words = dict(zip(KINDS, kind_words, strict=True))
        occupations = tuple(self._take_words(english("roles"), 10))
        literals = dict(zip(("river", "currency", "language"), self._take_words(english("kind_words"), 3), strict=True))
        targets = words | literals | {"year": "year"}
        roots = self._roots()
        # The first relation of a kind is a year, so that every world has something to compare.
        relations = tuple(
            self._relation(next(roots), kind, "year" if number == 0 else self._draw_target(), targets, occupations)
            for kind in KINDS
            for number in range(RELATIONS_PER_KIND)
        )
        return Lexicon(
            words=words,
            occupations=occupations,
            relations=relations,
            constraints=tuple(self._constraints(relations, words)),
            pools=self._pools(),
            forms={"city": self._title_words(english("form_words"), 6)},
            opening=rng.choice(english("openings")),
            introductions=tuple(rng.sample(english("aliases"), 3)),
            beside=rng.choice(english("beside")),
            apart=tuple(rng.sample(english("apart"), 2)),
            frames=tuple(rng.sample(english("frames"), 4)),
            same=tuple(rng.sample(english("same"), 3)),
        )

    # Words

    def _invent(self, syllables: int | None = None) -> str:
        """A pseudo-word that is new in this lexicon."""
        rng = self._rng
        while True:
            count = syllables or rng.choice((1, 2, 2))
            parts = [rng.choice(self._onsets) + rng.choice(self._vowels) for _ in range(count)]
            word = "".join(parts) + (rng.choice(self._codas) if rng.random() < 0.7 else "")
            if len(word) > 2 and word not in self._used and _measured().isdisjoint(word + end for end in _ENDINGS):
                self._used.add(word)
                return word

    def _take_words(self, words: Sequence[str], count: int) -> list[str]:
        """`count` unused words, of a list or invented."""
        unused_words = [word for word in words if word not in self._used]
        self._rng.shuffle(unused_words)
        words_taken = []
        for _ in range(count):
            word = self._invent() if self._rng.random() < INVENTED else unused_words.pop()
            self._used.add(word)
            words_taken.append(word)
        return words_taken

    def _pools(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        rng = self._rng
        year = rng.randint(900, 1900)
        places = self._names(220)
        title = self._title_words(english("adjectives"), 90), self._title_words(english("nouns"), 90)
        return {
            "year": (tuple(str(value) for value in range(year, year + 100)),),
            "river": (self._names(36),),
            "currency": (self._names(20),),
            "language": (self._names(20),),
            "person": (self._names(80), self._names(90)),
            "city": (places,),
            "university": (places, self._title_words(english("house_words"), 6)),
            "country": (self._names(90),),
            **dict.fromkeys(TITLED, title),
        }

    def _names(self, count: int) -> tuple[str, ...]:
        return tuple(self._invent().capitalize() for _ in range(count))

    def _title_words(self, words: Sequence[str], count: int) -> tuple[str, ...]:
        """Words for names, of a list or invented; words of the list may have another meaning elsewhere."""
        chosen = self._rng.sample(words, min(len(words), round(count * (1 - INVENTED))))
        chosen += [self._invent() for _ in range(count - len(chosen))]
        return tuple(word.capitalize() for word in chosen)

    # Relations

    def _roots(self) -> Iterator[_Root]:
        """An infinite sequence of roots; English ones occur at most once."""
        rng = self._rng
        rows = [row.split() for row in (*english("roots"), *english("bare_roots"))]
        english_rows = [row for number, row in enumerate(rows) if (number % HELD_OUT == 0) == self._held_out]
        rng.shuffle(english_rows)
        while True:
            if english_rows and rng.random() >= INVENTED:
                row = english_rows.pop()
                if not self._used.isdisjoint(row):
                    continue
                noun, other, *verb = row
                if self._held_out:  # a model could not know that two unknown words mean the same
                    other, verb = noun, verb if verb and verb[0][:STEM] == noun[:STEM] else []
                root = _Root(noun, other if rng.random() < SYNONYM else noun, *verb)
            else:
                stem = self._invent(rng.choice((1, 2)))
                noun = stem if rng.random() < 0.4 else f"{stem}{rng.choice(('er', 'or', 'ist', ''))}"
                root = _Root(noun, noun) if noun == stem else _Root(noun, noun, f"{stem}ed", f"{stem}s")
                row = [noun, root.past, root.present]
            self._used.update(row)
            yield root

    def _draw_target(self) -> str:
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
        values = "literal" if literal else "entity"
        phrases, asks, clauses = root.phrases(values, word), root.asks(values, word), root.clauses(values)
        return Relation(
            noun=root.noun,
            subjects=tuple(dict.fromkeys(kinds)),
            target=target,
            clauses=tuple(rng.sample(clauses, 3)),
            synonyms=tuple(dict.fromkeys(rng.sample(phrases, 2))),
            asks=tuple(rng.sample(asks, 3)),
            occupation=rng.choice(occupations) if target == "person" and rng.random() < 0.5 else "",
            changes=not literal and rng.random() < CHANGEABLE,
            first=rng.choice(english("first")).replace("{noun}", root.noun) if target == "year" else "",
        )

    def _constraints(self, relations: tuple[Relation, ...], words: dict[str, str]) -> Iterator[Constraint]:
        """One question with two values for each kind that has two relations, the first of which names an entity."""
        for kind in KINDS[1:]:
            relations_of_kind = [relation for relation in relations if kind in relation.subjects]
            firsts = [relation for relation in relations_of_kind if not relation.is_literal]
            if firsts and len(relations_of_kind) > 1:
                first = self._rng.choice(firsts)
                second = self._rng.choice([relation for relation in relations_of_kind if relation is not first])
                question = self._rng.choice(english("two_values"))
                question = question.format(word=words[kind], first=first.noun, second=second.noun)
                yield kind, first.noun, second.noun, question
