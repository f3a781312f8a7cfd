"""Breaker: leaves a server alone that failed several times in a row. A run then fails quickly, and the server rests."""

import threading
import time
from collections.abc import Callable


class CircuitBreaker:
    """Closed until `after` faults in a row; then open for `cool_down_s`; then one probe decides. For any threads."""

    def __init__(self, after: int, cool_down_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.after = after
        self.cool_down_s = cool_down_s
        self._clock = clock
        self._faults = 0
        self._open_until = 0.0
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """0 for whoever may go ahead, else how long to leave the server alone. After the cool-down only one may."""
        with self._lock:
            if self._faults < self.after:
                return 0.0
            now = self._clock()
            if now < self._open_until:
                return self._open_until - now
            self._open_until = now + self.cool_down_s  # this one is the probe; the others wait for what it meets
            return 0.0

    @property
    def faults(self) -> int:
        """Faults in a row."""
        return self._faults

    def worked(self) -> None:
        with self._lock:
            self._faults = 0

    def failed(self) -> None:
        with self._lock:
            self._faults += 1
            if self._faults >= self.after:
                self._open_until = self._clock() + self.cool_down_s
