"""Checkpoint: the full state of a training, written atomically, from which it resumes as if it had not stopped.

    checkpoints/step-000012/shard-*.safetensors   tensors: each worker writes its shards (torch.distributed.checkpoint)
    checkpoints/step-000012/run.pt                all other values (torch's own format, loaded with weights_only)
    checkpoints/step-000012/manifest.json         schema, step, the size of every other file

    checkpoints/healthy                     in reinforcement learning: the last checkpoint before steps without an alarm
    checkpoints/candidate                   the checkpoint that may replace it

The last two steps are kept. A checkpoint is valid only if every size matches; otherwise the previous one is loaded. No
worker gathers or reads more than its own shards, for any number of workers that wrote the checkpoint.
"""

import re
import shutil
import time
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TypedDict, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from coseek.core.errors import CoseekError, DataError, DiskFault, RunError
from coseek.core.files import JsonObject, atomic_folder, link_files, read_json_object, recover_folder, sweep, write_json
from coseek.core.lock import lock_folder
from coseek.core.progress import PendingStop
from coseek.core.settings import Settings, check_same_settings, dump_settings, fixed_settings
from coseek.training.learner.learner import ForwardModel, LearnerState, Trainable
from coseek.training.learner.workers import ALONE, Workers
from coseek.training.tracker import MetricsLog

KEEP_CHECKPOINTS = 2
HEALTHY, CANDIDATE = "healthy", "candidate"
MANIFEST, SCHEMA = "manifest.json", 3
"""Name and version of the file that is written last."""
_STEP_FOLDER = re.compile(r"\.?step-(\d+)(?:\.old)?")


class CheckpointTensors(TypedDict):
    """The parts of a `Checkpoint` with tensors."""

    learners: dict[str, LearnerState]
    """State of module and optimizer of `policy` and `critic`."""
    frozen: dict[str, dict[str, Tensor]]
    """Weights that are not trained (`reference`)."""


class Checkpoint(CheckpointTensors):
    """State of a training between two steps. Randomness in a step depends only on the seed and the step's number."""

    step: int
    """Steps that are done."""
    position: int
    """Position in the data."""
    metrics_bytes: int
    """Length of metrics.jsonl."""
    torch_rng: Tensor
    """State of the first worker's global generator. No code here draws from it, but a module's own code may."""
    settings: JsonObject
    """Settings of the training."""
    notes: JsonObject
    """Further state of a loop."""


def save_checkpoint(folder: Path, state: Checkpoint, workers: Workers = ALONE) -> Path:
    """Write `folder/step-N` and delete all but the last two. All workers call this, each with its shards.

    Raises `DiskFault` if writing fails; earlier checkpoints are kept then.
    """
    path = folder / f"step-{state['step']:06d}"
    try:
        if workers.is_main:
            atomic_folder(path, lambda temp_folder: _write(temp_folder, state, workers))
        else:
            _write(Path(), state, workers)
    except (OSError, CheckpointException) as error:
        failures = [failure for failure, _ in getattr(error, "failures", {}).values()] or [error]
        if bugs := [failure for failure in failures if not isinstance(failure, OSError)]:
            raise bugs[0] from None
        reason = failures[0].strerror or failures[0]
        last_step = max(_checkpoint_steps(folder), default=None)
        kept = "there is no earlier one" if last_step is None else f"the one of step {last_step} is kept"
        raise DiskFault(
            f"the checkpoint of step {state['step']} could not be written to {folder} "
            f"({reason}); {kept}; make room there and go on with --resume"
        ) from None
    if workers.is_main:
        drop_old_checkpoints(folder)
    return path


def drop_old_checkpoints(folder: Path) -> None:
    """Delete all but the last `KEEP_CHECKPOINTS`, each manifest first: a half-deleted checkpoint must not be valid."""
    for step in sorted(_checkpoint_steps(folder))[:-KEEP_CHECKPOINTS]:
        path = folder / f"step-{step:06d}"
        (path / MANIFEST).unlink(missing_ok=True)
        if path.is_dir():
            shutil.rmtree(path)


def _write(folder: Path, state: Checkpoint, workers: Workers) -> None:
    """Write the files of a checkpoint to the `folder` of the first worker."""
    folder = workers.broadcast(lambda: folder)
    tensors: dict[str, Tensor] = {}
    learners = _extract_tensors(state["learners"], "learners", tensors)
    frozen = _extract_tensors(state["frozen"], "frozen", tensors)
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about saving by a single process
        save(tensors, storage_writer=writer, no_dist=workers.world_size == 1)
    if workers.is_main:
        save_state({**state, "learners": learners, "frozen": frozen}, folder / "run.pt")
    workers.barrier()
    if workers.is_main:
        write_json(folder / MANIFEST, {"schema": SCHEMA, "step": state["step"], "bytes": _file_sizes(folder)})


