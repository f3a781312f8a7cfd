"""Trackers: experiment services that receive the rows of `metrics.jsonl` as training writes them.

A tracker is one of `ADAPTERS` or a user's Python file that defines `open_run(run: TrackedRun) -> Tracker`. Trackers are
thin: what a service keeps, resumes and repeats is the service's business, and `metrics.jsonl` is the complete record. A
run that resumes from a checkpoint sends the rows after it again. Does not import torch before a row is sent.
"""

import importlib.util
import io
import math
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol, TypeAlias, cast

import numpy as np

from coseek.core.errors import DiskFault, MissingExtra, RunError, UnknownName
from coseek.core.files import Json, JsonObject, atomic_write, json_line, read_jsonl
from coseek.core.plugins import PluginSpec, is_plugin_path, load_plugin, plugin_name

# Metrics: the log `metrics.jsonl`, with one row per step, truncated to the checkpoint when a run resumes.

Listener: TypeAlias = Callable[[Path, Mapping[str, float], int | None], None]
"""Called after every row with the log's path, the row, and the step of the row before it. Must not raise."""
_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
"""The listener of new logs, so that it need not be passed through the trainers."""


class MetricsLog:
    """Appends rows. `position` is the length of the file in bytes, for the checkpoint."""

    def __init__(self, path: Path, position: int = 0) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        path.touch()
        size = path.stat().st_size
        if size < position:
            raise RunError(
                f"{path} holds {size} bytes and the checkpoint was made at {position}; put the file back as it was"
            )
        os.truncate(path, position)
        self.position = position
        self._last_step: int | None = None
        for _, row in read_jsonl(path):
            self._last_step = cast("int | None", row.get("step"))
        self._listener = _listener.get()

    def write(self, row: Mapping[str, float]) -> None:
        """Append one row. Raises `DiskFault` if it cannot be written."""
        json_row = as_written(row)
        line = json_line({**json_row}).encode()
        try:
            with self.path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise DiskFault(
                f"{self.path} cannot be written ({error.strerror}); make room there and go on with --resume"
            ) from None
        self.position += len(line)
        last_step, self._last_step = self._last_step, cast("int | None", json_row.get("step"))
        if self._listener is not None:
            self._listener(self.path, json_row, last_step)

    def sync(self) -> None:
        """Flush the file to disk; call it before a checkpoint that stores `position`."""
        with self.path.open("rb") as file:
            os.fsync(file.fileno())


def as_written(row: Mapping[str, float]) -> dict[str, float]:
    """Return the row as it is written: numbers rounded to 6 digits, without non-finite ones, which JSON cannot hold."""
    return {
        name: value if isinstance(value, int) else float(f"{value:.6g}")
        for name, value in row.items()
        if math.isfinite(value)
    }


# Timer: measures the seconds of each part of a step.


