"""Corpus encoding: encodes a corpus into vectors, window by window, here, in several processes (`devices`) or on a
`cluster`. A kill costs at most the windows that are being encoded.

A window is a fixed range of rows. Its texts are sorted by length, encoded in batches, then written and recorded
together. So the batches, and every bit of the vectors, do not depend on where an earlier build stopped. On a CPU a
batch holds texts of one length in tokens, so that a vector does not depend on the other texts either, and an update
gives the bits of a rebuild. On a GPU, where kernels depend on the size of a batch, the last digits differ.
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
from functools import partial
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Protocol, TypeVar, cast, overload

import numpy as np

from coseek.core.cluster import check_same, cluster_at
from coseek.core.errors import DataError, IndexMismatch, RunError, SettingError
from coseek.core.files import JsonObject, read_json, read_json_object, shaped, write_json
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import dump_settings, make_settings
from coseek.data.corpus_file import WAY_OUT
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index_files import INDEX_CARD, Report, empty
from coseek.retrieval.vectors.embedding_retriever import E, EmbeddingSettings, QueryEncoder, passage_text
from coseek.retrieval.vectors.encoder import MOST_TOKENS, Encoder, EncoderCard, Vectors, encoder_folder, is_shipped
from coseek.retrieval.vectors.store import Floats, Rows, VectorStore, VectorWriter

# Encoding processes: encode windows of a corpus in several processes, one for each device of a list.
#
# A window's vectors depend on its texts alone, so the merged vectors are the same bytes whatever the number of
# processes. For that, a process on a CPU computes with one thread. The parent reads the texts, and takes the vectors
# in order.

Encode = Callable[[Sequence[str]], Vectors]
"""Texts of a window → float32 vectors, W × D."""
Counted = Callable[[int], None]
"""Called with the number of vectors of every batch."""
S = TypeVar("S", bound=EmbeddingSettings)


class Opener(Protocol):
    """Opens the encoder of settings."""

    def __call__(self, settings: EmbeddingSettings, each: Counted | None = None) -> Encode: ...


_AHEAD = 2
"""Windows per process that are sent before the first of them is back."""


class EncodingProcesses:
    """Processes that encode windows. `running` starts and ends them."""

    def __init__(self, pool: ProcessPoolExecutor, count: int) -> None:
        self._pool, self._count = pool, count

    @classmethod
    @contextmanager
    def running(
        cls, settings: S, devices: Sequence[str], opener: Callable[[S], Encode]
    ) -> "Iterator[EncodingProcesses]":
        """Start a process per device. `opener`, a function of a module, opens the encoder in each, with its device."""
        kinds = {device.partition(":")[0] for device in devices}
        if len(kinds) > 1:
            raise SettingError(
                f"devices={list(devices)} are of several kinds, whose vectors differ in the last bits; take one kind"
            )
        context = multiprocessing.get_context("spawn")
        waiting: Queue[S] = context.Queue()
        for device in devices:
            waiting.put(settings.model_copy(update={"device": device}))
        pool = ProcessPoolExecutor(len(devices), context, _begin, (waiting, opener))
        try:
            yield cls(pool, len(devices))
        finally:
            pool.shutdown(cancel_futures=True)

    def encode(self, windows: Iterable[Sequence[str]]) -> Iterator[Vectors]:
        """Yield the vectors of each window, in order. Raises `RunError` if a process was killed."""
        left = iter(windows)
        running: deque[Future[Vectors]] = deque()
        try:
            while True:
                while len(running) < _AHEAD * self._count and (texts := next(left, None)) is not None:
                    running.append(self._pool.submit(_encode, texts))
                if not running:
                    return
                yield running.popleft().result()
        except BrokenProcessPool:
            raise RunError(
                "a process that encodes was killed, perhaps for want of memory; repeat the command, which goes on with "
                "what is encoded"
            ) from None


_encoder: dict[str, object] = {}
"""Of a worker process: its settings, the opener, and the opened encoder."""


def _begin(waiting: "Queue[S]", opener: Callable[[S], Encode]) -> None:
    """Prepare a worker process. The encoder is opened by its first window, so that an error reaches the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _encoder.update(settings=waiting.get(), opener=opener)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(texts: Sequence[str]) -> Vectors:
    import torch

    if "encode" not in _encoder:
        torch.set_num_threads(1)
        opener, settings = _encoder["opener"], _encoder["settings"]
        assert callable(opener)
        _encoder["encode"] = opener(settings)
    encode = _encoder["encode"]
    assert callable(encode)
    vectors_WD: Vectors = encode(texts)
    return vectors_WD


NOTE = "encoder.json"
_FRESH = "fresh"
"""The vectors of new texts, in an unfinished update."""
COPY_ROWS = 65_536
LEAST_ROWS = 4
"""Rows from which products of matrices give a row the same bits however many there are; measured, AVX2 and AVX512."""
WINDOW_BATCHES = 32
"""Batches per window. With 64 passages each: 2,048 rows, which MiniLM encodes in about ten seconds on two cores."""


