"""Checkpoint: the full state of a run, written atomically, from which it resumes as if it had not stopped.

    checkpoints/step-000012/shard-*.safetensors   tensors: each worker writes its shards (torch.distributed.checkpoint)
    checkpoints/step-000012/run.pt                all other values (torch's own format, loaded with weights_only)
    checkpoints/step-000012/manifest.json         schema, step, the size of every other file

    checkpoints/healthy                     in reinforcement learning: the last one followed by steps without an alarm
    checkpoints/candidate                   the one that may replace it

The last two steps are kept. A checkpoint is valid only if every size matches; otherwise the one before it is loaded.
No worker gathers or reads more than its own shards, whatever number of workers wrote the checkpoint.
"""

import re
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from coseek.core.errors import CoseekError, DataError, DiskFault, RunError
from coseek.core.files import JsonObject, atomic_folder, link_files, read_json, write_json
from coseek.core.lock import lock_folder
from coseek.core.parts import recover_folder, sweep
from coseek.core.progress import PendingStop
from coseek.core.settings import Settings, check_same_settings, dump_settings, make_settings
from coseek.training.tracker import MetricsLog
from coseek.training.trainer.learner import ForwardModel, LearnerState, Trainable
from coseek.training.trainer.workers import ALONE, Workers

KEPT = 2
HEALTHY, CANDIDATE = "healthy", "candidate"
MANIFEST, SCHEMA = "manifest.json", 3
"""Name and version of the file that is written last."""
_NAME = re.compile(r"\.?step-(\d+)(?:\.old)?")


class TrainingState(TypedDict):
    """State of a run between two steps. Randomness in a step depends only on the seed and the step's number."""

    step: int
    """Steps that are done."""
    position: int
    """Position in the data."""
    metrics_bytes: int
    """Length of metrics.jsonl."""
    torch_rng: Tensor
    """State of the first worker's global generator. No code here draws from it, but a module's own code may."""
    settings: JsonObject
    """Settings of the run."""
    learners: dict[str, LearnerState]
    """State of module and optimizer of `policy` and `critic`."""
    frozen: dict[str, dict[str, Tensor]]
    """Weights that do not change in the run (`reference`)."""
    notes: JsonObject
    """Further state of a loop."""


class TensorState(TypedDict):
    """The parts of a `TrainingState` with tensors."""

    learners: dict[str, LearnerState]
    frozen: dict[str, dict[str, Tensor]]


def save_checkpoint(folder: Path, state: TrainingState, workers: Workers = ALONE) -> Path:
    """Write `folder/step-N` and delete all but the last two. All workers call this, each with its shards.

    On a failed write the others stay; raises `DiskFault`.
    """
    path = folder / f"step-{state['step']:06d}"
    try:
        if workers.first:
            atomic_folder(path, lambda part: _fill(part, state, workers))
        else:
            _fill(Path(), state, workers)
    except (OSError, CheckpointException) as error:
        failures = [one for one, _ in error.failures.values()] if isinstance(error, CheckpointException) else [error]
        if odd := [one for one in failures if not isinstance(one, OSError)]:
            raise odd[0] from None  # a fault of the code, not of the disk
        why = getattr(failures[0], "strerror", None) or failures[0]
        old = _last_step(folder)
        kept = "there is no earlier one" if old is None else f"the one of step {old} is kept"
        raise DiskFault(
            f"the checkpoint of step {state['step']} could not be written to {folder} "
            f"({why}); {kept}; make room there and go on with --resume"
        ) from None
    if workers.first:
        drop_old_checkpoints(folder)
    return path


def drop_old_checkpoints(folder: Path) -> None:
    """Delete all but the last `KEPT`."""
    for step in sorted(_steps(folder))[:-KEPT]:
        _delete(folder / f"step-{step:06d}")


