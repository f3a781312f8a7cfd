"""Encoding processes: encode windows of a corpus in several processes, one for each device of a list.

A window's vectors depend on its texts alone, so the merged vectors are the same bytes whatever the number of processes.
For that, a process on a CPU computes with one thread. The parent reads the texts, and takes the vectors in order.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.queues import Queue
from typing import TypeVar

from coseek.core.errors import RunError, SettingError
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings
from coseek.retrieval.vectors.encoder import Vectors

Encode = Callable[[Sequence[str]], Vectors]
"""Texts of a window → float32 vectors, W × D."""
S = TypeVar("S", bound=EmbeddingSettings)
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
