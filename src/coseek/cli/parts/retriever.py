"""My part: what another retriever finds, passages with a shorter text first."""

from collections.abc import Sequence

from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import Retriever


class SETTINGS(Settings):
    """What the YAML file may say."""

    over: str
    """An index folder, a URL or a YAML file."""
    depth: int = 20
    """Passages that are put in a new order."""


class ShortFirst:
    """Implements `Retriever`."""

    name = "my-part"

    def __init__(self, settings: SETTINGS, under: Retriever) -> None:
        self.depth, self.under, self.corpus = settings.depth, under, under.corpus
        # A digest of everything that hits depend on.
        self.identity = digest_of(self.name, str(settings.depth), under.identity)

    def seen(self, query: QueryLike) -> str:
        """Return the text that is searched for a query."""
        return self.under.seen(query)

    def search(self, queries: str | Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Return at most `k` hits per query, best first. Raise `RetrieverError` for a search that cannot happen."""
        queries = as_queries(queries, k)
        hits_per_query = self.under.search(queries, max(k, self.depth))
        return [
            [
                Hit(hit.passage, 1 / rank)
                for rank, hit in enumerate(sorted(hits, key=lambda hit: len(hit.passage.text))[:k], start=1)
            ]
            for hits in hits_per_query
        ]


def open(settings: SETTINGS, opening: OpenContext) -> ShortFirst:
    """Open the retriever; paths are relative to the YAML file."""
    return ShortFirst(settings, opening.open(settings.over))
