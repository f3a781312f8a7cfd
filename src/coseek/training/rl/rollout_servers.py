"""Rollout servers: a backend whose rollouts are sampled by model servers, which load the policy's weights after every
step's updates.

Servers may sample while the policy trains (`RolloutAhead`). Turns wait while new weights are loaded, and their episodes
continue with these.

Weights are passed as files: a folder per version, or a LoRA adapter for servers that take one. A server that fails to
load them gets no requests until it does. Every turn carries the version of the weights that sampled it.
"""

import hashlib
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self

from coseek.core.errors import ModelError, SettingError
from coseek.core.http import HttpFailure
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.dialect import WeightDialect, WeightUpdate, dialect_of
from coseek.models.remote import RemoteModel, detect_server
from coseek.models.server import open_client
from coseek.models.server_pool import ServerPool, open_pool
from coseek.retrieval.retriever import SharedSchedule
from coseek.training.learner.data_order import QuestionStream
from coseek.training.learner.policy import ADAPTER
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.rollout import RolloutFunction, TrajectoryBatch, rollout_seeds
from coseek.training.rl.settings import RlSettings, RolloutSettings

if TYPE_CHECKING:
    from coseek.models.model import Tokenizer
    from coseek.models.sampler import SamplerSettings


class ServedBackend:
    """Implements `TrainingBackend` around another one, which trains; servers sample."""

    def __init__(
        self,
        backend: "TrainingBackend",
        settings: RolloutSettings,
        folder: Path,
        extra: Callable[[Path], None] | None = None,
    ) -> None:
        """`folder` holds the weights, unless the settings name a folder, in which a subfolder does; `extra` adds files
        to them, such as a tokenizer."""
        self.backend = backend
        self.policy, self.critic, self.reference = backend.policy, backend.critic, backend.reference
        self.workers = backend.workers
        self.settings = settings
        subfolder = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
        self.folder = folder.resolve() if settings.weights is None else Path(settings.weights).resolve() / subfolder
        self.extra = extra
        self.current: tuple[int, ...] = ()
        """Indices of the servers with the current weights."""
        self.refusals: dict[int, str] = {}
        """Index of a server → why it did not load them."""
        self._pools: list[ServerPool] = []
        self._run_id = self.workers.broadcast(lambda: secrets.token_hex(4))
        self._loaded_version: int | None = None
        """The version that the current servers have."""

    @property
    def moved(self) -> int:
        """Turns that were retried at another server."""
        return sum(pool.moved for pool in self._pools)

    def sampler(
        self, tokenizer: "Tokenizer", stops: Sequence[str], settings: "SamplerSettings", *, on_policy: bool = True
    ) -> ServerPool:
        pool = open_pool(self.settings.servers, self.settings.remote, tokenizer, stops, settings.temperature)
        self._pools.append(pool)
        return pool

    def release(self) -> None:
        self.backend.release()

    def refresh(self) -> None:
        """Write the weights and have the servers load them; a no-op if they are up to date. Raises `ModelError` if no
        server loads them."""
        version = self.policy.updates_done
        if version == self._loaded_version and not self.refusals:
            return
        folder = self.folder / f"version-{version:06}"
        self.backend.save(folder, self.extra)
        adapter = folder / ADAPTER
        update = WeightUpdate(str(folder), version, str(adapter) if adapter.exists() else None, self._run_id)
        servers = range(len(self.settings.servers))
        stale = servers if version != self._loaded_version else sorted(self.refusals)
        for pool in self._pools:
            pool.pause()
        self.workers.barrier()
        self.refusals = self.workers.broadcast(lambda: self._load(update, stale))
        self.current = tuple(server for server in servers if server not in self.refusals)
        self._loaded_version = version
        if not self.current:
            raise ModelError(f"no rollout server loaded the new weights: {'; '.join(self.refusals.values())}")
        for pool in self._pools:
            dialects = {server: dialect_of(pool.servers[server].served.dialect) for server in self.current}
            takes_adapter = [server for server, dialect in dialects.items() if getattr(dialect, "ADAPTERS", False)]
            names = dict.fromkeys(takes_adapter, update.name) if update.adapter else {}
            pool.use(self.current, version, names)
        if self.workers.is_main:
            for old_folder in self.folder.glob("version-*"):
                if old_folder != folder:
                    shutil.rmtree(old_folder, ignore_errors=True)

    def stop(self) -> None:
        """End the rollouts that other threads drive."""
        for pool in self._pools:
            pool.stop()

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        self.backend.save(folder, extra)

    def _load(self, update: WeightUpdate, indices: Sequence[int]) -> dict[int, str]:
        """Have the servers with these indices load the weights, all at once. Returns the reasons of those that fail."""
        servers = self._pools[0].servers
        with ThreadPoolExecutor(len(servers)) as threads:
            failures = threads.map(lambda index: _load_weights(servers[index], update), indices)
            return {index: failure for index, failure in zip(indices, failures, strict=True) if failure}


class ServerMetrics(Callback):
    """Adds the number of servers with current weights, of servers lost, and of turns retried at another server."""

    def __init__(self, backend: ServedBackend, say: Callable[[str], None]) -> None:
        self._backend, self._say = backend, say
        self._moved = 0

    def after_step(self, report: StepReport) -> None:
        backend = self._backend
        moved_turns = sum(backend.workers.gather(backend.moved))
        report.row |= {
            "servers": len(backend.current),
            "servers_lost": len(backend.refusals),
            "turns_moved": moved_turns - self._moved,
        }
        self._moved = moved_turns
        for reason in backend.refusals.values():
            self._say(reason)


