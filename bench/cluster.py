"""Work on a Ray cluster: what two killed nodes cost, how label making scales, and whether sharded search is exact.

    python -m bench.cluster kills             10,000 questions on four nodes, of which two die; --rounds 3
    python -m bench.cluster scaling           Agentic-R's labels against a slow server, by 1 to 16 processes
    python -m bench.cluster search            exact search over four nodes beside one scan, before and after a death
    python -m bench.cluster encode            an index whose corpus four nodes encode, one of which dies
    python -m bench.cluster imports --beside SRC    `import coseek` and `coseek --version` beside another checkout

`make engine-ray` makes an environment with Ray: .venv-ray/bin/python -m bench.cluster … Nodes are those of
`ray.cluster_utils` on this machine; a killed one gets SIGKILL, with all its processes. Rows are compared without their
seconds and the digests of lines that hold them. Exits 1 when something was lost, came twice or differs.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from bench.digests import digests
from bench.label_throughput import serving
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.cli.main import main as coseek
from coseek.core.cluster import cluster_at
from coseek.data.run import Run
from coseek.library import label, run_agent
from coseek.retrieval.vectors.exact import ExactSearch
from coseek.retrieval.vectors.sharded import ClusterSearch
from coseek.retrieval.vectors.store import VectorWriter
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster as Nodes


@contextmanager
def nodes(count: int, cpus: int = 1) -> "Iterator[Nodes]":
    """So many nodes beside a head that works on nothing; this process is connected to the head."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    memory = 200 * 2**20
    there = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": memory},
    )
    try:
        for _ in range(count):
            there.add_node(num_cpus=cpus, object_store_memory=memory)
        there.wait_for_nodes()
        ray.init(there.address, log_to_driver=False, logging_level="ERROR")
        yield there
    finally:
        ray.shutdown()
        there.shutdown()


def kill(there: "Nodes", rng: random.Random) -> None:
    there.remove_node(rng.choice(sorted(there.worker_nodes, key=id)), allow_graceful=False)


def typed(*words: object) -> None:
    if coseek([str(word) for word in words]):
        raise SystemExit(f"coseek {words[0]} failed")


