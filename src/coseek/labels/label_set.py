"""Label set: what one search turn teaches a retriever, with every score that chose it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from coseek.agents.search_turns import TurnId
from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.retrieval.query import Query

SCHEMA = 1
"""Version of the label set object in `labels.jsonl`."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that a search turn could have been shown, and what was said for or against it."""

    passage: Passage
    rank: int
    """Where the retriever had it, from 1; 0 for a passage that the maker put in (a gold passage that was not found)."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """By the scorer's name: `retriever`, `lr` (0 to 100), `gac` (0 or 1), … A score that no rule asked for is not
    there."""

    def to_json(self) -> JsonObject:
        return {**self.passage.to_json(), "rank": self.rank, "scores": dict(self.scores)}

    @classmethod
    def from_json(cls, row: JsonObject) -> "Candidate":
        scores = cast(Mapping[str, float], row["scores"])
        return cls(Passage.from_json(row), cast(int, row["rank"]), {name: float(scores[name]) for name in scores})


@dataclass(frozen=True, slots=True)
class LabelSet:
    """One positive and several negative passages for what one search turn asked, or how much weight each deserves."""

    turn: TurnId
    question: Question
    query: Query
    """What the retriever was asked; any query view is rendered from it, so labels outlive a view."""
    candidates: tuple[Candidate, ...]
    """All passages that were weighed, best first by the maker's rule."""
    positive: str
    """Id of a candidate."""
    negatives: tuple[str, ...]
    """Ids of other candidates."""
    targets: tuple[float, ...] | None = None
    """How much of the retriever's probability each candidate deserves, in their order, adding up to 1 (REPLUG); `None`
    for labels that only tell positive from negative."""
    copy: int = 0
    """Counts the label sets of one turn, for makers that give it several positives, each in a set of its own."""

    def __post_init__(self) -> None:
        idents = [candidate.passage.id for candidate in self.candidates]
        chosen = [self.positive, *self.negatives]
        if len(set(idents)) != len(idents) or len(set(chosen)) != len(chosen) or not set(chosen) <= set(idents):
            raise DataError(f"the label set of {self.turn} names a passage twice, or one that is no candidate")
        if self.targets is not None and len(self.targets) != len(idents):
            raise DataError(
                f"the label set of {self.turn} has {len(self.targets)} targets for {len(idents)} candidates"
            )

    def passage(self, ident: str) -> Passage:
        """The candidate with this id."""
        return next(candidate.passage for candidate in self.candidates if candidate.passage.id == ident)

    def to_json(self) -> JsonObject:
        row: JsonObject = {
            "schema": SCHEMA,
            "question": self.question.to_json(),
            "seed": self.turn.seed,
            "search": self.turn.search,
            "query": self.query.to_json(),
            "positive": self.positive,
            "negatives": list(self.negatives),
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }
        if self.targets is not None:
            row["targets"] = list(self.targets)
        if self.copy:
            row["copy"] = self.copy
        return row

    @classmethod
    def from_json(cls, row: JsonObject) -> "LabelSet":
        if row.get("schema") != SCHEMA:
            raise DataError(f"a label set of schema {row.get('schema')!r}; this coseek reads schema {SCHEMA}")
        question = Question.from_json(cast(JsonObject, row["question"]))
        targets = cast("list[float] | None", row.get("targets"))
        return cls(
            turn=TurnId(question.id, cast(int, row["seed"]), cast(int, row["search"])),
            question=question,
            query=Query.from_json(cast(JsonObject, row["query"])),
            candidates=tuple(Candidate.from_json(each) for each in cast(list[JsonObject], row["candidates"])),
            positive=str(row["positive"]),
            negatives=tuple(str(ident) for ident in cast(list[str], row["negatives"])),
            targets=None if targets is None else tuple(float(value) for value in targets),
            copy=cast(int, row.get("copy", 0)),
        )


@dataclass(frozen=True, slots=True)
class DroppedTurn:
    """A search turn that gives no label, and why."""

    turn: TurnId
    reason: str
    """A short name for counting, such as `no-positive` or `unreadable`."""
    detail: str = ""

    def to_json(self) -> JsonObject:
        return {**self.turn.to_json(), "reason": self.reason, "detail": self.detail}

    @classmethod
    def from_json(cls, row: JsonObject) -> "DroppedTurn":
        return cls(TurnId.from_json(row), str(row["reason"]), str(row["detail"]))
