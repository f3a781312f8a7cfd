"""Metrics sender: sends the rows of every `metrics.jsonl` of a training folder to trackers, each row once.

The file is the only source: a row is read back from it after it is synced to disk, never taken from training. The
position of each tracker is stored in `OUT/trackers/sent.json`:

    {"rl": {"id": "…", "sent": {"tensorboard": {"step": 12, "row": 1, "rows": 12}}}}

For each folder with a `metrics.jsonl` it holds the last step that was sent, the index of the last row within that step,
and the number of rows sent so far. A run that resumes from a checkpoint writes rows again; they are not sent again.
"""

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch

from coseek.core.errors import DataError
from coseek.core.files import JsonObject, parse_line, read_json_object, shaped, write_json
from coseek.core.plugins import is_plugin_path, plugin_name
from coseek.training.tracker import TrackedRun, Tracker, find_tracker
from coseek.training.trainer.metrics import listening

FOLDER = "trackers"
SENT = "sent.json"
RETRY_S, RETRY_LONGEST_S = 60.0, 3600.0
"""Pause of a tracker after a fault, doubled with each further one up to the second value, as training waits for it."""


class RowPosition(NamedTuple):
    """Position of a row in `metrics.jsonl`: its step, and its index within the step, from 1."""

    step: int
    row: int


START = RowPosition(-1, 0)
"""Before the first row."""


class Sent(NamedTuple):
    """Rows of one `metrics.jsonl` that a tracker has received."""

    last: RowPosition = START
    rows: int = 0


class SentRows:
    """`sent.json`: the rows of each `metrics.jsonl` that each tracker has received."""

    def __init__(self, path: Path) -> None:
        self._path = path
        tree = read_json_object(path) if path.exists() else {}
        with shaped(path, "delete it, to send all rows again"):
            self._parts = {part: {**cast(JsonObject, row)} for part, row in tree.items()}

    def id_of(self, part: str) -> str:
        """Return the id of a part's runs, created on first use."""
        return str(self._of(part)["id"])

    def sent(self, part: str, tracker: str) -> Sent:
        found = cast(dict[str, dict[str, int]], self._of(part)["sent"]).get(tracker)
        return Sent(RowPosition(found["step"], found["row"]), found["rows"]) if found is not None else Sent()

    def note(self, part: str, tracker: str, sent: Sent) -> None:
        """Record that a row was sent. The record holds in memory even if writing the file raises `OSError`."""
        (step, row), rows = sent
        cast(JsonObject, self._of(part)["sent"])[tracker] = {"step": step, "row": row, "rows": rows}
        write_json(self._path, {**self._parts})

    def _of(self, part: str) -> JsonObject:
        return self._parts.setdefault(part, {"id": uuid.uuid4().hex, "sent": {}})


