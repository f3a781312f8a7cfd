"""A cluster for tests that has no processes."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from coseek.core.cluster import Cluster, Job

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True)
class ThisProcess(Cluster):
    """A cluster of this process alone."""

    nodes: int = 1
    workers: int = 1

    def map(
        self, job: Job[A, B], items: Iterable[A], *, ordered: bool = False, pinned: bool = False
    ) -> Iterator[tuple[int, B]]:
        work = job.open()
        for number, item in enumerate(items):
            yield number, work(item)
