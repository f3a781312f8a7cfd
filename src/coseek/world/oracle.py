"""Oracle: knows everything about one laptop world. It judges, scores relevance, ranks, and answers sub-questions.

It stands where the papers put a large model with the gold answer in its prompt, so whatever a method gains with it is
an upper bound for what it would gain with such a model.
"""

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, read_json
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.world.facts import Entity, Fact, Facts
from coseek.world.questions import Step, kind_of, plan_of
from coseek.world.relations import BY_NOUN

GOLD = 100
"""The passage that tells the fact."""
SUPPORT = 80
"""Another passage from which the fact follows: marriage told by the other side."""
OTHER_HOP = 40
"""A passage that another hop of the same question needs."""
MISLEADING = 25
"""About the right thing or its namesake, with another or a former value."""
MENTION = 10
"""Names the thing that is asked about."""
NOTHING = 0

_MARKS = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class Oracle:
    """What is true in a world, by entity, and which passages tell what is not true any more."""

    facts: Facts
    stale: Mapping[str, str]
    """Passage id → id of the entity whose past it tells."""

    def judge(self, question: Question, response: str) -> bool:
        """Does the response contain an accepted answer?

        Words are compared without case, marks and articles. `New Merrow` does not contain the answer `Merrow`, because
        it is the name of something else. Yes and no must be the first word. An empty response is wrong.
        """
        said = _words(response)
        accepted = {_words(answer) for answer in question.answers} - {()}
        if accepted <= {("yes",), ("no",)}:
            return said[:1] in accepted
        return any(self._says(said, answer, accepted) for answer in accepted)

    def relevance(self, question: Question, passage: Passage, hop: int | None = None) -> int:
        """0 to 100 for one hop (from 0), or the best over all hops; 60 and more means that the fact follows from it."""
        plan = plan_of(question)
        if hop is not None:
            return self._relevance(question, plan, self._checked(question, hop), passage)
        return max(self._relevance(question, plan, number, passage) for number in range(len(plan)))

    def rank(self, question: Question, passages: Iterable[Passage], hop: int | None = None) -> list[Passage]:
        """The passages by falling relevance; equals keep their order."""
        return sorted(passages, key=lambda passage: -self.relevance(question, passage, hop))

    def sub_answer(self, question: Question, hop: int) -> str:
        """What the search of this hop (from 0) is to find."""
        return plan_of(question)[self._checked(question, hop)].sub_answer

    def hop_of(self, question: Question, query: str) -> int | None:
        """The hop that a query is for: whose subject it names most fully, then whose relation. `None` for a query that
        names neither of any hop, or two hops alike, as the relation alone does in a comparison."""
        asked = set(_words(query))
        closeness = [(_share(asked, step.mention), _share(asked, step.relation)) for step in plan_of(question)]
        best = max(closeness)
        return closeness.index(best) if best > (0.0, 0.0) and closeness.count(best) == 1 else None

    def _checked(self, question: Question, hop: int) -> int:
        steps = len(plan_of(question))
        if not 0 <= hop < steps:
            raise DataError(f"question {question.id!r} has the hops 0 to {steps - 1}, not {hop}")
        return hop

    def _relevance(self, question: Question, plan: Sequence[Step], hop: int, passage: Passage) -> int:
        step = plan[hop]
        if passage.id == step.gold_id:
            return GOLD
        if kind_of(question) != "constraint" and self._mirrors(step, passage):
            return SUPPORT
        if passage.id in question.gold_ids:
            return OTHER_HOP
        if self._misleads(step, passage):
            return MISLEADING
        # A constraint step starts from the value that its question names, not from the entity it looks for.
        return MENTION if f" {step.mention} " in f"{passage.title}{passage.text} " else NOTHING

    def _mirrors(self, step: Step, passage: Passage) -> bool:
        """The other side of a relation that goes both ways."""
        other = self.facts.get(passage.id)
        mirror = other.fact(step.relation) if other else None
        return step.relation == "spouse" and mirror is not None and mirror.object_id == step.gold_id

    def _misleads(self, step: Step, passage: Passage) -> bool:
        if self.stale.get(passage.id) == step.gold_id:
            return True
        other, gold = self.facts.get(passage.id), self.facts.get(step.gold_id)
        return other is not None and gold is not None and other.name == gold.name

    @cached_property
    def _known(self) -> frozenset[tuple[str, ...]]:
        """Every name in the world, in words."""
        return frozenset(_words(name) for entity in self.facts.values() for name in entity.names)

    def _says(self, said: tuple[str, ...], answer: tuple[str, ...], accepted: set[tuple[str, ...]]) -> bool:
        size = len(answer)
        starts = (at for at in range(len(said)) if said[at : at + size] == answer)
        return any(not self._inside_other_name(said, at, at + size, accepted) for at in starts)

    def _inside_other_name(self, said: tuple[str, ...], start: int, end: int, accepted: set[tuple[str, ...]]) -> bool:
        wider = (said[left:right] for left in range(max(0, start - 3), start + 1) for right in range(end, end + 4))
        return any(len(name) > end - start and name in self._known and name not in accepted for name in wider)

    def to_json(self) -> JsonObject:
        return {"stale": dict(self.stale), "entities": [entity.to_json() for entity in self.facts.values()]}

    @classmethod
    def from_json(cls, row: JsonObject) -> "Oracle":
        entities = (_entity(entity) for entity in cast(list[JsonObject], row["entities"]))
        stale = row["stale"]
        assert isinstance(stale, dict)
        return cls({entity.id: entity for entity in entities}, {ident: str(about) for ident, about in stale.items()})

    @classmethod
    def load(cls, folder: Path) -> "Oracle":
        """Open the oracle of a world that was written to this folder."""
        row = read_json(folder / "world.json")
        if not isinstance(row, dict) or not isinstance(row.get("oracle"), dict):
            raise DataError(f"{folder / 'world.json'} holds no oracle; write the world again with `coseek world make`")
        return cls.from_json(cast(JsonObject, row["oracle"]))


def _entity(row: JsonObject) -> Entity:
    facts = tuple(_fact(fact) for fact in cast(list[JsonObject], row["facts"]))
    texts = {name: str(row[name]) for name in ("id", "kind", "word", "name", "title", "alias")}
    return Entity(facts=facts, **texts)


def _fact(row: JsonObject) -> Fact:
    noun, object_id = str(row["noun"]), row["object_id"]
    if noun not in BY_NOUN:
        raise DataError(f"world.json names the unknown relation {noun!r}; write it again with `coseek world make`")
    return Fact(
        noun, str(row["value"]), None if object_id is None else str(object_id), str(row.get("before", "")),
        str(row.get("until", "")), bool(row.get("apart", False)),
    )  # fmt: skip


def _words(text: str) -> tuple[str, ...]:
    """Lower case, no ASCII marks, no articles."""
    return tuple(_ARTICLES.sub(" ", text.lower().translate(_MARKS)).split())


def _share(asked: set[str], wanted: str) -> float:
    words = _words(wanted)
    return sum(word in asked for word in words) / len(words) if words else 0.0
