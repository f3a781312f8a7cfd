"""Reading: sends files to a worker process, one after the other, and starts another where it hangs or dies."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, cast

import coseek
from coseek.core.errors import MissingExtra
from coseek.core.files import JsonObject
from coseek.core.settings import dump_settings
from coseek.data.documents.archive import DocumentSettings
from coseek.data.passage import Passage

_WORKER = "import sys; sys.path.insert(0, sys.argv[1]); from coseek.data.documents.worker import main; main()"
_START_S = 60.0
"""Further seconds for a process to start."""
_AHEAD = 1000
"""Messages that may wait."""


class DocumentReader:
    """Reads files in a worker process. A context manager, which ends the process."""

    def __init__(self, settings: DocumentSettings) -> None:
        self.settings = settings
        self.records: list[JsonObject] = []
        """What came of each file: `path`, `kind`, `outcome` (read, in part, failed, left out), `reasons`, `passages`,
        `words`, `sha256`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._queue: Queue[bytes] = Queue()
        self._thread = threading.Thread()

    def __enter__(self) -> "DocumentReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def read(self, path: Path, name: str) -> Iterator[Passage]:
        """The passages of a file, or of the files in an archive. Raises `MissingExtra`.

        Where the worker fails in one file of an archive, another one goes on behind it.
        """
        begun, current, passages = 0, "", 0
        goes_on = True
        while goes_on:
            goes_on = False
            for message in self._messages(path, name, begun):
                if "member" in message:
                    begun, current, passages = begun + 1, str(message["member"]), 0
                elif "passage" in message:
                    passages += 1
                    yield Passage.from_json(cast(JsonObject, message["passage"]))
                elif "document" in message:
                    self.records.append(cast(JsonObject, message["document"]))
                    current = ""
                elif "missing" in message:
                    library, needed_for = cast(list[str], message["missing"])
                    raise MissingExtra(library, needed_for, "layout" if library == "markitdown" else "documents")
                else:
                    goes_on = bool(current)  # between two files it would fail there again
                    outcome = "in part" if passages and current else "failed"
                    fault: JsonObject = {"path": current or name, "kind": "other", "outcome": outcome}
                    self.records.append({**fault, "reasons": [message["fault"]], "passages": passages})
                    current = ""

    def _messages(self, path: Path, name: str, skip: int) -> Iterator[JsonObject]:
        """What the worker says of a file; `{"fault": reason}` at the end where it hangs or dies."""
        process = self._process or self._start()
        assert process.stdin is not None
        request = {"path": str(path.absolute()), "name": name, "skip": skip, "settings": dump_settings(self.settings)}
        with suppress(OSError):  # a process that is dead says so below
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        deadline = time.monotonic() + self.settings.seconds + _START_S
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                self._stop()
                yield {"fault": f"it takes longer than {self.settings.seconds:g} seconds (seconds)"}
                return
            if not line.endswith(b"\n"):
                code = process.wait()
                self._stop()
                yield {"fault": f"its reader crashed (exit status {code})"}
                return
            message = cast(JsonObject, json.loads(line))
            if "end" in message:
                return
            if "member" in message or "document" in message:
                deadline = time.monotonic() + self.settings.seconds
            yield message

    def _start(self) -> "subprocess.Popen[bytes]":
        # -P: a folder of documents may hold Python files, and none of them is to be imported from the working folder.
        command = [sys.executable, "-P", "-c", _WORKER, str(Path(coseek.__file__).parents[1])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._queue = Queue(_AHEAD)
        assert self._process.stdout is not None
        self._thread = threading.Thread(target=_pump, args=(self._process.stdout, self._queue), daemon=True)
        self._thread.start()
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            while self._thread.is_alive():
                with suppress(Empty):  # the thread may wait for room
                    self._queue.get_nowait()
                self._thread.join(0.01)
            process.wait()
            assert process.stdin is not None and process.stdout is not None
            process.stdout.close()
            with suppress(OSError):  # what it was still to be told
                process.stdin.close()


def _pump(file: IO[bytes], queue: "Queue[bytes]") -> None:
    """Hand lines on; the last one, or an empty one, has no line end."""
    for line in file:
        queue.put(line)
        if not line.endswith(b"\n"):
            return
    queue.put(b"")
