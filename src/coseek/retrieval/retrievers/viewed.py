"""Viewed: renders each query with a query view, then searches the text with any retriever.

For retrievers that read the query alone: BM25, a server, a web search. An encoder that was trained with a view has it
in its index.
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
    """Omit the view's labels and separators, which are words to BM25."""


class ViewedRetriever(LayeredRetriever):
    """Searches another retriever with the text of a view."""

    name = "viewed"
    keeps_scores = True

    def __init__(self, over: Retriever, settings: ViewedSettings) -> None:
        super().__init__(over)
        self.settings = settings

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.view, str(self.settings.bare), self.over.identity)

    def seen(self, query: QueryLike) -> str:
        return self.over.seen(self._render(query))

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        return self.over.search([self._render(query) for query in queries], k)

    def _render(self, query: QueryLike) -> str:
        return render_view(self.settings.view, query, bare=self.settings.bare)


SETTINGS = ViewedSettings


def open(settings: ViewedSettings, opening: OpenContext) -> ViewedRetriever:
    """Open the other retriever."""
    return ViewedRetriever(opening.open(settings.over), settings)
