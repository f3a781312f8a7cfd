"""Embedding: what all retrievers over vectors of text share: their settings, the way of a query, the way to hits.

`dense`, `hnsw` and `ivf-pq` differ only in how they find the nearest vectors (`Nearest`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import JsonObject, read_json
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.hardware.precision import EncodingPrecision
from coseek.hardware.speed import resolve_here
from coseek.retrieval.query import Query, QueryLike, as_queries
from coseek.retrieval.vectors.encoder import Encoder, Vectors, encoder_folder
from coseek.retrieval.vectors.encoder_card import MOST_TOKENS, EncoderCard
from coseek.retrieval.views import View, render_view

Rows: TypeAlias = NDArray[np.int64]


class EmbeddingSettings(Settings):
    """Which encoder, and what it is shown. `None` means: as the encoder's card says."""

    encoder: str = "minilm"
    """A sentence-transformers folder, or the name of an encoder that a package ships."""
    view: View | None = None
    """What it sees of a search turn."""
    query_prompt: str | None = None
    """Written before each query, e.g. `query: ` for E5."""
    passage_prompt: str | None = None
    """Written before each passage, e.g. `passage: ` for E5."""
    query_tokens: int | None = Field(default=None, ge=1)
    """Queries are cut to so many tokens, prompt included."""
    passage_tokens: int | None = Field(default=None, ge=1)
    """Passages (title and text) are cut to so many tokens, prompt included."""
    dtype: Literal["float32", "float16"] = "float32"
    """How the passages' vectors are kept: float16 takes half the disk, and moves scores in the fourth digit."""
    encoder_dtype: EncodingPrecision = "float32"
    """How the encoder computes. `auto` takes bfloat16 where that is clearly faster (`coseek doctor` says whether). It
    moves scores in the third digit; an index keeps what it was made with."""
    batch_size: int = Field(default=64, ge=1)
    """Passages encoded in one forward pass."""
    queries_together: int = Field(default=1, ge=1)
    """Queries encoded in one forward pass. 1 makes the hits of a query independent of its batch to the last bit; more
    is faster (servers raise it), and scores may then differ in the seventh digit from batch to batch."""
    device: str = "auto"
    """Where the encoder and exact search run: `cpu`, `cuda`, `cuda:1` …; `auto` is the GPU when there is one."""


EMBEDDING_SEARCH_TIME = frozenset({"queries_together", "device", "encoder_dtype"})
"""Settings that every retriever over vectors lets an index be opened with."""

E = TypeVar("E", bound=EmbeddingSettings)


def settled(settings: E) -> E:
    """The settings with every `None` filled in from the encoder's card; a view it was not trained with is refused."""
    card = EncoderCard.of(encoder_folder(settings.encoder))
    if card.view is not None and settings.view not in (None, card.view):
        raise SettingError(
            f"the encoder {settings.encoder} was trained with the view {card.view!r}, not {settings.view!r}; "
            "leave `view` out"
        )
    names = ("query_prompt", "passage_prompt", "query_tokens", "passage_tokens")
    filled = {name: getattr(card, name) for name in names if getattr(settings, name) is None}
    whole = settings.model_copy(update={**filled, "view": settings.view or card.view or "query"})
    return resolve_here(whole, device=None if settings.device == "auto" else settings.device)


@dataclass(frozen=True, slots=True)
class Reader:
    """How an encoder's tokenizer sees a query: what parts its fields, how many tokens there is room for."""

    separator: str
    limit: int
    count: Callable[[str], int]

    @classmethod
    def of(cls, folder: Path, prompt: str, max_tokens: int) -> "Reader":
        """Read `tokenizer.json`, without torch."""
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()

        def count(text: str) -> int:
            return len(tokenizer.encode(text, add_special_tokens=False).ids)

        used = count(prompt) + tokenizer.num_special_tokens_to_add(is_pair=False)
        return cls(_separator(folder), max(1, max_tokens - used), count)


