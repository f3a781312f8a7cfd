"""Size: synthetic corpora of 10⁴, 10⁵ and 10⁶ passages through every engine, and what that means for 21 million.

    python bench/scale.py        all of it, about half an hour; goes on where it was stopped

Writes bench/results/scale.md.
    python bench/scale.py --sizes 10000 --engines bm25,exact        to try; prints, and writes nothing

Words are drawn by Zipf's law, about 50 a passage; a query is six words of a passage. Vectors are random around random
centres and of length 1, in place of an encoder's; a query lies near a passage. Each building and each searching is a
process of its own (`bench/scale_engine.py`), whose peak memory the system tells. Exit 1 when a bar is missed.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

# Nothing else is imported: a child's peak memory is never below its parent's.

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "bench" / "results" / "scale.md"
BEGIN, END = "<!-- measured: python bench/scale.py -->", "<!-- end of measured -->"
SIZES = (10_000, 100_000, 1_000_000)
ENGINES = ("bm25", "exact", "int8", "hnsw", "ivf-pq")
DIM = 384
WIKI, WIKI_DIM, WIKI_WORDS, SAID = 21_015_324, 768, 100, 52
"""Passages of wiki-18, dimensions of its usual encoder (E5 base), words a passage there, and here with the title."""
SPARE = 2.0
"""GB for the system, the program and an encoder."""
MEMORIES = (16, 64, 256)
PER_DIM = {"exact": 4.0, "int8": 1.0, "hnsw": 4.0, "ivf-pq": 1 / 8}
"""Bytes that must be in memory for each passage and dimension: float32, int8, float32, one code of a byte for eight."""
HELD = {"exact": "nothing", "int8": "a block", "ivf-pq": "a sample"}
"""What building holds in memory where that does not grow with the corpus, or with its root alone."""
GB = 1e9


@dataclass(frozen=True, slots=True)
class Row:
    """One engine at one size."""

    size: int
    engine: str
    build_s: float
    build_peak: int
    index_bytes: int
    hot_bytes: int
    """Bytes of the index that must be in memory for a search to be quick."""
    search_peak: int
    p50_ms: float
    p99_ms: float
    per_second: float
    recall: float | None
    effort: str

    @classmethod
    def of(cls, size: int, engine: str, built: dict[str, float], searched: dict[str, float]) -> "Row":
        return cls(
            size=size,
            engine=engine,
            build_s=built["seconds"],
            build_peak=int(built["peak_bytes"]),
            index_bytes=int(built["index_bytes"]),
            hot_bytes=int(built["hot_bytes"]),
            search_peak=int(searched["peak_bytes"]),
            p50_ms=searched["p50_ms"],
            p99_ms=searched["p99_ms"],
            per_second=searched["per_second"],
            recall=searched.get("recall"),
            effort=str(searched.get("effort", "")),
        )

    def cells(self) -> str:
        recall = "exact" if self.recall is None else f"{self.recall:.3f} ({self.effort})"
        cells = (
            f"{self.size:,}",
            self.engine,
            f"{self.build_s:,.1f}",
            f"{self.index_bytes / 1e6:,.1f}",
            f"{self.hot_bytes / self.size:,.0f}",
            f"{self.build_peak / GB:.2f}",
            f"{self.search_peak / GB:.2f}",
            f"{self.p50_ms:,.2f}",
            f"{self.p99_ms:,.2f}",
            f"{self.per_second:,.0f}",
            recall,
        )
        return f"| {' | '.join(cells)} |"


HEADER = (
    "| passages | engine | build, s | index, MB | hot bytes a passage | peak building, GB | peak searching, GB "
    "| p50, ms | p99, ms | queries/s, 64 at a time | recall@10 |\n" + "|---" * 11 + "|"
)


def instructions() -> str:
    """The instruction set that the engines are measured with; asked in a process of its own, since torch knows it."""
    code = "from coseek.hardware.host import Host; print(Host.here().instructions)"
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def main() -> int:
    args = arguments()
    print(f"instructions: {instructions()}")
    print(HEADER)
    rows: list[Row] = []
    for row in measured(args):
        rows.append(row)
        print(row.cells(), flush=True)
    page = page_of(rows, args.queries)
    print(page)
    if args.sizes == list(SIZES) and args.engines == list(ENGINES) and not args.vectors:
        write_docs(page)
    return report_bars(rows)


def measured(args: argparse.Namespace) -> Iterator[Row]:
    for size in args.sizes:
        folder = args.work / str(size)
        if not (folder / "prepared").exists():
            real = ("--vectors", args.vectors) if args.vectors else ()
            run(folder, "prepare", "--size", size, "--dim", DIM, "--queries", args.queries, *real)
            (folder / "prepared").touch()
        for engine in args.engines:
            kept = folder / f"{engine}.json"
            if args.again or not kept.exists():
                built = run(folder, "build", "--engine", engine)
                found = {"built": built, "searched": run(folder, "search", "--engine", engine)}
                kept.write_text(json.dumps(found), encoding="utf-8")
            done = cast(dict[str, dict[str, float]], json.loads(kept.read_text(encoding="utf-8")))
            yield Row.of(size, engine, done["built"], done["searched"])


def run(folder: Path, what: str, *more: object) -> dict[str, float]:
    """One child; its line of JSON, if it prints any."""
    script = Path(__file__).with_name("scale_engine.py")
    words = [sys.executable, str(script), what, "--folder", str(folder), *map(str, more)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return cast(dict[str, float], json.loads(done.stdout)) if done.stdout else {}


def page_of(rows: Sequence[Row], queries: int) -> str:
    """The tables of bench/results/scale.md."""
    size = max(row.size for row in rows)
    found = list(choices(rows, size))
    return "\n".join(
        [
            f"Vectors of {DIM} dimensions, {queries} queries, {os.cpu_count()} cores, {instructions()}.\n",
            HEADER,
            *(row.cells() for row in rows),
            f"\nExtrapolated from {size:,} passages of {DIM} dimensions to wiki-18, {WIKI:,} of {WIKI_DIM}:\n",
            "| choice | in memory for quick searches | GB | on disk beside it, GB | building holds, GB | "
            "one query, straight on | fits |\n" + "|---" * 7 + "|",
            *(choice.cells() for choice in found),
            "",
            *(verdict(memory, found) for memory in MEMORIES),
            "",
        ]
    )


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine over wiki-18."""

    name: str
    sum: str
    """How `hot` was worked out."""
    hot: float
    """Bytes."""
    cold: float
    """Bytes on disk that are read now and then."""
    building: str
    """What is held in memory while it is built."""
    latency: str

    @property
    def fits(self) -> list[int]:
        return [memory for memory in MEMORIES if self.hot / GB + SPARE <= memory]

    def cells(self) -> str:
        fits = f"{self.fits[0]} GB" if self.fits else f"none of {', '.join(map(str, MEMORIES))} GB"
        sizes = f"{self.hot / GB:.1f} | {self.cold / GB:.1f} | {self.building}"
        return f"| {self.name} | {self.sum} | {sizes} | {self.latency} | {fits} |"


