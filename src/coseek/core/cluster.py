"""Cluster: one job on many items, by the processes of a Ray cluster (https://docs.ray.io).

A job names what it needs and is sent to the processes, each of which opens it once. The caller alone writes files, and
gets one result an item: an item whose process or node died is done again elsewhere. So a job's function depends on its
item alone and writes nothing that others read.

Ray is an extra, and is imported when a cluster is opened. What connects to a Ray cluster may run any code on it.
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
"""Processes or nodes that may die over one item, which perhaps kills them itself."""
_AHEAD = 2
"""Items a process that are sent before the first of them is back."""
_OPEN = 2
"""Jobs that a process keeps open: a generator and a judge, a run and the search inside it."""
SHARE = 64
_REACH_S = 10.0
"""Seconds within which an address must take a connection."""


class Job(Protocol[J, S]):
    """Work on items. It can be pickled."""

    def open(self) -> Callable[[J], S]:
        """Open the parts in this process. Returns the function of an item."""
        ...


class Cluster(Protocol):
    """Processes that do jobs."""

    @property
    def workers(self) -> int:
        """Processes that work at once."""
        ...

    @property
    def nodes(self) -> int: ...

    def map(
        self, job: Job[A, B], items: Iterable[A], *, ordered: bool = False, pinned: bool = False
    ) -> Iterator[tuple[int, B]]:
        """The number and the result of every item, as they end, or `ordered` by number. With `pinned`, items with one
        number go to one node, whose memory holds what they read, as long as it lives.

        Raises what the job's function raises, and `RunError` for an item over which `TRIES` processes died.
        """
        ...


class ClusterSettings(Settings):
    """What a process takes of a node: `auto?gpus=1`."""

    cpus: float = Field(default=1.0, ge=0)
    """CPUs of a process; a part of one where several share it."""
    gpus: float = Field(default=0.0, ge=0)
    """GPUs of a process."""


class RayCluster:
    """The cluster that this process is connected to."""

    def __init__(self, settings: ClusterSettings) -> None:
        import ray

        self._settings = settings
        alive = [node for node in ray.nodes() if node["Alive"] and _room(node["Resources"], settings) >= 1]
        self._nodes = sorted(str(node["NodeID"]) for node in alive)
        self.workers = sum(_room(node["Resources"], settings) for node in alive)
        if not self.workers:
            raise RunError(
                f"no node of the cluster has the {settings.cpus:g} CPUs and {settings.gpus:g} GPUs of a worker"
            )

    @property
    def nodes(self) -> int:
        return len(self._nodes)

    def map(
        self, job: Job[A, B], items: Iterable[A], *, ordered: bool = False, pinned: bool = False
    ) -> Iterator[tuple[int, B]]:
        import ray

        send = self._sender(ray.put(job), pinned)
        left = enumerate(items)
        under_way: dict[ray.ObjectRef, int] = {}
        ended: dict[int, B] = {}
        due = 0
        try:
            while True:
                while len(under_way) + len(ended) < _AHEAD * self.workers and (one := next(left, None)) is not None:
                    under_way[send(*one)] = one[0]
                if not under_way:
                    return
                for done in ray.wait(list(under_way), num_returns=1)[0]:
                    ended[under_way.pop(done)] = cast(B, _result(done))
                while (number := due if ordered else next(iter(ended), due)) in ended:
                    due += 1
                    yield number, ended.pop(number)
        finally:
            for unfinished in under_way:
                ray.cancel(unfinished, force=True)

    def _sender(self, job: "ray.ObjectRef", pinned: bool) -> "Callable[[int, object], ray.ObjectRef]":
        """A function that sends an item with its number."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        task, taken, key, folder = ray.remote(_do), self._settings, uuid.uuid4().hex, os.getcwd()

        def send(number: int, item: object) -> "ray.ObjectRef":
            node = self._nodes[number % self.nodes]
            where = NodeAffinitySchedulingStrategy(node, soft=True) if pinned else "DEFAULT"
            own = task.options(
                num_cpus=taken.cpus, num_gpus=taken.gpus, max_retries=TRIES - 1, scheduling_strategy=where
            )
            return own.remote(key, [job], folder, item)

        return send


@contextmanager
def cluster_at(address: str | None) -> Iterator[Cluster | None]:
    """Connect to a cluster for a block: see `connect`. `None` without an address."""
    if address is None:
        yield None
        return
    there = _is_connected()
    try:
        yield connect(address)
    finally:
        if not there and _is_connected():
            import ray

            ray.shutdown()


