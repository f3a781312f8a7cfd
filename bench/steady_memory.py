"""Steady memory: whether a long command holds more the longer it runs.

    python -m bench.steady_memory --minutes 60 coseek train retriever laptop --labels LABELS --out OUT epochs=1000
    python -m bench.steady_memory --after OUT/rl/metrics.jsonl coseek quickstart --out OUT

Runs the command, stops it after `--minutes` as Ctrl-C does, and reads the resident memory of its processes once a
second. `--after` begins to count where a file has come into being: the phase before it is another. Bars: the last
quarter's median at most 1.05 of the second quarter's, and a peak of 2.5 GB. Exit 1 when one is missed.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

MOST_GROWTH, MOST_GB = 1.05, 2.5
STOP_S = 300.0


def resident_gb(group: int) -> float:
    """Resident memory of a group of processes; shared pages count once for each."""
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # The command's name, in brackets, may hold blanks.
            fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group:
                pages += int(fields[21])
        except (OSError, IndexError):  # it has ended
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


def watched(command: Sequence[str], minutes: float, after: Path | None) -> list[float]:
    """Resident memory of a command, once a second until it ends or is stopped."""
    found: list[float] = []
    # A shell's background job ignores it, and so would the command that it must stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, start_new_session=True)
    until = time.monotonic() + 60 * minutes
    try:
        while process.poll() is None and time.monotonic() < until:
            if after is None or after.exists():
                found.append(resident_gb(process.pid))
            time.sleep(1.0)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(STOP_S)
    if process.returncode not in (0, 130):
        raise SystemExit(f"the command ended with {process.returncode}")
    return found


def quarters(samples: Sequence[float]) -> list[float]:
    """The median of each quarter."""
    size = len(samples) // 4
    if not size:
        raise SystemExit(f"{len(samples)} samples are too few; let the command run for longer")
    return [median(samples[number * size : (number + 1) * size]) for number in range(4)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=600.0, help="stop the command by then")
    parser.add_argument("--after", type=Path, help="count from when this file is there")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    samples = watched(args.command, args.minutes, args.after)
    parts = quarters(samples)
    growth, peak = parts[3] / parts[1], max(samples)
    print("| minutes | GB by quarter | last over second | peak GB |\n|---|---|---|---|")
    print(f"| {len(samples) / 60:.0f} | {', '.join(f'{part:.2f}' for part in parts)} | {growth:.3f} | {peak:.2f} |")
    return 0 if growth <= MOST_GROWTH and peak <= MOST_GB else 1


if __name__ == "__main__":
    sys.exit(main())
