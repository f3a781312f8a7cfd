"""Stops: Ctrl-C and SIGTERM that wait for the end of a training step, so that the step can be saved."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_NOTE = b"\nstopping: this step ends and is saved first (once more: stop at once, and lose what is not saved)\n"


@dataclass(slots=True)
class PendingStop:
    """A stop that was asked for and has not happened yet."""

    signal: int | None = None

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def act(self) -> None:
        """Stop as the signal would have; a process that got none stops as others did by Ctrl-C."""
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
    before = {one: signal.getsignal(one) for one in SIGNALS}
    if threading.current_thread() is not threading.main_thread():
        before = {}
    before = {one: handler for one, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for one, handler in before.items():
            signal.signal(one, handler)

    def note(number: int, _: FrameType | None) -> None:
        pending.signal = number
        restore()
        with suppress(OSError):  # not `print`: the signal may have come in the middle of one
            os.write(2, _NOTE)

    for one in before:
        signal.signal(one, note)
    try:
        yield pending
    finally:
        restore()
    if pending.asked:
        pending.act()