def rows_of(run: Path) -> list[str]:
    """The rows of a run by question and seed, without seconds."""
    Run(run).arrange(sorted({trajectory.question.id for trajectory in Run(run).trajectories()}))
    lines = (run / "trajectories.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.dumps({**json.loads(line), "timings": {}, "digest": ""}) for line in lines]


def compared(name: str, there: list[str], wanted: list[str]) -> bool:
    """Print what was lost, came twice and differs."""
    keys, known = [_key(row) for row in there], Counter(map(_key, wanted))
    lost, twice = (known - Counter(keys)).total(), (Counter(keys) - known).total()
    same = there == wanted
    print(
        f"  {name}: {len(there):,} rows, {lost} lost, {twice} twice, {'byte-equal' if same else 'DIFFERENT'}",
        flush=True,
    )
    return same


def _key(row: str) -> str:
    tree = json.loads(row)
    question = tree.get("question")
    return f"{question['id'] if question else tree['question_id']} {tree['seed']} {tree.get('search')}"


@contextmanager
def killing(there: "Nodes", deaths: int, within_s: float, rng: random.Random) -> Iterator[list[float]]:
    """Kill nodes at random moments of the next seconds; yields the moments as they come."""
    moments: list[float] = []
    ended, began = threading.Event(), time.perf_counter()

    def work() -> None:
        for moment in sorted(rng.uniform(0.0, within_s) for _ in range(deaths)):
            if ended.wait(max(0.0, moment - (time.perf_counter() - began))):
                return
            kill(there, rng)
            moments.append(time.perf_counter() - began)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield moments
    finally:
        ended.set()
        thread.join()


def labels_of(folder: Path) -> list[str]:
    return [line for name in ("labels", "dropped") for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def kills(given: argparse.Namespace, base: Path) -> bool:
    """Runs, then gold labels of a fifth of them, on four nodes of which two die, beside one machine's."""
    world = WorldSettings.model_validate({"size": given.size, "train": given.questions, "dev": 0, "test": 0})
    make_world(world).save(base / "world")
    typed("index", base / "world", "--out", base / "index")
    began = time.perf_counter()
    ask = partial(run_agent, base / "world", given.agent, base / "index", split="train")
    ask(base / "one")
    run_s = time.perf_counter() - began
    wanted = rows_of(base / "one")
    began = time.perf_counter()
    label(base / "one", "gold", base / "labels-one", count=given.questions // 5)
    label_s = time.perf_counter() - began
    print(f"one machine: {run_s:.0f} s of runs, {label_s:.0f} s of labels", flush=True)
    same = True
    for number in range(given.rounds):
        for name, within_s in (("runs", run_s), ("labels", label_s)):
            rng, out = random.Random(f"{given.seed} {number} {name}"), base / f"{name}-{number}"
            with nodes(4) as there, killing(there, 2, within_s, rng) as moments:
                began = time.perf_counter()
                if name == "runs":
                    ask(out, cluster=there.address)
                else:
                    label(base / "one", "gold", out, count=given.questions // 5, cluster=there.address)
                took = time.perf_counter() - began
            said = ", ".join(f"{moment:.1f}" for moment in moments)
            print(f"round {number}: {took:.0f} s, nodes died after {said} s", flush=True)
            ours, theirs = (
                (rows_of(out), wanted) if name == "runs" else (labels_of(out), labels_of(base / "labels-one"))
            )
            same &= compared(name, ours, theirs) and len(moments) == 2
    return same


def scaling(given: argparse.Namespace, base: Path) -> bool:
    """Labels of W times as many runs by W processes, each with a few calls open at a server that sleeps."""
    most = max(given.workers)
    world = WorldSettings.model_validate({"size": "compact", "train": given.runs * most, "dev": 0, "test": 0})
    make_world(world).save(base / "world")
    typed("index", base / "world", "--out", base / "index")
    typed("run", base / "world", "--agent", "expert", "--retriever", base / "index", "--out", base / "run")
    seconds: dict[int, list[float]] = {count: [] for count in given.workers}
    for number in range(given.rounds):
        for count in given.workers:
            seconds[count].append(labelled(given, base, f"{number}-{count}", count))
            print(f"{count:3d} processes, {count * given.runs:5d} runs: {seconds[count][-1]:6.1f} s", flush=True)
    first = seconds[given.workers[0]]
    shares = {count: [one / other for one, other in zip(first, some, strict=True)] for count, some in seconds.items()}
    for count, some in shares.items():
        print(f"{count:3d} processes: {statistics.mean(some):.3f} ({min(some):.3f} to {max(some):.3f})")
    return all(statistics.mean(some) >= 0.9 for some in shares.values())


def labelled(given: argparse.Namespace, base: Path, name: str, count: int) -> float:
    """Seconds between the server's first request and its last answer. A few labels before let all processes start."""
    per_node = -(-count // 4)
    with serving(given, base / "world" / "questions.train.jsonl") as url, nodes(count // per_node, per_node) as there:
        patience = f"patience: {{concurrency: {given.calls}}}"
        (base / "scorer.yaml").write_text(f"url: {url}\nmodel: m\n{patience}\n", encoding="utf-8")
        server = f"server: {{dialect: completions, model: m, {patience}}}"
        agent = f"name: {url}\nprotocol: search-r1\nprompt_template: laptop\ntokenizer: bytes\n{server}\n"
        (base / "agent.yaml").write_text(agent, encoding="utf-8")
        who = ("--agent", base / "agent.yaml", "--scorer", base / "scorer.yaml", "--cluster", there.address)
        words = ("label", base / "run", "--method", "agentic-r", *who)
        typed(*words, "--count", 2 * count, "--out", base / f"before-{name}")
        began = time.perf_counter()
        typed(*words, "--count", given.runs * count, "--out", base / f"labels-{name}")
        return time.perf_counter() - began


def search(given: argparse.Namespace, base: Path) -> bool:
    """Rows and scores of exact search over four nodes, of which one dies, beside those of one scan."""
    rng = np.random.default_rng(given.seed)
    vectors_ND = rng.standard_normal((given.rows, given.dim), dtype=np.float32)
    copies = rng.choice(given.rows, max(2, given.rows // 100), replace=False)
    vectors_ND[copies] = vectors_ND[copies[0]]  # ties over all parts
    queries_QD = rng.standard_normal((64, given.dim), dtype=np.float32)
    queries_QD[::2] = vectors_ND[copies[0]]
    writer = VectorWriter(base / "vectors", given.rows, given.dim)
    writer.append(vectors_ND)
    store = writer.finish()
    wanted = ExactSearch(store).find(queries_QD, 100)
    same = True
    with nodes(4) as there, cluster_at(there.address) as cluster:
        assert cluster is not None
        over = ClusterSearch(cluster, store, "cpu")
        for moment in ("four nodes", "again", "three nodes", "again"):
            if moment == "three nodes":
                kill(there, random.Random(given.seed))
            began = time.perf_counter()
            found = over.find(queries_QD, 100)
            took = time.perf_counter() - began
            equal = found.rows_QK.tobytes() == wanted.rows_QK.tobytes()
            equal &= found.scores_QK.tobytes() == wanted.scores_QK.tobytes()
            ties = int((np.diff(found.scores_QK, axis=1) == 0).sum())
            same &= equal
            said = f"{moment:>11}: {took:.2f} s, {found.rows_QK.size:,} ids, {ties:,} in ties: "
            print(said + ("the same" if equal else "DIFFERENT"), flush=True)
    return same


def encode(given: argparse.Namespace, base: Path) -> bool:
    """Files of an index that four nodes encode, of which one dies, beside those of one process."""
    encoder = make_encoder(base / "tiny")
    sentences(given.passages).save(base / "corpus.jsonl")
    # An index notes whether its corpus file was older than two seconds: let it be so for all builds.
    os.utime(base / "corpus.jsonl", (time.time() - 60, time.time() - 60))
    words = ("index", base / "corpus.jsonl", "--retriever", "dense", "--encoder", encoder, "search=exact", "--out")
    typed(*words, base / "one", "devices=[cpu]")
    with nodes(4) as there, killing(there, 1, 15.0, random.Random(given.seed)) as moments:
        began = time.perf_counter()
        typed(*words, base / "four", "--cluster", there.address)
        took = time.perf_counter() - began
    same = digests(base / "one") == digests(base / "four")
    said = ", ".join(f"{moment:.1f}" for moment in moments)
    print(
        f"{given.passages:,} passages in {took:.1f} s, a node died after {said} s: ",
        "byte-equal" if same else "DIFFERENT",
    )
    return same and len(moments) == 1


def imports(given: argparse.Namespace, base: Path) -> bool:
    """Seconds of an import and of a command, in turns with another checkout."""
    without = "; import sys; assert 'ray' not in sys.modules"
    asks = {
        "import coseek": f"import coseek; coseek.run_agent; coseek.label{without}",
        "coseek --version": f"from coseek.cli.main import main; main(['--version']){without}",
        "coseek run --help": f"from coseek.cli.main import main; main(['run', '--help']){without}",
    }
    folders = {"here": Path(__file__).parent.parent / "src", "beside": given.beside}
    for name, program in asks.items():
        seconds: dict[str, list[float]] = {which: [] for which in folders}
        for _ in range(given.repeats):
            for which, folder in folders.items():
                began = time.perf_counter()
                environment = {**os.environ, "PYTHONPATH": str(folder)}
                subprocess.run([sys.executable, "-c", program], env=environment, check=True, stdout=subprocess.DEVNULL)
                seconds[which].append(time.perf_counter() - began)
        said = ", ".join(f"{which} {min(some):.3f} ({statistics.median(some):.3f})" for which, some in seconds.items())
        print(f"{name:>18}: least (median) seconds of {given.repeats}: {said}", flush=True)
    return True


DOES: dict[str, Callable[[argparse.Namespace, Path], bool]] = {
    "kills": kills, "scaling": scaling, "search": search, "encode": encode, "imports": imports,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=DOES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", type=int, default=10_000)
    parser.add_argument("--size", default="compact", help="of the world")
    parser.add_argument("--agent", default="expert")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--runs", type=int, default=60, help="trajectories a process")
    parser.add_argument("--calls", type=int, default=2, help="calls of a process that are open at a model")
    parser.add_argument("--latency-ms", type=float, default=500.0)
    parser.add_argument("--slots", type=int, default=10_000, help="calls that the server works on at once")
    parser.add_argument("--refused", type=float, default=0.0)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--passages", type=int, default=40_000)
    parser.add_argument("--beside", type=Path, help="`src` of another checkout")
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        return 0 if DOES[given.what](given, Path(name)) else 1


if __name__ == "__main__":
    sys.exit(main())
