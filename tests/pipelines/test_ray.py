"""Fears about Ray: a node that dies and takes rows along, a caller that dies, and results that depend on the cluster.
`make test-ray` runs these in an environment of its own."""

import importlib.util
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.digests import digests
from tests.pipelines.ray_nodes import kill, killing, labels_of, nodes, rows_of, typed
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.cluster import cluster_at
from coseek.core.errors import RunError
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.retrieval.index import build_index, open_index

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as Nodes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="make test-ray"),
    # Ray leaves its sockets and processes to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world, its index, a run of one machine and its labels."""
    folder = tmp_path_factory.mktemp("ray")
    make_world(WorldSettings(size="tiny", train=200, dev=0, test=0)).save(folder / "world")
    build_index(folder / "world", "bm25", folder / "index")
    typed("run", folder / "world", "--agent", "faulty-expert", "--retriever", folder / "index", "--out", folder / "run")
    rows_of(folder / "run")
    typed("label", folder / "run", "--method", "agentic-r", "--scorer", "oracle", "--out", folder / "labels")
    return folder


@pytest.fixture(scope="module")
def there() -> "Iterator[Nodes]":
    with nodes(4) as four:
        yield four


def _wait_for(host: str, port: int) -> None:
    """Wait until a server listens there."""
    deadline = time.monotonic() + 60.0
    with socket.socket() as probe:
        while probe.connect_ex((host, port)) and time.monotonic() < deadline:
            time.sleep(0.1)


def coseek_ended(*words: object) -> "subprocess.CompletedProcess[str]":
    """A command in a process of its own: this one is connected to the nodes of these tests."""
    command = [sys.executable, "-m", "coseek.cli.main", *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


@dataclass(frozen=True)
class Fatal:
    """Kills its process at an item."""

    item: int

    def open(self) -> Callable[[int], int]:
        return lambda item: os._exit(3) if item == self.item else item


def test_runs_and_labels_lose_and_double_nothing_when_nodes_die(base: Path, there: "Nodes", tmp_path: Path) -> None:
    words = ("--agent", "faulty-expert", "--retriever", base / "index", "--cluster", there.address)
    with killing(there, 1, 4.0, random.Random(1)):
        typed("run", base / "world", *words, "--out", tmp_path / "run")
    assert rows_of(tmp_path / "run") == rows_of(base / "run")
    labels = ("label", base / "run", "--method", "agentic-r", "--scorer", "oracle", "--cluster", there.address)
    with killing(there, 1, 4.0, random.Random(2)):
        typed(*labels, "--out", tmp_path / "labels")
    assert labels_of(tmp_path / "labels") == labels_of(base / "labels")


def test_an_item_that_kills_every_process_ends_the_command_with_a_sentence(there: "Nodes") -> None:
    with cluster_at(there.address) as cluster:
        assert cluster is not None
        assert sorted(number for number, _ in cluster.map(Fatal(-1), range(100))) == [*range(100)]
        assert [item for _, item in cluster.map(Fatal(-1), range(100), ordered=True, pinned=True)] == [*range(100)]
        with pytest.raises(RunError, match="8 processes died over one item"):
            [*cluster.map(Fatal(3), range(5))]


def test_an_index_that_nodes_encode_and_search_is_that_of_one_machine(there: "Nodes", tmp_path: Path) -> None:
    settings = {"encoder": str(make_encoder(tmp_path / "encoder")), "batch_size": 8, "search": "exact"}
    corpus = sentences(900)
    build_index(corpus, "dense", tmp_path / "one", {**settings, "devices": ["cpu"]})
    build_index(corpus, "dense", tmp_path / "four", {**settings, "cluster": there.address})
    assert digests(tmp_path / "one") == digests(tmp_path / "four")
    queries = [passage.text for passage in corpus[:40]]
    spread = open_index(tmp_path / "one", corpus, {"cluster": there.address})
    wanted = open_index(tmp_path / "one", corpus).search(queries, 20)
    assert spread.search(queries, 20) == wanted
    kill(there, random.Random(3))
    assert spread.search(queries, 20) == wanted


def test_grades_of_nodes_are_those_of_one_machine(base: Path, there: "Nodes") -> None:
    words = ("score", base / "run", "--answer-with", "base", "--judge", base / "world")
    typed(*words, "--cluster", there.address)
    (path,) = base.glob("run/reply.*.jsonl")
    spread = path.read_bytes()
    path.unlink()
    typed(*words)
    assert path.read_bytes() == spread and len(spread.splitlines()) > 100


def test_rows_over_a_clients_address_are_those_of_one_machine(base: Path, there: "Nodes", tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:{1}".format(*free.getsockname())
    host, _, port = address.partition(":")
    words = ("run", base / "world", "--agent", "faulty-expert", "--retriever", base / "index")
    server = [
        sys.executable, "-m", "ray.util.client.server", "--host", host, "--port", port, "--address", there.address,
    ]  # fmt: skip
    with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(host, int(port))
            ended = coseek_ended(*words, "--out", tmp_path / "run", "--cluster", f"ray://{address}")
        finally:
            process.terminate()
    assert ended.returncode == 0, ended.stderr
    assert rows_of(tmp_path / "run") == rows_of(base / "run")


def test_a_cluster_that_is_not_there_is_a_sentence_at_once(base: Path, tmp_path: Path) -> None:
    words = ("run", base / "world", "--agent", "faulty-expert", "--retriever", base / "index", "--out", tmp_path)
    for address in ("127.0.0.1:9", "ray://127.0.0.1:9"):
        began = time.monotonic()
        ended = coseek_ended(*words, "--cluster", address)
        assert ended.returncode == 1 and f"cannot connect to the cluster {address}" in ended.stderr, ended.stderr
        assert time.monotonic() - began < 60.0
