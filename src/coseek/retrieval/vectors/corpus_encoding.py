"""Corpus encoding: encodes a corpus into vectors, window by window, here, in several processes (`devices`) or on a
`cluster`. A kill costs at most the windows that are being encoded.

A window is a fixed range of rows. Its texts are sorted by length, encoded in batches, then written and recorded
together. So the batches, and every bit of the vectors, do not depend on where an earlier build stopped. On a CPU all
texts of a batch have the same length in tokens, so that a vector does not depend on the other texts either, and an
update gives the bits of a rebuild. On a GPU, where kernels depend on the size of a batch, the last digits differ.
`encoder.json` records the encoder.
"""

import multiprocessing
import os
import shutil
import signal
import threading
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np

from coseek.core.cluster import check_same, cluster_at
from coseek.core.errors import DataError, IndexMismatch, RunError, SettingError
from coseek.core.files import JsonObject, parsing, read_json, read_json_object, write_json
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import dump_settings, make_settings
from coseek.data.corpus_file import WAY_OUT
from coseek.data.passage import Corpus
from coseek.retrieval.index import OldIndex
from coseek.retrieval.index_files import INDEX_CARD, Report, empty
from coseek.retrieval.vectors.embedding_retriever import E, EmbeddingSettings, QueryEncoder, passage_text
from coseek.retrieval.vectors.encoder import MOST_TOKENS, Encoder, EncoderCard, Vectors, encoder_folder, is_shipped
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore, VectorWriter

# Encoding processes: encode windows of a corpus in several processes, one per device.
#
# A window's vectors depend on its texts alone, so the merged vectors are the same bytes for any number of processes.
# For that, a process on a CPU computes with one thread. The parent reads the texts and writes the vectors in order.

Encode = Callable[[Sequence[str]], Vectors]
"""Texts of a window → float32 vectors, W × D."""
EncodeAll = Callable[[Iterable[Sequence[str]]], Iterator[Vectors]]
"""Windows → the vectors of each, in order."""
Counted = Callable[[int], None]
"""Called with the number of vectors of every batch."""
S = TypeVar("S", bound=EmbeddingSettings)


class Opener(Protocol):
    """Opens the encoder of settings."""

    def __call__(self, settings: EmbeddingSettings, each: Counted = ...) -> Encode: ...


_AHEAD = 2
"""Windows per process that are sent before the first of them is back."""


@contextmanager
def encoding_processes(settings: S, devices: Sequence[str], opener: Callable[[S], Encode]) -> Iterator[EncodeAll]:
    """Start a process per device inside the block. `opener`, a function of a module, opens the encoder in each."""
    kinds = {device.partition(":")[0] for device in devices}
    if len(kinds) > 1:
        raise SettingError(
            f"devices={list(devices)} are of several kinds, whose vectors differ in the last bits; use one kind"
        )
    context = multiprocessing.get_context("spawn")
    settings_queue: Queue[S] = context.Queue()
    for device in devices:
        settings_queue.put(settings.model_copy(update={"device": device}))
    pool = ProcessPoolExecutor(len(devices), context, _start_worker, (settings_queue, opener))
    try:
        yield partial(_encode_ahead, pool, _AHEAD * len(devices))
    finally:
        pool.shutdown(cancel_futures=True)


def _encode_ahead(pool: ProcessPoolExecutor, ahead: int, windows: Iterable[Sequence[str]]) -> Iterator[Vectors]:
    """Yield the vectors of each window, in order. Raises `RunError` if a process was killed."""
    remaining = iter(windows)
    running: deque[Future[Vectors]] = deque()
    try:
        while True:
            while len(running) < ahead and (texts := next(remaining, None)) is not None:
                running.append(pool.submit(_encode, texts))
            if not running:
                return
            yield running.popleft().result()
    except BrokenProcessPool:
        raise RunError(
            "an encoding process was killed, perhaps for lack of memory; repeat the command, which continues after the "
            "vectors that are written"
        ) from None


_worker: list[Callable[[], Encode]] = []
"""Of a worker process: opens the encoder at its first call, so that an error reaches the parent."""


