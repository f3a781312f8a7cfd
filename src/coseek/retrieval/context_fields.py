"""Context fields: the parts of a query's context that a retriever reads. What it does not read need not be sent."""

from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal, TypeAlias, cast, get_args

from coseek.core.files import Json, JsonObject
from coseek.retrieval.query import PastTurn, Query, QueryLike

Past: TypeAlias = Literal["", "queries", "reasonings", "documents"]
"""What is read of past turns: nothing; queries; also reasonings; also documents."""
_PAST: tuple[Past, ...] = get_args(Past)


@dataclass(frozen=True, slots=True)
class ContextFields:
    """The fields that are read. The text of the query itself always is."""

    question: bool = False
    reasoning: bool = False
    """The reasoning of the current turn."""
    past: Past = ""
    turns: int | None = None
    """The number of latest turns that are read, the current one included; `None` for all."""

    def __or__(self, other: "ContextFields") -> "ContextFields":
        """The fields that either reads."""
        turns = [one.turns for one in (self, other) if one.past]
        return ContextFields(
            self.question or other.question,
            self.reasoning or other.reasoning,
            max(self.past, other.past, key=_PAST.index),
            None if None in turns else max(cast(list[int], turns), default=None),
        )

    def of(self, query: QueryLike) -> Query:
        """The query without the fields that are not read."""
        asked = Query.of(query)
        level = _PAST.index(self.past)
        history = tuple(
            PastTurn(
                search.query,
                search.reasoning if level > 1 else "",
                search.documents if level > 2 else (),
                search.same_turn,
            )
            for search in chain.from_iterable(asked.past_turns(self.turns) if level else ())
        )
        return Query(
            asked.text, asked.question if self.question else "", asked.reasoning if self.reasoning else "", history
        )

    def to_json(self) -> JsonObject:
        return {"question": self.question, "reasoning": self.reasoning, "past": self.past, "turns": self.turns}

    @classmethod
    def from_json(cls, row: Json) -> "ContextFields":
        """Read what `to_json` wrote; anything else, such as the answer of an older server, means everything."""
        if not isinstance(row, dict) or row.get("past") not in _PAST:
            return EVERYTHING
        turns = row.get("turns")
        latest = turns if isinstance(turns, int) and turns > 0 else None
        return cls(row.get("question") is not False, row.get("reasoning") is not False, cast(Past, row["past"]), latest)


EVERYTHING = ContextFields(question=True, reasoning=True, past="documents")


def fitted(query: Query, max_chars: int) -> Query:
    """The query with at most `max_chars` characters of context, where dropping documents and past turns is enough.

    They are dropped whole, in the order in which views truncate: documents, oldest turn first and last document first,
    then past turns, oldest first. So a retriever whose view is truncated further sees the same text.
    """
    excess = query.context_chars - max_chars
    turns = query.past_turns()
    for turn in turns:
        for place, search in reversed([*enumerate(turn)]):
            documents = list(search.documents)
            while excess > 0 and documents:
                excess -= len(documents.pop())
            turn[place] = replace(search, documents=tuple(documents))
    while excess > 0 and turns:
        excess -= sum(len(search.query) + len(search.reasoning) for search in turns.pop(0))
    return replace(query, history=tuple(chain.from_iterable(turns)))
