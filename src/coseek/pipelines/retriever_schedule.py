"""Retriever schedule: passes training progress to a retriever with a schedule."""

from collections.abc import Sequence
from dataclasses import dataclass

from coseek.core.errors import SettingError
from coseek.retrieval.retriever import Retriever, ScheduledRetriever, with_all_under
from coseek.training.rl.callbacks import Callback, StepReport


@dataclass(frozen=True, slots=True)
class SharedSchedule:
    """All that changes of a retriever, which may lie under others. Implements `ScheduledRetriever`."""

    parts: Sequence[ScheduledRetriever]

    def progress(self, step: int, steps: int) -> None:
        for part in self.parts:
            part.progress(step, steps)


def schedule_of(retriever: Retriever) -> SharedSchedule | None:
    """What changes over the run of a retriever and of those under it; `None` if nothing does."""
    parts = [one for one in with_all_under(retriever) if isinstance(one, ScheduledRetriever)]
    return SharedSchedule(parts) if parts else None


def check_in_turn(schedule: SharedSchedule | None, max_steps_behind: int) -> None:
    """Raise `SettingError` where servers would sample a step before the schedule has come to it. A part whose rate is
    constant has none."""
    if max_steps_behind and schedule is not None and any(getattr(part, "varies", True) for part in schedule.parts):
        raise SettingError(
            f"rollout.max_steps_behind={max_steps_behind} samples steps before the schedule of data.training_retriever "
            "has come to them; set it to 0"
        )


def tell_step(retriever: ScheduledRetriever, step: int, steps: int) -> None:
    """Tell a retriever that step `step` of `steps`, from 1, begins: the first has its first rate, the last its last."""
    retriever.progress(step - 1, max(1, steps - 1))


class RetrieverSchedule(Callback):
    """Tells a retriever that changes over the run how far the run is."""

    def __init__(self, retriever: ScheduledRetriever) -> None:
        self._retriever = retriever

    def before_step(self, report: StepReport) -> None:
        tell_step(self._retriever, report.step, report.steps)
