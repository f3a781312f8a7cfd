"""Call counts: calls, retries and faults of label making, by name."""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

FAULT = "fault/"
"""Prefix of the name of a part that failed: `fault/retriever`, `fault/scorer`, `fault/agent`, …"""


@dataclass
class CallCounts:
    """Counts of one start: calls, retries, branches, faults. Thread-safe."""

    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, name: str, count: int = 1) -> None:
        with self._lock:
            self.counts[name] += count

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults by part."""
        return {name.removeprefix(FAULT): count for name, count in self.counts.items() if name.startswith(FAULT)}