def _separator(folder: Path) -> str:
    """The tokenizer's own separator; `[SEP]` as plain text for one that has none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        token = cast(JsonObject, read_json(folder / name)).get("sep_token") if (folder / name).is_file() else None
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text:
            return text
    return "[SEP]"


class QueryEncoder:
    """The way of a query: through its view, behind its prompt, into a vector. The encoder is loaded when first used."""

    def __init__(self, settings: EmbeddingSettings, folder: Path, card: EncoderCard) -> None:
        self.settings = settings
        self._folder = folder
        self._card = card
        self._encoder: Encoder | None = None

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._folder)

    @cached_property
    def _reader(self) -> Reader:
        return Reader.of(self._folder, self.settings.query_prompt or "", self.settings.query_tokens or MOST_TOKENS)

    def seen(self, query: QueryLike) -> str:
        """The text that is encoded; nothing for a query without any character but blanks, whatever led to it."""
        asked, view = Query.of(query), self.settings.view or "query"
        if not asked.text.strip():
            return ""
        if view == "query":
            return asked.text  # never cut by a view, so the tokenizer need not be read
        reader = self._reader
        return render_view(view, asked, separator=reader.separator, limit=reader.limit, count=reader.count)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """One vector a text (Q × D)."""
        settings = self.settings
        if self._encoder is None:
            self._encoder = Encoder.open(self._folder, settings.device, settings.encoder_dtype)
        prompt, tokens = settings.query_prompt or "", settings.query_tokens or MOST_TOKENS
        together = settings.queries_together
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))  # alike in length, so padded little
        found = []
        for start in range(0, len(texts), together):
            batch = [texts[place] for place in order[start : start + together]]
            found.append(self._encoder.encode(batch, prompt, tokens, together, normalise=self._card.normalise))
        vectors_QD = np.concatenate(found)[np.argsort(order)]
        for place in np.flatnonzero(~np.isfinite(vectors_QD).all(axis=1)).tolist():
            raise RetrieverError(
                f"the encoder {settings.encoder} gave a vector that is not finite for {texts[place]!r}"
            )
        return vectors_QD


class Nearest(Protocol):
    """Finds the nearest vectors: Q × at most `k` rows and scores, best first; rows below 0 stand for nothing."""

    def search(self, queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]: ...


class EmbeddingRetriever:
    """A retriever over vectors of a corpus. Opening it does not load the encoder: the first search does."""

    name = "embedded"

    def __init__(self, corpus: Corpus, settings: EmbeddingSettings, queries: QueryEncoder, nearest: Nearest) -> None:
        self.corpus = corpus
        self.settings = settings
        self._queries = queries
        self._nearest = nearest

    @cached_property
    def identity(self) -> str:
        # The encoder's fingerprint stands for it wherever its folder is.
        settings = self.settings.model_dump_json(exclude={"encoder"})
        return digest_of(self.name, self.corpus.digest, settings, self._queries.fingerprint)

    def seen(self, query: QueryLike) -> str:
        return self._queries.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The `k` nearest passages a query; none for a query without any character but blanks."""
        queries = as_queries(queries, k)
        lists: list[list[Hit]] = [[] for _ in queries]
        texts = [self.seen(query) for query in queries]
        asked = [place for place, text in enumerate(texts) if text]
        if asked:
            vectors_QD = self._queries.encode([texts[place] for place in asked])
            rows_QK, scores_QK = self._nearest.search(vectors_QD, min(k, len(self.corpus)))
            for place, rows, scores in zip(asked, rows_QK.tolist(), scores_QK.tolist(), strict=True):
                found = zip(rows, scores, strict=True)
                lists[place] = [Hit(self.corpus[row], score) for row, score in found if row >= 0]
        return lists


def in_order(rows_QK: Rows, scores_QK: Vectors) -> tuple[Rows, Vectors]:
    """Each query's rows with falling scores, earlier rows first where scores are equal; rows below 0 come last."""
    keys_QK = np.where(rows_QK < 0, -np.inf, scores_QK)
    order_QK = np.lexsort((rows_QK, -keys_QK), axis=1)
    return np.take_along_axis(rows_QK, order_QK, axis=1), np.take_along_axis(scores_QK, order_QK, axis=1)


def passage_text(passage: Passage) -> str:
    """What an encoder reads of a passage."""
    return f"{passage.title} {passage.text}".strip()
