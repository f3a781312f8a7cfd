"""Rerank: reorders the candidates of any retriever with a cross-encoder.

Importing this module imports neither torch nor sentence-transformers. Nothing is downloaded.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from pydantic import Field

from coseek.core.errors import DataError, IndexMismatch, RetrieverError, SettingError
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.data.passage import Hit
from coseek.hardware.placement import Placement, Use
from coseek.models.model_folder import library_reads, missing
from coseek.retrieval.factory import OpenContext, require_library
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import LayeredRetriever, Retriever
from coseek.retrieval.vectors.embedding_retriever import passage_text
from coseek.retrieval.vectors.encoder import architecture, check_tokens, remote_code_asked, trained_card
from coseek.retrieval.views import View, render_view

if TYPE_CHECKING:
    import sentence_transformers


QUERY_TOKENS = 256
"""Tokens of a query where neither the settings nor a training set them."""


@dataclass(frozen=True, slots=True)
class CrossEncoder:
    """A loaded cross-encoder."""

    model: "sentence_transformers.CrossEncoder"
    folder: Path

    @classmethod
    def open(
        cls, folder: Path, placement: Placement, max_tokens: int | None = None, *, trust: bool = False
    ) -> "CrossEncoder":
        """Load a folder onto its device. Pairs are truncated to `max_tokens`, by default the folder's own.
        Raises `DataError` for a folder that is missing, unreadable or incomplete, or has several outputs per pair."""
        check_folder(folder)
        require_library("sentence_transformers", "a cross-encoder", "dense")
        import sentence_transformers

        from coseek.models.pretrained import DTYPES, check_whole, kernel_of, listed, quiet, recorded_loads

        device = str(placement.torch_device())
        kwargs = {"dtype": DTYPES[placement.precision_at()], "attn_implementation": kernel_of(placement)}
        with library_reads(folder, "cross-encoder"), recorded_loads() as loads, quiet(), remote_code_asked(folder):
            model = sentence_transformers.CrossEncoder(
                str(folder), device=device, local_files_only=True, model_kwargs=kwargs, trust_remote_code=trust
            )
        trunks = [(load, f"{load.model.base_model_prefix}.") for load in loads]
        if head := [name for load, trunk in trunks for name in load.missing if not name.startswith(trunk)]:
            raise DataError(f"{folder} has no weights for its score ({listed(head)}); it is not a cross-encoder")
        check_whole(folder, loads)
        if model.num_labels != 1:
            raise DataError(f"{folder} has {model.num_labels} outputs per pair; a reranker needs exactly one")
        if max_tokens is not None:
            model.max_seq_length = max_tokens
        return cls(model, folder)

    @property
    def separator(self) -> str:
        """The separator token between the fields of a query."""
        return self.model.tokenizer.sep_token or "[SEP]"

    def count(self, text: str) -> int:
        """The number of tokens in a text, without special tokens."""
        return len(self.model.tokenizer.tokenize(text))

    def render(self, view: View, query: QueryLike, limit: int) -> str:
        """The text of a search turn: its view, truncated to `limit` tokens, but never the query itself."""
        return render_view(view, query, separator=self.separator, limit=limit, count=self.count)

    def pairs(self, query: str, passages: Sequence[str]) -> list[tuple[str, str]]:
        """The model's inputs: the query with each passage. Special tokens in them become ordinary characters, except
        the separator in a query, which is from the view."""
        specials = [token for token in self.model.tokenizer.all_special_tokens if token]
        query = _neutralise(query, [token for token in specials if token != self.separator])
        return [(query, _neutralise(passage, specials)) for passage in passages]

    def scores(self, query: str, passages: Sequence[str], batch_size: int) -> list[float]:
        """One score per passage, after the activation function that the folder names; higher is better. A score that
        is not finite is a `RetrieverError`."""
        if not passages:
            return []
        pairs = self.pairs(query, passages)
        scores = self.model.predict(pairs, batch_size=batch_size, show_progress_bar=False, convert_to_numpy=True)
        if not np.isfinite(scores).all():
            raise RetrieverError(f"the cross-encoder {self.folder} returned a score that is not finite")
        return [float(score) for score in scores]


def check_folder(folder: Path) -> None:
    """Raise `DataError` unless this is a model folder, and for a language model, whose score sentence-transformers
    would guess. Needs no torch."""
    if not folder.is_dir():
        raise DataError(missing("cross-encoder folder", folder))
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} is not a cross-encoder folder: it has no config.json")
    kind = architecture(folder)
    if kind.endswith("ForCausalLM") and not (folder / "modules.json").is_file():
        raise DataError(
            f"{folder} holds a language model ({kind}) and no cross-encoder; let it rank as the model of a `pointwise` "
            "or `listwise` retriever (docs/reference/retrievers.md)"
        )


def _neutralise(text: str, tokens: Sequence[str]) -> str:
    for token in tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


class RerankSettings(Placement):
    """The retriever of the candidates, and the cross-encoder with its placement."""

    USE: ClassVar[Use] = Use.ENCODING

    over: str | dict[str, object]
    """The retriever of the candidates: an index folder, a URL, a YAML file, or settings."""
    model: str
    """A cross-encoder folder in the format of sentence-transformers."""
    depth: int = Field(default=50, ge=1)
    """Candidates per query, or `k` if that is more."""
    view: View | None = None
    """The view of a search turn for the cross-encoder: that of its training, or `query`. Candidates are found with the
    other retriever's view."""
    trust_remote_code: bool = False
    """Run the Python code in the model's folder, for models that are no architecture of transformers."""
    max_tokens: int | None = Field(default=None, ge=8)
    """A pair of query and passage is truncated to this many tokens; the folder's own limit if not set."""
    query_tokens: int | None = Field(default=None, ge=1)
    """The view is truncated to this many tokens, but never the query itself: those of the training, or 256."""
    batch_size: int = Field(default=32, ge=1)
    """Pairs per forward pass. A batch holds pairs of one query, so that its scores do not depend on other queries."""


