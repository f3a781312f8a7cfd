"""One measurement of `bench/scale.py`, in a process of its own, so that its peak memory is its own.

python bench/scale_engine.py prepare --folder DIR --size 10000     corpus, vectors, queries, what exact search finds
python bench/scale_engine.py build   --folder DIR --engine hnsw    prints one line of JSON
python bench/scale_engine.py search  --folder DIR --engine hnsw    prints one line of JSON
"""

import argparse
import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coseek.core.files import JsonObject
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.vectors.embedding_retriever import Nearest
from coseek.retrieval.vectors.store import VectorStore, VectorWriter

K, BATCH, RECALL = 10, 64, 0.95
EFFORTS = {"hnsw": (64, 128, 256, 512), "ivf-pq": (8, 32, 128, 512)}
"""efSearch and nprobe: raised until recall@10 reaches `RECALL`."""
EF_CONSTRUCTION = 64
"""The default, 200, takes about three times as long, and here recall is 1 either way."""
VOCABULARY = 1_000_000
SAID = 50
"""Words a passage, without its title's two."""

Vectors: TypeAlias = NDArray[np.float32]
Rows: TypeAlias = NDArray[np.int64]
Find: TypeAlias = Callable[[Vectors], Rows]


def main() -> int:
    args = arguments()
    if args.what == "prepare":
        prepare(args.folder, args.size, args.dim, args.queries, args.vectors)
    else:
        print(json.dumps(build(args.folder, args.engine) if args.what == "build" else search(args.folder, args.engine)))
    return 0


# What is searched


def prepare(folder: Path, size: int, dim: int, queries: int, real: Path | None) -> None:
    """Write corpus, vectors, queries, and the rows that exact search finds for them.

    Of `real` vectors the first `size` are searched, and those behind them are the queries.
    """
    from coseek.retrieval.vectors.exact import ExactSearch

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(size)
    asked_Q = np.sort(rng.choice(size, size=min(queries, size), replace=False))
    write_words(folder, size, asked_Q, rng)
    if real is None:
        store = write_vectors(folder / "vectors", size, dim, rng)
        near_QD = store.gather(asked_Q).astype(np.float32) + unit(rng, len(asked_Q), dim) * np.float32(0.5)
    else:
        found_ND = np.load(real, mmap_mode="r")
        writer = VectorWriter(folder / "vectors", size, found_ND.shape[1])
        writer.append(np.asarray(found_ND[:size]))
        store, near_QD = writer.finish(), np.asarray(found_ND[size : size + queries])
    queries_QD = near_QD / np.linalg.norm(near_QD, axis=1, keepdims=True)
    np.save(folder / "queries.npy", queries_QD)
    np.save(folder / "truth.npy", ExactSearch(store).search(queries_QD, K)[0])


def write_words(folder: Path, size: int, asked_Q: Rows, rng: np.random.Generator) -> None:
    """`corpus.jsonl` of Zipf's words, and `queries.json` of six words of each passage that is asked for."""
    odds_V = 1.0 / (np.arange(VOCABULARY) + 2.7)
    sums_V = np.cumsum(odds_V / odds_V.sum())
    names = [word(rank) for rank in range(VOCABULARY)]
    asked, queries = set(asked_Q.tolist()), list[str]()
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for start in range(0, size, 10_000):
            lengths = rng.poisson(SAID, size=min(10_000, size - start)) + 2
            ranks = np.minimum(np.searchsorted(sums_V, rng.random(int(lengths.sum()))), VOCABULARY - 1).tolist()
            end = 0
            for row, length in enumerate(lengths.tolist(), start=start):
                words = [names[rank] for rank in ranks[end : end + length]]
                end += length
                passage = {"id": f"p{row}", "title": " ".join(words[:2]), "text": " ".join(words[2:])}
                file.write(json.dumps(passage) + "\n")
                if row in asked:
                    queries.append(" ".join(words[place] for place in rng.integers(len(words), size=6).tolist()))
    (folder / "queries.json").write_text(json.dumps(queries), encoding="utf-8")


def word(rank: int) -> str:
    """A word for each rank, longer for rarer ones."""
    letters = "x"
    while rank:
        rank, letter = divmod(rank, 26)
        letters += chr(97 + letter)
    return letters


