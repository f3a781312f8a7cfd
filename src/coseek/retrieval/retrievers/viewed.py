"""Viewed: searches the text that a query view makes of the whole query, over any retriever.

An encoder that was trained with a view has it in its index. This one is for a retriever that reads the query alone:
BM25, a server, a web search.
"""

from collections.abc import Sequence

from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import LayeredRetriever, Retriever
from coseek.retrieval.views import View, render_view


class ViewedSettings(Settings):
    """The retriever, and the view of its queries."""

    over: str | dict[str, object]
    """The retriever that is searched: an index folder, a URL, a YAML file, or settings."""
    view: View
    """A query view by name, or the path of a Python file."""
    bare: bool = True
    """Leave out the view's labels and separators, which are words to BM25."""


class ViewedRetriever(LayeredRetriever):
    """Searches another retriever with the text of a view."""

    name = "viewed"

    def __init__(self, over: Retriever, settings: ViewedSettings) -> None:
        super().__init__(over)
        self.settings = settings

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.view, str(self.settings.bare), self.over.identity)

    def seen(self, query: QueryLike) -> str:
        return self.over.seen(render_view(self.settings.view, query, bare=self.settings.bare))

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        return self.over.search([render_view(self.settings.view, one, bare=self.settings.bare) for one in queries], k)


SETTINGS = ViewedSettings


def open(settings: ViewedSettings, opening: OpenContext) -> ViewedRetriever:
    """Open the other retriever."""
    return ViewedRetriever(opening.open(settings.over), settings)
