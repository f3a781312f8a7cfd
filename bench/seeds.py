"""A laptop recipe under several seeds: does reinforcement learning help every time, and how long does it take?

    python bench/seeds.py [--recipe quickstart] [--seeds 0 1 2] [--out runs/seeds]

Runs `coseek train agent RECIPE seed=N` for each seed, one after the other, in processes of their own; what is there
already is kept, and a run that was stopped is gone on with. The seed moves everything but the two worlds: throw-away
worlds, demonstrations, weights, order, sampling. Prints strict EM (greedy) before and after on the test split and on
the unseen world, the paired difference with its 95 % interval, the two-hop questions, and the minutes to the first
reward and to the end.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Seed:
    """What one run came to."""

    seed: int
    folder: Path
    first_reward_s: float | None
    """`None` when the run was there already."""
    whole_s: float | None


FIRST = re.compile(r"(GRPO|PPO|RLOO|REINFORCE\+\+) 1/")
"""The first line of reinforcement learning."""


def run_seed(recipe: str, seed: int, out: Path, settings: Sequence[str]) -> Seed:
    """Run a recipe to its end, noting when the first line of reinforcement learning was printed."""
    folder = out / f"seed-{seed}"
    if (folder / "report.html").exists():
        return Seed(seed, folder, None, None)
    words = [sys.executable, "-m", "coseek", "train", "agent", recipe, "--resume", "--out", str(folder), f"seed={seed}"]
    began = time.monotonic()
    first = None
    with subprocess.Popen([*words, *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(f"seed {seed}: {line}", end="", flush=True)
            if first is None and FIRST.search(line):
                first = time.monotonic() - began
    if process.returncode:
        sys.exit(f"{recipe} of seed {seed} ended with {process.returncode}")
    return Seed(seed, folder, first, time.monotonic() - began)


def mean_of(scores: dict[str, list[dict[str, object]]], run: str, group: str = "all") -> float:
    """Strict EM of one agent over a group of questions."""
    [row] = [row for row in scores["summaries"] if (row["run"], row["group"]) == (run, group)]
    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    return float(metrics["em"]["mean"])


def gain_of(scores: dict[str, list[dict[str, object]]]) -> dict[str, float]:
    """After minus before, paired: mean, low, high, p."""
    [row] = [row for row in scores["comparisons"] if (row["run"], row["group"]) == ("after", "all")]
    metrics = row["metrics"]
    assert isinstance(metrics, dict)
    em = metrics["em"]
    return {name: float(em[name]) for name in ("mean", "low", "high", "p")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over the recipe's")
    arguments = parser.parse_args()
    runs = [run_seed(arguments.recipe, seed, arguments.out, arguments.settings) for seed in arguments.seeds]
    print("\n| seed | set | before | after | gain [95 %] | p | 2 hops: naive RAG | before | after |")
    print("|---|---|---|---|---|---|---|---|---|")
    gains: dict[str, list[float]] = {"test": [], "unseen": []}
    for run in runs:
        table = json.loads((run.folder / "table.json").read_text(encoding="utf-8"))
        for name, found in gains.items():
            scores, gain = table[name], gain_of(table[name])
            found.append(gain["mean"])
            hops = " | ".join(f"{mean_of(scores, agent, '2 hops'):.3f}" for agent in ("naive RAG", "before", "after"))
            print(
                f"| {run.seed} | {name} | {mean_of(scores, 'before'):.3f} | {mean_of(scores, 'after'):.3f} "
                f"| {gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}] | {gain['p']:.4f} | {hops} |"
            )
    for name, found in gains.items():
        spread = f", standard deviation {statistics.stdev(found):.3f}" if len(found) > 1 else ""
        mean = f"mean gain {statistics.mean(found):+.3f} over {len(found)} seeds"
        print(f"\n{name}: {mean}{spread}, least {min(found):+.3f}")
    for run in runs:
        if run.first_reward_s is not None and run.whole_s is not None:
            first, whole = run.first_reward_s / 60, run.whole_s / 60
            print(f"seed {run.seed}: first reward after {first:.1f} min, end after {whole:.1f} min")


if __name__ == "__main__":
    main()
