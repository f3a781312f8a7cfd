"""Encoding: a corpus becomes vectors, window by window; a kill at any moment costs one window.

A window is a fixed stretch of rows. Its texts are sorted by length and encoded in batches, so that little is padded;
then all its vectors are written and noted at once. So the batches, and with them every bit, are the same wherever an
earlier attempt was stopped. `encoder.json` says which encoder it was.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np

from coseek.core.errors import DataError, IndexMismatch
from coseek.core.files import JsonObject, read_json, write_json
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import dump_settings, make_settings
from coseek.data.passage import Corpus
from coseek.retrieval.resumable_build import INDEX_CARD, Report, empty
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, QueryEncoder, passage_text
from coseek.retrieval.vectors.encoder import Encoder, Vectors, encoder_folder, is_shipped
from coseek.retrieval.vectors.encoder_card import MOST_TOKENS, EncoderCard
from coseek.retrieval.vectors.store import VectorStore, VectorWriter

NOTE = "encoder.json"
WINDOW_BATCHES = 32
"""Batches a window: with 64 passages each, 2,048 rows, which MiniLM on two cores encodes in about ten seconds."""


def encode_corpus(corpus: Corpus, settings: EmbeddingSettings, folder: Path, report: Report) -> VectorStore:
    """Encode the corpus into `folder`, going on where an earlier attempt was stopped. The settings are `settled`."""
    source = encoder_folder(settings.encoder)
    encoder = Encoder.open(source, settings.device, settings.encoder_dtype)
    side = PassageEncoder(encoder, settings, EncoderCard.of(source).normalise)
    dim = side.encode([""]).shape[1]
    writer = VectorWriter(folder, len(corpus), dim, settings.dtype)
    window = settings.batch_size * WINDOW_BATCHES
    total = len(corpus)
    report("passages encoded", writer.written, total)
    while writer.written < total:
        start = writer.written
        texts = [passage_text(passage) for passage in corpus[start : start + window]]
        vectors_WD = np.empty((len(texts), dim), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        for at in range(0, len(order), settings.batch_size):
            batch = order[at : at + settings.batch_size]
            vectors_WD[batch] = side.encode([texts[place] for place in batch])
            report("passages encoded", start + at + len(batch), total)
        _check_finite(vectors_WD, corpus, start, settings.encoder)
        writer.append(vectors_WD)
    return writer.finish()


class PassageEncoder:
    """The way of a passage: behind its prompt, into a vector."""

    def __init__(self, encoder: Encoder, settings: EmbeddingSettings, normalise: bool) -> None:
        self._encoder, self._settings, self._normalise = encoder, settings, normalise

    def encode(self, texts: Sequence[str]) -> Vectors:
        settings = self._settings
        prompt, tokens = settings.passage_prompt or "", settings.passage_tokens or MOST_TOKENS
        return self._encoder.encode(texts, prompt, tokens, settings.batch_size, normalise=self._normalise)


def _check_finite(vectors_WD: Vectors, corpus: Corpus, start: int, encoder: str) -> None:
    bad = np.flatnonzero(~np.isfinite(vectors_WD).all(axis=1))
    if len(bad):
        passage = corpus[start + int(bad[0])]
        raise DataError(f"the encoder {encoder} gave a vector that is not finite for the passage {passage.id!r}")


def begin(settings: EmbeddingSettings, folder: Path) -> None:
    """Write `encoder.json`. The work of another encoder, or of this one before it changed, is thrown away."""
    source = encoder_folder(settings.encoder)
    shipped = settings.encoder if is_shipped(settings.encoder) else None
    note: JsonObject = {
        "shipped": shipped,
        # `folder` is a neighbour of the index that it will become, so the relative path holds there, too.
        "path": None if shipped else os.path.relpath(source.resolve(), folder.resolve()),
        "card": dump_settings(EncoderCard.of(source)),
        "fingerprint": fingerprint(source),
    }
    if not (folder / NOTE).is_file() or read_json(folder / NOTE) != note:
        empty(folder, keep=INDEX_CARD)
        write_json(folder / NOTE, note)


def open_encoder(folder: Path, settings: EmbeddingSettings) -> QueryEncoder:
    """The encoder of an index, for queries; one that has changed since is refused with what differs."""
    note = cast(JsonObject, read_json(folder / NOTE))
    name = str(note["shipped"] or os.path.normpath(folder.resolve() / str(note["path"])))
    source = encoder_folder(name)
    then = make_settings(EncoderCard, cast(dict[str, object], note["card"]))
    now = EncoderCard.of(source)
    difference = now.difference(then)
    if difference is None and fingerprint(source) != note["fingerprint"]:
        difference = "other weights or files"
    if difference is not None:
        raise IndexMismatch(
            f"{folder} was made with another version of the encoder {name}, which now has {difference}; "
            "make it anew with `coseek index`"
        )
    return QueryEncoder(settings, source, now)