def write_vectors(folder: Path, size: int, dim: int, rng: np.random.Generator) -> VectorStore:
    """Vectors around one centre for 100 passages, cosine about .7 to it."""
    centres_CD = unit(rng, max(10, size // 100), dim)
    writer = VectorWriter(folder, size, dim)
    for start in range(0, size, 65_536):
        count = min(65_536, size - start)
        vectors_BD = centres_CD[rng.integers(len(centres_CD), size=count)] + unit(rng, count, dim)
        writer.append(vectors_BD / np.linalg.norm(vectors_BD, axis=1, keepdims=True))
    return writer.finish()


def unit(rng: np.random.Generator, count: int, dim: int) -> Vectors:
    """Random directions."""
    found_ND = rng.standard_normal((count, dim), dtype=np.float32)
    found_ND /= np.linalg.norm(found_ND, axis=1, keepdims=True)
    return found_ND


# Building and searching


def build(folder: Path, engine: str) -> JsonObject:
    """Seconds, peak memory, and bytes: of the whole index, and of what must be in memory for a search to be quick."""
    out, vectors = folder / engine, folder / "vectors"
    shutil.rmtree(out, ignore_errors=True)
    began = time.perf_counter()
    if engine == "bm25":
        build_index(folder / "corpus.jsonl", "bm25", out)
    else:
        out.mkdir()
        build_over(VectorStore.open(vectors), engine, out)
    spent = time.perf_counter() - began
    own = size_of(out)
    read = size_of(vectors)
    whole = own if engine in ("bm25", "hnsw") else own + read
    hot = read if engine == "exact" else own
    return {"seconds": spent, "peak_bytes": peak_bytes(), "index_bytes": whole, "hot_bytes": hot}


def build_over(store: VectorStore, engine: str, out: Path) -> None:
    """What the engine needs beside the vectors; exact search needs nothing."""
    if engine == "int8":
        from coseek.retrieval.vectors.int8 import quantise

        quantise(store, out / "int8")
    elif engine != "exact":
        import faiss

        from coseek.retrieval.retrievers.hnsw import HnswSettings, build_graph
        from coseek.retrieval.retrievers.ivf_pq import IvfPqSettings, fill_cells

        made = (
            build_graph(store, HnswSettings(ef_construction=EF_CONSTRUCTION), True)
            if engine == "hnsw"
            else fill_cells(store, IvfPqSettings(), True)
        )
        faiss.write_index(made, str(out / "index.faiss"))


def search(folder: Path, engine: str) -> JsonObject:
    """Latency, queries a second, peak memory, and recall where the engine is approximate."""
    if engine == "bm25":
        texts: list[str] = json.loads((folder / "queries.json").read_text(encoding="utf-8"))
        retriever = open_index(folder / "bm25")
        return timed(lambda start, stop: retriever.search(texts[start:stop], K), len(texts))
    queries_QD: Vectors = np.load(folder / "queries.npy")
    if engine not in EFFORTS:
        find = exact(folder, engine)
        return timed(lambda start, stop: find(queries_QD[start:stop]), len(queries_QD))
    truth_QK: Rows = np.load(folder / "truth.npy")
    recall, name, find = enough(approximate(folder, engine), queries_QD, truth_QK)
    return {
        **timed(lambda start, stop: find(queries_QD[start:stop]), len(queries_QD)),
        "recall": recall,
        "effort": name,
    }


def enough(ways: Iterator[tuple[str, Find]], queries_QD: Vectors, truth_QK: Rows) -> tuple[float, str, Find]:
    """The first way with enough recall@10 against exact search, else the last."""
    way = next(ways)
    while True:
        pairs = zip(way[1](queries_QD).tolist(), truth_QK.tolist(), strict=True)
        recall = sum(len(set(found) & set(true)) for found, true in pairs) / truth_QK.size
        harder = next(ways, None) if recall < RECALL else None
        if harder is None:
            return recall, *way
        way = harder


def exact(folder: Path, engine: str) -> Find:
    from coseek.retrieval.vectors.exact import ExactSearch
    from coseek.retrieval.vectors.int8 import Int8Search

    store = VectorStore.open(folder / "vectors")
    searcher = ExactSearch(store) if engine == "exact" else Int8Search(store, folder / engine / "int8")
    return lambda queries_QD: searcher.search(queries_QD, K)[0]


def approximate(folder: Path, engine: str) -> Iterator[tuple[str, Find]]:
    """Ways to search the engine, by rising effort."""
    from coseek.retrieval.retrievers.hnsw import HnswSearch
    from coseek.retrieval.retrievers.ivf_pq import IvfPqSearch, IvfPqSettings

    path, store = folder / engine / "index.faiss", VectorStore.open(folder / "vectors")
    for effort in EFFORTS[engine]:
        if engine == "hnsw":
            yield f"efSearch {effort}", finder(HnswSearch(path, effort))
        else:
            yield f"nprobe {effort}", finder(IvfPqSearch(path, IvfPqSettings(nprobe=effort), store))


def finder(nearest: Nearest) -> Find:
    return lambda queries_QD: nearest.search(queries_QD, K)[0]


def timed(find: Callable[[int, int], object], count: int) -> JsonObject:
    """Latency of single queries, then queries a second in batches; the first queries warm up and are not timed."""
    for place in range(min(10, count)):
        find(place, place + 1)
    singles_Q = np.array([seconds(find, place, place + 1) for place in range(count)])
    batches = [(start, min(start + BATCH, count)) for start in range(0, count, BATCH)] * 3
    spent = sum(seconds(find, start, stop) for start, stop in batches)
    p50, p99 = np.quantile(singles_Q, [0.5, 0.99]).tolist()
    return {
        "p50_ms": p50 * 1e3,
        "p99_ms": p99 * 1e3,
        "per_second": sum(stop - start for start, stop in batches) / spent,
        "peak_bytes": peak_bytes(),
    }


def seconds(find: Callable[[int, int], object], start: int, stop: int) -> float:
    began = time.perf_counter()
    find(start, stop)
    return time.perf_counter() - began


def peak_bytes() -> int:
    """The most memory that this process has had; mapped files count as far as it touched them.

    Linux hands the parent's peak on to a child, so `bench/scale.py` must stay smaller than this.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One measurement of bench/scale.py.")
    parser.add_argument("what", choices=("prepare", "build", "search"))
    parser.add_argument("--folder", type=Path, required=True, help="where corpus, vectors and indexes are")
    parser.add_argument("--engine", choices=("bm25", "exact", "int8", "hnsw", "ivf-pq"), default="bm25")
    parser.add_argument("--size", type=int, default=10_000, help="passages")
    parser.add_argument("--dim", type=int, default=384, help="dimensions of the vectors")
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--queries", type=int, default=256, help="queries that are timed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
