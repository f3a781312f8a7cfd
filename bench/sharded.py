"""Sharded exact search beside exact search over the whole store: the same ids, to the last.

    python bench/sharded.py                                   1,000,000 × 384 in 4 parts on the CPU
    python bench/sharded.py --devices cuda:0 cuda:1           one part a GPU

A thousandth of the rows are copies of others, laid over all parts, and half of the queries are such rows, so that ties
cross the borders. Exits 1 when a row or a bit of a score differs.
"""

import argparse
import sys
import time

import numpy as np

from coseek.retrieval.vectors.exact import ExactSearch
from coseek.retrieval.vectors.sharded import ShardedSearch
from coseek.retrieval.vectors.store import VectorStore


def main() -> int:
    args = arguments()
    rng = np.random.default_rng(0)
    vectors_ND = rng.standard_normal((args.count, args.dim), dtype=np.float32)
    vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
    copies = rng.choice(args.count, max(2, args.count // 1_000), replace=False)
    originals = copies[: max(1, len(copies) // 20)]
    vectors_ND[copies] = vectors_ND[originals[np.arange(len(copies)) % len(originals)]]
    queries_QD = rng.standard_normal((args.queries, args.dim), dtype=np.float32)
    queries_QD[::2] = vectors_ND[rng.choice(copies, len(queries_QD[::2]))]
    store = VectorStore.of(vectors_ND)
    searches: dict[str, ExactSearch | ShardedSearch] = {
        "whole": ExactSearch(store, args.devices[0]),
        f"{len(args.devices)} parts": ShardedSearch.over(store, args.devices),
    }
    found = []
    for name, search in searches.items():
        search.search(queries_QD[:1], args.k)
        began = time.perf_counter()
        found.append(search.find(queries_QD, args.k))
        seconds = time.perf_counter() - began
        print(f"{name:>10}: {seconds:.2f} s, {found[-1].rescored_Q.mean():.0f} rows a query scored again", flush=True)
    whole, parted = found
    same = bool((whole.rows_QK == parted.rows_QK).all()) and whole.scores_QK.tobytes() == parted.scores_QK.tobytes()
    ties = int((np.diff(whole.scores_QK, axis=1) == 0).sum())
    print(f"{whole.rows_QK.size:,} ids, {ties:,} of them in ties: {'the same' if same else 'DIFFERENT'}")
    return 0 if same else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("-k", type=int, default=100)
    parser.add_argument("--devices", nargs="+", default=["cpu"] * 4)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