def save_state(state: object, path: Path) -> None:
    """Save with `torch.save`. Raises `OSError` if the disk is full, which torch's zip writer hides in another error."""
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:
        raise error.__context__ if isinstance(error.__context__, OSError) else error from None


def _file_sizes(path: Path) -> JsonObject:
    """Return the size of every file of a checkpoint except its manifest."""
    return {file.name: file.stat().st_size for file in sorted(path.iterdir()) if file.name != MANIFEST}


def _extract_tensors(tree: object, path: str, tensors: dict[str, Tensor]) -> object:
    """Move the tensors of nested dictionaries to `tensors`, by path; returns the rest."""
    if isinstance(tree, Tensor):
        tensors[path] = tree.detach()
        return None
    if isinstance(tree, dict):
        return {name: _extract_tensors(value, f"{path}/{name}", tensors) for name, value in tree.items()}
    return tree


def _insert_tensors(tree: object, path: str, tensors: Mapping[str, Tensor]) -> object:
    """Undo `_extract_tensors`."""
    if isinstance(tree, dict):
        return {name: _insert_tensors(value, f"{path}/{name}", tensors) for name, value in tree.items()}
    return tensors.get(path, tree)


def load_checkpoint(folder: Path, like: CheckpointTensors, workers: Workers = ALONE) -> Checkpoint | None:
    """Load the newest valid checkpoint; `None` without any checkpoint. Raises `RunError` if all are damaged.

    `like` is the current state of the models to load: each of its tensors is read with this worker's device and shard.
    All workers call this.
    """
    if workers.is_main:
        sweep(folder)
        for step in _checkpoint_steps(folder):
            recover_folder(folder / f"step-{step:06d}")
    steps = workers.broadcast(lambda: sorted(_checkpoint_steps(folder), reverse=True))
    for step in steps:
        path = folder / f"step-{step:06d}"
        if _is_valid(path):
            return _read(path, like, workers)
    if steps:
        raise RunError(f"all checkpoints in {folder} are damaged (steps {steps}); delete them to start again")
    return None


def keep_healthy(folder: Path, step: int, alarm: bool, patience: int) -> None:
    """Update `folder/healthy`, each time a checkpoint is written or an alarm is on.

    A collapse starts before an alarm detects it. So a checkpoint is first a candidate, and becomes healthy only after
    `patience` further steps without an alarm. The call is idempotent: a resumed training may repeat it.
    """
    candidate = folder / CANDIDATE
    recover_folder(candidate)
    if alarm:
        if candidate.is_dir():
            shutil.rmtree(candidate)
        return
    candidate_step = cast("int | None", _manifest(candidate).get("step"))
    try:
        if candidate_step is not None and step - candidate_step >= patience:
            atomic_folder(folder / HEALTHY, lambda temp_folder: link_files(candidate, temp_folder))
            candidate_step = None
        if candidate_step is None:
            atomic_folder(candidate, lambda temp_folder: link_files(folder / f"step-{step:06d}", temp_folder))
    except OSError as error:
        raise DiskFault(
            f"{folder / HEALTHY} could not be written ({error.strerror or error}); the previous one is kept; "
            "make room there and go on with --resume"
        ) from None


def load_healthy(folder: Path, like: CheckpointTensors, workers: Workers = ALONE) -> Checkpoint | None:
    """Load the healthy checkpoint, as `load_checkpoint` does; `None` if there is no valid one."""
    path = folder / HEALTHY
    workers.broadcast(lambda: recover_folder(path))
    return _read(path, like, workers) if _is_valid(path) else None


def _read(path: Path, like: CheckpointTensors, workers: Workers) -> Checkpoint:
    reader = HuggingFaceStorageReader(str(path))
    live_tensors: dict[str, Tensor] = {}
    for group, models in like.items():
        _extract_tensors(models, group, live_tensors)
    stored_names = reader.read_metadata().state_dict_metadata.keys()
    tensors = {name: torch.empty_like(tensor) for name, tensor in live_tensors.items() if name in stored_names}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about loading by a single process
        load(tensors, storage_reader=reader, no_dist=workers.world_size == 1)
    loaded = torch.load(path / "run.pt", map_location="cpu", weights_only=True)
    models = {group: _insert_tensors(loaded[group], group, tensors) for group in ("learners", "frozen")}
    return cast(Checkpoint, {**loaded, **models})


def has_checkpoint(folder: Path) -> bool:
    return bool(_checkpoint_steps(folder))


