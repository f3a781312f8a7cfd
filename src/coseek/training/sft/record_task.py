"""Record task: drills whose words are random tokens.

Passages name an entity and state its relations; questions list names, each with a relation (`synthetic.py`). Few tokens
make all names, and names resemble each other, so a whole name and a whole relation must be matched. A network learns
this from dense records within a thousand short steps, and reads text with it; from text alone it takes far longer.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

Ids: TypeAlias = list[int]
Fact: TypeAlias = tuple[int, Ids, Ids]
"""Number of the record, relation, value."""

ALPHABETS = (30, 100, 400)
"""Numbers of different tokens that the names of one example are made of."""
NAME, RELATION, RECORDS, RELATIONS, ASKED = 5, 3, 8, 6, 6
"""Longest name and relation in tokens, most records, relations and questions of a turn, at full spread."""
TURNS = 2
ALIKE = 0.3
"""Share of names that differ from another in the last token alone, at full spread."""
LINKED = 0.3
"""Share of values that are the name of a record."""
FORM = (" Question :", " So :", " ;", " ,", " :", " .")
CLAUSES = (
    ("{r}", " :", "{v}"), (" with", "{v}", " as", "{r}"), (" whose", "{r}", " is", "{v}"),
    (" its", "{r}", " being", "{v}"), (" having the", "{r}", "{v}"), (" which has", "{v}", " for", "{r}"),
    (" and the", "{r}", " is", "{v}"),
)  # fmt: skip
"""How a record states a fact."""


@dataclass(frozen=True)
class RecordTask:
    """Draws records and questions about them."""

    encode: Callable[[str], Ids]
    vocabulary: int
    """Number of the tokenizer's ids."""

    def draw(self, spread: float, rng: random.Random) -> list[tuple[Ids, Ids]]:
        """Turns of shown and target ids. From one record of short names at `spread` 0 to several of long ones at 1."""
        alphabet = rng.choices(self.words, k=rng.choice(ALPHABETS))
        longest = _grown(NAME, spread)
        names = self._names(rng.randint(1, _grown(RECORDS, spread)), longest, alphabet, spread, rng)
        number = rng.randint(2, max(2, _grown(RELATIONS, spread)))
        relations = self._names(number, _grown(RELATION, spread), alphabet, spread, rng)
        passages: Ids = []
        facts: list[Fact] = []
        for record, name in enumerate(names):
            passages += [*name, *self._number(record), *self._text(" :")]
            passages += name if rng.random() < 0.5 else []
            for relation in rng.sample(relations, rng.randint(max(1, number - 2), number)):
                value = rng.choice(names) if rng.random() < LINKED else self._name(longest, alphabet, rng)
                clause = CLAUSES[0] if rng.random() > 0.3 + 0.7 * spread else rng.choice(CLAUSES)
                for part in clause:
                    passages += relation if part == "{r}" else value if part == "{v}" else self._text(part)
                passages += self._text(" ,")
                facts.append((record, relation, value))
            passages += [*self._text(" ."), *self._number(record)]
        turns = []
        for _ in range(TURNS):
            asked = rng.sample(facts, min(len(facts), max(2, _grown(ASKED, spread))))
            question, answer = self._turn(names, asked)
            turns.append(([*question, *passages, *self._text(" So :")], answer))
            passages = []  # a later question is about the same passages
        return turns

    def _turn(self, names: list[Ids], asked: list[Fact]) -> tuple[Ids, Ids]:
        question, answer = [*self._text(" Question :")], list[int]()
        for place, (record, relation, value) in enumerate(asked):
            question += [*self._text(" ;" if place else ""), *names[record], *self._text(" ,"), *relation]
            key = [*names[record], *self._number(record), *self._text(" ,"), *relation]
            answer += [*key, *self._text(" :"), *value, *self._text(" .")]
        return question, answer

    def _name(self, longest: int, alphabet: Ids, rng: random.Random) -> Ids:
        shortest = min(2, longest) if rng.random() < 0.7 else 1
        return [rng.choice(alphabet) for _ in range(rng.randint(shortest, longest))]

    def _names(self, count: int, longest: int, alphabet: Ids, spread: float, rng: random.Random) -> list[Ids]:
        """Different names, some of them alike."""
        names: list[Ids] = []
        while len(names) < count:
            name = self._name(longest, alphabet, rng)
            if names and rng.random() < ALIKE * spread:
                other = rng.choice(names)
                name = [*other[: max(1, len(other) - 1)], rng.choice(alphabet)]
            if name not in names:
                names.append(name)
        return names

    def _number(self, record: int) -> Ids:
        return self._text(f" # {record + 1}")

    def _text(self, text: str) -> Ids:
        if text not in self._known:
            self._known[text] = self.encode(text)
        return self._known[text]

    @cached_property
    def words(self) -> Ids:
        """The ids of names: all but padding, end of text and those of the form, which would end a name."""
        numbers = [f" # {number}" for number in range(1, RECORDS + 1)]
        clauses = [part for clause in CLAUSES for part in clause if "{" not in part]
        form = {one for text in (*FORM, *clauses, *numbers) for one in self._text(text)}
        return [one for one in range(2, self.vocabulary) if one not in form]

    @cached_property
    def _known(self) -> dict[str, Ids]:
        return {}


def _grown(most: int, spread: float) -> int:
    """A maximum that grows from 1."""
    return 1 + round((most - 1) * spread)
