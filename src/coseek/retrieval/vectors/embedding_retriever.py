"""Embedding retriever: the settings, query encoding and search that all retrievers over text vectors share.

`dense`, `hnsw` and `ivf-pq` differ only in the nearest-neighbour search (`Nearest`).
"""

from collections.abc import Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Literal, Protocol, TypeVar

import numpy as np
from pydantic import Field, field_validator

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import read_json_object
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.data.passage import Corpus, Hit, Passage
from coseek.hardware.device import AUTO, all_devices
from coseek.hardware.placement import DevicePlacement, Placement, Use, resolve_here
from coseek.models.model_folder import library_reads
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries
from coseek.retrieval.vectors.encoder import (
    MOST_TOKENS,
    Encoder,
    EncoderCard,
    Vectors,
    check_prompts,
    check_retriever_of,
    check_tokens,
    encoder_folder,
)
from coseek.retrieval.vectors.store import Rows
from coseek.retrieval.views import View, find_view, render_view


class EmbeddingSettings(Placement):
    """The encoder, its input and its placement. `None` means the value of the encoder's card. bfloat16 changes scores
    in the third digit, and an index keeps the precision it was built with. Exact search runs on the same device."""

    USE: ClassVar[Use] = Use.ENCODING
    SEARCH_TIME: ClassVar = frozenset({"queries_together", "trust_remote_code", *Placement.model_fields})
    """Settings that may be overridden when an index is opened."""

    encoder: str = "minilm"
    """A sentence-transformers folder, or a shipped encoder (`base`, `minilm`)."""
    view: View | None = None
    """The view of a search turn that is encoded."""
    query_prompt: str | None = None
    """Prefix of each query, e.g. `query: ` for E5."""
    passage_prompt: str | None = None
    """Prefix of each passage, e.g. `passage: ` for E5."""
    query_tokens: int | None = Field(default=None, ge=1)
    """Queries are truncated to this many tokens, prompt included."""
    passage_tokens: int | None = Field(default=None, ge=1)
    """Passages (title and text) are truncated to this many tokens, prompt included."""
    dtype: Literal["float32", "float16"] = "float32"
    """Number type of the stored vectors. float16 halves the disk space and changes scores in the fourth digit."""
    batch_size: int = Field(default=64, ge=1)
    """Passages per forward pass."""
    queries_together: int = Field(default=1, ge=1)
    """Queries per forward pass. With 1, the hits of a query do not depend on its batch to the last bit. More is faster
    (servers raise it), and scores may differ in the seventh digit between batches."""
    devices: list[str] = Field(default=[], exclude=True)
    """Several devices of one kind, such as `[cuda:0, cuda:1]` or `[cpu, cpu]`: each encodes a part of the corpus in a
    process of its own (on a CPU with one thread), and holds a part of the vectors in exact search. `auto`: all
    accelerators of this machine. The vectors and the hits do not depend on their number. Not stored with an index."""
    cluster: str | None = Field(default=None, exclude=True)
    """A Ray cluster in place of `devices`: its processes encode the corpus (on a CPU with one thread), and each node
    holds a part of the vectors in exact search. `local`, `auto` or `ray://HOST:PORT`; nodes see the files at the same
    paths. Not stored with an index."""
    vectors: str | None = Field(default=None, exclude=True)
    """A published faiss file with the vectors of the corpus, in its order (`e5_Flat.index`; for hnsw also a graph,
    which is taken as it is). It is read instead of encoding the corpus, after a sample was encoded again. Not stored
    with an index, which is like one that is encoded here; with quoted titles, as in Search-R1, it has no update."""
    trust_remote_code: bool = Field(default=False, exclude=True)
    """Run the Python code in the encoder's folder, for encoders that are no architecture of transformers. Not stored
    with an index: whoever opens it says so again."""

    @field_validator("devices", mode="before")
    @classmethod
    def _as_list(cls, value: object) -> object:
        return [value] if value == AUTO else value

    @property
    def query_input(self) -> tuple[str, int]:
        """The prompt of queries, and their length in tokens."""
        return self.query_prompt or "", self.query_tokens or MOST_TOKENS

    @property
    def passage_input(self) -> tuple[str, int]:
        """The prompt of passages, and their length in tokens."""
        return self.passage_prompt or "", self.passage_tokens or MOST_TOKENS

    @property
    def spread(self) -> list[str]:
        """`devices`, with `auto` resolved."""
        return all_devices() if self.devices == [AUTO] else self.devices


E = TypeVar("E", bound=EmbeddingSettings)


def fill_from_card(settings: E, *retrievers: str) -> E:
    """Fill every `None` from the encoder's card. Raises `SettingError` for a view that contradicts it or too many
    tokens, `DataError` for a prompt that the folder leaves open or an encoder for none of `retrievers` (`dense`)."""
    folder = encoder_folder(settings.encoder)
    card = EncoderCard.of(folder)
    check_retriever_of(folder, *(retrievers or ("dense",)))
    check_prompts(folder, {"query_prompt": settings.query_prompt, "passage_prompt": settings.passage_prompt})
    check_tokens(folder, query_tokens=settings.query_tokens, passage_tokens=settings.passage_tokens)
    if card.view is not None and settings.view not in (None, card.view):
        raise SettingError(
            f"the encoder {settings.encoder} was trained with the view {card.view!r}, not {settings.view!r}; "
            "leave `view` out"
        )
    values = {"view": settings.view or card.view or "query"}
    for name in ("query_prompt", "passage_prompt", "query_tokens", "passage_tokens"):
        values[name] = getattr(card, name) if (value := getattr(settings, name)) is None else value
    return resolve_here(settings.model_copy(update=values))


