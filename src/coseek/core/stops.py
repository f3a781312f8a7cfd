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
