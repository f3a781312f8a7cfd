"""Cluster: runs a job on many items in the processes of a Ray cluster (https://docs.ray.io).

A job names its parts; it is sent to the processes, and each opens it once. Only the caller writes files. It gets one
result per item: if a process or node dies, its items are repeated elsewhere. So a job's function must depend on its
item alone, and must not write anything that others read.

Ray is an extra, imported when a cluster is opened. Whoever connects to a Ray cluster can run any code on it.
"""

import os
import secrets
import socket
import sys
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TypeVar, cast
from urllib.parse import parse_qsl

from pydantic import Field

from coseek.core.errors import CoseekError, MissingExtra, RunError, SettingError, UserError
from coseek.core.settings import Settings, make_settings

if TYPE_CHECKING:
    import ray

A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
J = TypeVar("J", contravariant=True)
S = TypeVar("S", covariant=True)
TRIES = 8
"""Maximum number of processes or nodes that may die over one item, which may be what kills them."""
_AHEAD = 2
"""Items per process that are sent before the first result is back."""
_OPEN = 2
"""Jobs that a process keeps open: a generator and a judge, or a run and the search inside it."""
SHARE = 64
"""Maximum number of items in a share."""
_REACH_S = 10.0
"""Seconds within which an address must accept a connection."""


class Job(Protocol[J, S]):
    """Picklable work on items."""

    def open(self) -> Callable[[J], S]:
        """Open the parts in this process. Returns the function to apply to an item."""
        ...


class ClusterSettings(Settings):
    """Resources of a process: `auto?gpus=1`."""

    cpus: float = Field(default=1.0, ge=0)
    """CPUs per process; a fraction if several processes share one."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs per process."""


