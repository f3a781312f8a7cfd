"""Call counts: calls, retries and faults of label making, by name."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

FAULT = "fault/"
"""Prefix of the name of a part that failed: `fault/retriever`, `fault/scorer`, `fault/agent`, …"""


@dataclass
class CallCounts:
    """Counts of one start: calls, retries, branches, faults."""

    counts: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, count: int = 1) -> None:
        self.counts[name] += count

    @property
    def faults(self) -> Mapping[str, int]:
        """Faults by part."""
        return {name.removeprefix(FAULT): count for name, count in self.counts.items() if name.startswith(FAULT)}
