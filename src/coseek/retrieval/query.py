"""Query: what one search turn asks, and what led to it.

A retriever sees it through its view (`coseek.retrieval.views`). A plain string is a query without a past; every
retriever takes both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier search of the same run."""

    query: str
    reasoning: str = ""
    """What the agent wrote in that turn in front of its query, without tags."""
    documents: tuple[str, ...] = ()
    """What that search brought, best first: `Passage.contents`."""

    def to_json(self) -> JsonObject:
        return {"query": self.query, "reasoning": self.reasoning, "documents": list(self.documents)}

    @classmethod
    def from_json(cls, row: JsonObject) -> "PastTurn":
        return cls(_text(row, "query"), _text(row, "reasoning"), tuple(_texts(row, "documents")))


@dataclass(frozen=True, slots=True)
class Query:
    """One search turn."""

    text: str
    """What the agent typed into the search."""
    question: str = ""
    """The question that the run is to answer."""
    reasoning: str = ""
    """What the agent wrote in this turn in front of the query, without tags."""
    history: tuple[PastTurn, ...] = ()
    """Earlier searches of the run, oldest first."""

    @classmethod
    def of(cls, asked: "QueryLike") -> "Query":
        return cls(asked) if isinstance(asked, str) else asked

    def to_json(self) -> JsonObject:
        return {
            "text": self.text,
            "question": self.question,
            "reasoning": self.reasoning,
            "history": [turn.to_json() for turn in self.history],
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> "Query":
        """Read what `to_json` wrote; what is not there is empty, and a value of another type is a `DataError`."""
        history = row.get("history") or []
        if not isinstance(history, list) or not all(isinstance(turn, dict) for turn in history):
            raise DataError(f'the "history" of a query is a list of objects, not {history!r}')
        return cls(
            text=_text(row, "text"),
            question=_text(row, "question"),
            reasoning=_text(row, "reasoning"),
            history=tuple(PastTurn.from_json(turn) for turn in cast(list[JsonObject], history)),
        )


QueryLike: TypeAlias = str | Query
"""What a retriever may be asked."""


def as_queries(queries: QueryLike | Sequence[QueryLike], k: int) -> list[QueryLike]:
    """Check the arguments of `Retriever.search`, and return the Q queries as a list. Every `search` begins with it.

    A bare text or `Query` is one query, never a sequence of characters: Q is then 1, and the result of the search still
    a list of Q lists. Raises `SettingError` for what is no query, `ValueError` for a `k` below 1.
    """
    check_k(k)
    found = [queries] if isinstance(queries, str | Query) else queries
    if not isinstance(found, Sequence):
        raise SettingError(f"queries are one text, one Query or a list of them, not {queries!r}; write search([…], k)")
    for query in found:
        if not isinstance(query, str | Query):
            raise SettingError(f"a query is a text or a Query, not {query!r}; write search([…], k) with texts inside")
    return list(found)


def check_k(k: int) -> None:
    """Refuse a depth below 1. A bug in the caller and not a user's mistake, hence a `ValueError`."""
    if k < 1:
        raise ValueError(f"k counts the passages of a search and must be at least 1, not {k}")


def _text(row: JsonObject, name: str) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise DataError(f"the {name!r} of a query is a text, not {value!r}")
    return value or ""


def _texts(row: JsonObject, name: str) -> list[str]:
    values = row.get(name)
    if values is not None and not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
        raise DataError(f"the {name!r} of a query are texts, not {values!r}")
    return cast(list[str], values or [])