def _fill(part: Path, state: TrainingState, workers: Workers) -> None:
    """Write the files of a checkpoint to the first worker's `part`."""
    part = workers.agree(lambda: part)
    tensors: dict[str, Tensor] = {}
    learners, frozen = _split(state["learners"], "learners", tensors), _split(state["frozen"], "frozen", tensors)
    writer = HuggingFaceStorageWriter(str(part), save_distributed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a single process saves alone
        save(tensors, storage_writer=writer, no_dist=workers.world == 1)
    if workers.first:
        save_state({**state, "learners": learners, "frozen": frozen}, part / "run.pt")
    workers.wait()
    if workers.first:
        write_json(part / MANIFEST, {"schema": SCHEMA, "step": state["step"], "bytes": _sizes(part)})


def save_state(state: object, path: Path) -> None:
    """`torch.save`. Raises `OSError` for a full disk, which torch's writer of zip files hides behind what follows."""
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def _sizes(path: Path) -> JsonObject:
    """The size of every file of a checkpoint but its manifest."""
    return {file.name: file.stat().st_size for file in sorted(path.iterdir()) if file.name != MANIFEST}


def _split(tree: object, path: str, tensors: dict[str, Tensor]) -> object:
    """Move the tensors of nested dictionaries to `tensors`, by path; returns the rest."""
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach()
        return None
    if isinstance(tree, dict):
        return {name: _split(value, f"{path}/{name}", tensors) for name, value in tree.items()}
    return tree


def _join(tree: object, path: str, tensors: Mapping[str, Tensor]) -> object:
    """Undo `_split`."""
    if isinstance(tree, dict):
        return {name: _join(value, f"{path}/{name}", tensors) for name, value in tree.items()}
    return tensors.get(path, tree)


def load_checkpoint(folder: Path, like: TensorState | None = None, workers: Workers = ALONE) -> TrainingState | None:
    """Load the newest valid checkpoint; `None` if there is none. Raises `RunError` if all are damaged.

    `like` is the current state of the models to load: each tensor is read as this worker holds it there. Without it
    all tensors are read, whole and to the CPU. All workers call this.
    """
    if workers.first:
        sweep(folder)
        for step in _steps(folder):
            recover_folder(folder / f"step-{step:06d}")
    steps = workers.agree(lambda: sorted(_steps(folder), reverse=True))
    for step in steps:
        path = folder / f"step-{step:06d}"
        if _is_valid(path):
            return _read(path, like, workers)
    if steps:
        raise RunError(f"none of the checkpoints in {folder} is whole (steps {steps}); delete them to start again")
    return None


def keep_healthy(folder: Path, step: int, alarm: bool, patience: int) -> None:
    """Update `folder/healthy`, each time a checkpoint is written or an alarm is on.

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
            atomic_folder(folder / HEALTHY, lambda part: link_files(candidate, part))
            waiting = None
        if waiting is None:
            atomic_folder(candidate, lambda part: link_files(folder / f"step-{step:06d}", part))
    except OSError as error:
        raise DiskFault(
            f"{folder / HEALTHY} could not be written ({error.strerror or error}); the one before it is kept; "
            "make room there and go on with --resume"
        ) from None


def _step_of(path: Path) -> int | None:
    if not (path / MANIFEST).is_file():
        return None
    manifest = read_json(path / MANIFEST)
    return int(str(manifest["step"])) if isinstance(manifest, dict) else None


def load_healthy(folder: Path, like: TensorState | None = None, workers: Workers = ALONE) -> TrainingState | None:
    """Load the healthy checkpoint, as `load_checkpoint` does; `None` if there is no valid one."""
    path = folder / HEALTHY
    workers.agree(lambda: recover_folder(path))
    return _read(path, like, workers) if _is_valid(path) else None


def _read(path: Path, like: TensorState | None, workers: Workers) -> TrainingState:
    reader = HuggingFaceStorageReader(str(path))
    held: dict[str, Tensor] = {}
    _split(like or {}, "", held)
    models = None if like is None else {f"{part}/{name}" for part, named in like.items() for name in _names(named)}
    tensors: dict[str, Tensor] = {}
    for name, stored in reader.read_metadata().state_dict_metadata.items():
        assert isinstance(stored, TensorStorageMetadata)
        if models is None or "/".join(name.split("/")[:2]) in models:
            mine = held.get(f"/{name}")
            tensors[name] = (
                torch.empty(stored.size, dtype=stored.properties.dtype) if mine is None else torch.empty_like(mine)
            )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a single process loads alone
        load(tensors, storage_reader=reader, no_dist=workers.world == 1)
    loaded = torch.load(path / "run.pt", map_location="cpu", weights_only=True)
    joined = {part: _join(loaded[part], part, tensors) for part in ("learners", "frozen")}
    return cast(TrainingState, {**loaded, **joined})


def _names(models: object) -> list[str]:
    assert isinstance(models, dict)
    return [*models]


def has_checkpoint(folder: Path) -> bool:
    return bool(_steps(folder))


def _is_valid(path: Path) -> bool:
    try:
        manifest = read_json(path / MANIFEST)
    except CoseekError:
        return False
    if not isinstance(manifest, dict):
        return False
    if manifest.get("schema") != SCHEMA:
        raise RunError(
            f"{path} was written by an earlier version of coseek; continue with that version, or start again in "
            "another folder"
        )
    return manifest.get("bytes") == _sizes(path)


def _steps(folder: Path) -> set[int]:
    """Return the steps with a folder, or with the remains of an interrupted replacement."""
    if not folder.is_dir():
        return set()
    return {int(match[1]) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))}


def _last_step(folder: Path) -> int | None:
    return max(_steps(folder), default=None)


def _delete(path: Path) -> None:
    """Delete a checkpoint, its manifest first: a half-deleted checkpoint must not be valid."""
    (path / MANIFEST).unlink(missing_ok=True)
    if path.is_dir():
        shutil.rmtree(path)


# Run state: a training run's folder with `metrics.jsonl` and `checkpoints/`, and how to resume from it.

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
        settings: Settings,
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
        self._settings, self._learners, self._frozen = dump_settings(settings), learners, frozen
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
            began = make_settings(type(settings), state["settings"])  # a setting that is newer has its default
            began = began.model_copy(update={name: getattr(settings, name) for name in free})
            check_same_settings(folder, dump_settings(began), self._settings, "take the old value")
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