def encode_corpus(
    corpus: Sequence[Passage],
    settings: EmbeddingSettings,
    folder: Path,
    report: Report,
    ends_N: Sequence[int] | None = None,
    opener: "Opener | None" = None,
) -> VectorStore:
    """Encode the corpus into `folder`, or continue. A vector that is not finite is a `DataError` with its passage's
    id. Of a passage with several vectors, `ends_N` says behind which row they end, and `opener` opens its encoder, here
    or on `devices`."""
    what = "passages encoded" if ends_N is None else "tokens encoded"
    ends_N, opener = ends_N or range(1, len(corpus) + 1), opener or window_encoder
    progress = _Progress(report, ends_N[-1], what)

    if settings.cluster is not None:
        job = WindowJob(settings, fingerprint(encoder_folder(settings.encoder)))
        with cluster_at(settings.cluster) as cluster:
            assert cluster is not None
            found = partial(cluster.map, job, ordered=True)
            return _write(
                *(corpus, ends_N, settings, folder, progress),
                lambda windows: progress.counted(one for _, one in found(windows)),
            )
    if devices := settings.spread:
        with EncodingProcesses.running(settings, devices, opener) as processes:
            return _write(
                *(corpus, ends_N, settings, folder, progress),
                lambda windows: progress.counted(processes.encode(windows)),
            )
    encode = opener(settings, progress.add)
    return _write(corpus, ends_N, settings, folder, progress, lambda windows: map(encode, windows))


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
    corpus: Corpus, settings: EmbeddingSettings, folder: Path, old: KnownVectors, rows_N: Rows, report: Report
) -> VectorStore:
    """Like `encode_corpus`, with the vectors that `old` has: `rows_N` is the row of each passage there, −1 for none."""
    new_M = np.flatnonzero(rows_N < 0)
    fresh = folder.with_name(_FRESH)
    sources: list[KnownVectors] = [old]
    writer = VectorWriter(folder, len(corpus), old.dim, settings.dtype)
    if len(new_M) and writer.written < len(corpus):  # else only its removal was interrupted
        sources.append(encode_corpus(_Part(corpus, new_M), settings, fresh, report))
        if sources[1].dim != old.dim:
            raise DataError(f"the encoder gives {sources[1].dim} numbers and the index holds {old.dim}; rebuild it")
    for start in range(writer.written, len(corpus), COPY_ROWS):
        rows_B = rows_N[start : start + COPY_ROWS]
        block_BD = np.empty((len(rows_B), old.dim), dtype=np.float32)
        block_BD[rows_B >= 0] = old.gather(rows_B[rows_B >= 0])
        if len(new_B := np.flatnonzero(rows_B < 0)):
            block_BD[new_B] = sources[1].gather(np.searchsorted(new_M, start + new_B))
        writer.append(block_BD)
    if fresh.exists():
        shutil.rmtree(fresh)
    return writer.finish()


class _Part(Sequence[Passage]):
    """Some passages of a corpus."""

    def __init__(self, corpus: Corpus, rows_M: Rows) -> None:
        self._corpus, self._rows_M = corpus, rows_M

    def __len__(self) -> int:
        return len(self._rows_M)

    @overload
    def __getitem__(self, place: int) -> Passage: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Passage, ...]: ...
    def __getitem__(self, place: int | slice) -> Passage | tuple[Passage, ...]:
        if isinstance(place, slice):
            return tuple(self._corpus[row] for row in self._rows_M[place].tolist())
        return self._corpus[int(self._rows_M[place])]


@dataclass
class _Progress:
    """Reports the number of vectors that are written."""

    report: Report
    total: int
    what: str
    done: int | None = None

    def begin(self, done: int) -> None:
        self.done = 0
        self.add(done)

    def add(self, count: int) -> None:
        """Count vectors, from `begin` on."""
        if self.done is not None:
            self.done += count
            self.report(self.what, self.done, self.total)

    def counted(self, windows: Iterable[Vectors]) -> Iterator[Vectors]:
        """The same windows, each counted when it is there."""
        for vectors_WD in windows:
            self.add(len(vectors_WD))
            yield vectors_WD


def _write(
    corpus: Sequence[Passage],
    ends_N: Sequence[int],
    settings: EmbeddingSettings,
    folder: Path,
    progress: _Progress,
    encode: Callable[[Iterable[Sequence[str]]], Iterator[Vectors]],
) -> VectorStore:
    """Write the vectors of the windows that are missing, in order."""
    (blank_1D,) = encode([[""]])
    writer = VectorWriter(folder, ends_N[-1], blank_1D.shape[1], settings.dtype)
    progress.begin(writer.written)
    starts = range(bisect_right(ends_N, writer.written), len(corpus), settings.batch_size * WINDOW_BATCHES)
    windows = ([passage_text(one) for one in corpus[start : start + starts.step]] for start in starts)
    for vectors_WD in encode(windows):
        for row in np.flatnonzero(~np.isfinite(vectors_WD).all(axis=1)).tolist():
            ident = corpus[bisect_right(ends_N, writer.written + row)].id
            raise DataError(
                f"the encoder {settings.encoder} gave a vector that is not finite for the passage {ident!r}"
            )
        writer.append(vectors_WD)
    return writer.finish()