def _start_worker(settings_queue: "Queue[S]", opener: Callable[[S], Encode]) -> None:
    """Initialise a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker.append(cache(partial(opener, settings_queue.get())))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(texts: Sequence[str]) -> Vectors:
    import torch

    torch.set_num_threads(1)
    return _worker[0]()(texts)


ENCODER_RECORD = "encoder.json"
QUOTED = "quoted-titles"
"""An empty file in an index of published vectors whose passages were encoded in another layout."""
_FRESH = "fresh"
"""The vectors of new texts, in an unfinished update."""
COPY_ROWS = 65_536
LEAST_ROWS = 4
"""Rows from which a matrix product gives a row the same bits for any number of rows; measured, AVX2 and AVX512."""
WINDOW_BATCHES = 32
"""Batches per window. With 64 passages each: 2,048 rows, which MiniLM encodes in about ten seconds on two cores."""


def encode_corpus(
    corpus: Corpus,
    settings: EmbeddingSettings,
    folder: Path,
    report: Report,
    ends_N: Sequence[int] | None = None,
    opener: "Opener | None" = None,
    rows: Sequence[int] | None = None,
) -> VectorStore:
    """Encode the corpus, or only some of its `rows`, into `folder`, or continue. A vector that is not finite is a
    `DataError` with its passage's id. For passages with several vectors, `ends_N` is the row after the last vector of
    each, and `opener` opens their encoder, here or on `devices`."""
    label = "passages encoded" if ends_N is None else "tokens encoded"
    rows = range(len(corpus)) if rows is None else rows
    ends_N, opener = ends_N or range(1, len(rows) + 1), opener or window_encoder
    progress = _Progress(report, ends_N[-1], label)
    write = partial(_write, corpus, rows, ends_N, settings, folder, progress)
    if settings.cluster is not None:
        job = WindowJob(settings, fingerprint(encoder_folder(settings.encoder)))
        with cluster_at(settings.cluster) as cluster:
            assert cluster is not None
            encode_on_nodes = partial(cluster.map, job, ordered=True)
            return write(lambda windows: progress.counted(vectors for _, vectors in encode_on_nodes(windows)))
    if devices := settings.spread:
        with encoding_processes(settings, devices, opener) as encode_all:
            return write(lambda windows: progress.counted(encode_all(windows)))
    encode = opener(settings, progress.add)
    return write(lambda windows: map(encode, windows))


@dataclass(frozen=True)
class WindowJob:
    """Encodes the texts of a window, in a process of a cluster."""

    settings: EmbeddingSettings
    encoder: str
    """Fingerprint of the encoder."""

    def open(self) -> Encode:
        import torch

        check_same(fingerprint(encoder_folder(self.settings.encoder)), self.encoder, "the encoder")
        torch.set_num_threads(1)  # vectors do not depend on the node
        return window_encoder(self.settings)


class KnownVectors(Protocol):
    """The vectors of an older index."""

    @property
    def dim(self) -> int: ...
    def gather(self, rows_M: Rows) -> Floats:
        """The vectors of some rows (M × `dim`)."""


def encode_changed(
    corpus: Corpus, old: KnownVectors, rows_N: Rows, settings: EmbeddingSettings, folder: Path, report: Report
) -> VectorStore:
    """Like `encode_corpus`, but copies the vectors in `old`: `rows_N` is the row of each passage there, −1 if new."""
    new_M = np.flatnonzero(rows_N < 0)
    new_folder = folder.with_name(_FRESH)
    new_vectors = old
    writer = VectorWriter(folder, len(corpus), old.dim, settings.dtype)
    if len(new_M) and writer.written < len(corpus):  # else only its removal was interrupted
        new_vectors = encode_corpus(corpus, settings, new_folder, report, rows=new_M.tolist())
        if new_vectors.dim != old.dim:
            raise DataError(f"the encoder gives {new_vectors.dim} numbers and the index holds {old.dim}; rebuild it")
    for start in range(writer.written, len(corpus), COPY_ROWS):
        rows_B = rows_N[start : start + COPY_ROWS]
        block_BD = np.empty((len(rows_B), old.dim), dtype=np.float32)
        block_BD[rows_B >= 0] = old.gather(rows_B[rows_B >= 0])
        if len(new_B := np.flatnonzero(rows_B < 0)):
            block_BD[new_B] = new_vectors.gather(np.searchsorted(new_M, start + new_B))
        writer.append(block_BD)
    if new_folder.exists():
        shutil.rmtree(new_folder)
    return writer.finish()


@dataclass
class _Progress:
    """Reports the number of encoded vectors, once `done` is set."""

    report: Report
    total: int
    what: str
    done: int | None = None

    def add(self, count: int) -> None:
        if self.done is not None:
            self.done += count
            self.report(self.what, self.done, self.total)

    def counted(self, windows: Iterable[Vectors]) -> Iterator[Vectors]:
        """The same windows, each counted when it arrives."""
        for vectors_WD in windows:
            self.add(len(vectors_WD))
            yield vectors_WD


def _write(
    corpus: Corpus,
    rows: Sequence[int],
    ends_N: Sequence[int],
    settings: EmbeddingSettings,
    folder: Path,
    progress: _Progress,
    encode: EncodeAll,
) -> VectorStore:
    """Write the vectors of the missing windows, in order."""
    (blank_1D,) = encode([[""]])
    writer = VectorWriter(folder, ends_N[-1], blank_1D.shape[1], settings.dtype)
    progress.done = writer.written
    progress.add(0)
    starts = range(bisect_right(ends_N, writer.written), len(rows), settings.batch_size * WINDOW_BATCHES)
    windows = ([passage_text(corpus[row]) for row in rows[start : start + starts.step]] for start in starts)
    for vectors_WD in encode(windows):
        for index in np.flatnonzero(~np.isfinite(vectors_WD).all(axis=1)).tolist():
            ident = corpus[rows[bisect_right(ends_N, writer.written + index)]].id
            raise DataError(
                f"the encoder {settings.encoder} gave a vector that is not finite for the passage {ident!r}"
            )
        writer.append(vectors_WD)
    return writer.finish()


def window_encoder(settings: EmbeddingSettings, each: Counted = lambda count: None) -> Encode:
    """Open the encoder; returns a function that encodes the texts of a window, batch by batch, the longest first.
    `each` is called with the number of texts of every batch."""
    source = encoder_folder(settings.encoder)
    encoder = Encoder.open(source, settings, trust=settings.trust_remote_code)
    normalise = EncoderCard.of(source).normalise

    def encode(texts: Sequence[str]) -> Vectors:
        return encoder.encode(texts, *settings.passage_input, settings.batch_size, normalise=normalise)

    def encode_window(texts: Sequence[str]) -> Vectors:
        batches = _batches(encoder, texts, settings)
        vectors: list[Vectors] = []
        for batch, tokens in batches:
            batch_texts = [texts[index] for index in batch]
            if len(batch) == 1 and tokens < LEAST_ROWS:  # a processor's kernel for fewer rows rounds differently
                vectors.append(encode(batch_texts * 2)[:1])
            else:
                vectors.append(encode(batch_texts))
            each(len(batch))
        return np.concatenate(vectors)[np.argsort([index for batch, _ in batches for index in batch])]

    return encode_window


def _batches(encoder: Encoder, texts: Sequence[str], settings: EmbeddingSettings) -> list[tuple[list[int], int]]:
    """(indices of the texts, maximum tokens per text) of each batch, the longest first."""
    size = settings.batch_size
    if encoder.model.device.type != "cpu":
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        return [(order[start : start + size], MOST_TOKENS) for start in range(0, len(order), size)]
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, length in enumerate(encoder.token_counts(texts, *settings.passage_input)):
        by_length[length].append(index)
    return [
        (by_length[length][start : start + size], length)
        for length in sorted(by_length, reverse=True)
        for start in range(0, len(by_length[length]), size)
    ]


def begin(settings: E, folder: Path, old: OldIndex | None) -> E:
    """Write `encoder.json` and return the settings; in an update, with the current path of the old index's encoder.
    Vectors of another encoder, or of an earlier version of this one, are deleted."""
    settings = settings if old is None else _same_encoder(old.folder, settings)
    source = encoder_folder(settings.encoder)
    shipped_name = settings.encoder if is_shipped(settings.encoder) else None
    record: JsonObject = {
        "shipped": shipped_name,
        # The index will be a sibling of `folder`, with the same relative path.
        "path": None if shipped_name else os.path.relpath(source.resolve(), folder.resolve()),
        "card": dump_settings(EncoderCard.of(source)),
        "fingerprint": fingerprint(source),
    }
    if not (folder / ENCODER_RECORD).is_file() or read_json(folder / ENCODER_RECORD) != record:
        empty(folder, keep=INDEX_CARD)
        write_json(folder / ENCODER_RECORD, record)
    return settings


def open_encoder(folder: Path, settings: EmbeddingSettings, kind: type[QueryEncoder] = QueryEncoder) -> QueryEncoder:
    """Open the encoder of an index for queries, as `kind`. A changed encoder is an `IndexMismatch` that names the
    difference."""
    record, name = _encoder_of(folder)
    if not (record["shipped"] or Path(name).is_dir()):
        problem = f"{folder} was made with the encoder {name}, which is gone"
        raise DataError(f"{problem}; put it back, or make the index again with --encoder")
    source = encoder_folder(name)
    with parsing(folder / ENCODER_RECORD, WAY_OUT):
        recorded_card, digest = make_settings(EncoderCard, {**cast(JsonObject, record["card"])}), record["fingerprint"]
    card = EncoderCard.of(source)
    difference = card.difference(recorded_card)
    if difference is None and digest != fingerprint(source):
        difference = "other weights or files"
    if difference is not None:
        raise IndexMismatch(
            f"{folder} was made with another version of the encoder {name}, which now has {difference}; "
            "rebuild it with `coseek index`"
        )
    return kind(settings, source, card)


def _same_encoder(folder: Path, settings: E) -> E:
    """The settings of an index with the current path of its encoder. Raises as `open_encoder`, and `DataError` for
    vectors of another layout."""
    if (folder / QUOTED).exists():
        raise DataError(f"{folder} has published vectors of passages with quoted titles, unlike new ones; rebuild it")
    open_encoder(folder, settings)
    return settings.model_copy(update={"encoder": _encoder_of(folder)[1]})


def _encoder_of(folder: Path) -> tuple[JsonObject, str]:
    """The record of an index's encoder, and the encoder's name or path."""
    record = read_json_object(folder / ENCODER_RECORD)
    with parsing(folder / ENCODER_RECORD, WAY_OUT):
        return record, str(record["shipped"] or os.path.normpath(folder.resolve() / str(record["path"])))
