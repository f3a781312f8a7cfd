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
        """Start a stage of `total` steps, which ends the previous one."""

    def advance(self, done: int, note: str = "") -> None:
        """Report that `done` steps of the stage are finished; `note` is a short metric such as `EM .41`."""

    def say(self, line: str) -> None:
        """Print a line that stays on the screen."""

    def warn(self, line: str) -> None:
        """Print a line even under `--quiet`: alarms, missed gates."""


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
    """Prints reports as lines, for notebooks: at most one line per `every_s` seconds and stage, and its last step."""

    def __init__(self, every_s: float = 5.0) -> None:
        self._every_s, self._printed_at = every_s, 0.0
        self._name, self._total = "", 0

    def stage(self, name: str, total: int) -> None:
        self._name, self._total = name, total

    def advance(self, done: int, note: str = "") -> None:
        if done >= self._total or time.monotonic() - self._printed_at >= self._every_s:
            self._printed_at = time.monotonic()
            print(visible(f"{self._name} {done}/{self._total}{f': {note}' if note else ''}"), flush=True)

    def say(self, line: str) -> None:
        print(visible(line), flush=True)

    def warn(self, line: str) -> None:
        print(visible(f"warning: {line}"), flush=True)


# Stops: Ctrl-C, SIGTERM and a closed terminal take effect at the end of a training step, so that it can be saved.

SIGNALS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # not on Windows
_NOTE = b"\nstopping: this step ends and is saved first (once more: stop at once, and lose what is not saved)\n"


@dataclass(slots=True)
class PendingStop:
    """A stop that was requested and has not taken effect yet."""

    signal: int | None = None

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def act(self) -> None:
        """Deliver the signal. Without one, raise `KeyboardInterrupt`: this process stops because another one did."""
        if self.signal is not None:
            signal.raise_signal(self.signal)
        raise KeyboardInterrupt


@contextmanager
def waiting_stops() -> Iterator[PendingStop]:
    """Defer the first SIGINT or SIGTERM in the block until `PendingStop.act` or the end of the block. A second one acts
    at once.

    No-op outside the main thread, and for signals that the process ignores.
    """
    pending = PendingStop()
    in_main = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.getsignal(number) for number in SIGNALS if in_main}
    old_handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for number, handler in old_handlers.items():
            signal.signal(number, handler)

    def note(received: int, _: FrameType | None) -> None:
        pending.signal = received
        restore()
        with suppress(OSError):  # not `print`: the signal may interrupt another `print`
            os.write(2, _NOTE)

    for number in old_handlers:
        signal.signal(number, note)
    try:
        yield pending
    finally:
        restore()
    if pending.asked:
        pending.act()
