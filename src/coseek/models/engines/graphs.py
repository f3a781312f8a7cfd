"""Graphs: decoding steps as CUDA graphs, one for each padded shape. Written without a GPU; not yet run on one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Step: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
"""(ids_B, starts_B, columns) → logits_BV, without a synchronisation."""


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured step, and the tensors that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    ids_B: Tensor
    starts_B: Tensor
    logits_BV: Tensor


class StepGraphs:
    """Runs the first step of a shape eagerly, which warms up libraries and allocates the cache, captures the second,
    and replays it from then on. Graphs hold addresses: `clear` them when weights are reallocated."""

    def __init__(self, step: Step) -> None:
        self._step = step
        self._graphs: dict[tuple[int, int], _Graph | None] = {}
        self._version = 0

    def clear(self) -> None:
        self._graphs.clear()

    def run(self, ids_B: Tensor, starts_B: Tensor, columns: int, version: int) -> Tensor:
        """Return the logits, which the next step of this shape overwrites. `version` is that of the cache."""
        if version != self._version:
            self.clear()
            self._version = version
        shape = (len(ids_B), columns)
        if shape not in self._graphs:
            self._graphs[shape] = None
            return self._step(ids_B, starts_B, columns)
        made = self._graphs[shape]
        if made is None:
            made = self._graphs[shape] = self._capture(ids_B.clone(), starts_B.clone(), columns)
        made.ids_B.copy_(ids_B)
        made.starts_B.copy_(starts_B)
        made.graph.replay()
        return made.logits_BV

    def _capture(self, ids_B: Tensor, starts_B: Tensor, columns: int) -> _Graph:
        graph = torch.cuda.CUDAGraph()
        pool = next((one.graph.pool() for one in self._graphs.values() if one is not None), None)
        # Other threads, such as a retriever's, may use the device during the capture.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            logits_BV = self._step(ids_B, starts_B, columns)
        return _Graph(graph, ids_B, starts_B, logits_BV)
