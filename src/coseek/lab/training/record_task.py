"""Record task: reading whose words are random tokens.

Passages name an entity and state its relations. A drill lists names, each with a relation (`examples.py`), a chain asks
for a relation of a relation of a name, a match for the name that has two values, and a comparison for the name with the
lower number or whether two names have one value. All names consist of a few tokens and resemble each other, so that a
whole name and a whole relation must be matched. Records are short and have many questions, and no word has a meaning.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import TypeAlias

from coseek.lab.world.rationales import MARK, NOW

Ids: TypeAlias = list[int]
Fact: TypeAlias = tuple[int, Ids, Ids]
"""Number of the record, relation, value."""
Dates: TypeAlias = dict[tuple[int, ...], int]
"""Tokens of a number → the number."""

ALPHABETS = (30, 100, 400)
"""Sizes of the set of tokens for the names of one example."""
NAME, RELATION, RECORDS, RELATIONS, ASKED = 5, 3, 8, 6, 6
"""Longest name and relation in tokens, most records, relations and questions of a turn, at full spread."""
TURNS = 5
"""Turns about the same records, so that most of an example is learnt from."""
HOPS = 4
"""Maximum number of relations of a chain."""
CHAINS, MATCHES, COMPARISONS = 0.4, 0.12, 0.16
"""Shares of chains, matches and comparisons among the turns."""
DATED = 0.5
"""Share of examples with a relation whose values are numbers."""
YEARS, APART = (1000, 2000), (9, 99, 900)
"""Range of the lowest number, and maximum distances from it."""
SHARED = 0.15
"""Share of values that the same relation has in an earlier record."""
FEWEST = 3
"""Lower bound of the maximum number of records and of relations: a chain needs several."""
INFLECTED = 0.25
"""Share of clauses that state a relation with another last token, as a verb does for a noun, at full spread."""
ALIKE = 0.3
"""Share of names that differ from another in the last token alone, at full spread."""
LINKED = 0.6
"""Share of values that are the name of a record."""
STARTS = 6
"""Number of random chains, of which the longest is taken."""
NESTED = ((" the", " of"), (" the", " for"), (" the", " that belongs to"))
"""Text around a relation in a chain."""
FRAMES = ((" Which is", " ?"), (" Tell me", " ."), (" Find", " ."), (" I want to know", " ."))
MATCH = ((" Which has", "{v}", " for", "{r}", " and", "{w}", " for", "{s}", " ?"),
         (" Who has the", "{r}", "{v}", " and the", "{s}", "{w}", " ?"))  # fmt: skip
"""How a match is asked."""
LOWER = ((" Which has the lower", "{r}", " ,", "{a}", " or", "{b}", " ?"),
         ("{a}", " or", "{b}", " : whose", "{r}", " is earlier ?"))  # fmt: skip
SAME = ((" Have", "{a}", " and", "{b}", " the same", "{r}", " ?"),
        (" Is the", "{r}", " of", "{a}", " that of", "{b}", " ?"))  # fmt: skip
"""How a comparison is asked."""
FORM = (
    " Question :", " So :", " ;", " ,", " :", " .", " is before", " the same .", " not the same .", " no", NOW, MARK,
)  # fmt: skip
"""Text between names, relations and values."""
CLAUSES = (
    ("{r}", " :", "{v}"), (" whose", "{r}", " is", "{v}"), (" its", "{r}", " being", "{v}"),
    (" having the", "{r}", "{v}"), (" and the", "{r}", " is", "{v}"), (" with", "{v}", " as", "{r}"),
    (" which has", "{v}", " for", "{r}"), (" where", "{v}", " is", "{r}"), ("{v}", " being the", "{r}"),
    (" to which", "{v}", " is", "{r}"),
)  # fmt: skip
"""Statements of a fact in a record. Half of them name the value first, which is learnt later (docs/LOG.md)."""


@dataclass(frozen=True)
class RecordTask:
    """Draws records and questions about them."""

    encode: Callable[[str], Ids]
    vocabulary: int
    """Number of the tokenizer's ids."""

    def draw(self, spread: float, rng: random.Random) -> list[tuple[Ids, Ids]]:
        """Turns of shown and target ids. From few records of one-token names at `spread` 0 to several of long ones at
        1; every kind of question and clause is met first where it is short."""
        alphabet = rng.choices(self.words, k=rng.choice(ALPHABETS))
        longest = _grown(NAME, spread)
        names = self._names(rng.randint(1, max(FEWEST, _grown(RECORDS, spread))), longest, alphabet, spread, rng)
        number = rng.randint(2, max(FEWEST, _grown(RELATIONS, spread)))
        relations = self._names(number, _grown(RELATION, spread), alphabet, spread, rng)
        dates = self._dates(rng) if rng.random() < DATED else {}
        passages: Ids = []
        facts: list[Fact] = []
        for record, name in enumerate(names):
            passages += [*name, *self._number(record), *self._text(" :")]
            passages += name if rng.random() < 0.5 else []
            for relation in rng.sample(relations, rng.randint(max(1, number - 2), number)):
                earlier = [value for _, other, value in facts if other == relation]
                if dates and relation == relations[0]:
                    value = [*rng.choice(list(dates))]
                elif earlier and rng.random() < SHARED:
                    value = rng.choice(earlier)
                else:
                    value = rng.choice(names) if rng.random() < LINKED else self._name(longest, alphabet, rng)
                passages += self._clause(relation, relations, value, spread, rng)
                facts.append((record, relation, value))
            passages += [*self._text(" ."), *self._number(record)]
        turns = []
        for _ in range(TURNS):
            kind = rng.random()
            if kind < CHAINS:
                question, answer = self._chain(names, facts, rng)
            elif kind < CHAINS + MATCHES and (pair := self._pair(facts, rng)):
                question, answer = self._match(names, facts, pair, rng)
            elif kind > 1 - COMPARISONS and (pair := self._comparable_pair(facts, dates, rng)):
                question, answer = self._comparison(names, pair, dates, rng)
            else:
                chosen = rng.sample(facts, min(len(facts), max(2, _grown(ASKED, spread))))
                question, answer = self._drill(names, chosen)
            turns.append(([*self._text(" Question :"), *question, *passages, *self._text(" So :")], answer))
            passages = []  # a later question is about the same passages
        return turns

    def _clause(self, relation: Ids, relations: list[Ids], value: Ids, spread: float, rng: random.Random) -> Ids:
        """A clause that states a fact, and a comma. It tells this relation from all others."""
        same_stem = [other for other in relations if other[:-1] == relation[:-1]]
        if len(relation) > 1 and len(same_stem) == 1 and rng.random() < INFLECTED * spread:
            relation = [*relation[:-1], rng.choice(self.words)]
        return [*self._fill(rng.choice(CLAUSES), {"{r}": relation, "{v}": value}), *self._text(" ,")]

    def _fill(self, template: Sequence[str], values: Mapping[str, Ids]) -> Ids:
        """A template with values in their places."""
        return [token for piece in template for token in values.get(piece) or self._text(piece)]

    def _drill(self, names: list[Ids], facts: list[Fact]) -> tuple[Ids, Ids]:
        """A list of names, each with a relation, and the facts."""
        question, answer = list[int](), list[int]()
        for number, fact in enumerate(facts):
            question += [*self._text(" ;" if number else ""), *names[fact[0]], *self._text(" ,"), *fact[1]]
            answer += self._line(names, fact)
        return question, answer

    def _chain(self, names: list[Ids], facts: list[Fact], rng: random.Random) -> tuple[Ids, Ids]:
        """A question in which each relation is one of the value before, and the facts to its answer, each followed by
        the rest of the question."""
        hops = rng.randint(1, HOPS)
        path = max((self._path(names, facts, hops, rng) for _ in range(STARTS)), key=len)
        templates = [rng.choice(NESTED) for _ in path]
        begin, end = rng.choice(FRAMES)

        def question_from(first: int) -> Ids:
            ids = names[path[first][0]]
            for (before, between), (_, relation, _) in zip(templates[first:], path[first:], strict=True):
                ids = [*self._text(before), *relation, *self._text(between), *ids]
            return [*self._text(begin), *ids, *self._text(end)]

        answer = self._line(names, path[0])
        for step in range(1, len(path)):
            answer += [*self._text(NOW), *question_from(step), *self._line(names, path[step])]
        return question_from(0), [*answer, *self._text(MARK), *path[-1][2]]

    def _path(self, names: list[Ids], facts: list[Fact], hops: int, rng: random.Random) -> list[Fact]:
        """Facts each about the value of the one before, at most `hops`."""
        path = [rng.choice(facts)]
        while len(path) < hops:
            following = [fact for fact in facts if names[fact[0]] == path[-1][2]]
            if not following:
                break
            path.append(rng.choice(following))
        return path

    def _pair(self, facts: list[Fact], rng: random.Random) -> list[Fact]:
        """Two facts of a record that no other record states together, in any order; empty without such a pair."""
        first = rng.choice(facts)
        others = [fact for fact in facts if fact[0] == first[0] and fact[1] != first[1]]
        pair = [first, *rng.sample(others, min(1, len(others)))]
        owners = [{fact[0] for fact in facts if fact[1:] == of_pair[1:]} for of_pair in pair]
        return rng.sample(pair, 2) if len(pair) == 2 and owners[0] & owners[1] == {first[0]} else []

    def _match(self, names: list[Ids], facts: list[Fact], pair: list[Fact], rng: random.Random) -> tuple[Ids, Ids]:
        """A question for the name that has two values, and the statements of the records up to it."""
        (owner, first, wanted), (_, second, other) = pair
        values = {"{r}": first, "{v}": wanted, "{s}": second, "{w}": other}
        question = self._fill(rng.choice(MATCH), values)
        lines: Ids = []
        for record in range(owner + 1):
            stated = {tuple(fact[1]): fact for fact in facts if fact[0] == record}
            matching = [stated[tuple(relation)] for relation in (first, second) if tuple(relation) in stated]
            if tuple(first) not in stated:
                lines += [*names[record], *self._number(record), *self._text(" , no"), *first, *self._text(" .")]
            else:
                lines += self._line(names, *(matching if matching[0][2] == wanted else matching[:1]))
        return question, [*lines, *self._text(MARK), *names[owner]]

    def _dates(self, rng: random.Random) -> Dates:
        """Numbers close to each other, so that any digit may decide which is lower."""
        first, apart = rng.randint(*YEARS), rng.choice(APART)
        numbers = (first + rng.randint(0, apart) for _ in range(RECORDS))
        return {tuple(self.encode(f" {number}")): number for number in numbers}

    def _comparable_pair(self, facts: list[Fact], dates: Dates, rng: random.Random) -> list[Fact]:
        """Two facts of one relation: with numbers, with one value, or any, in equal shares of those that exist; empty
        if no relation has two facts."""
        pairs = [[fact, other] for fact, other in combinations(facts, 2) if fact[1] == other[1]]
        same_value = [pair for pair in pairs if pair[0][2] == pair[1][2]]
        numbers = [pair for pair in pairs if tuple(pair[0][2]) in dates]
        kinds = [kind for kind in (pairs, same_value, numbers) if kind]
        return rng.sample(rng.choice(rng.choice(kinds)), 2) if kinds else []

    def _comparison(self, names: list[Ids], pair: list[Fact], dates: Dates, rng: random.Random) -> tuple[Ids, Ids]:
        """A question for the name with the lower number, or whether two names have one value; and both facts."""
        (first_record, relation, first), (second_record, _, second) = pair
        numbers = [dates[tuple(value)] for value in (first, second) if tuple(value) in dates]
        values = {"{r}": relation, "{a}": names[first_record], "{b}": names[second_record]}
        asks_lower = first != second and len(numbers) == 2
        question = self._fill(rng.choice(LOWER if asks_lower else SAME), values)
        lines = [*self._line(names, pair[0]), *self._line(names, pair[1])]
        if asks_lower:
            dated_names = [[*first, *names[first_record]], [*second, *names[second_record]]]
            comparison = [*dated_names[0], *self._text(" ,"), *dated_names[1], *self._text(" .")]
            if numbers[0] > numbers[1]:
                first_record, first, second = second_record, second, first
            comparison += [*first, *self._text(" is before"), *second, *self._text(" ."), *first, *names[first_record]]
            comparison += self._text(" .")
            answer = names[first_record]
        else:
            comparison = self._text(" the same ." if first == second else " not the same .")
            answer = self._text(" yes" if first == second else " no")
        return question, [*lines, *comparison, *self._text(MARK), *answer]

    def _line(self, names: list[Ids], *facts: Fact) -> Ids:
        """The facts of one record."""
        line = [*names[facts[0][0]], *self._number(facts[0][0])]
        for _, relation, value in facts:
            line += [*self._text(" ,"), *relation, *self._text(" :"), *value]
        return [*line, *self._text(" .")]

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

    @cached_property
    def _text(self) -> Callable[[str], Ids]:
        """`encode`, with a cache."""
        return cache(self.encode)

    @cached_property
    def words(self) -> Ids:
        """The ids of names: all but padding, end of text and those of the form, which would end a name."""
        numbers = [f" # {number}" for number in range(1, RECORDS + 1)]
        parts = [part for row in (*CLAUSES, *NESTED, *FRAMES, *MATCH, *LOWER, *SAME) for part in row if "{" not in part]
        form_ids = {token for text in (*FORM, *parts, *numbers, " yes") for token in self._text(text)}
        return [token for token in range(2, self.vocabulary) if token not in form_ids]


def _grown(most: int, spread: float) -> int:
    """A maximum that grows from 1."""
    return 1 + round((most - 1) * spread)
