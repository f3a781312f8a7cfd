"""Query: the text of one search turn, with the question, the reasoning and the earlier turns that led to it.

A retriever renders it through its view (`coseek.retrieval.views`). A plain string is a query without context; every
retriever takes both.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Literal, TypeAlias, cast, get_args

from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.record import OMIT_EMPTY, Record


@dataclass(frozen=True, slots=True)
class PastTurn(Record):
    """An earlier search of the same episode."""

    query: str
    reasoning: str = ""
    """The agent's text before the query in that turn, without tags."""
    documents: tuple[str, ...] = ()
    """The passages that the search returned, best first: `Passage.contents`."""
    same_turn: Annotated[bool, OMIT_EMPTY] = False
    """Whether this search is in the same turn as the one before it. Rows older than this field have one search a
    turn."""

    @classmethod
    def _to_read(cls, row: JsonObject) -> JsonObject:
        return {"query": "", "reasoning": "", "documents": [], **_without_nulls(row)}


@dataclass(frozen=True, slots=True)
class Query(Record):
    """One search turn."""

    text: str
    question: str = ""
    reasoning: str = ""
    """The agent's text before the query in this turn, without tags."""
    history: tuple[PastTurn, ...] = ()
    """The searches of earlier turns, oldest first."""
    given: Annotated[bool, OMIT_EMPTY] = False
    """Whether the text is the output of a view (imported labels): every view returns it unchanged."""

    @classmethod
    def of(cls, query: "QueryLike") -> "Query":
        return cls(query) if isinstance(query, str) else query

    def past_turns(self, latest: int | None = None) -> list[list[PastTurn]]:
        """`history` by turn, since a turn may make several searches; with `latest`, only that many latest turns, the
        current one included."""
        turns: list[list[PastTurn]] = []
        for search in self.history:
            if search.same_turn and turns:
                turns[-1].append(search)
            else:
                turns.append([search])
        return turns if latest is None else turns[max(0, len(turns) - latest + 1) :]

    @property
    def context_chars(self) -> int:
        """Characters of everything besides the text."""
        past_chars = sum(len(turn.query) + len(turn.reasoning) + sum(map(len, turn.documents)) for turn in self.history)
        return len(self.question) + len(self.reasoning) + past_chars

    @classmethod
    def _to_read(cls, row: JsonObject) -> JsonObject:
        return {"text": "", "question": "", "reasoning": "", "history": [], **_without_nulls(row)}


QueryLike: TypeAlias = str | Query
"""The argument types that a retriever's `search` accepts."""


def as_queries(queries: QueryLike | Sequence[QueryLike], k: int) -> list[QueryLike]:
    """Check the arguments of `Retriever.search`, and return the Q queries as a list. Every `search` calls it first.

    A bare text or `Query` is one query, never a sequence of characters: Q is then 1, and the search still returns a
    list of Q lists. Raises `SettingError` for anything but queries, and for a `k` below 1.
    """
    if k < 1:
        raise SettingError(f"k counts the passages of a search and must be at least 1, not {k}")
    batch = [queries] if isinstance(queries, str | Query) else queries
    if not isinstance(batch, Sequence):
        raise SettingError(f"queries are one text, one Query or a list of them, not {queries!r}; write search([…], k)")
    for query in batch:
        if not isinstance(query, str | Query):
            raise SettingError(f"a query is a text or a Query, not {query!r}; write search([…], k) with texts inside")
    return list(batch)


def _without_nulls(row: JsonObject) -> JsonObject:
    """The fields of a client's query that are not null; the others are empty."""
    return {name: value for name, value in row.items() if value is not None}


# Context fields: the parts of a query's context that a retriever reads. A client need not send the others.

Past: TypeAlias = Literal["", "queries", "reasonings", "documents"]
"""What is read from past turns: nothing; queries; also reasonings; also documents."""
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
        turns = [fields.turns for fields in (self, other) if fields.past]
        return ContextFields(
            self.question or other.question,
            self.reasoning or other.reasoning,
            max(self.past, other.past, key=_PAST.index),
            None if None in turns else max(cast(list[int], turns), default=None),
        )

    def of(self, query: QueryLike) -> Query:
        """The query without the fields that are not read."""
        query = Query.of(query)
        level = _PAST.index(self.past)
        history = tuple(
            replace(turn, reasoning=turn.reasoning if level > 1 else "", documents=turn.documents if level > 2 else ())
            for turn in chain.from_iterable(query.past_turns(self.turns) if level else ())
        )
        question, reasoning = query.question if self.question else "", query.reasoning if self.reasoning else ""
        return Query(query.text, question, reasoning, history, query.given)

    def to_json(self) -> JsonObject:
        return {"question": self.question, "reasoning": self.reasoning, "past": self.past, "turns": self.turns}

    @classmethod
    def from_json(cls, row: Json) -> "ContextFields":
        """Parse the output of `to_json`; anything else, such as the answer of an older server, means all fields."""
        if not isinstance(row, dict) or row.get("past") not in _PAST:
            return EVERYTHING
        turns = row.get("turns")
        latest = turns if isinstance(turns, int) and turns > 0 else None
        return cls(row.get("question") is not False, row.get("reasoning") is not False, cast(Past, row["past"]), latest)


EVERYTHING = ContextFields(question=True, reasoning=True, past="documents")


def fitted(query: Query, max_chars: int) -> Query:
    """Drop documents and past turns until the context has at most `max_chars` characters, or none are left.

    They are dropped whole, in the order in which views truncate: documents, oldest turn first and last document first,
    then past turns, oldest first. So a retriever whose view is truncated further sees the same text.
    """
    excess = query.context_chars - max_chars
    turns = query.past_turns()
    for turn in turns:
        for index, search in reversed([*enumerate(turn)]):
            documents = list(search.documents)
            while excess > 0 and documents:
                excess -= len(documents.pop())
            turn[index] = replace(search, documents=tuple(documents))
    while excess > 0 and turns:
        excess -= sum(len(search.query) + len(search.reasoning) for search in turns.pop(0))
    return replace(query, history=tuple(chain.from_iterable(turns)))