def connect(address: str) -> RayCluster:
    """Connect this process to a cluster, unless it is connected: `local` starts one on this machine, `auto` finds the
    one that this machine is part of, `ray://HOST:PORT` speaks to a cluster's client server."""
    where, settings = check_cluster(address)
    # Ray reports usage to its makers unless it is told not to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if where == "local" and not {"ray", "RAY_AUTH_MODE"} & {*sys.modules, *os.environ}:
        # Its ports are open to the network, and whoever speaks to them may run code. Ray reads this when imported.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    import ray

    if not ray.is_initialized():
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        own = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"} if where == "local" else {}
        try:
            if where not in ("local", "auto"):
                _reach(where)
            ray.init(where, **own, **quiet)
        except (OSError, RuntimeError, ValueError) as error:
            # The client's server sends its traceback, whose last line says what was wrong.
            said = str(error).strip().splitlines() or [type(error).__name__]
            raise RunError(f"cannot connect to the cluster {where}: {said[-1][:200]}") from None
    return RayCluster(settings)


def _reach(where: str) -> None:
    """Raise `OSError` when nobody listens at an address, for which Ray would ask again without end."""
    host, _, port = where.removeprefix("ray://").rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()


def _is_connected() -> bool:
    if "ray" not in sys.modules:
        return False
    import ray

    return bool(ray.is_initialized())


def check_cluster(address: str) -> tuple[str, ClusterSettings]:
    """The address and what a worker takes. Raises `SettingError` for what is no address, `MissingExtra` without Ray."""
    where, _, taken = address.partition("?")
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if where not in ("local", "auto") and not (host and port.isdecimal() and 0 < int(port) < 2**16):
        raise SettingError(
            f"invalid cluster address {address!r}: use local, auto or ray://HOST:PORT, optionally followed by "
            "?cpus=2&gpus=1"
        )
    settings = make_settings(ClusterSettings, dict(parse_qsl(taken, keep_blank_values=True)))
    if find_spec("ray") is None:
        raise MissingExtra("ray", "a cluster", "ray")
    return where, settings


def shares_of(items: Sequence[T], cluster: Cluster) -> Iterator[Sequence[T]]:
    """Shares of at most `SHARE` items, in order; with enough items at least eight shares per process."""
    size = max(1, min(SHARE, len(items) // (8 * cluster.workers)))
    return (items[start : start + size] for start in range(0, len(items), size))


def check_same(here: str, there: str, what: str) -> None:
    """Raise `UserError` in a process of a cluster whose part is not that of the caller."""
    if here != there:
        raise UserError(
            f"{what} on a node of the cluster is not the caller's; the same files must lie at the same paths, and the "
            "same version of coseek must be installed"
        )


def _room(resources: dict[str, float], settings: ClusterSettings) -> int:
    """Processes for which a node has room."""
    room = [
        int(resources.get(name, 0.0) / each) for name, each in (("CPU", settings.cpus), ("GPU", settings.gpus)) if each
    ]
    return min(room, default=0)


def _result(done: "ray.ObjectRef") -> object:
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        return cast(object, ray.get(done))
    except RayTaskError as error:
        if isinstance(error.cause, CoseekError):
            raise error.cause from None
        raise  # a bug, with the traceback of its process
    except RayError as error:
        raise RunError(
            f"{TRIES} processes died over one item, perhaps for want of memory ({type(error).__name__}); repeat the "
            "command with --resume, which keeps what is done"
        ) from None


_opened: "OrderedDict[str, Callable[[object], object]]" = OrderedDict()
"""Of a process of the cluster: the functions of its open jobs, by a job's key."""


def _do(key: str, job: "list[ray.ObjectRef]", folder: str, item: object) -> object:
    """In a process of the cluster: do an item. The job is fetched when it is opened: Ray leaves references in lists."""
    with suppress(OSError):  # relative paths are those of the caller, where the folder is there
        os.chdir(folder)
    try:
        if key not in _opened:
            import ray

            while len(_opened) >= _OPEN:
                _opened.popitem(last=False)
            _opened[key] = cast(Job[object, object], ray.get(job[0])).open()
        _opened.move_to_end(key)
        return _opened[key](item)
    except UserError as error:
        raise UserError(*error.sentences) from None  # some of its kinds cannot be sent