@dataclass(slots=True)
class Timer:
    """Sums the seconds spent in each part of a step."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started_s = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started_s


CONTRACT: PluginSpec = {"open_run": None}
FOLDER = "trackers"
RETRY_S, MAX_RETRY_S = 60.0, 3600.0
"""Pause after a fault, doubled with each further one up to the second value: training waits for every try."""


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
    last_step: int | None
    """Last step in `metrics.jsonl` before the first row that this session sends; `None` for a new file."""


class Tracker(Protocol):
    """An open run of a service. An exception from either method is counted and never stops training."""

    def send(self, step: int, values: Mapping[str, float]) -> None:
        """Send one row of `metrics.jsonl`, without its `step`. Rows may share a step, with different metrics."""

    def close(self) -> None:
        """End the session: write out buffered rows."""


class TensorBoard:
    """Event files in the training folder: `tensorboard --logdir OUT/trackers/tensorboard`."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Readers drop what an earlier session sent after the checkpoint.
        purge = None if run.last_step is None else run.last_step + 1
        self._writer = SummaryWriter(log_dir=str(run.store / run.part), purge_step=purge)

    def send(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """Weights & Biases: offline files in the training folder unless `WANDB_MODE=online`; resumed by the run's id.

    W&B itself drops rows of steps that an online run already has.
    """

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        run.store.mkdir(parents=True, exist_ok=True)
        # Only the rows and the recipe leave: no console output, commit, code or system metrics.
        private = wandb.Settings(
            silent=True, console="off", disable_git=True, disable_code=True, save_code=False, x_disable_stats=True,
            x_disable_meta=True,
        )  # fmt: skip
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "coseek"), name=run.name, id=run.id, resume="allow",
            dir=str(run.store), config=run.config, mode=os.environ.get("WANDB_MODE", "offline"), reinit="create_new",
            settings=private,
        )  # fmt: skip

    def send(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """Trackio: a database on this machine (`TRACKIO_DIR`), read by `trackio show --project coseek`."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._finish = trackio.finish
        with redirect_stdout(io.StringIO()):  # Trackio prints, but standard output is reserved for the command
            self._run = trackio.init(
                project="coseek", name=f"{run.name} {run.id[:8]}", config=run.config, resume="allow", embed=False,
                auto_log_gpu=False, auto_log_cpu=False,
            )  # fmt: skip

    def send(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        with redirect_stdout(io.StringIO()):
            self._finish()


class Mlflow:
    """MLflow: the server of `MLFLOW_TRACKING_URI`, or files in the training folder if it is not set."""

    def __init__(self, run: TrackedRun) -> None:
        # MLflow's own patience is 7 tries of 2 minutes, for which training would wait. Set values are kept.
        for name, value in {
            "MLFLOW_HTTP_REQUEST_TIMEOUT": "20", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
            "MLFLOW_ALLOW_FILE_STORE": "true",
        }.items():  # fmt: skip
            os.environ.setdefault(name, value)
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        self._client = client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", run.store.resolve().as_uri()))
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "coseek")
        existing = client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing is not None else client.create_experiment(name)
        earlier_runs = client.search_runs([experiment], f"tags.`coseek.run` = '{run.id}'", max_results=1)
        if earlier_runs:
            self._id = earlier_runs[0].info.run_id
            client.update_run(self._id, status="RUNNING")
            return
        self._id = client.create_run(experiment, tags={"coseek.run": run.id}, run_name=run.name).info.run_id
        params = [Param(name, value) for name, value in _flatten(run.config)]
        for start in range(0, len(params), 100):  # a server accepts 100 per request
            client.log_batch(self._id, params=params[start : start + 100])

    def send(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        metrics = [Metric(_allowed_name(name), value, now, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _flatten(value: Json, name: str = "") -> Iterator[tuple[str, str]]:
    """Flatten a tree to (dotted name, value as text), without empty or unset values."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _flatten(child, f"{name}.{key}" if name else key)
    elif value not in (None, "", []):
        yield _allowed_name(name), str(value)


def _allowed_name(name: str) -> str:
    """Replace the characters that MLflow refuses: `held/recall@5` becomes `held/recall-5`."""
    return "".join(char if char.isalnum() or char in "_-. :/" else "-" for char in name)


ADAPTERS: Mapping[str, Callable[[TrackedRun], Tracker]] = {
    "mlflow": Mlflow, "tensorboard": TensorBoard, "trackio": Trackio, "wandb": Wandb,
}  # fmt: skip
"""Tracker → its adapter. A tracker has the name of its library and of its extra."""


def find_tracker(name: str) -> Callable[[TrackedRun], Tracker]:
    """Return what opens a run of a tracker, after a check that its library is installed.

    Raises `UnknownName` with the nearest name, `MissingExtra`, or the errors of `load_plugin` for a user's file.
    """
    if is_plugin_path(name):
        return cast(Callable[[TrackedRun], Tracker], load_plugin("tracker", name, CONTRACT).open_run)
    if name not in ADAPTERS:
        raise UnknownName("tracker", name, sorted(ADAPTERS))
    # Also check `origin`: a folder of that name in the working folder, such as W&B's `wandb/`, is a namespace package.
    if getattr(importlib.util.find_spec(name), "origin", None) is None:
        raise MissingExtra(name, f"the tracker {name!r}", name)
    return ADAPTERS[name]


class _Sender:
    """Sends rows to one tracker. Raises no error: after a fault, rows are lost to the service and training goes on."""

    def __init__(self, name: str, folder: Path, config: JsonObject, say: Callable[[str], None]) -> None:
        self._name, self._folder, self._config, self._say = name, folder, config, say
        self._open_run = find_tracker(name)
        self._tracker: Tracker | None = None
        self._path = folder
        self._faults = self._lost = 0
        self._retry_at = 0.0

    def row(self, path: Path, row: Mapping[str, float], last_step: int | None) -> None:
        if time.monotonic() < self._retry_at or not self._guard(partial(self._send, path, row, last_step)):
            self._lost += 1

    def finish(self) -> None:
        self._guard(self._close)
        if self._lost:
            self._say(f"tracker {self._name}: {self._lost} rows were not sent; metrics.jsonl has them")

    def _send(self, path: Path, row: Mapping[str, float], last_step: int | None) -> None:
        if self._tracker is None or self._path != path:
            self._close()
            part, store = path.parent.relative_to(self._folder), self._folder / FOLDER
            name, ident = str(self._folder.resolve().name / part), uuid.uuid5(_folder_id(store), str(part)).hex
            run = TrackedRun(name, ident, part, store / plugin_name(self._name), self._config, last_step)
            self._tracker, self._path = self._open_run(run), path
        values = dict(row)
        self._tracker.send(int(values.pop("step")), values)

    def _close(self) -> None:
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            tracker.close()

    def _guard(self, action: Callable[[], None]) -> bool:
        """Run an action of the tracker; returns whether it succeeded. A call to `sys.exit` is a fault, too."""
        try:
            with _keep_random_state():
                action()
            return True
        except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a service's library raises)
            self._faults += 1
            self._retry_at = time.monotonic() + min(MAX_RETRY_S, RETRY_S * 2.0 ** (self._faults - 1))
            if self._faults == 1:
                message = (str(error).splitlines() or [""])[0]
                self._say(
                    f"the tracker {self._name} failed ({type(error).__name__}: {message}); training continues, and "
                    "metrics.jsonl has every row"
                )
            return False


def _folder_id(store: Path) -> uuid.UUID:
    """The id of a training folder, drawn on first use, by which services recognise a resumed training."""
    path = store / "id"
    if not path.exists():
        with atomic_write(path) as file:
            file.write(uuid.uuid4().hex)
    return uuid.UUID(path.read_text(encoding="utf-8").strip())


@contextmanager
def tracked(names: Sequence[str], folder: Path, config: JsonObject, say: Callable[[str], None]) -> Iterator[None]:
    """Send the rows that are written to any `metrics.jsonl` below `folder` in this block to the trackers `names`."""
    senders = [_Sender(name, folder, config, say) for name in dict.fromkeys(names)]

    def listener(path: Path, row: Mapping[str, float], last_step: int | None) -> None:
        for sender in senders:
            sender.row(path, row, last_step)

    token = _listener.set(listener if senders else None)
    try:
        yield
    finally:
        _listener.reset(token)
        for sender in senders:
            sender.finish()


@contextmanager
def _keep_random_state() -> Iterator[None]:
    """Restore the global random states of Python, NumPy and torch at the end of the block."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (it is the global one that is kept)
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with ExitStack() as stack:
        stack.callback(random.setstate, python)
        stack.callback(np.random.set_state, numpy)
        stack.enter_context(torch.random.fork_rng(devices))
        yield
