"""Tracker: an experiment service that receives the rows of `metrics.jsonl`; named, or a user's Python file.

A tracker's module defines `open_run(run: TrackedRun) -> Tracker`, and `NEEDS`, the module of its library, if it needs
one. Does not import torch.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from coseek.core.errors import MissingExtra
from coseek.core.files import JsonObject
from coseek.core.plugins import PluginSpec
from coseek.core.registry import find_plugin

PACKAGE = "coseek.training.trackers"
CONTRACT: PluginSpec = {"open_run": None}


@dataclass(frozen=True)
class TrackedRun:
    """One `metrics.jsonl`, which is one run of the service."""

    name: str
    """Name of the training folder and of the trained part in it: `first/rl`."""
    id: str
    """32 hexadecimal digits, the same in every session of the run."""
    part: Path
    """Folder of `metrics.jsonl`, relative to the training folder: `rl`."""
    store: Path
    """Folder for the tracker's files, shared by all runs of the training folder. It may not exist yet."""
    config: JsonObject
    """The recipe."""
    rows_sent: int
    """Rows that earlier sessions sent."""
    last_step: int | None
    """Last step that an earlier session sent; `None` if there is none."""


class Tracker(Protocol):
    """An open run of a service. An exception from either method is counted and never stops training."""

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send one row of `metrics.jsonl`, without its `step`. Rows may share a step, with different metrics."""
        ...

    def close(self) -> None:
        """End the session: write out buffered rows."""
        ...


class TrackerModule(Protocol):
    """Interface of a tracker's file."""

    def open_run(self, run: TrackedRun) -> Tracker:
        """Start the run at the service, or continue it if `run.last_step` is given."""
        ...


def find_tracker(name: str) -> TrackerModule:
    """Return the module of a tracker, after a check that its library is installed.

    Raises `UnknownName` with the nearest name, `MissingExtra`, or the errors of `load_plugin` for a user's file.
    """
    module = find_plugin("tracker", PACKAGE, name, CONTRACT)
    library = getattr(module, "NEEDS", None)
    # Also check `origin`: a folder of that name in the working folder, such as W&B's `wandb/`, is a namespace package.
    if library is not None and getattr(importlib.util.find_spec(library), "origin", None) is None:
        raise MissingExtra(library, f"the tracker {name!r}", library)
    return cast(TrackerModule, module)
