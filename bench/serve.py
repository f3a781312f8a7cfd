"""The service against the obvious one: requests a second and latencies at 1, 16 and 64 clients, same index, same run.

    python bench/serve.py                        MiniLM over hotpotqa-pool500; about six minutes, alone on the machine
    python bench/serve.py --passages 300 --seconds 6      a try

Both servers run all the time, each in its own process, and are asked in turns. Requests hold a single query. *Bare* is
the retriever in a loop at batch 32, without a server. Exit 1 when a bar is missed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.passage import Corpus
from coseek.retrieval.index import build_index

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
CLIENTS = (1, 16, 64)
LEAST_RATIO = {1: 0.9, 16: 2.5, 64: 2.5}
"""Requests a second, ours ÷ obvious."""
LEAST_SHARE = 0.75
"""Of bare, at 64 clients."""
BATCH = 32
COMMAND = [sys.executable, "-m", "coseek.cli.main", "serve", "retriever"]


@dataclass
class Measured:
    """What one server did at one number of clients, over all rounds."""

    seconds: float = 0.0
    failed: int = 0
    latencies_s: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return len(self.latencies_s) / self.seconds

    def percentile_ms(self, percent: float) -> float:
        return float(np.percentile(self.latencies_s, percent)) * 1_000


def main() -> int:
    args = arguments()
    index, queries = prepared(args)
    with ExitStack() as stack:
        urls = {
            "ours": stack.enter_context(server([*COMMAND, str(index), "--port", "0", "--batch", str(BATCH)])),
            "obvious": stack.enter_context(server([sys.executable, str(HERE / "obvious_server.py"), str(index)])),
        }
        check_same(urls, json.loads(queries.read_text(encoding="utf-8"))[:20])
        found, bare = measure(urls, index, queries, args)
    return report(found, bare)


def measure(
    urls: dict[str, str], index: Path, queries: Path, args: argparse.Namespace
) -> tuple[dict[tuple[str, int], Measured], float]:
    """All numbers of clients, both servers in turns; the bare loop between them, while both are idle."""
    found = {(name, clients): Measured() for clients in CLIENTS for name in urls}
    bare: list[float] = []
    for clients in CLIENTS:
        seconds = args.seconds if clients == CLIENTS[-1] else args.seconds / 3
        for turn in range(args.rounds):
            for name, url in urls.items():
                row = loaded(url, queries, clients, seconds / args.rounds, turn)
                measured = found[name, clients]
                measured.seconds += row.seconds
                measured.failed += row.failed
                measured.latencies_s += row.latencies_s
            if clients == CLIENTS[-1]:
                bare.append(bare_loop(index, queries, seconds / args.rounds))
        print(f"{clients} clients done", file=sys.stderr, flush=True)
    return found, float(np.mean(bare))


def report(found: dict[tuple[str, int], Measured], bare: float) -> int:
    """The table, then each bar with what was reached; 1 when one was missed."""
    print("| clients | server | requests/s | p50 ms | p99 ms | failed |")
    print("|---|---|---|---|---|---|")
    for (name, clients), one in found.items():
        row = (
            f"| {clients} | {name} | {one.per_second:.0f} | {one.percentile_ms(50):.1f} | {one.percentile_ms(99):.1f} "
        )
        print(f"{row}| {one.failed} |")
    print(f"\nbare, batch {BATCH}: {bare:.0f} queries/s\n")
    bars = []
    for clients in CLIENTS:
        ours, obvious = found["ours", clients], found["obvious", clients]
        ratio, p99 = ours.per_second / obvious.per_second, ours.percentile_ms(99) / obvious.percentile_ms(99)
        least = LEAST_RATIO[clients]
        bars.append((ratio >= least, f"{clients} clients: {ratio:.2f} × the obvious server, bar {least}"))
        bars.append((p99 <= 1.0, f"{clients} clients: p99 {p99:.2f} of the obvious server's, bar 1"))
    share = found["ours", CLIENTS[-1]].per_second / bare
    bars.append((share >= LEAST_SHARE, f"{CLIENTS[-1]} clients: {share:.2f} of bare, bar {LEAST_SHARE}"))
    failed = sum(one.failed for (name, _), one in found.items() if name == "ours")
    bars.append((failed == 0, f"failed requests: {failed}, bar 0"))
    for reached, sentence in bars:
        print(f"{'ok    ' if reached else 'MISSED'} {sentence}")
    return 0 if all(reached for reached, _ in bars) else 1


def prepared(args: argparse.Namespace) -> tuple[Path, Path]:
    """The index and the file of queries, made once under `--work`."""
    work: Path = args.work
    if not (work / "data").exists():
        import_data("hotpotqa", [args.data / "hotpotqa-pool500"], work / "data")
    dataset = Dataset(work / "data")
    questions = [question.question for split in dataset.splits for question in dataset.questions(split)]
    queries = work / "queries.json"
    queries.write_text(json.dumps(questions), encoding="utf-8")
    name = f"{args.retriever}-{args.passages or 'all'}"
    index = work / name
    if not index.exists():
        source = work / f"{name}.jsonl"
        Corpus(islice(dataset.corpus, args.passages)).save(source)
        build_index(source, args.retriever, index)
    return index, queries


@contextmanager
def server(command: list[str]) -> Iterator[str]:
    """A server in a process of its own: its URL, once it prints one. It must end well."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            raise SystemExit(f"no server: {' '.join(command)}")
        yield found[0]
    finally:
        process.terminate()
        process.wait(30)


def loaded(url: str, queries: Path, clients: int, seconds: float, seed: int) -> Measured:
    """What so many clients met in one turn."""
    command = [sys.executable, str(HERE / "load.py"), url, str(queries)]
    command += ["--clients", str(clients), "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout))


def bare_loop(index: Path, queries: Path, seconds: float) -> float:
    command = [sys.executable, str(HERE / "obvious_server.py"), str(index), "--bare", str(seconds)]
    command += ["--batch", str(BATCH), "--queries", str(queries)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def check_same(urls: dict[str, str], queries: list[str]) -> None:
    """Both servers must find the same, or the comparison means nothing."""
    body = json.dumps({"queries": queries, "topk": 3, "return_scores": True}).encode()
    found = []
    for url in urls.values():
        request = urllib.request.Request(f"{url}/retrieve", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            result = json.load(reply)["result"]
        found.append([[row["document"]["id"] for row in rows] for rows in result])
    if found[0] != found[1]:
        raise SystemExit("the two servers find different passages")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="coseek serve against the obvious server.")
    parser.add_argument("--seconds", type=float, default=60.0, help="at 64 clients, each server; a third at fewer")
    parser.add_argument("--rounds", type=int, default=3, help="turns in which the seconds are spent")
    parser.add_argument("--passages", type=int, help="only the first so many passages, for a try")
    parser.add_argument("--retriever", default="dense", help="dense (MiniLM), or bm25 to see what HTTP costs")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the raw files")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "serve", help="the index is kept here")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