def choices(rows: Sequence[Row], size: int) -> Iterator[Choice]:
    """Every engine that was measured, and those that keep vectors in float16, which halves just them."""
    for row in rows:
        if row.size != size:
            continue
        each, times = row.hot_bytes / size, WIKI / size
        if row.engine == "bm25":
            longer = WIKI_WORDS / SAID
            ask = f"{row.p50_ms * times * longer:,.0f} ms at most"
            summed = f"{WIKI:,} × {each:,.0f} × {WIKI_WORDS} / {SAID} words"
            yield Choice(row.engine, summed, WIKI * each * longer, 0.0, building(rows, row, longer), ask)
            continue
        slope, wider = PER_DIM[row.engine], WIKI_DIM / DIM
        whole = each + slope * (WIKI_DIM - DIM)
        summed = f"{WIKI:,} × ({each:,.1f} + {slope:g} × {WIKI_DIM - DIM})"
        cold = 4.0 * WIKI_DIM * WIKI if row.engine in ("int8", "ivf-pq") else 0.0
        scans = row.engine in ("exact", "int8")
        ask = f"{row.p50_ms * times * wider:,.0f} ms" if scans else "grows far slower than the corpus"
        yield Choice(row.engine, summed, WIKI * whole, cold, building(rows, row, wider), ask)
        if slope == 4.0:
            half = f"{summed} − {WIKI:,} × 2 × {WIKI_DIM}"
            yield Choice(
                f"{row.engine} (float16)", half, WIKI * (whole - 2 * WIKI_DIM), cold, "not measured", "not measured"
            )