def check_servers(settings: RolloutSettings) -> None:
    """Raise `SettingError` for a server that cannot be reached, or that cannot load weights while it serves."""
    for url in settings.servers:
        remote = settings.remote
        calls, paths = open_client(url, remote)
        server = detect_server(calls, paths, remote.dialect, remote.model)
        calls.close()
        if not isinstance(dialect_of(server.dialect), WeightDialect):
            raise SettingError(f"{url} ({server.dialect}) cannot load weights while it serves; use vLLM or SGLang")


def check_in_turn(schedule: SharedSchedule | None, max_steps_behind: int) -> None:
    """Raise `SettingError` if servers would sample a step before the schedule has reached it. A retriever with a
    constant rate has no schedule."""
    if (
        max_steps_behind
        and schedule is not None
        and any(getattr(retriever, "varies", True) for retriever in schedule.retrievers)
    ):
        raise SettingError(
            f"rollout.max_steps_behind={max_steps_behind} samples steps before the schedule of data.training_retriever "
            "has reached them; set it to 0"
        )


def _load_weights(server: RemoteModel, update: WeightUpdate) -> str:
    """Send a server the calls of an update. Returns why it failed, or an empty text."""
    dialect = dialect_of(server.served.dialect)
    for call in dialect.update_calls(update) if isinstance(dialect, WeightDialect) else ():
        try:
            server.calls.fetch("POST", server.served.paths.path(call.path), call.body)
        except HttpFailure as error:
            return str(error)
    return ""


# Rollout ahead: the rollouts of later steps, sampled by servers while the policy trains.
#
# At the beginning of step t, whose weights the servers have, the rollouts of the steps up to t + k are started, in a
# thread that samples one step after the other. So the tokens of step t are at most k steps old (k =
# `rollout.max_steps_behind`). New weights also apply to rollouts in progress: their later turns carry the new version.
#
# Prefetched rollouts are not saved. A resumed training samples them again, with the same questions and seeds, from the
# weights of its checkpoint. A turn depends only on its row's seed and ids and on the version of the weights, but which
# version samples it depends on time.


class RolloutAhead:
    """A `RolloutFunction` that returns prefetched trajectories. Without servers, or with k = 0, it samples when it is
    called."""

    def __init__(
        self, rollout: RolloutFunction, stream: QuestionStream, settings: RlSettings, backend: TrainingBackend
    ) -> None:
        self._rollout, self._stream, self._settings, self._backend = rollout, stream, settings, backend
        self._max_steps_behind = backend.settings.max_steps_behind if isinstance(backend, ServedBackend) else 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="coseek-rollout") if self._max_steps_behind else None
        self._pending: deque[Future[list[Trajectory]]] = deque()
        """Trajectories of this worker's share of each prefetched step."""
        self._next_step = 0
        """The next step to prefetch."""
        self._step_of_version: dict[int, int] = {}
        """Version of the weights → the last step that began with it."""
        self._ready_s = time.perf_counter()
        self._waited_share = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop the rollout in progress, if the training failed."""
        if self._thread is not None:
            if kind is not None and isinstance(self._backend, ServedBackend):
                self._backend.stop()
            self._thread.shutdown(cancel_futures=True)

    def prefetch(self, step: int, position: int) -> None:
        """Start the rollouts of all steps up to `step` + k; the servers have the weights of `step`, whose questions
        begin at `position`."""
        if self._thread is None:
            return
        settings, workers = self._settings, self._backend.workers
        self._step_of_version[self._backend.policy.updates_done] = step
        count = settings.questions_per_step
        for later_step in range(max(step, self._next_step), min(step + self._max_steps_behind + 1, settings.steps)):
            taken = self._stream.take(position + (later_step - step) * count, count)
            repeated = [question for question in taken for _ in range(settings.group_size)]
            questions = workers.contiguous_share(repeated, settings.rows_together)
            seeds = workers.contiguous_share(rollout_seeds(later_step, 0, count, settings), settings.rows_together)
            if questions:
                self._pending.append(self._thread.submit(self._rollout, questions, seeds))
            self._next_step = later_step + 1

    def __call__(self, questions: Sequence[Question], seeds: Sequence[int]) -> list[Trajectory]:
        if self._thread is None:
            return self._rollout(questions, seeds)
        called_s = time.perf_counter()
        trajectories = self._pending.popleft().result()
        ready_s = time.perf_counter()
        self._waited_share = (ready_s - called_s) / (ready_s - self._ready_s)
        self._ready_s = ready_s
        return trajectories

    def metrics(self, step: int, episodes: TrajectoryBatch) -> dict[str, float]:
        """Return the mean and the maximum of the steps by which the weights that sampled a token were behind those of
        `step`, and the share of time that the training waited for rollouts; empty if nothing is sampled ahead."""
        if self._thread is None:
            return {}
        lags = [
            (step - self._step_of_version[segment.version], len(segment.ids))
            for episode in episodes.scored
            for segment in episode.trajectory.segments
            if segment.version is not None and segment.ids
        ]
        metrics = {"waited": self._waited_share}
        if lags:
            tokens = sum(count for _, count in lags)
            metrics["steps_behind"] = sum(steps * count for steps, count in lags) / tokens
            metrics["steps_behind_max"] = max(steps for steps, _ in lags)
        return metrics
