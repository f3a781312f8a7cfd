"""Query views: what a retriever sees of a search turn. A view is part of a retriever, and is kept with it."""

from collections.abc import Callable
from typing import TypeAlias

from coseek.data.errors import UnknownName
from coseek.retrieval.query import Asked, Query

Count: TypeAlias = Callable[[str], int]
"""Tokens of a text, by the tokenizer of the encoder that will read it."""

VIEWS: dict[str, Callable[[Query], str]] = {"query": lambda query: query.text}


def render(view: str, query: Asked, *, separator: str = "[SEP]", limit: int | None = None, count: Count = len) -> str:
    """The text that a retriever with this view looks up, of at most `limit` tokens; the query itself is never cut."""
    if view not in VIEWS:
        raise UnknownName("query view", view, VIEWS)
    return VIEWS[view](Query.of(query))