def _manifest(path: Path) -> JsonObject:
    """Read the manifest of a checkpoint; empty if it is missing or damaged."""
    try:
        return read_json_object(path / MANIFEST)
    except CoseekError:
        return {}


def _is_valid(path: Path) -> bool:
    manifest = _manifest(path)
    return manifest.get("schema") == SCHEMA and manifest.get("bytes") == _file_sizes(path)


def _checkpoint_steps(folder: Path) -> set[int]:
    """Return the steps with a folder, or with the remains of an interrupted replacement."""
    if not folder.is_dir():
        return set()
    return {int(match[1]) for path in folder.iterdir() if (match := _STEP_FOLDER.fullmatch(path.name))}


# Training state: a training's folder with `metrics.jsonl` and `checkpoints/`, and how to resume from it.

SAVE_INTERVAL_S = 600.0
"""Seconds after which a step is saved, in addition to the checkpoints that settings ask for."""


class SaveClock:
    """Decides when a checkpoint is due by time: after ten minutes, or later if saving would take over 5 % of it."""

    def __init__(self) -> None:
        self._saved_at, self._duration_s = time.monotonic(), 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._saved_at > max(SAVE_INTERVAL_S, 20.0 * self._duration_s)

    def saved(self, started_at: float) -> None:
        """Record a checkpoint whose writing started at `started_at` (`time.monotonic`)."""
        self._saved_at = time.monotonic()
        self._duration_s = self._saved_at - started_at


class TrainingState:
    """The saved progress of a training. Opening it with `resume` restores the learners from the last checkpoint.

    The first worker locks the folder until `release`, or as long as this object exists. A training that stopped before
    its first checkpoint starts again, with the same result.
    """

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        learners: Mapping[str, Trainable],
        frozen: Mapping[str, ForwardModel],
        *,
        resume: bool,
        fixed: Collection[str] = (),
        workers: Workers = ALONE,
    ) -> None:
        """`fixed` names settings that may not change on resume, though they are marked `MayChange`."""
        self._workers = workers
        self._lock = lock_folder(folder) if workers.is_main else None
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
            began, now = (
                fixed_settings(type(settings), tree) | {name: tree[name] for name in fixed}
                for tree in (state["settings"], self._settings)
            )
            check_same_settings(folder, began, now, "take the old value")
            self.step, self.position, self.notes = state["step"], state["position"], state["notes"]
            for name, learner in learners.items():
                learner.load_state(state["learners"][name])
            for name, model in frozen.items():
                model.load_weights(state["frozen"][name])
            torch.set_rng_state(state["torch_rng"])
        self._is_saved = state is not None
        self._clock = SaveClock()
        if workers.is_main:
            self._metrics = MetricsLog(folder / "metrics.jsonl", state["metrics_bytes"] if state else 0)
            drop_old_checkpoints(self._checkpoints)  # a killed process may have left some
        workers.barrier()  # until the first worker has written

    def _tensors(self) -> CheckpointTensors:
        return {
            "learners": {name: learner.state() for name, learner in self._learners.items()},
            "frozen": {name: frozen.weights() for name, frozen in self._frozen.items()},
        }

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Append a row to `metrics.jsonl`."""
        if self._workers.is_main:
            self._metrics.write(metrics)

    def advance(self, step: int, position: int) -> None:
        """Record that a step is done."""
        self.step, self.position, self._is_saved = step, position, False

    def save(self) -> None:
        """Save a checkpoint, unless the last one is current. All workers call this."""
        if self._is_saved:
            return
        started_at = time.monotonic()
        if self._workers.is_main:
            self._metrics.sync()
        checkpoint: Checkpoint = {
            "step": self.step,
            "position": self.position,
            "metrics_bytes": self._metrics.position if self._workers.is_main else 0,
            "torch_rng": torch.get_rng_state(),
            "settings": self._settings,
            "notes": self.notes,
            **self._tensors(),
        }
        save_checkpoint(self._checkpoints, checkpoint, self._workers)
        self._is_saved = True
        self._clock.saved(started_at)

    def end_step(self, stop: PendingStop) -> None:
        """Save if a stop is pending or a checkpoint is due by time; then act on the stop. All workers call this."""
        is_stopping = any(self._workers.gather(stop.asked))
        if is_stopping or self._workers.broadcast(lambda: self._clock.is_due):
            self.save()
        if is_stopping:
            stop.act()

    def release(self) -> None:
        """Release the folder at the end of a training. In a finaliser, a Ctrl-C that arrives would be lost."""
        if self._lock is not None:
            self._lock.release()

    def update_healthy(self, alarm: bool, patience: int) -> None:
        """Update the healthy checkpoint (`keep_healthy`)."""
        if self._workers.is_main:
            keep_healthy(self._checkpoints, self.step, alarm, patience)