class RowStream:
    """Sends the rows of one `metrics.jsonl` to one tracker, in order."""

    def __init__(
        self, path: Path, sent: Sent, open_run: Callable[[Sent], Tracker], note: Callable[[Sent], None]
    ) -> None:
        self._path, self._sent, self._open, self._note = path, sent, open_run, note
        self._offset, self._place = 0, START
        self._tracker: Tracker | None = None

    def send(self) -> None:
        """Send new rows. Raises the errors of the tracker, the disk or the file; call `rewind` to retry."""
        for place, values in self._rows():
            if place <= self._sent.last:
                continue
            if self._tracker is None:
                self._tracker = self._open(self._sent)
            self._tracker.send(place.step, values)
            self._sent = Sent(place, self._sent.rows + 1)
            self._note(self._sent)

    def _rows(self) -> Iterator[tuple[RowPosition, Mapping[str, float]]]:
        """Yield the unread rows, after a sync to disk."""
        with self._path.open("rb") as file:
            os.fsync(file.fileno())
            if file.seek(0, os.SEEK_END) < self._offset:  # the run resumed from a checkpoint
                self.rewind()
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):  # a partial row, after a kill
                    return
                self._offset += len(line)
                row = cast(dict[str, float], parse_line(line, str(self._path)))
                step = int(row.pop("step"))
                self._place = RowPosition(step, self._place.row + 1 if step == self._place.step else 1)
                yield self._place, row

    def missing(self) -> int:
        """Return the number of rows of the file that were not sent."""
        self.rewind()
        return sum(1 for place, _ in self._rows() if place > self._sent.last)

    def rewind(self) -> None:
        """Read from the file's first row again."""
        self._offset, self._place = 0, START

    def close(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()


class MetricsSender:
    """Called with the path of a `metrics.jsonl` whenever it is opened or a row is written. Never raises an error.

    A tracker's first fault is reported. Every fault is counted and followed by a pause. Missed rows are sent in order
    later, at the latest at the end. The global random states are the same before and after a tracker runs.
    """

    def __init__(self, names: Sequence[str], folder: Path, config: JsonObject, say: Callable[[str], None]) -> None:
        self._modules = {name: find_tracker(name) for name in names}
        self._folder, self._config, self._say = folder, config, say
        self._sent = SentRows(folder / FOLDER / SENT)
        self._streams: dict[tuple[str, Path], RowStream] = {}
        self._retry_at: dict[str, float] = {}
        self.faults: Counter[str] = Counter()
        """Faults of each tracker in this session."""

    def __call__(self, path: Path) -> None:
        for name in self._modules:
            for key, stream in self._streams.items():
                if key[0] == name and key[1] != path:
                    self._guard(name, stream.close)
            if time.monotonic() >= self._retry_at.get(name, 0.0):
                self._send(name, path)

    def finish(self, paths: Sequence[Path]) -> None:
        """Send the missing rows of all files, those of earlier sessions too, and close the runs."""
        for name in self._modules:
            for path in paths:
                self._send(name, path)
                self._guard(name, self._stream(name, path).close)
            if count := self.faults[name]:
                left = self._missing(name, paths)
                end = f"{left} rows were not sent; --resume sends them" if left else "all rows were sent in the end"
                self._say(f"tracker {name}: {count} fault{'s' if count > 1 else ''}; {end}")

    def _missing(self, name: str, paths: Sequence[Path]) -> int:
        left = 0
        for path in paths:
            with suppress(OSError, DataError):  # an unreadable file is already counted as a fault
                left += self._stream(name, path).missing()
        return left

    def close(self) -> None:
        """Close the runs without sending missing rows."""
        for (name, _), stream in self._streams.items():
            self._guard(name, stream.close)

    def _send(self, name: str, path: Path) -> None:
        stream = self._stream(name, path)
        if not self._guard(name, stream.send):
            stream.rewind()
            self._guard(name, stream.close)

    def _stream(self, name: str, path: Path) -> RowStream:
        if (name, path) not in self._streams:
            # A user's file is identified by its absolute path, so the working folder does not matter.
            known = str(Path(name).expanduser().resolve()) if is_plugin_path(name) else name
            part = path.parent.relative_to(self._folder)
            self._streams[name, path] = RowStream(
                path,
                self._sent.sent(str(part), known),
                lambda sent: self._opened(name, part, sent),
                lambda sent: self._sent.note(str(part), known, sent),
            )
        return self._streams[name, path]

    def _opened(self, name: str, part: Path, sent: Sent) -> Tracker:
        return self._modules[name].open_run(
            TrackedRun(
                name=str(Path(self._folder.resolve().name) / part),
                id=self._sent.id_of(str(part)),
                part=part,
                store=self._folder / FOLDER / plugin_name(name),
                config=self._config,
                rows_sent=sent.rows,
                last_step=sent.last.step if sent.rows else None,
            )
        )

    def _guard(self, name: str, action: Callable[[], None]) -> bool:
        """Run a tracker's action; returns whether it succeeded. A fault, also a call to `sys.exit`, is counted."""
        try:
            with same_random_state():
                action()
            return True
        except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a service's library raises)
            self.faults[name] += 1
            wait_s = min(RETRY_LONGEST_S, RETRY_S * 2.0 ** (self.faults[name] - 1))
            self._retry_at[name] = time.monotonic() + wait_s
            if self.faults[name] == 1:
                message = (str(error).splitlines() or [""])[0]
                self._say(
                    f"the tracker {name} failed ({type(error).__name__}: {message}); training continues, and the rows "
                    "that it missed are sent later"
                )
            return False


@contextmanager
def tracked(
    names: Sequence[str],
    folder: Path,
    config: JsonObject,
    files: Callable[[], Sequence[Path]],
    say: Callable[[str], None],
) -> Iterator[None]:
    """Send the rows that are written in this block to the trackers `names`; `files` lists each `metrics.jsonl`.

    Ctrl-C ends the block at once; the next session sends the missing rows.
    """
    if not names:
        yield
        return
    sender = MetricsSender(list(dict.fromkeys(names)), folder, config, say)
    with listening(sender):
        try:
            yield
        except Exception:
            sender.finish(files())
            raise
        except BaseException:  # do not wait for a server after Ctrl-C
            sender.close()
            raise
        sender.finish(files())


@contextmanager
def same_random_state() -> Iterator[None]:
    """Restore the global random states of Python, NumPy and torch at the end of the block."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (it is the global one that is kept)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with ExitStack() as stack:
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, numpy)
        stack.enter_context(torch.random.fork_rng(devices))
        yield