def building(rows: Sequence[Row], row: Row, factor: float) -> str:
    """Peak memory of building, straight on from the two largest sizes: what the program itself takes falls out."""
    if row.engine in HELD:
        return HELD[row.engine]
    smaller = [one for one in rows if one.engine == row.engine and one.size < row.size]
    if not smaller:
        return "not measured"
    last = max(smaller, key=lambda one: one.size)
    each = (row.build_peak - last.build_peak) / (row.size - last.size)
    return f"{max(0.0, each) * WIKI * factor / GB:.1f}"


def verdict(memory: int, found: Sequence[Choice]) -> str:
    """What fits into so much memory."""
    names = [choice.name for choice in found if memory in choice.fits]
    return f"- **{memory} GB** ({memory - SPARE:g} of them free): {', '.join(names) or 'none of them'}."


def report_bars(rows: Sequence[Row]) -> int:
    """Print each bar that was measured; 1 when one was missed."""
    at = {(row.engine, row.size): row for row in rows}
    bars: list[tuple[str, float, bool]] = []
    large, middle = at.get(("bm25", 1_000_000)), at.get(("bm25", 100_000))
    if large:
        peak = max(large.build_peak, large.search_peak) / GB
        bars.append(("BM25, 10⁶ passages: peak memory, GB, at most 16", peak, peak <= 16))
    if large and middle:
        for what in ("build_s", "build_peak", "index_bytes", "p50_ms"):
            growth = getattr(large, what) / getattr(middle, what) / 10
            bars.append((f"BM25, {what} a passage, 10⁵ to 10⁶, below × 1.3", growth, growth < 1.3))
    for row in rows:
        if row.engine == "hnsw" and row.recall is not None:
            name = f"HNSW, {row.size:,} passages, {row.effort}: recall@10, at least .95"
            bars.append((name, row.recall, row.recall >= 0.95))
    for name, reached, good in bars:
        print(f"{'ok    ' if good else 'MISSED'} {name}: {reached:.3f}")
    return 0 if all(good for _, _, good in bars) else 1


def write_docs(page: str) -> None:
    """Put the page between the markers of bench/results/scale.md."""
    text = DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCS.write_text(before + BEGIN + "\n" + page + END + after, encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Engines by the size of the corpus, and what fits wiki-18.")
    parser.add_argument("--sizes", type=numbers, default=list(SIZES), help="passages, comma-separated")
    parser.add_argument("--engines", type=engines, default=list(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--queries", type=int, default=256, help="queries that are timed")
    parser.add_argument(
        "--vectors", type=Path, help="a .npy of real ones in place of random ones; give it a --work of its own"
    )
    parser.add_argument("--again", action="store_true", help="measure anew what --work holds measurements of")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "scale", help="corpora and indexes stay here: about 6 GB for all"
    )
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def engines(text: str) -> list[str]:
    found = text.split(",")
    for name in found:
        if name not in ENGINES:
            raise argparse.ArgumentTypeError(f"no engine {name!r}; choose of {', '.join(ENGINES)}")
    return found


if __name__ == "__main__":
    sys.exit(main())
