"""Rerank: the candidates of any retriever, put in order by a cross-encoder.

retriever: rerank
over: indexes/bm25
model: models/reranker
depth: 50
"""

import json
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from coseek.core.errors import IndexMismatch
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.cross_encoder import CrossEncoder, check_folder
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import View, render_view


class RerankSettings(Settings):
    """Whose candidates, and who orders them."""

    over: str | dict[str, object]
    """The retriever whose candidates are reranked: an index folder, a URL, a YAML file, or settings."""
    model: str
    """A cross-encoder folder, as sentence-transformers reads it."""
    depth: int = Field(default=50, ge=1)
    """Candidates that are reranked a query, or `k` where that is more."""
    view: View = "query"
    """What the cross-encoder is shown of a search turn; the candidates are found by the other retriever's own view."""
    max_tokens: int | None = Field(default=None, ge=8)
    """A query and a passage together are cut to this many tokens; the folder's own length when not set."""
    query_tokens: int = Field(default=256, ge=1)
    """The view is cut to this many tokens, never the query itself."""
    batch_size: int = Field(default=32, ge=1)
    """Pairs read in one forward pass. Batches hold pairs of one query only, so a query's scores are its own."""
    device: str = "cpu"
    """Where the cross-encoder runs."""


class Rerank:
    """A retriever whose order is a cross-encoder's. Opening it does not load the model: the first search does."""

    name = "rerank"

    def __init__(self, over: Retriever, settings: RerankSettings, folder: Path) -> None:
        check_folder(folder)
        self.over = over
        self.settings = settings
        self._folder = folder
        self._fingerprint = fingerprint(folder)
        self._model: CrossEncoder | None = None

    @property
    def corpus(self) -> Corpus | None:
        return self.over.corpus

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"over", "model"})
        return digest_of(self.name, settings, self._fingerprint, self.over.identity)

    def seen(self, query: QueryLike) -> str:
        """What the other retriever sees, and what the cross-encoder is shown before it is cut."""
        return json.dumps([self.over.seen(query), render_view(self.settings.view, query)], ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        candidates = self.over.search(queries, max(k, self.settings.depth))
        return [self._order(query, hits)[:k] for query, hits in zip(queries, candidates, strict=True)]

    def _order(self, query: QueryLike, hits: Sequence[Hit]) -> list[Hit]:
        if not hits:
            return []
        model = self._open()
        shown = render_view(
            self.settings.view,
            query,
            separator=model.separator,
            limit=self.settings.query_tokens,
            count=model.count,
        )
        scores = model.scores(shown, [_text(hit.passage) for hit in hits], self.settings.batch_size)
        # A stable sort: equal scores keep the candidates' order.
        ranked = sorted(zip(hits, scores, strict=True), key=lambda pair: -pair[1])
        return [Hit(hit.passage, score) for hit, score in ranked]

    def _open(self) -> CrossEncoder:
        if self._model is None:
            if fingerprint(self._folder) != self._fingerprint:
                raise IndexMismatch(f"the cross-encoder {self._folder} has changed since it was opened; open it again")
            self._model = CrossEncoder.open(self._folder, self.settings.device, self.settings.max_tokens)
        return self._model


def _text(passage: Passage) -> str:
    return f"{passage.title} {passage.text}".strip()


SETTINGS = RerankSettings


def open(settings: RerankSettings, opening: OpenContext) -> Rerank:
    """Open the retriever underneath; the cross-encoder waits for the first search."""
    return Rerank(opening.open(settings.over), settings, opening.path(settings.model))
