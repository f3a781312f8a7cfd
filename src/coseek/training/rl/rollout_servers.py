"""Rollout servers: a backend whose rollouts are sampled by model servers, which load the policy's weights after every
step's updates.

Servers may sample while the policy trains (`rl/rollout_ahead.py`). Turns wait while new weights are loaded, and their
episodes continue with these.

Weights are passed as files: a folder per version, or a LoRA adapter for servers that take one. A server that fails to
load them gets no requests until it does. Every turn carries the version of the weights that sampled it.
"""

import hashlib
import secrets
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from coseek.core.errors import ModelError, SettingError
from coseek.core.http import HttpFailure
from coseek.models.dialect import WeightUpdate, weight_dialect_of
from coseek.models.remote import RemoteModel, detect_server
from coseek.models.server import open_client
from coseek.models.server_pool import ServerPool, open_pool
from coseek.retrieval.retriever import SharedSchedule
from coseek.training.learner.policy import ADAPTER
from coseek.training.rl.backend import TrainingBackend
from coseek.training.rl.callbacks import Callback, StepReport
from coseek.training.rl.settings import RolloutSettings

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
        if settings.top_p < 1.0 or settings.top_k:
            raise SettingError(
                f"rollout servers draw from the whole softmax; leave out top_p={settings.top_p:g} and "
                f"top_k={settings.top_k}, or sample in this process with rollout.servers=[]"
            )
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
            names: dict[int, str] = {}
            for server in self.current:
                dialect = weight_dialect_of(pool.servers[server].served.dialect)
                if dialect is not None and dialect.ADAPTERS and update.adapter:
                    names[server] = update.name
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
        if weight_dialect_of(server.dialect) is None:
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
    dialect = weight_dialect_of(server.served.dialect)
    for call in dialect.update_calls(update) if dialect is not None else ():
        try:
            server.calls.fetch("POST", server.served.paths.path(call.path), call.body)
        except HttpFailure as error:
            return str(error)
    return ""