def fill_from_training(settings: RerankSettings, folder: Path) -> RerankSettings:
    """Fill view and lengths from the card of a folder that was trained here. Raises `SettingError` for another view."""
    card = trained_card(folder)
    if card is not None and card.view is not None and settings.view not in (None, card.view):
        raise SettingError(
            f"{folder} was trained with the view {card.view!r}, not {settings.view!r}; leave `view` out of the reranker"
        )
    view = settings.view or (card and card.view) or "query"
    query_tokens = settings.query_tokens or (card.query_tokens if card else QUERY_TOKENS)
    return settings.model_copy(update={"view": view, "query_tokens": query_tokens})


class Reranker(LayeredRetriever):
    """A retriever ranked by a cross-encoder, which is loaded at the first search."""

    name = "rerank"

    def __init__(self, over: Retriever, settings: RerankSettings, folder: Path) -> None:
        check_folder(folder)
        check_tokens(folder, max_tokens=settings.max_tokens)
        super().__init__(over)
        self.settings = fill_from_training(settings, folder)
        self._folder = folder
        self._fingerprint = fingerprint(folder)

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"over", "model", *Placement.model_fields})
        return digest_of(self.name, settings, self.settings.precision_at(), self._fingerprint, self.over.identity)

    def seen(self, query: QueryLike) -> str:
        """The text that the other retriever sees, and the untruncated view of the cross-encoder."""
        return json.dumps(
            [self.over.seen(query), render_view(self.settings.view or "query", query)], ensure_ascii=False
        )

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        candidates = self.over.search(queries, max(k, self.settings.depth))
        return [self._rank(query, hits)[:k] for query, hits in zip(queries, candidates, strict=True)]

    def _rank(self, query: QueryLike, hits: Sequence[Hit]) -> list[Hit]:
        if not hits:
            return []
        text = self._model.render(self.settings.view or "query", query, self.settings.query_tokens or QUERY_TOKENS)
        scores = self._model.scores(text, [passage_text(hit.passage) for hit in hits], self.settings.batch_size)
        # The sort is stable: ties keep the candidates' order.
        ranked = sorted(zip(hits, scores, strict=True), key=lambda pair: -pair[1])
        return [Hit(hit.passage, score) for hit, score in ranked]

    @cached_property
    def _model(self) -> CrossEncoder:
        if fingerprint(self._folder) != self._fingerprint:
            raise IndexMismatch(f"the cross-encoder {self._folder} has changed since it was opened; open it again")
        settings = self.settings
        return CrossEncoder.open(self._folder, settings, settings.max_tokens, trust=settings.trust_remote_code)


SETTINGS = RerankSettings


def open(settings: RerankSettings, opening: OpenContext) -> Reranker:
    """Open the other retriever; the cross-encoder is loaded at the first search."""
    return Reranker(opening.open(settings.over), settings, opening.path(settings.model))
