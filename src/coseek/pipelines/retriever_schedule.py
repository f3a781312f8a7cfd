"""Retriever schedule: a training retriever that changes over the run is told how far the run is."""

from typing import Protocol, runtime_checkable

from coseek.training.rl.callbacks import Callback, StepReport


@runtime_checkable
class ScheduledRetriever(Protocol):
    """A retriever that gets better or worse while an agent learns."""

    def progress(self, step: int, steps: int) -> None:
        """Training is at `step` of `steps`."""
        ...


class RetrieverSchedule(Callback):
    """Tells a retriever that changes over the run how far the run is."""

    def __init__(self, retriever: ScheduledRetriever) -> None:
        self._retriever = retriever

    def before_step(self, report: StepReport) -> None:
        self._retriever.progress(report.step - 1, report.steps)