class Cluster:
    """The cluster that this process is connected to: processes that run jobs."""

    nodes: int
    workers: int
    """Number of processes that work in parallel."""

    def __init__(self, settings: ClusterSettings) -> None:
        import ray

        self._settings = settings
        alive_nodes = [node for node in ray.nodes() if node["Alive"] and _processes(node["Resources"], settings) >= 1]
        self._node_ids = sorted(str(node["NodeID"]) for node in alive_nodes)
        self.nodes = len(self._node_ids)
        self.workers = sum(_processes(node["Resources"], settings) for node in alive_nodes)
        if not self.workers:
            raise RunError(f"no node has the {settings.cpus:g} CPUs and {settings.gpus:g} GPUs of a worker")

    def map(
        self, job: Job[A, B], items: Iterable[A], *, ordered: bool = False, pinned: bool = False
    ) -> Iterator[tuple[int, B]]:
        """Yield the number and the result of every item, in order of completion, or `ordered` by number. With `pinned`,
        items with the same number go to the same node while it lives, since its memory has what they read.

        Raises what the job's function raises, and `RunError` for an item over which `TRIES` processes died.
        """
        import ray

        send = self._sender(ray.put(job), pinned)
        unsent = enumerate(items)
        running: dict[ray.ObjectRef, int] = {}
        results: dict[int, B] = {}
        next_number = 0
        try:
            while True:
                while len(running) + len(results) < _AHEAD * self.workers and (item := next(unsent, None)) is not None:
                    running[send(*item)] = item[0]
                if not running:
                    return
                for ref in ray.wait(list(running), num_returns=1)[0]:
                    results[running.pop(ref)] = cast(B, _result(ref))
                while (number := next_number if ordered else next(iter(results), next_number)) in results:
                    next_number += 1
                    yield number, results.pop(number)
        finally:
            for unfinished in running:
                ray.cancel(unfinished, force=True)

    def _sender(self, job: "ray.ObjectRef", pinned: bool) -> "Callable[[int, object], ray.ObjectRef]":
        """Return a function that sends an item with its number."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cpus, gpus, key, folder = self._settings.cpus, self._settings.gpus, uuid.uuid4().hex, os.getcwd()
        task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=TRIES - 1)(_process_item)

        def send(number: int, item: object) -> "ray.ObjectRef":
            node = self._node_ids[number % self.nodes]
            strategy = NodeAffinitySchedulingStrategy(node, soft=True) if pinned else "DEFAULT"
            return task.options(scheduling_strategy=strategy).remote(key, [job], folder, item)

        return send


@contextmanager
def cluster_at(address: str | None) -> Iterator[Cluster | None]:
    """Connect to a cluster for a block: see `connect`. `None` without an address."""
    if address is None:
        yield None
        return
    was_connected = _is_connected()
    try:
        yield connect(address)
    finally:
        if not was_connected and _is_connected():
            import ray

            ray.shutdown()


def connect(address: str) -> Cluster:
    """Connect this process to a cluster, unless it is connected already: `local` starts one on this machine, `auto`
    finds the one that this machine belongs to, `ray://HOST:PORT` connects to a cluster's client server."""
    target, settings = check_cluster(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports usage to its makers by default
    if target == "local" and not {"ray", "RAY_AUTH_MODE"} & {*sys.modules, *os.environ}:
        # Its ports are open to the network, and whoever connects may run code. Ray reads this when it is imported.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    if not ray.is_initialized():
        options: dict[str, object] = {"log_to_driver": False, "logging_level": "ERROR"}
        if target == "local":
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            if target not in ("local", "auto"):  # Ray would retry for ever where nobody listens
                host, _, port = target.removeprefix("ray://").rpartition(":")
                socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
            ray.init(target, **options)
        except (OSError, RuntimeError, ValueError) as error:
            # The client server sends a traceback, whose last line is the message.
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise RunError(f"cannot connect to the cluster {target}: {lines[-1][:200]}") from None
    return Cluster(settings)


def _is_connected() -> bool:
    if "ray" not in sys.modules:
        return False
    import ray

    return bool(ray.is_initialized())


def check_cluster(address: str) -> tuple[str, ClusterSettings]:
    """Parse an address and the resources of a worker. Raises `SettingError`, and `MissingExtra` without Ray."""
    target, _, resources = address.partition("?")
    host, _, port = target.removeprefix("ray://").rpartition(":")
    if target not in ("local", "auto") and not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise SettingError(
            f"invalid cluster address {address!r}: use local, auto or ray://HOST:PORT, optionally followed by "
            "?cpus=2&gpus=1"
        )
    settings = make_settings(ClusterSettings, dict(parse_qsl(resources, keep_blank_values=True)))
    if find_spec("ray") is None:
        raise MissingExtra("ray", "a cluster", "ray")
    return target, settings


def shares_of(items: Sequence[T], cluster: Cluster) -> Iterator[Sequence[T]]:
    """Split items into shares of at most `SHARE`, in order; if there are enough items, at least eight per process."""
    size = max(1, min(SHARE, len(items) // (8 * cluster.workers)))
    return (items[start : start + size] for start in range(0, len(items), size))


def check_same(here: str, there: str, what: str) -> None:
    """Raise `UserError` in a process of a cluster whose part differs from the caller's."""
    if here != there:
        raise UserError(
            f"{what} on a node of the cluster is not the caller's; the same files must lie at the same paths, and the "
            "same version of coseek must be installed"
        )


def _processes(resources: dict[str, float], settings: ClusterSettings) -> int:
    """Number of processes that a node can run."""
    needs = (("CPU", settings.cpus), ("GPU", settings.gpus))
    return min((int(resources.get(name, 0.0) / amount) for name, amount in needs if amount), default=0)


def _result(ref: "ray.ObjectRef") -> object:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return cast(object, ray.get(ref))
    except RayTaskError as error:
        if isinstance(error.cause, CoseekError):
            raise error.cause from None
        raise  # a bug: keep the traceback of its process
    except RayError as error:
        raise RunError(
            f"{TRIES} processes died over one item, perhaps for want of memory ({type(error).__name__}); repeat the "
            "command with --resume, which keeps what is done"
        ) from None


_open_jobs: "OrderedDict[str, Callable[[object], object]]" = OrderedDict()
"""Job's key → its function, for the open jobs of a process in the cluster."""


def _process_item(key: str, job: "list[ray.ObjectRef]", folder: str, item: object) -> object:
    """Process an item in a process of the cluster. `job` is a list since Ray does not resolve references in lists: the
    job is fetched only if it is not open yet."""
    with suppress(OSError):  # relative paths are the caller's, if this node has the folder
        os.chdir(folder)
    try:
        if key not in _open_jobs:
            import ray

            while len(_open_jobs) >= _OPEN:
                _open_jobs.popitem(last=False)
            _open_jobs[key] = cast(Job[object, object], ray.get(job[0])).open()
        _open_jobs.move_to_end(key)
        return _open_jobs[key](item)
    except UserError as error:
        raise UserError(*error.sentences) from None  # not all subclasses can be pickled