def view_renderer(folder: Path, prompt: str, max_tokens: int) -> "partial[str]":
    """`render_view` with the separator, token limit and token counter of an encoder's folder. Needs no torch."""
    from tokenizers import Tokenizer

    with library_reads(folder, "tokenizer"):
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    overhead = count(prompt) + tokenizer.num_special_tokens_to_add(is_pair=False)
    return partial(render_view, separator=_separator(folder), limit=max(1, max_tokens - overhead), count=count)


def _separator(folder: Path) -> str:
    """The tokenizer's separator; `[SEP]` if it has none."""
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        config = read_json_object(folder / name, foreign=True) if (folder / name).is_file() else {}
        token = config.get("sep_token")
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str) and text:
            return text
    return "[SEP]"


class QueryEncoder:
    """Encodes queries: view, then prompt, then encoder. The encoder is loaded at the first call."""

    def __init__(self, settings: EmbeddingSettings, folder: Path, card: EncoderCard) -> None:
        self.settings = settings
        self._folder = folder
        self._card = card

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint(self._folder)

    @cached_property
    def _render(self) -> "partial[str]":
        return view_renderer(self._folder, *self.settings.query_input)

    def seen(self, query: QueryLike) -> str:
        """The text to encode; empty for a blank query. A query without context is its own question, as in the first
        search of a question: views are trained with questions."""
        query, view = Query(query, query) if isinstance(query, str) else query, self.settings.view or "query"
        if not query.text.strip():
            return ""
        if view == "query":
            return query.text  # this view never truncates, so the tokenizer is not needed
        return self._render(view, query)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Encode texts to float32 vectors, Q × D (Q × T × D of T tokens, then zeros). A vector that is not finite is a
        `RetrieverError`."""
        vectors = self._vectors(texts)
        for index in np.flatnonzero(~np.isfinite(vectors).reshape(len(vectors), -1).all(axis=1)).tolist():
            raise RetrieverError(
                f"the encoder {self.settings.encoder} gave a vector that is not finite for {texts[index]!r}"
            )
        return vectors

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder.open(self._folder, self.settings, trust=self.settings.trust_remote_code)

    def _vectors(self, texts: Sequence[str]) -> Vectors:
        query_input, batch_size = self.settings.query_input, self.settings.queries_together
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))  # reduces padding
        vectors = []
        for start in range(0, len(texts), batch_size):
            batch = [texts[index] for index in order[start : start + batch_size]]
            vectors.append(self._encoder.encode(batch, *query_input, batch_size, normalise=self._card.normalise))
        return np.concatenate(vectors)[np.argsort(order)]


class Nearest(Protocol):
    """Nearest-neighbour search. Returns rows and scores, Q × at most `k`, best first; negative rows are empty."""

    def search(self, queries_QD: Vectors, k: int) -> tuple[Rows, Vectors]: ...


class EmbeddingRetriever:
    """A retriever over the vectors of a corpus. The encoder is loaded at the first search."""

    def __init__(
        self, name: str, corpus: Corpus, settings: EmbeddingSettings, queries: QueryEncoder, nearest: Nearest
    ) -> None:
        self.name = name
        self.corpus = corpus
        self.settings = settings
        self._queries = queries
        self._nearest = nearest

    @property
    def reads(self) -> ContextFields:
        return find_view(self.settings.view or "query").fields

    @cached_property
    def identity(self) -> str:
        # The encoder's fingerprint replaces its path. Where it runs changes last bits alone.
        settings = self.settings.model_dump_json(exclude={"encoder", *DevicePlacement.model_fields})
        return digest_of(self.name, self.corpus.digest, settings, self._queries.fingerprint)

    def seen(self, query: QueryLike) -> str:
        return self._queries.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The `k` nearest passages per query; none for a blank query."""
        queries = as_queries(queries, k)
        lists: list[list[Hit]] = [[] for _ in queries]
        texts = [self.seen(query) for query in queries]
        nonblank = [index for index, text in enumerate(texts) if text]
        if nonblank:
            vectors_QD = self._queries.encode([texts[index] for index in nonblank])
            rows_QK, scores_QK = self._nearest.search(vectors_QD, min(k, len(self.corpus)))
            for index, rows, scores in zip(nonblank, rows_QK.tolist(), scores_QK.tolist(), strict=True):
                pairs = zip(rows, scores, strict=True)
                lists[index] = [Hit(self.corpus[row], score) for row, score in pairs if row >= 0]
        return lists


def in_order(rows_QK: Rows, scores_QK: Vectors) -> tuple[Rows, Vectors]:
    """Sort each query's rows by descending score, then by row; negative rows go last."""
    keys_QK = np.where(rows_QK < 0, -np.inf, scores_QK)
    order_QK = np.lexsort((rows_QK, -keys_QK), axis=1)
    return np.take_along_axis(rows_QK, order_QK, axis=1), np.take_along_axis(scores_QK, order_QK, axis=1)


def passage_text(passage: Passage) -> str:
    """The text of a passage that is encoded."""
    return f"{passage.title} {passage.text}".strip()
