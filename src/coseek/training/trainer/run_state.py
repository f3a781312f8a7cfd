"""Run state: a training run's folder with `metrics.jsonl` and `checkpoints/`, and how to resume from it."""

import time
from collections.abc import Mapping
from pathlib import Path

import torch

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.core.lock import lock_folder
from coseek.core.stops import PendingStop
from coseek.training.trainer.checkpoint import (
    TensorState,
    TrainingState,
    check_settings,
    drop_old_checkpoints,
    has_checkpoint,
    keep_healthy,
    load_checkpoint,
    save_checkpoint,
)
from coseek.training.trainer.learner import ForwardModel, Trainable
from coseek.training.trainer.metrics import MetricsLog
from coseek.training.trainer.workers import ALONE, Workers

SAVE_S = 600.0
"""Seconds after which a step is saved, beside the checkpoints that settings ask for."""


class SaveClock:
    """Says when a checkpoint is due by time: after ten minutes, or later where saving would take over 5 % of it."""

    def __init__(self) -> None:
        self._saved, self._took_s = time.monotonic(), 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._saved > max(SAVE_S, 20.0 * self._took_s)

    def saved(self, began: float) -> None:
        """Note a checkpoint whose writing began at `began` (`time.monotonic`)."""
        self._saved = time.monotonic()
        self._took_s = self._saved - began


class RunState:
    """The saved progress of a run. Opening it with `resume` restores the learners from the last checkpoint.

    The first worker locks the folder until `release`, or as long as this object exists. A run that stopped before its
    first checkpoint starts again, with the same result.
    """

    def __init__(
        self,
        folder: Path,
        settings: JsonObject,
        learners: Mapping[str, Trainable],
        frozen: Mapping[str, ForwardModel],
        *,
        resume: bool,
        free: frozenset[str] = frozenset(),
        workers: Workers = ALONE,
    ) -> None:
        self._workers = workers
        self._lock = lock_folder(folder) if workers.first else None
        self._checkpoints = folder / "checkpoints"
        self._settings, self._learners, self._frozen = settings, learners, frozen
        self.step = 0
        """Steps that are done."""
        self.position = 0
        """Position in the data."""
        self.notes: JsonObject = {}
        """Further state of the loop."""
        if has_checkpoint(self._checkpoints) and not resume:
            raise DataError(
                f"{folder} holds a training run already; go on with it with --resume, or choose another folder"
            )
        state = load_checkpoint(self._checkpoints, self._tensors(), workers) if resume else None
        if state is not None:
            check_settings(state["settings"], settings, free)
            self._restore(state)
        self._saved = state is not None
        self._clock = SaveClock()
        if workers.first:
            self._metrics = MetricsLog(folder / "metrics.jsonl", state["metrics_bytes"] if state else 0)
            drop_old_checkpoints(self._checkpoints)  # those that a kill left
        workers.wait()  # the first worker alone writes here

    def _tensors(self) -> TensorState:
        return {
            "learners": {name: learner.state() for name, learner in self._learners.items()},
            "frozen": {name: frozen.weights() for name, frozen in self._frozen.items()},
        }

    def _restore(self, state: TrainingState) -> None:
        self.step, self.position, self.notes = state["step"], state["position"], state["notes"]
        for name, learner in self._learners.items():
            learner.load_state(state["learners"][name])
        for name, frozen in self._frozen.items():
            frozen.load_weights(state["frozen"][name])
        torch.set_rng_state(state["torch_rng"])

    def record(self, row: Mapping[str, float]) -> None:
        """Write a row of metrics."""
        if self._workers.first:
            self._metrics.write(row)

    def advance(self, step: int, position: int) -> None:
        """Record that a step is done."""
        self.step, self.position, self._saved = step, position, False

    def save(self) -> None:
        """Save a checkpoint, unless the last one is current. All workers call this."""
        if self._saved:
            return
        began = time.monotonic()
        if self._workers.first:
            self._metrics.sync()
        state: TrainingState = {
            "step": self.step,
            "position": self.position,
            "metrics_bytes": self._metrics.position if self._workers.first else 0,
            "torch_rng": torch.get_rng_state(),
            "settings": self._settings,
            "notes": self.notes,
            **self._tensors(),
        }
        save_checkpoint(self._checkpoints, state, self._workers)
        self._saved = True
        self._clock.saved(began)

    def end_step(self, stop: PendingStop) -> None:
        """Save if a stop waits or a checkpoint is due by time; then let the stop happen. All workers call this."""
        waits = any(self._workers.gather(stop.asked))
        if waits or self._workers.agree(lambda: self._clock.is_due):
            self.save()
        if waits:
            stop.act()

    def release(self) -> None:
        """Release the folder. Called at the end of a training: a stop (Ctrl-C) that arrives in a finaliser is lost."""
        if self._lock is not None:
            self._lock.release()

    def keep(self, alarm: bool, patience: int) -> None:
        """Update the healthy checkpoint: see `keep_healthy`."""
        if self._workers.first:
            keep_healthy(self._checkpoints, self.step, alarm, patience)
