"""Updates of indexes against rebuilds: equal results, and the time that a change of 1 % takes.

    python -m bench.index_update                      all of it; half an hour with MiniLM
    python -m bench.index_update --engines bm25       100,000 passages, a few minutes

First 1,000 random additions, changes and removals of at most 10,000 passages in ten batches, after each of which all
files and the hits of 100 queries are compared with those of a rebuild; the indexes of vectors have a tiny encoder here.
Then changes of 1 % are timed; bm25 is rebuilt after each, the others after the last. Passages are those of
`bench/scale.py`. Exits 1 when results differ, or when an update takes more than 5 % of a rebuild (medians, of wall time
or of processor time; no bar for hnsw).
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
from bench.digests import digests
from bench.scale_engine import write_words
from tests.retrieval.tiny_encoder import make_encoder

from coseek.core.files import read_json
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.index_update import update_index

ENGINES: dict[str, tuple[str, dict[str, object]]] = {
    "bm25": ("bm25", {}),
    "exact": ("dense", {"search": "exact", "device": "cpu"}),
    "int8": ("dense", {"search": "int8", "device": "cpu"}),
    "hnsw": ("hnsw", {"device": "cpu"}),
}
BAR, UNBARRED = 0.05, "hnsw"
COMPARED, BATCHES, EDITS, QUERIES = 10_000, 10, 100, 100


@dataclass(frozen=True, slots=True)
class Spent:
    """The seconds of one call, and those of all processors."""

    wall_s: float
    cpu_s: float

    @classmethod
    def by(cls, work: Callable[[], object]) -> "Spent":
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        work()
        return cls(time.perf_counter() - wall_s, time.process_time() - cpu_s)


@dataclass(slots=True)
class Measured:
    """A corpus that changes step by step."""

    updates: list[Spent] = field(default_factory=list)
    rebuilds: list[Spent] = field(default_factory=list)
    """With the first build."""
    same_hits: list[bool] = field(default_factory=list)
    same_bytes: list[bool] = field(default_factory=list)

    def __str__(self) -> str:
        compared = len(self.same_hits)
        return f"hits equal in {sum(self.same_hits)} of {compared} comparisons, files in {sum(self.same_bytes)}"


def main() -> int:
    args = arguments()
    good = True
    for engine in args.engines:
        size = args.passages if engine == "bm25" else args.vectors
        with tempfile.TemporaryDirectory() as scratch:
            some = min(size, COMPARED)
            equal = measured(Path(scratch), engine, some, None, [EDITS] * BATCHES, 1, args.seed)
        print(f"{engine}: {BATCHES} times {EDITS} edits of {some:,} passages: {equal}", flush=True)
        each = 1 if engine == "bm25" else args.repeats
        with tempfile.TemporaryDirectory() as scratch:
            batches = [size // 100] * args.repeats
            timed = measured(Path(scratch), engine, size, args.encoder, batches, each, args.seed + 1)
        print(f"{engine}: {args.repeats} times {size // 100:,} edits of {size:,} passages: {timed}")
        good &= all(equal.same_hits + timed.same_hits)
        for clock in ("wall_s", "cpu_s"):
            updates, rebuilds = ([getattr(one, clock) for one in some] for some in (timed.updates, timed.rebuilds))
            good &= fast(engine, clock, updates, rebuilds)
    return 0 if good else 1


def fast(engine: str, clock: str, updates: Sequence[float], rebuilds: Sequence[float]) -> bool:
    """Print the seconds; whether the updates take no more than the bar allows."""
    share = statistics.median(updates) / statistics.median(rebuilds)
    within = engine == UNBARRED or share <= BAR
    missed = "" if within else f", MISSED {BAR:.0%}"
    print(f"  {clock}: {spread(updates)}, rebuild {spread(rebuilds)}: {share:.1%}{missed}", flush=True)
    return within


def measured(
    folder: Path, engine: str, size: int, encoder: str | None, batches: Sequence[int], each: int, seed: int
) -> Measured:
    """Build an index, then make so many edits at a time, each time with an update, and with a rebuild after each `each`
    of them. Without an `encoder` vectors come from a tiny one."""
    rng, asked_Q = random.Random(seed), np.arange(0, size, max(1, size // QUERIES))
    write_words(folder, size + sum(batches), asked_Q, np.random.default_rng(seed))
    path, updated, rebuilt = folder / "corpus.jsonl", folder / "updated", folder / "rebuilt"
    texts, queries = list(Corpus.load(path)), cast(list[str], read_json(folder / "queries.json"))
    passages, fresh = texts[:size], texts[size:]
    retriever, settings = ENGINES[engine]
    if engine != "bm25":
        settings = {**settings, "encoder": encoder or str(make_encoder(folder / "tiny"))}
    saved(passages, path)
    found = Measured(rebuilds=[Spent.by(lambda: build_index(path, retriever, updated, settings))])
    for number, edits in enumerate(batches, start=1):
        edit(passages, [fresh.pop() for _ in range(edits)], rng)
        saved(passages, path)
        found.updates.append(Spent.by(lambda: update_index(path, updated)))
        if number % each == 0:
            found.rebuilds.append(Spent.by(lambda: build_index(path, retriever, rebuilt, settings)))
            hits, wanted = (open_index(one).search(queries, 10) for one in (updated, rebuilt))
            found.same_hits.append(hits == wanted)
            found.same_bytes.append(digests(updated) == digests(rebuilt))
    return found


def edit(passages: list[Passage], fresh: Sequence[Passage], rng: random.Random) -> None:
    """Add a fresh passage, give its text to another one, or remove one; as many edits as fresh passages."""
    for passage in fresh:
        place, kind = rng.randrange(len(passages)), rng.randrange(3)
        if kind == 0:
            passages.insert(place, passage)
        elif kind == 1:
            passages[place] = replace(passage, id=passages[place].id)
        else:
            del passages[place]


def saved(passages: Sequence[Passage], path: Path) -> None:
    """Write the corpus, as if some time ago: an index notes whether its file was older than two seconds."""
    Corpus(passages).save(path)
    os.utime(path, (time.time() - 60, time.time() - 60))


def spread(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.2f} [{min(seconds):.2f}–{max(seconds):.2f}]"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engines", nargs="+", choices=list(ENGINES), default=list(ENGINES))
    parser.add_argument("--passages", type=int, default=100_000, help="for bm25")
    parser.add_argument("--vectors", type=int, default=1_000, help="passages for the others")
    parser.add_argument("--encoder", default="minilm", help="for the times; `minilm`, `base` or a folder")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
