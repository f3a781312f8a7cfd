"""Kill test: an index whose building is killed and begun again has the bytes of one that nobody disturbed.

    python bench/kill_encoding.py --kills 10                      MiniLM over real passages, a few minutes
    python bench/kill_encoding.py --kills 10 --encoder tiny       a tiny encoder with random weights, seconds

Builds the index once to the end, then again and again with a SIGKILL at a random moment, going on after each kill until
it is done, and compares all files. Every build is a process of its own. Exits 1 when any file differs.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.passage import Corpus
from coseek.retrieval.index import build_index

ROOT = Path(__file__).resolve().parent.parent
BEGUN = "encoding"


def main() -> int:
    args = arguments()
    if args.child:
        source, encoder, out = args.child
        build(Path(source), encoder, Path(out), args.retriever)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        encoder = tiny_encoder(base / "tiny") if args.encoder == "tiny" else args.encoder
        corpus(args.encoder, args.data, base, args.count).save(base / "corpus.jsonl")
        # An index notes whether its corpus file was older than two seconds: let it be so for all builds.
        os.utime(base / "corpus.jsonl", (time.time() - 60, time.time() - 60))
        run = Run(base, encoder, args.retriever)
        return 0 if compare(run, args.kills, args.each, random.Random(args.seed)) else 1


def compare(run: "Run", kills: int, each: int, rng: random.Random) -> bool:
    """Print one line a killed build; true when every index is byte-identical."""
    began = time.perf_counter()
    child = run.start("whole")
    started = time.perf_counter()
    assert child.stdout is not None
    child.stdout.readline()
    seconds = time.perf_counter() - started
    finish(child)
    expected = digests(run.base / "whole")
    print(
        f"undisturbed: {started - began:.1f} s until encoding began, {seconds:.1f} s after; {shown(expected)}",
        flush=True,
    )
    same, builds = 0, -(-kills // each)
    for number in range(1, builds + 1):
        name = f"killed-{number}"
        moments = [run.killed(name, seconds / each, rng) for _ in range(each)]
        finish(run.start(name))
        found = digests(run.base / name)
        same += found == expected
        differing = sorted(file for file, _ in set(found.items()) ^ set(expected.items()))
        verdict = f"DIFFERENT: {', '.join(dict.fromkeys(differing))}" if differing else "same"
        killed = ", ".join(f"after {moment_s:.2f} s with {rows:,} rows kept" for moment_s, rows in moments)
        line = f"  {number:>3}  killed {killed}"
        print(f"{line}  {shown(found)}  {verdict}", flush=True)
    print(f"{same} of {builds} byte-identical")
    return same == builds


class Run:
    """Where everything is, and how a build is started."""

    def __init__(self, base: Path, encoder: str, retriever: str) -> None:
        self.base, self._encoder, self._retriever = base, encoder, retriever

    def start(self, name: str) -> "subprocess.Popen[str]":
        """A build of its own; it has begun to encode (or ended) when this returns."""
        words = [str(self.base / "corpus.jsonl"), self._encoder, str(self.base / name)]
        command = [sys.executable, __file__, "--retriever", self._retriever, "--child", *words]
        quiet = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=quiet)
        assert child.stdout is not None
        if BEGUN not in child.stdout.readline():
            child.communicate()
            raise RuntimeError(f"the build of {name} ended with {child.returncode} before it encoded")
        return child

    def killed(self, name: str, seconds: float, rng: random.Random) -> tuple[float, int]:
        """Start a build and kill it at a random moment before its end: after how long, and rows kept by then."""
        while True:
            moment_s = rng.uniform(0.0, seconds)
            child = self.start(name)
            time.sleep(moment_s)
            child.kill()
            child.communicate()
            if not (self.base / name).exists():
                return moment_s, rows_kept(self.base / f".{name}.building")
            shutil.rmtree(self.base / name)  # it was done already: that says nothing


def rows_kept(building: Path) -> int:
    """Rows whose vectors are safely written."""
    store, progress = building / "vectors" / "store.json", building / "vectors" / "progress.json"
    path = progress if progress.exists() else store
    return int(json.loads(path.read_text())["rows"]) if path.exists() else 0


def build(source: Path, encoder: str, out: Path, retriever: str) -> None:
    """The child: one build, which says when it begins to encode."""
    said: list[str] = []

    def report(what: str, done: int, total: int) -> None:
        if not said:
            said.append(what)
            print(BEGUN, flush=True)

    # Windows of 256 rows, so that there is something to go on from.
    build_index(source, retriever, out, {"encoder": encoder, "batch_size": 8}, report)
    print("done", flush=True)


def finish(child: "subprocess.Popen[str]") -> None:
    child.communicate()
    if child.returncode:
        raise RuntimeError(f"a build ended with {child.returncode}")


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file of an index."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def shown(found: dict[str, str]) -> str:
    """A short digest of all of them."""
    return hashlib.sha256(repr(sorted(found.items())).encode()).hexdigest()[:12]


def corpus(encoder: str, data: Path, work: Path, count: int) -> Corpus:
    """So many passages: made up for the tiny encoder, else of HotpotQA."""
    if encoder == "tiny":
        sys.path.insert(0, str(ROOT))
        from tests.retrieval.tiny_encoder import sentences

        return sentences(count)
    import_data("hotpotqa", [data / "hotpotqa-pool500"], work / "hotpotqa")
    return Corpus(islice(Dataset(work / "hotpotqa").corpus, count))


def tiny_encoder(folder: Path) -> str:
    sys.path.insert(0, str(ROOT))
    from tests.retrieval.tiny_encoder import make_encoder

    return str(make_encoder(folder))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--each", type=int, default=1, help="kills of one build, before it is let to end")
    parser.add_argument("--encoder", default="minilm", help="`minilm`, a folder, or `tiny`")
    parser.add_argument("--retriever", default="dense", help="dense, hnsw or ivf-pq")
    parser.add_argument("--count", type=int, default=2_000, help="passages")
    parser.add_argument("--seed", type=int, default=0, help="chooses the moments")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the raw files")
    parser.add_argument("--child", nargs=3, metavar=("CORPUS", "ENCODER", "OUT"), help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
