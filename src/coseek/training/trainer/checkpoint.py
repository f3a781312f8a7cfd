"""Checkpoint: everything a run needs to go on as if it had not been stopped, written whole or not at all.

    checkpoints/step-000012/state.pt        tensors and plain values (torch's own format, loaded with weights_only)
    checkpoints/step-000012/manifest.json   what it is, and the sha256 of state.pt

    checkpoints/healthy                     the last one that was followed by steps without an alarm, for reinforcement
    checkpoints/candidate                   learning; and the one that may be the next

The last two are kept. A checkpoint counts only if its sum is right; otherwise the one before it is taken.
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
    """All of a run between two steps. What is random in a step follows from the seed and the step's number."""

    step: int
    """Steps that are over."""
    position: int
    """How far into the data the run is."""
    metrics_bytes: int
    """Length of metrics.jsonl."""
    torch_rng: torch.Tensor
    """State of torch's global generator: no code here draws from it, a module's own code might."""
    settings: JsonObject
    """What the run was started with."""
    learners: dict[str, LearnerState]
    """`policy`, `critic`: module and optimiser."""
    frozen: dict[str, dict[str, torch.Tensor]]
    """Weights that do not change but belong to the run (`reference`)."""
    notes: JsonObject
    """What a loop remembers beside that."""


class _Summed:
    """A file being written, with its sha256. It remembers the error of a failed write, whatever torch makes of it."""

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
    """Write `folder/step-N` and forget all but the last two; a full disk leaves what was there and says so."""
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
        _forget(folder / f"step-{step:06d}")
    return path


def _fill(part: Path, state: TrainingState) -> None:
    with (part / "state.pt").open("wb") as file:
        summed = _Summed(file)
        try:
            torch.save(dict(state), cast(IO[bytes], summed))
            file.flush()
        except (OSError, RuntimeError):
            # torch turns the OSError of a full disk into a RuntimeError of its own words.
            if summed.error is not None:
                raise summed.error from None
            raise
    write_json(part / "manifest.json", {"schema": SCHEMA, "step": state["step"], "sha256": summed.sha.hexdigest()})


def load_checkpoint(folder: Path) -> TrainingState | None:
    """The newest checkpoint whose sum is right; `None` when there is none at all."""
    _sweep(folder)
    steps = sorted(_steps(folder), reverse=True)
    for step in steps:
        path = folder / f"step-{step:06d}"
        recover_folder(path)
        if _is_whole(path):
            return _read(path)
    if steps:
        raise RunError(f"none of the checkpoints in {folder} is whole (steps {steps}); delete them to start again")
    return None


def keep_healthy(folder: Path, step: int, alarm: bool, patience: int) -> None:
    """Decide, each time a checkpoint is written, what `folder/healthy` is.

    A collapse is under way before any alarm sees it, so a checkpoint waits as the candidate and counts as healthy only
    when `patience` more steps have brought no alarm. Deciding twice changes nothing: a resumed run may.
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
    """The files of a checkpoint under another name; a second copy only where the disk knows no links."""
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
    """The last checkpoint that steps without an alarm followed; `None` when there is none that is whole."""
    recover_folder(folder / HEALTHY)
    return _read(folder / HEALTHY) if _is_whole(folder / HEALTHY) else None


def _read(path: Path) -> TrainingState:
    # Read onto the CPU: where a module lives is its own affair.
    loaded: TrainingState = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    return loaded


def has_checkpoint(folder: Path) -> bool:
    return bool(_steps(folder))


def check_settings(began: JsonObject, now: JsonObject, free: frozenset[str]) -> None:
    """Refuse to go on under other settings than the run began with; those in `free` may change."""
    for name in sorted({*began, *now} - free):
        if began.get(name) != now.get(name):
            raise SettingError(
                f"this run began with {name}={began.get(name)!r} and cannot go on with {now.get(name)!r}; "
                "take the old value, or start a new run in another folder"
            )


def _is_whole(path: Path) -> bool:
    try:
        manifest = read_json(path / "manifest.json")
    except CoseekError:
        return False
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA or not (path / "state.pt").is_file():
        return False
    with (path / "state.pt").open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == manifest.get("sha256")


def _steps(folder: Path) -> set[int]:
    """Steps with a folder, or with the leftover of a replacement that a kill cut in two."""
    if not folder.is_dir():
        return set()
    return {int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}


def _sweep(folder: Path) -> None:
    """Remove what a killed write left behind."""
    for leftover in folder.glob(".*.part"):
        shutil.rmtree(leftover)


def _last_step(folder: Path) -> int | None:
    return max(_steps(folder), default=None)


def _forget(path: Path) -> None:
    """The manifest goes first: a half-deleted checkpoint must not look whole."""
    for name in ("manifest.json", "state.pt"):
        (path / name).unlink(missing_ok=True)
    if path.is_dir():
        path.rmdir()
