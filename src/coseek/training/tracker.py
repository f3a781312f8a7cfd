"""Tracker: an experiment service that is sent the rows of `metrics.jsonl`, found by name or by a user's Python file.

A tracker's module offers `open_run(run: TrackedRun) -> Tracker`, and `NEEDS`, the module of its library, where it needs
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
    """One `metrics.jsonl` as a tracker sees it: one run of the service."""

    name: str
    """Name of the training folder and the part in it that is trained: `first/rl`."""
    id: str
    """32 hexadecimal digits, the same in every session of the run."""
    part: Path
    """Where `metrics.jsonl` lies in the training folder, seen from there: `rl`."""
    store: Path
    """Folder for the tracker's files, shared by all runs of the training folder. It need not exist yet."""
    config: JsonObject
    """The recipe."""
    rows_sent: int
    """Rows that earlier sessions sent."""
    last_step: int | None
    """The last step that an earlier session sent; `None` when none sent any."""


class Tracker(Protocol):
    """An open run of a service. An exception from either method is counted and never stops training."""

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """One row of `metrics.jsonl` without its `step`. Two rows may have the same step and other names."""
        ...

    def close(self) -> None:
        """No more rows in this session: write out what is buffered."""
        ...


class TrackerModule(Protocol):
    """What a tracker's file offers."""

    def open_run(self, run: TrackedRun) -> Tracker:
        """Begin the run at the service, or continue it where `run.last_step` is given."""
        ...


def find_tracker(name: str) -> TrackerModule:
    """The module of a tracker, whose library must be installed.

    Raises `UnknownName` with the nearest name, `MissingExtra`, or what `load_plugin` raises about a user's file.
    """
    module = find_plugin("tracker", PACKAGE, name, CONTRACT)
    library = getattr(module, "NEEDS", None)
    # Not only `is None`: a folder of that name in the working folder, such as W&B's `wandb/`, is found as a namespace.
    if library is not None and getattr(importlib.util.find_spec(library), "origin", None) is None:
        raise MissingExtra(library, f"the tracker {name!r}", library)
    return cast(TrackerModule, module)
