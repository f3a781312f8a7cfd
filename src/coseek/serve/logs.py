"""Logs: one JSON line for each request. A reader of stderr that stalls costs lines, and never delays a request."""

import asyncio
import contextlib
import json
import queue
import sys
import threading
import traceback
from typing import IO

from coseek.core.files import JsonObject
from coseek.core.visible import visible

_EVERY_S = 0.1
_MOST_WAITING = 600
"""Blocks of lines that may wait for a reader of stderr: one minute."""


def print_bug() -> None:
    """Print the traceback of the exception that is handled, whose message may quote any text."""
    print(visible(traceback.format_exc()), file=sys.stderr, end="", flush=True)


class Log:
    """Collects lines in the event loop; a thread of its own writes them."""

    def __init__(self, file: IO[str] | None = None) -> None:
        self._file = file or sys.stderr
        self._lines: list[str] = []
        self._dropped = 0
        self._blocks: queue.Queue[str | None] = queue.Queue(_MOST_WAITING)
        self._thread = threading.Thread(target=self._write, name="coseek-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, record: JsonObject) -> None:
        """Add one line; called in the event loop."""
        self._lines.append(json.dumps(record))
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_later(_EVERY_S, self.hand_over)

    def close(self) -> None:
        """Write what is left, for at most a second."""
        self.hand_over()
        try:
            self._blocks.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(1.0)

    @property
    def waiting_blocks(self) -> int:
        """Blocks of lines that are not written yet."""
        return self._blocks.qsize()

    def hand_over(self) -> None:
        """Pass the collected lines to the writing thread."""
        if not self._lines:
            return
        lost = [json.dumps({"dropped_log_lines": self._dropped})] if self._dropped else []
        try:
            self._blocks.put_nowait("\n".join([*lost, *self._lines]) + "\n")
            self._dropped = 0
        except queue.Full:
            self._dropped += len(self._lines)
        self._lines.clear()

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # stderr is closed
            while (block := self._blocks.get()) is not None:
                self._file.write(block)
                self._file.flush()
