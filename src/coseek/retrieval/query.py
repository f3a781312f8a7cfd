"""Query: the text of one search turn, with the question, the reasoning and the earlier turns that led to it.

A retriever renders it through its view (`coseek.retrieval.views`). A plain string is a query without context; every
retriever takes both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject


@dataclass(frozen=True, slots=True)
class PastTurn:
    """An earlier search of the same episode."""

    query: str
    reasoning: str = ""
    """The agent's text before the query in that turn, without tags."""
    documents: tuple[str, ...] = ()
    """The passages that the search returned, best first: `Passage.contents`."""
    same_turn: bool = False
    """Whether the turn of the search before it made this one, too. In rows that are older than this field every search
    is a turn."""

    def to_json(self) -> JsonObject:
        row: JsonObject = {"query": self.query, "reasoning": self.reasoning, "documents": list(self.documents)}
        return {**row, "same_turn": True} if self.same_turn else row

    @classmethod
    def from_json(cls, row: JsonObject) -> "PastTurn":
        documents = tuple(_texts(row, "documents"))
        return cls(_text(row, "query"), _text(row, "reasoning"), documents, _flag(row, "same_turn"))


@dataclass(frozen=True, slots=True)
class Query:
    """One search turn."""

    text: str
    question: str = ""
    reasoning: str = ""
    """The agent's text before the query in this turn, without tags."""
    history: tuple[PastTurn, ...] = ()
    """The searches of earlier turns, oldest first."""

    @classmethod
    def of(cls, asked: "QueryLike") -> "Query":
        return cls(asked) if isinstance(asked, str) else asked

    def past_turns(self, latest: int | None = None) -> list[list[PastTurn]]:
        """`history` by turn, since a turn may make several searches; with `latest`, of that many latest turns, the
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
        past = sum(len(turn.query) + len(turn.reasoning) + sum(map(len, turn.documents)) for turn in self.history)
        return len(self.question) + len(self.reasoning) + past

    def to_json(self) -> JsonObject:
        return {
            "text": self.text,
            "question": self.question,
            "reasoning": self.reasoning,
            "history": [turn.to_json() for turn in self.history],
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> "Query":
        """Read what `to_json` wrote. Missing fields are empty; a value of another type is a `DataError`."""
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
"""The argument types that a retriever's `search` accepts."""


def check_k(k: int) -> None:
    """Raise `ValueError`, the caller's bug, unless the number of hits per query is at least 1."""
    if k < 1:
        raise ValueError(f"k counts the passages of a search and must be at least 1, not {k}")


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


def _text(row: JsonObject, name: str) -> str:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise DataError(f"the {name!r} of a query is a text, not {value!r}")
    return value or ""


def _flag(row: JsonObject, name: str) -> bool:
    value = row.get(name)
    if value is not None and not isinstance(value, bool):
        raise DataError(f"the {name!r} of a query is true or false, not {value!r}")
    return bool(value)


def _texts(row: JsonObject, name: str) -> list[str]:
    values = row.get(name)
    if values is not None and not (isinstance(values, list) and all(isinstance(value, str) for value in values)):
        raise DataError(f"the {name!r} of a query are texts, not {values!r}")
    return cast(list[str], values or [])