def window_encoder(settings: EmbeddingSettings, each: Counted | None = None) -> Encode:
    """Open the encoder; returns a function that encodes the texts of a window, batch by batch, the longest first.
    `each` is called with the number of texts of every batch."""
    source = encoder_folder(settings.encoder)
    encoder = Encoder.open(source, settings, trust=settings.trust_remote_code)
    encode = partial(encode_passages, encoder, settings, normalise=EncoderCard.of(source).normalise)

    def encode_window(texts: Sequence[str]) -> Vectors:
        batches = _batches(encoder, texts, settings)
        found: list[Vectors] = []
        for batch in batches:
            some = [texts[place] for place in batch]
            found.append(encode(some * 2)[:1] if _is_thin(encoder, some, settings) else encode(some))
            if each is not None:
                each(len(batch))
        return np.concatenate(found)[np.argsort([place for batch in batches for place in batch])]

    return encode_window


def _batches(encoder: Encoder, texts: Sequence[str], settings: EmbeddingSettings) -> list[list[int]]:
    """The places of the texts of each batch, the longest first."""
    size = settings.batch_size
    if encoder.model.device.type != "cpu":
        order = sorted(range(len(texts)), key=lambda place: -len(texts[place]))
        return [order[at : at + size] for at in range(0, len(order), size)]
    prompt, tokens = settings.passage_prompt or "", settings.passage_tokens or MOST_TOKENS
    same: dict[int, list[int]] = defaultdict(list)
    for place, length in enumerate(encoder.token_counts(texts, prompt, tokens)):
        same[length].append(place)
    groups = [same[length] for length in sorted(same, reverse=True)]
    return [group[at : at + size] for group in groups for at in range(0, len(group), size)]


def _is_thin(encoder: Encoder, texts: Sequence[str], settings: EmbeddingSettings) -> bool:
    """Whether a batch is one text of so few tokens that a processor multiplies it by another kernel, which rounds
    otherwise (`LEAST_ROWS`); twice the text is enough."""
    if len(texts) > 1 or encoder.model.device.type != "cpu":
        return False
    prompt, tokens = settings.passage_prompt or "", settings.passage_tokens or MOST_TOKENS
    return encoder.token_counts(texts, prompt, tokens)[0] < LEAST_ROWS


def encode_passages(encoder: Encoder, settings: EmbeddingSettings, texts: Sequence[str], *, normalise: bool) -> Vectors:
    """Encode passages, each after the passage prompt. Returns float32 N × D, in input order."""
    prompt, tokens = settings.passage_prompt or "", settings.passage_tokens or MOST_TOKENS
    return encoder.encode(texts, prompt, tokens, settings.batch_size, normalise=normalise)


def begin(settings: EmbeddingSettings, folder: Path) -> None:
    """Write `encoder.json`. Vectors of another encoder, or of an earlier version of this one, are deleted."""
    source = encoder_folder(settings.encoder)
    shipped = settings.encoder if is_shipped(settings.encoder) else None
    note: JsonObject = {
        "shipped": shipped,
        # The index will be a sibling of `folder`, so the relative path will hold there too.
        "path": None if shipped else os.path.relpath(source.resolve(), folder.resolve()),
        "card": dump_settings(EncoderCard.of(source)),
        "fingerprint": fingerprint(source),
    }
    if not (folder / NOTE).is_file() or read_json(folder / NOTE) != note:
        empty(folder, keep=INDEX_CARD)
        write_json(folder / NOTE, note)


def open_encoder(folder: Path, settings: EmbeddingSettings, kind: type[QueryEncoder] = QueryEncoder) -> QueryEncoder:
    """Open the encoder of an index for queries, as `kind`. A changed encoder is an `IndexMismatch` that names the
    difference."""
    note, name = _encoder_of(folder)
    source = encoder_folder(name)
    with shaped(folder / NOTE, WAY_OUT):
        then, stored = make_settings(EncoderCard, {**cast(JsonObject, note["card"])}), note["fingerprint"]
    now = EncoderCard.of(source)
    difference = now.difference(then)
    if difference is None and stored != fingerprint(source):
        difference = "other weights or files"
    if difference is not None:
        raise IndexMismatch(
            f"{folder} was made with another version of the encoder {name}, which now has {difference}; "
            "rebuild it with `coseek index`"
        )
    return kind(settings, source, now)


def same_encoder(folder: Path, settings: E) -> E:
    """The settings of an index with its encoder as it is found from here. Raises as `open_encoder`."""
    open_encoder(folder, settings)
    return settings.model_copy(update={"encoder": _encoder_of(folder)[1]})


def _encoder_of(folder: Path) -> tuple[JsonObject, str]:
    """The note of an index about its encoder, and the encoder's name or path."""
    note = read_json_object(folder / NOTE)
    with shaped(folder / NOTE, WAY_OUT):
        return note, str(note["shipped"] or os.path.normpath(folder.resolve() / str(note["path"])))
