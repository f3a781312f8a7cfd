"""Encode one corpus by several numbers of processes, and compare all files of the indexes byte for byte.

    python bench/encode_processes.py                          20,000 passages by 1, 2 and 4 processes, a tiny encoder
    python bench/encode_processes.py --encoder minilm         MiniLM; on GPUs: --devices cuda:0 cuda:1 cuda:2 cuda:3

Prints seconds and passages a second of each; exits 1 when any file differs.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from coseek.retrieval.index import build_index

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    args = arguments()
    sys.path.insert(0, str(ROOT))
    from bench.digests import digests, shown
    from tests.retrieval.tiny_encoder import make_encoder, sentences

    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        encoder = str(make_encoder(base / "tiny")) if args.encoder == "tiny" else args.encoder
        sentences(args.count).save(base / "corpus.jsonl")
        # An index notes whether its corpus file was older than two seconds: let it be so for all builds.
        os.utime(base / "corpus.jsonl", (time.time() - 60, time.time() - 60))
        found: list[dict[str, str]] = []
        for number in args.processes:
            devices = [args.devices[place % len(args.devices)] for place in range(number)]
            out = base / f"by-{number}"
            began = time.perf_counter()
            build_index(
                base / "corpus.jsonl", "dense", out, {"encoder": encoder, "search": "exact", "devices": devices}
            )
            seconds = time.perf_counter() - began
            found.append(digests(out))
            rate = args.count / seconds
            print(f"{number} processes: {seconds:6.1f} s  {rate:8.0f} passages/s  {shown(found[-1])}", flush=True)
    same = all(one == found[0] for one in found)
    print("byte-identical" if same else "DIFFERENT")
    return 0 if same else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000, help="passages")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--devices", nargs="+", default=["cpu"], help="dealt to the processes in turn")
    parser.add_argument("--encoder", default="tiny", help="`minilm`, a folder, or `tiny`")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
