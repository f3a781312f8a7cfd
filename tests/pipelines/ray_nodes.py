"""Nodes of a Ray cluster on this machine, nodes that die, and what commands leave behind, for test_ray."""

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from coseek.cli.main import main as coseek
from coseek.data.run import Run

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as Nodes


@contextmanager
def nodes(count: int) -> "Iterator[Nodes]":
    """`count` nodes beside a head that works on nothing; this process is connected to the head."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    memory = 200 * 2**20
    there = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": memory}
    )
    try:
        for _ in range(count):
            there.add_node(num_cpus=1, object_store_memory=memory)
        there.wait_for_nodes()
        ray.init(there.address, log_to_driver=False, logging_level="ERROR")
        yield there
    finally:
        ray.shutdown()
        there.shutdown()


def kill(there: "Nodes", rng: random.Random) -> None:
    """Kill a node with SIGKILL, with all its processes."""
    there.remove_node(rng.choice(sorted(there.worker_nodes, key=id)), allow_graceful=False)


@contextmanager
def killing(there: "Nodes", deaths: int, within_s: float, rng: random.Random) -> Iterator[None]:
    """Kill nodes at random moments of the next seconds."""
    ended, began = threading.Event(), time.perf_counter()

    def work() -> None:
        for moment in sorted(rng.uniform(0.0, within_s) for _ in range(deaths)):
            if ended.wait(max(0.0, moment - (time.perf_counter() - began))):
                return
            kill(there, rng)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def typed(*words: object) -> None:
    """Run a command of coseek in this process."""
    assert coseek([str(word) for word in words]) == 0, words


def rows_of(run: Path) -> list[str]:
    """The rows of a run by question and seed, without seconds and the digests of lines that hold them."""
    Run(run).arrange(sorted({trajectory.question.id for trajectory in Run(run).trajectories()}))
    lines = (run / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.dumps({**json.loads(line), "timings": {}, "digest": ""}) for line in lines]


def labels_of(folder: Path) -> list[str]:
    return [line for name in ("labels", "dropped") for line in (folder / f"{name}.jsonl").read_text().splitlines()]
