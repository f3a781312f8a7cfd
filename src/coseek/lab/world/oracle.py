"""The oracle of a laptop world: judges answers, scores passages, and finds names in reasoning.

It replaces the papers' large model with the gold answer in its prompt, so a method's gain with it is an upper bound.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, parsing, read_json
from coseek.core.settings import make_settings
from coseek.data.passage import Passage
from coseek.data.question import Question, Step, plan_of
from coseek.lab.world.drawn_lexicon import lexicon_of
from coseek.lab.world.facts import Entity, Fact, Facts
from coseek.lab.world.lexicon import Lexicon
from coseek.lab.world.rationales import LIST, kind_of
from coseek.lab.world.settings import WorldSettings
from coseek.measure.reasoning import ReasoningClaims

GOLD = 100
"""Relevance of the passage that states the fact."""
SUPPORT = 80
"""Another passage that implies the fact: the spouse's."""
OTHER_HOP = 40
"""The gold passage of another hop of the question."""
MISLEADING = 25
"""A passage of a namesake, or with an outdated value."""
MENTION = 10
"""A passage that mentions the subject."""
NOTHING = 0

_MARKS = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class Oracle:
    """The facts of a world, and its outdated passages."""

    facts: Facts
    stale: Mapping[str, str]
    """Id of an outdated passage → id of its entity."""

    def judge(self, question: Question, response: str) -> bool:
        """Whether the response contains an accepted answer.

        Words are compared without case, punctuation and articles. `New Merrow` does not contain the answer `Merrow`
        if that is the name of another entity. Yes and no must be the first word. A list needs every name, in any order.
        """
        said_words = _words(response)
        if kind_of(question) == LIST and question.answers:
            return all(any(self._says(said_words, name, names) for name in names) for names in self._accepted(question))
        accepted = {_words(answer) for answer in question.answers} - {()}
        if accepted <= {("yes",), ("no",)}:
            return said_words[:1] in accepted
        return any(self._says(said_words, answer, accepted) for answer in accepted)

    def _accepted(self, question: Question) -> Iterator[set[tuple[str, ...]]]:
        """The accepted names of each step."""
        for step in plan_of(question):
            fact = self.facts[step.gold_id].fact(step.relation)
            entity = self.facts.get(fact.object_id or "") if fact else None
            yield {_words(name) for name in (step.sub_answer, *(entity.names if entity else ()))}

    def relevance(self, question: Question, passage: Passage, hop: int | None = None) -> int:
        """Relevance in 0 to 100 for one hop (from 0), or the maximum over all hops; from 60 on the fact follows."""
        plan = plan_of(question)
        if hop is not None and not 0 <= hop < len(plan):
            raise DataError(f"question {question.id!r} has the hops 0 to {len(plan) - 1}, not {hop}")
        hops = range(len(plan)) if hop is None else [hop]
        return max(self._relevance(question, plan[hop], passage) for hop in hops)

    def hop_of(self, question: Question, query: str) -> int | None:
        """The hop with the largest share of its subject's words in the query, then of its relation's; `None` for no
        match or a tie."""
        overlap = partial(_overlap, set(_words(query)))
        closeness = [(overlap(step.mention), overlap(step.relation)) for step in plan_of(question)]
        best = max(closeness)
        return closeness.index(best) if best > (0.0, 0.0) and closeness.count(best) == 1 else None

    def claims(self, question: Question, reasonings: Sequence[str]) -> list[ReasoningClaims]:
        """The clues and claims of each reasoning, for `reasoning_values` (AgentIR, figures 3b and 4b). A clue is a step
        of the plan whose answer the reasoning names. A claim is a name of the world, or an answer of a step, that is
        not in the question, counted once per reasoning: correct if it is any name of a step's answer."""
        answers = [_words(step.sub_answer) for step in plan_of(question)]
        given_names = self._names_in(question.question, answers)
        claims: list[ReasoningClaims] = []
        for reasoning in reasonings:
            names = self._names_in(reasoning, answers) - given_names
            steps = [{hop for hop, answer in enumerate(answers) if self._is_same_name(name, answer)} for name in names]
            clues = frozenset[int]().union(*steps)
            claims.append(ReasoningClaims(clues, len(clues), steps.count(set())))
        return claims

    def _names_in(self, text: str, answers: Sequence[tuple[str, ...]]) -> set[tuple[str, ...]]:
        """The names in a text, the longest at each place."""
        text_words, names_found, position = _words(text), set[tuple[str, ...]](), 0
        longest = max(map(len, [*self._bearers, *answers]))
        while position < len(text_words):
            sizes = range(min(longest, len(text_words) - position), 0, -1)
            names = (text_words[position : position + size] for size in sizes)
            name = next((name for name in names if name in self._bearers or name in answers), None)
            names_found |= {name} if name else set()
            position += len(name) if name else 1
        return names_found

    def _is_same_name(self, name: tuple[str, ...], answer: tuple[str, ...]) -> bool:
        """Whether two names are equal or of one entity."""
        return name == answer or bool(self._bearers.get(name, set()) & self._bearers.get(answer, set()))

    @cached_property
    def _bearers(self) -> Mapping[tuple[str, ...], set[str]]:
        """The words of every name in the world → ids of the entities that bear it."""
        bearers: dict[tuple[str, ...], set[str]] = {}
        for entity in self.facts.values():
            for name in entity.names:
                bearers.setdefault(_words(name), set()).add(entity.id)
        return bearers

    def _relevance(self, question: Question, step: Step, passage: Passage) -> int:
        if passage.id == step.gold_id:
            return GOLD
        passage_entity, gold_entity = self.facts.get(passage.id), self.facts.get(step.gold_id)
        spouse_fact = passage_entity.fact(step.relation) if passage_entity and step.relation == "spouse" else None
        if kind_of(question) != "constraint" and spouse_fact is not None and spouse_fact.object_id == step.gold_id:
            return SUPPORT
        if passage.id in question.gold_ids:
            return OTHER_HOP
        namesake = passage_entity is not None and gold_entity is not None and passage_entity.name == gold_entity.name
        if namesake or self.stale.get(passage.id) == step.gold_id:
            return MISLEADING
        # The mention of a constraint step is the value in its question, not the entity it looks for.
        return MENTION if f" {step.mention} " in f"{passage.title}{passage.text} " else NOTHING

    def _says(self, response: tuple[str, ...], answer: tuple[str, ...], accepted: set[tuple[str, ...]]) -> bool:
        size = len(answer)
        for start in (index for index in range(len(response)) if response[index : index + size] == answer):
            ends = range(start + size, start + size + 4)
            wider_names = (response[left:right] for left in range(max(0, start - 3), start + 1) for right in ends)
            if not any(len(name) > size and name in self._bearers and name not in accepted for name in wider_names):
                return True  # not inside the name of another entity
        return False

    def to_json(self) -> JsonObject:
        return {"stale": dict(self.stale), "entities": [entity.to_json() for entity in self.facts.values()]}

    @classmethod
    def load(cls, folder: Path) -> "Oracle":
        """Open the oracle of a world that was written to this folder."""
        row = read_json(folder / "world.json")
        if not isinstance(row, dict) or not isinstance(row.get("oracle"), dict):
            raise DataError(f"{folder / 'world.json'} holds no oracle; write the world again with `coseek world make`")
        settings = make_settings(WorldSettings, cast(JsonObject, row.get("settings") or {}), folder / "world.json")
        lexicon = lexicon_of(settings)
        with parsing(folder / "world.json", "write the world again with `coseek world make`"):
            stored = cast(JsonObject, row["oracle"])
            entities = (_entity(entity, lexicon) for entity in cast(list[JsonObject], stored["entities"]))
            return cls({entity.id: entity for entity in entities}, dict(cast(dict[str, str], stored["stale"])))


def _entity(row: JsonObject, lexicon: Lexicon) -> Entity:
    facts = tuple(_fact(fact, lexicon) for fact in cast(list[JsonObject], row["facts"]))
    texts = {name: str(row[name]) for name in ("id", "kind", "word", "name", "title", "alias")}
    return Entity(facts=facts, **texts)


def _fact(row: JsonObject, lexicon: Lexicon) -> Fact:
    noun, object_id = str(row["noun"]), row["object_id"]
    relation = lexicon.by_noun.get(noun)
    if relation is None:
        raise DataError(f"world.json names the unknown relation {noun!r}; write it again with `coseek world make`")
    return Fact(
        relation, str(row["value"]), None if object_id is None else str(object_id), str(row.get("before", "")),
        str(row.get("until", "")), bool(row.get("apart", False)),
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    """The words in lower case, without ASCII punctuation and articles."""
    return tuple(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def _overlap(query_words: set[str], text: str) -> float:
    words = _words(text)
    return sum(word in query_words for word in words) / len(words) if words else 0.0
