"""Time and peak memory of importing a corpus, by its size.

    python bench/import_memory.py --sizes 200000 2000000

Each size is a file of generated passages of 100 words in the layout of wiki-18, imported with a few questions by a
process of its own.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from coseek.data.imports import import_data
from coseek.data.imports._published import Deal

WORDS = 100
MEMORY_GB, TIMES_AS_LONG = 2.0, 12.0
"""The bars: peak memory of the largest size, and processor time of it against a tenth, which other work on the machine
changes less than the clock."""


def write_corpus(path: Path, size: int) -> None:
    """Passages with the ids and the quoted titles of wiki-18."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9))) for _ in range(5_000)]
    texts = [" ".join(rng.choices(words, k=WORDS)) for _ in range(2_000)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(size):
            row = {"id": str(number), "contents": f'"Page {number // 7}"\n{number} {texts[number % len(texts)]}'}
            file.write(json.dumps(row) + "\n")


def write_questions(folder: Path) -> None:
    for name in ("nq", "hotpotqa"):
        (folder / name).mkdir()
        rows = ({"id": f"train_{n}", "question": f"{n}?", "golden_answers": [str(n)]} for n in range(1_000))
        (folder / name / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def import_here(folder: Path) -> None:
    """Import the folder and print seconds, processor seconds and peak memory in bytes."""
    began = time.perf_counter()
    made = import_data("flashrag", [folder], folder / "out", deal=Deal(("nq", "hotpotqa"), ()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = {"seconds": time.perf_counter() - began, "cpu": time.process_time()}
    print(json.dumps({"passages": made.passages, **seconds, "peak": peak}))


def measured(size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_questions(folder)
        write_corpus(folder / "wiki.jsonl", size)
        command = [sys.executable, __file__, "--here", name]
        found: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        assert found["passages"] == size
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here is not None:
        import_here(args.here)
        return 0
    print("| passages | seconds | processor seconds | passages/s | peak memory, GB |\n|---|---|---|---|---|")
    found = []
    for size in sorted(args.sizes):
        found.append(one := measured(size))
        times = f"{one['seconds']:.1f} | {one['cpu']:.1f} | {size / one['seconds']:,.0f}"
        print(f"| {size:,} | {times} | {one['peak'] / 1e9:.2f} |", flush=True)
    ratio = found[-1]["cpu"] / found[0]["cpu"]
    print(f"\n{args.sizes[-1] / args.sizes[0]:g} times the passages take {ratio:.1f} times the processor time.")
    within = found[-1]["peak"] <= MEMORY_GB * 1e9 and ratio <= TIMES_AS_LONG * args.sizes[-1] / args.sizes[0] / 10
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
