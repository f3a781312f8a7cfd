"""Checkpoint: the full state of a run, written atomically, from which it resumes as if it had not stopped.

    checkpoints/step-000012/state.pt        tensors and plain values (torch's own format, loaded with weights_only)
    checkpoints/step-000012/manifest.json   schema, step, and the sha256 of state.pt

    checkpoints/healthy                     in reinforcement learning: the last one followed by steps without an alarm
    checkpoints/candidate                   the one that may replace it

The last two steps are kept. A checkpoint is valid only if its sha256 matches; otherwise the one before it is loaded.
"""

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import IO, TypedDict, cast

import torch

from coseek.core.errors import CoseekError, DiskFault, RunError, SettingError
from coseek.core.files import JsonObject, atomic_folder, read_json, recover_folder, write_json
from coseek.training.trainer.learner import LearnerState

SCHEMA = 1
KEPT = 2
HEALTHY, CANDIDATE = "healthy", "candidate"
_NAME = re.compile(r"\.?step-(\d+)(?:\.old)?")


class TrainingState(TypedDict):
    """State of a run between two steps. Randomness in a step depends only on the seed and the step's number."""

    step: int
    """Steps that are done."""
    position: int
    """Position in the data."""
    metrics_bytes: int
    """Length of metrics.jsonl."""
    torch_rng: torch.Tensor
    """State of torch's global generator. No code here draws from it, but a module's own code may."""
    settings: JsonObject
    """Settings of the run."""
    learners: dict[str, LearnerState]
    """State of module and optimiser of `policy` and `critic`."""
    frozen: dict[str, dict[str, torch.Tensor]]
    """Weights that do not change in the run (`reference`)."""
    notes: JsonObject
    """Further state of a loop."""


class _HashedFile:
    """A file being written, with its sha256. It stores the error of a failed write, which torch may replace."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.sha = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.sha.update(data)
        return written

    def flush(self) -> None:
        self._file.flush()


def save_checkpoint(folder: Path, state: TrainingState) -> Path:
    """Write `folder/step-N` and delete all but the last two. On a failed write the others stay; raises `DiskFault`."""
    path = folder / f"step-{state['step']:06d}"
    try:
        atomic_folder(path, lambda part: _fill(part, state))
    except OSError as error:
        old = _last_step(folder)
        kept = "there is no earlier one" if old is None else f"the one of step {old} is kept"
        raise DiskFault(
            f"the checkpoint of step {state['step']} could not be written to {folder} "
            f"({error.strerror or error}); {kept}; make room there and go on with --resume"
        ) from None
    for step in sorted(_steps(folder))[:-KEPT]:
        _delete(folder / f"step-{step:06d}")
    return path


def _fill(part: Path, state: TrainingState) -> None:
    with (part / "state.pt").open("wb") as file:
        hashed = _HashedFile(file)
        try:
            torch.save(dict(state), cast(IO[bytes], hashed))
            file.flush()
        except (OSError, RuntimeError):
            # torch replaces the OSError of a full disk by a RuntimeError.
            if hashed.error is not None:
                raise hashed.error from None
            raise
    write_json(part / "manifest.json", {"schema": SCHEMA, "step": state["step"], "sha256": hashed.sha.hexdigest()})


def load_checkpoint(folder: Path) -> TrainingState | None:
    """Load the newest valid checkpoint; `None` if there is none. Raises `RunError` if all are damaged."""
    _remove_partial(folder)
    steps = sorted(_steps(folder), reverse=True)
    for step in steps:
        path = folder / f"step-{step:06d}"
        recover_folder(path)
        if _is_valid(path):
            return _read(path)
    if steps:
        raise RunError(f"none of the checkpoints in {folder} is whole (steps {steps}); delete them to start again")
    return None


def keep_healthy(folder: Path, step: int, alarm: bool, patience: int) -> None:
    """Update `folder/healthy`, each time a checkpoint is written.

    A collapse starts before an alarm detects it. So a checkpoint is first a candidate, and becomes healthy only after
    `patience` further steps without an alarm. The call is idempotent: a resumed run may repeat it.
    """
    candidate = folder / CANDIDATE
    recover_folder(candidate)
    waiting = _step_of(candidate)
    if alarm:
        if waiting is not None:
            shutil.rmtree(candidate)
        return
    try:
        if waiting is not None and step - waiting >= patience:
            atomic_folder(folder / HEALTHY, lambda part: _link(candidate, part))
            waiting = None
        if waiting is None:
            atomic_folder(candidate, lambda part: _link(folder / f"step-{step:06d}", part))
    except OSError as error:
        raise DiskFault(
            f"{folder / HEALTHY} could not be written ({error.strerror or error}); the one before it is kept; "
            "make room there and go on with --resume"
        ) from None


def _link(source: Path, part: Path) -> None:
    """Hard-link the files of a checkpoint to `part`; copy them if the file system has no links."""
    for file in source.iterdir():
        try:
            os.link(file, part / file.name)
        except OSError:
            shutil.copyfile(file, part / file.name)


def _step_of(path: Path) -> int | None:
    if not (path / "manifest.json").is_file():
        return None
    manifest = read_json(path / "manifest.json")
    return int(str(manifest["step"])) if isinstance(manifest, dict) else None


def load_healthy(folder: Path) -> TrainingState | None:
    """Load the healthy checkpoint; `None` if there is no valid one."""
    recover_folder(folder / HEALTHY)
    return _read(folder / HEALTHY) if _is_valid(folder / HEALTHY) else None


def _read(path: Path) -> TrainingState:
    # Load to the CPU: `load_state_dict` moves tensors to the module's device.
    loaded: TrainingState = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    return loaded


def has_checkpoint(folder: Path) -> bool:
    return bool(_steps(folder))


def check_settings(began: JsonObject, now: JsonObject, free: frozenset[str]) -> None:
    """Raise `SettingError` if settings differ from those that the run began with, except those in `free`."""
    for name in sorted({*began, *now} - free):
        if began.get(name) != now.get(name):
            raise SettingError(
                f"this run began with {name}={began.get(name)!r} and cannot go on with {now.get(name)!r}; "
                "take the old value, or start a new run in another folder"
            )


def _is_valid(path: Path) -> bool:
    try:
        manifest = read_json(path / "manifest.json")
    except CoseekError:
        return False
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA or not (path / "state.pt").is_file():
        return False
    with (path / "state.pt").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == manifest.get("sha256")


def _steps(folder: Path) -> set[int]:
    """Return the steps with a folder, or with the remains of an interrupted replacement."""
    if not folder.is_dir():
        return set()
    return {int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}


def _remove_partial(folder: Path) -> None:
    """Remove partial files of interrupted writes."""
    for leftover in folder.glob(".*.part"):
        shutil.rmtree(leftover)


def _last_step(folder: Path) -> int | None:
    return max(_steps(folder), default=None)


def _delete(path: Path) -> None:
    """Delete a checkpoint, its manifest first: a half-deleted checkpoint must not be valid."""
    for name in ("manifest.json", "state.pt"):
        (path / name).unlink(missing_ok=True)
    if path.is_dir():
        path.rmdir()
