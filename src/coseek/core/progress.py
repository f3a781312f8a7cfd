"""Progress reports of long work, independent of a terminal."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Protocol, TypeAlias

from coseek.core.text import visible

Evaluate: TypeAlias = Callable[[int], Mapping[str, float]]
"""(finished steps) → named metrics of the current model."""


class Progress(Protocol):
    """Receives the progress of long work."""

    def stage(self, name: str, total: int) -> None:
        """A new stage of `total` steps starts; the stage before is over."""

    def advance(self, done: int, note: str = "") -> None:
        """`done` steps of the stage are finished; `note` is a short metric such as `EM .41`."""

    def say(self, line: str) -> None:
        """A line to keep on the screen."""

    def warn(self, line: str) -> None:
        """Like `say`, for what should be known even when no progress is wanted: alarms, missed gates."""


class NoProgress:
    """Ignores all reports."""

    def stage(self, name: str, total: int) -> None:
        pass

    def advance(self, done: int, note: str = "") -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def warn(self, line: str) -> None:
        self.say(line)


class PrintedProgress:
    """Prints reports line by line, as a notebook shows them: of a stage's steps one every few seconds, and the last."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s, self._printed = every_s, 0.0
        self._name, self._total = "", 0

    def stage(self, name: str, total: int) -> None:
        self._name, self._total = name, total

    def advance(self, done: int, note: str = "") -> None:
        if done >= self._total or time.monotonic() - self._printed >= self._every_s:
            self._printed = time.monotonic()
            print(visible(f"{self._name} {done}/{self._total}{f': {note}' if note else ''}"), flush=True)

    def say(self, line: str) -> None:
        print(visible(line), flush=True)

    def warn(self, line: str) -> None:
        print(visible(f"warning: {line}"), flush=True)


# Stops: Ctrl-C, SIGTERM and a closed terminal that wait for the end of a training step, so that the step can be saved.

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # not on Windows
_NOTE = b"\nstopping: this step ends and is saved first (once more: stop at once, and lose what is not saved)\n"


@dataclass(slots=True)
class PendingStop:
    """A requested stop that has not happened yet."""

    signal: int | None = None

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def act(self) -> None:
        """Stop as the signal would have. A process without a signal, which stops with another one, raises
        `KeyboardInterrupt`."""
        if self.signal is not None:
            signal.raise_signal(self.signal)
        raise KeyboardInterrupt


@contextmanager
def waiting_stops() -> Iterator[PendingStop]:
    """Note the first SIGINT or SIGTERM in the block, and stop at `PendingStop.act` or where the block ends. The second
    one acts at once.

    Signals that the process ignores, and blocks outside of the main thread, stay as they are.
    """
    pending = PendingStop()
    in_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS if in_main}
    before = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(received: int, _: FrameType | None) -> None:
        pending.signal = received
        restore()
        with suppress(OSError):  # not `print`: the signal may interrupt another `print`
            os.write(2, _NOTE)

    for number in before:
        signal.signal(number, note)
    try:
        yield pending
    finally:
        restore()
    if pending.asked:
        pending.act()
