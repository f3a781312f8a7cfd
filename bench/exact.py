"""Exact dense search side by side: faiss flat, torch float32, our float32 blocks and our certified int8.

    python bench/exact.py --vectors random --count 1000000 -k 10 100
    python bench/exact.py --vectors build/embeddings/minilm.npy --count 1000000 -k 10 100
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python bench/exact.py --count 200000   # as on an older processor

All sides answer the same queries over the same vectors in one process, taking turns; torch gets both orders of the
product and several block sizes, and the best one counts. What is right is decided by brute force in float64. Memory is
measured in a process of its own. The bars: the one of ours that `search: auto` takes on this machine has .95 of the
speed of the best side, and the ids are those of brute force. From 999,000 rows on (of a million, some may be held out
as queries) and with VNNI, int8 is five times as fast as faiss and twice as fast as torch, and memory stays within 1.2
times the index. Exits 1 when one is missed. A speed belongs to the instruction set that the first lines name.

Real vectors: the base is the first `--count` rows, the queries are rows past it, evenly spread. When the file has no
such rows, they are rows of the base with noise of half their length; the first line says which.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coseek.hardware.device import instructions
from coseek.retrieval.vectors.exact import ExactSearch, fastest_method
from coseek.retrieval.vectors.int8 import Int8Search, quantise
from coseek.retrieval.vectors.shortlist import ScanSearch
from coseek.retrieval.vectors.store import VectorStore, VectorWriter

ROOT = Path(__file__).resolve().parent.parent
WRITTEN_TOGETHER = 16_384
JUDGED_FROM = 999_000
FASTER_THAN_FAISS, FASTER_THAN_TORCH, MEMORY, OF_THE_BEST = 5.0, 2.0, 1.2, 0.95
TORCH_BLOCKS = (4_096, 16_384, 65_536, 262_144)

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]


@dataclass
class Side:
    """One way of searching, and how it did."""

    name: str
    go: Callable[[Floats, int], Rows]
    seconds: list[float] = field(default_factory=list)
    rows_QK: Rows | None = None

    def run(self, queries_QD: Floats, k: int) -> None:
        began = time.perf_counter()
        self.rows_QK = self.go(queries_QD, k)
        self.seconds.append(time.perf_counter() - began)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def report(self, truth_QK: Rows, base: float) -> str:
        assert self.rows_QK is not None
        equal = int((self.rows_QK == truth_QK).all(axis=1).sum())
        spread = f"{min(self.seconds):.3f} – {max(self.seconds):.3f}"
        same = "all ids right" if equal == len(truth_QK) else f"{equal} of {len(truth_QK)} lists right"
        return f"  {self.name:<34}{self.median:8.3f} s  ({spread})  {self.median / base:6.2f} × int8   {same}"


def main() -> int:
    args = arguments()
    folder = args.work / f"{Path(args.vectors).stem}-{args.count}-{args.dim}"
    if args.memory_of:
        return report_memory(folder, args.memory_of, args.queries, max(args.k))
    import faiss
    import torch

    torch.set_num_threads(args.threads)
    faiss.omp_set_num_threads(args.threads)
    queries_QD, whence = held_out(args)
    np.save(prepared(args, folder) / "queries.npy", queries_QD)
    print(f"{args.vectors}: {args.count:,} × {args.dim}, {args.queries} queries ({whence}), {args.threads} threads")
    print(f"instructions: {instructions()}; {torch.cpu.get_capabilities().get('cpu_name')}")
    store = VectorStore.open(folder / "vectors")
    ours: dict[str, Int8Search | ExactSearch] = {
        "exact": ExactSearch(store),
        "int8": Int8Search(store, folder / "int8"),
    }
    taken, why = fastest_method(store, "cpu")
    print(f"auto is {taken}: {why}")
    others = baselines(store)
    passed = [compare(args, store, ours, taken, others, queries_QD, k) for k in args.k]
    remembered = memory(args, folder)
    large = args.count >= JUDGED_FROM and "avx512_vnni" in instructions()
    if not large:
        print(f"bars of int8 and of memory are judged from {JUDGED_FROM:,} rows on, with VNNI")
    return 0 if all(one.held and (one.int8_held or not large) for one in passed) and (remembered or not large) else 1


class Verdict(NamedTuple):
    """Which bars are met at one k."""

    held: bool
    """Those of every machine."""
    int8_held: bool
    """Those of int8 on processors that are made for it."""


def compare(
    args: argparse.Namespace,
    store: VectorStore,
    ours: dict[str, Int8Search | ExactSearch],
    taken: str,
    others: list[Side],
    queries_QD: Floats,
    k: int,
) -> Verdict:
    """All sides at one k; `taken` is the one of ours that `auto` stands for."""
    theirs = [Side(side.name, side.go) for side in others]
    mine = {name: Side(f"ours, {name}", searching(search)) for name, search in ours.items()}
    sides = [*theirs, *mine.values()]
    for repeat in range(args.repeats + 1):
        for side in sides:
            side.run(queries_QD, k)
            if not repeat:
                side.seconds.clear()  # the first round reads the disk and starts threads
    truth_QK = brute_force(store, queries_QD, k)
    faiss_side, *torch_sides = theirs
    torch_side = min(torch_sides, key=lambda side: side.median)
    int8, auto, best = mine["int8"], mine[taken], min(sides, key=lambda side: side.median)
    print(f"k = {k}, medians of {args.repeats} (smallest – largest); best of torch: {torch_side.name}")
    for side in sides:
        print(side.report(truth_QK, int8.median))
    right = all(np.array_equal(side.rows_QK, truth_QK) for side in mine.values() if side.rows_QK is not None)
    return Verdict(
        held=all(
            (
                bar(f"k = {k}: ids of brute force", float(right), 1.0),
                bar(
                    f"k = {k}: auto ({taken}), of the speed of the best ({best.name})",
                    best.median / auto.median,
                    OF_THE_BEST,
                ),
            )
        ),
        int8_held=all(
            (
                bar(f"k = {k}: int8 against faiss flat", faiss_side.median / int8.median, FASTER_THAN_FAISS),
                bar(f"k = {k}: int8 against the best torch", torch_side.median / int8.median, FASTER_THAN_TORCH),
            )
        ),
    )


def bar(name: str, reached: float, least: float) -> bool:
    print(f"{'ok    ' if reached >= least else 'MISSED'} {name}: {reached:.2f}, bar {least}")
    return reached >= least


def baselines(store: VectorStore) -> list[Side]:
    """What one would use otherwise, over vectors in memory."""
    import faiss
    import torch

    base_ND = np.concatenate([block for _, block in store.blocks(len(store))])
    index = faiss.IndexFlatIP(store.dim)
    index.add(base_ND)
    base = torch.from_numpy(base_ND)

    def flat(queries_QD: Floats, k: int) -> Rows:
        rows_QK: Rows = index.search(queries_QD, k)[1]
        return rows_QK

    def multiply(rows: int, tall: bool) -> Callable[[Floats, int], Rows]:
        def go(queries_QD: Floats, k: int) -> Rows:
            queries = torch.from_numpy(queries_QD)
            scores, places = torch.zeros((len(queries), 0)), torch.zeros((len(queries), 0), dtype=torch.int64)
            for start in range(0, len(base), rows):
                block = base[start : start + rows]
                product = (block @ queries.T).T if tall else queries @ block.T
                best = product.topk(min(k, len(block)), dim=1)
                scores = torch.cat([scores, best.values], dim=1)
                places = torch.cat([places, best.indices + start], dim=1)
            found: Rows = places.gather(1, scores.topk(k, dim=1).indices).numpy()
            return found

        return go

    sizes = [size for size in TORCH_BLOCKS if size < len(store)] + [len(store)]
    kinds = [(size, tall) for size in sizes for tall in (False, True)]
    name = {False: "Q @ X.T", True: "X @ Q.T"}
    return [Side("faiss IndexFlatIP", flat)] + [
        Side(f"torch {name[tall]}, blocks of {size:,}", multiply(size, tall)) for size, tall in kinds
    ]


def searching(search: ScanSearch) -> Callable[[Floats, int], Rows]:
    return lambda queries_QD, k: search.search(queries_QD, k)[0]


def brute_force(store: VectorStore, queries_QD: Floats, k: int) -> Rows:
    """The ranking by float64 scores, equal ones by row, without any of the code that is measured.

    A float64 product of matrices finds all rows that may be among the best with room to spare (its own rounding is far
    under 1e-9 of the norms); those are summed one by one and sorted.
    """
    wide_DQ = queries_QD.T.astype(np.float64)
    room_Q = (
        1e-9
        * np.linalg.norm(wide_DQ, axis=0)
        * max(float(np.linalg.norm(block, axis=1).max()) for _, block in store.blocks(65_536))
    )
    floor_Q = np.full(len(queries_QD), -np.inf)
    rows: list[list[Rows]] = [[] for _ in queries_QD]
    for start, block_BD in store.blocks(WRITTEN_TOGETHER):
        scores_BQ = block_BD.astype(np.float64) @ wide_DQ
        if len(scores_BQ) >= k:
            floor_Q = np.maximum(floor_Q, np.partition(scores_BQ, -k, axis=0)[-k] - room_Q)
        for query, kept in enumerate(rows):
            kept.append(np.flatnonzero(scores_BQ[:, query] >= floor_Q[query]) + start)
    return np.stack(
        [ranked(store, np.concatenate(kept), query, k) for kept, query in zip(rows, queries_QD, strict=True)]
    )


def ranked(store: VectorStore, rows_M: Rows, query_D: Floats, k: int) -> Rows:
    scores_M = (store.gather(rows_M).astype(np.float64) * query_D.astype(np.float64)).sum(axis=1)
    return rows_M[np.argsort(-scores_M, kind="stable")[:k]]


def memory(args: argparse.Namespace, folder: Path) -> bool:
    """Peak memory of a fresh process that opens the index and searches; whether both kinds stay within the bar."""
    vectors = sum(path.stat().st_size for path in (folder / "vectors").iterdir())
    codes = sum(path.stat().st_size for path in (folder / "int8").iterdir())
    print(f"index: {vectors:,} bytes of vectors, {codes:,} bytes of int8 copy")
    passed = []
    for name, size in (("exact", vectors), ("int8", vectors + codes)):
        command = [sys.executable, __file__, *sys.argv[1:], "--memory-of", name]
        said = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(
            f"  {name}: peak grew by {said['peak']:,} bytes over the bare process ({said['bare']:,}), of which "
            f"{said['anonymous']:,} are its own and the rest mapped pages of the index, clean, free to be dropped"
        )
        passed.append(bar(f"{name}: index bytes allowed for the peak", size * MEMORY / said["peak"], 1.0))
    return all(passed)


def report_memory(folder: Path, name: str, queries: int, k: int) -> int:
    """Search twice, and say how the resident set grew: all of it at its peak, and what is not mapped from files."""
    import torch

    queries_QD = np.load(folder / "queries.npy")
    torch._int_mm(torch.ones((32, 64), dtype=torch.int8), torch.ones((64, 16), dtype=torch.int8))
    torch.ones((64, 64)) @ torch.ones((64, 64))
    bare = status()
    store = VectorStore.open(folder / "vectors")
    search = Int8Search(store, folder / "int8") if name == "int8" else ExactSearch(store)
    for _ in range(2):
        search.search(queries_QD[:queries], k)
    after = status()
    grown = {"peak": after["VmHWM"] - bare["VmRSS"], "anonymous": after["RssAnon"] - bare["RssAnon"]}
    print(json.dumps({"bare": bare["VmRSS"], **grown}))
    return 0


def status() -> dict[str, int]:
    """Bytes of this process as Linux counts them: VmHWM peak, VmRSS now, RssAnon not from files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    pairs = (line.split(":", 1) for line in lines if line.endswith(" kB"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def prepared(args: argparse.Namespace, folder: Path) -> Path:
    """Write vectors and int8 copy once."""
    if not (folder / "int8").exists():
        began = time.perf_counter()
        writer = VectorWriter(folder / "vectors", args.count, args.dim)
        for block_BD in blocks(args, writer.written):
            writer.append(block_BD)
        store, written = writer.finish(), time.perf_counter()
        quantise(store, folder / "int8")
        print(f"wrote vectors in {written - began:.1f} s, int8 copy in {time.perf_counter() - written:.1f} s")
    return folder


def blocks(args: argparse.Namespace, first: int) -> Iterator[Floats]:
    for start in range(first, args.count, WRITTEN_TOGETHER):
        rows = min(WRITTEN_TOGETHER, args.count - start)
        yield unit_rows(start, rows, args.dim) if args.vectors == "random" else real(args)[start : start + rows]


def unit_rows(seed: int, rows: int, dim: int) -> Floats:
    vectors = np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)
    unit: Floats = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return unit


def real(args: argparse.Namespace) -> Floats:
    """The rows of a file that are good: all, or as many as a `done.json` beside it says."""
    path = Path(args.vectors)
    found: Floats = np.load(path, mmap_mode="r")
    note = path.with_name("done.json")
    good = json.loads(note.read_text(encoding="utf-8"))["rows"] if note.exists() else len(found)
    if good < args.count or found.shape[1] != args.dim:
        raise SystemExit(f"{path} has {good:,} × {found.shape[1]} good vectors, not {args.count:,} × {args.dim}")
    return found[:good]


def held_out(args: argparse.Namespace) -> tuple[Floats, str]:
    """Queries, and where they come from."""
    if args.vectors == "random":
        return unit_rows(2**40, args.queries, args.dim), "random unit vectors"
    rest = real(args)[args.count :]
    if len(rest) >= args.queries:
        return np.array(rest[:: len(rest) // args.queries][: args.queries]), "rows of the file past the base"
    near = real(args)[: args.count : args.count // args.queries][: args.queries]
    noisy = near + 0.5 * unit_rows(2**40, args.queries, args.dim)
    unit: Floats = noisy / np.linalg.norm(noisy, axis=1, keepdims=True)
    return unit, "rows of the base with noise of half their length"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Exact dense search: faiss flat, torch, our float32 and our int8.")
    parser.add_argument("--vectors", default="random", help="`random` (unit vectors), or a .npy of float32 rows")
    parser.add_argument("--count", type=int, default=1_000_000, help="rows of the base")
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=64, help="answered in one go")
    parser.add_argument("-k", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="of torch and of faiss")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "exact", help="stores are written here")
    parser.add_argument("--memory-of", choices=["exact", "int8"], help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
