"""Kill test: an index whose building is killed and begun again has the bytes of one that nobody disturbed.

    python -m bench.kill_encoding --kills 10                      MiniLM over real passages, a few minutes
    python -m bench.kill_encoding --kills 10 --encoder tiny       a tiny encoder with random weights, seconds

Builds the index once to the end, then again and again with a SIGKILL at a random moment, going on after each kill until
it is done, and compares all files. Every build is a process of its own. Exits 1 when any file differs.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path

from bench.killing import Child, Told, Work, whole_run

from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.passage import Corpus
from coseek.retrieval.index import build_index

ROOT = Path(__file__).resolve().parent.parent
ENCODED = "passages encoded"


def main() -> int:
    args = arguments()
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        encoder = tiny_encoder(base / "tiny") if args.encoder == "tiny" else args.encoder
        corpus(args.encoder, args.data, base, args.count).save(base / "corpus.jsonl")
        # An index notes whether its corpus file was older than two seconds: let it be so for all builds.
        os.utime(base / "corpus.jsonl", (time.time() - 60, time.time() - 60))
        work = partial(build, base / "corpus.jsonl", encoder, args.retriever)
        return 0 if compare(base, work, args.kills, args.each, random.Random(args.seed)) else 1


def compare(base: Path, work: Work, kills: int, each: int, rng: random.Random) -> bool:
    """Print one line a killed build; true when every index is byte-identical."""
    marks = whole_run(work, base / "whole")
    began = next(time for time, what in marks if what.startswith(ENCODED))
    seconds = marks[-1][0] - began
    expected = digests(base / "whole")
    print(f"undisturbed: {began:.1f} s until encoding began, {seconds:.1f} s after; {shown(expected)}", flush=True)
    same, builds = 0, -(-kills // each)
    for number in range(1, builds + 1):
        folder = base / f"killed-{number}"
        moments = [killed(work, folder, seconds / each, rng) for _ in range(each)]
        if Child.start(work, folder).end():
            raise RuntimeError(f"the build in {folder} did not go on")
        found = digests(folder)
        same += found == expected
        differing = sorted(file for file, _ in set(found.items()) ^ set(expected.items()))
        verdict = f"DIFFERENT: {', '.join(dict.fromkeys(differing))}" if differing else "same"
        told = ", ".join(f"after {moment_s:.2f} s with {rows:,} rows kept" for moment_s, rows in moments)
        print(f"  {number:>3}  killed {told}  {shown(found)}  {verdict}", flush=True)
    print(f"{same} of {builds} byte-identical")
    return same == builds


def killed(work: Work, folder: Path, seconds: float, rng: random.Random) -> tuple[float, int]:
    """Start a build and kill it at a random moment of its encoding: after how long, and rows kept by then."""
    while True:
        moment_s = rng.uniform(0.0, seconds)
        child = Child.start(work, folder)
        next(mark for mark in child.marks() if mark[1].startswith(ENCODED))
        time.sleep(moment_s)
        child.process.kill()
        child.end()
        if not folder.exists():
            return moment_s, rows_kept(folder.parent / f".{folder.name}.building")
        shutil.rmtree(folder)  # it was done already: that says nothing


def rows_kept(building: Path) -> int:
    """Rows whose vectors are safely written."""
    store, progress = building / "vectors" / "store.json", building / "vectors" / "progress.json"
    path = progress if progress.exists() else store
    return int(json.loads(path.read_text())["rows"]) if path.exists() else 0


def build(source: Path, encoder: str, retriever: str, out: Path, resume: bool, progress: Told) -> None:
    """One build, which says how far it has come. It goes on from what it finds, whether told to or not."""

    def report(what: str, done: int, total: int) -> None:
        progress.stage(what, total)
        progress.advance(done)

    # Windows of 256 rows, so that there is something to go on from.
    build_index(source, retriever, out, {"encoder": encoder, "batch_size": 8}, report)


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
        from tests.retrieval.tiny_encoder import sentences

        return sentences(count)
    import_data("hotpotqa", [data / "hotpotqa-pool500"], work / "hotpotqa")
    return Corpus(islice(Dataset(work / "hotpotqa").corpus, count))


def tiny_encoder(folder: Path) -> str:
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
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
