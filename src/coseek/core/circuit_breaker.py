"""Circuit breaker: stops calls to a server that fails."""

import threading
import time
from collections.abc import Callable


class CircuitBreaker:
    """Stops calls to a server that fails. Thread-safe.

    Closed until `after` faults in a row, then open for `cool_down_s` seconds, then one probe decides.
    """

    def __init__(self, after: int, cool_down_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.after = after
        self.cool_down_s = cool_down_s
        self._clock = clock
        self.faults = 0
        """Faults in a row."""
        self._open_until = 0.0
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Return 0 when a call may be made, else the seconds until the next probe."""
        with self._lock:
            if self.faults < self.after:
                return 0.0
            now = self._clock()
            if now < self._open_until:
                return self._open_until - now
            self._open_until = now + self.cool_down_s  # this caller is the probe
            return 0.0

    def worked(self) -> None:
        with self._lock:
            self.faults = 0

    def failed(self) -> None:
        with self._lock:
            self.faults += 1
            if self.faults >= self.after:
                self._open_until = self._clock() + self.cool_down_s
