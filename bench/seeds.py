"""A laptop recipe under several seeds: does reinforcement learning help every time, and how long does it take?

    python bench/seeds.py [--recipe quickstart] [--seeds 0 1 2] [--out runs/seeds]
    python bench/seeds.py --recipe s3 preset=laptop --groups all '2+ hops' --out runs/s3

Runs `coseek train agent RECIPE seed=N` for each seed, one after the other, in processes of their own; what is there
already is kept, and a run that was stopped is gone on with. The seed moves everything but the two worlds: throw-away
worlds, demonstrations, weights, order, sampling. Prints the metric before and after on the test split and on the
unseen world, greedy and (with `table.sampled`) at T = 1, with the paired difference and its 95 % interval, beside the
table's baselines, and the minutes to the first reward and to the end.
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
from itertools import product
from pathlib import Path


@dataclass(frozen=True)
class Seed:
    """What one run came to."""

    seed: int
    folder: Path
    first_reward_s: float | None
    """`None` when the run was there already."""
    whole_s: float | None


METRICS = {"s3": "gen_acc", "deepretrieval": "recall"}
"""What recipes are trained for whose agent does not answer; the others': EM."""
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


PAIRS = {"greedy": ("before", "after"), "T = 1": ("before, T=1", "after, T=1")}
"""How the policy writes → the two rows of a run's table."""


@dataclass(frozen=True)
class Scores:
    """One set of a run's `table.json`, read by one metric and one group of questions."""

    summaries: dict[str, float]
    gains: dict[str, dict[str, float]]
    """Run → its gain over the run that it is first paired with: mean, low, high, p."""

    @classmethod
    def read(cls, folder: Path, name: str, metric: str, group: str) -> "Scores":
        found = json.loads((folder / "table.json").read_text(encoding="utf-8"))[name]
        means = {row["run"]: row["metrics"] for row in found["summaries"] if row["group"] == group}
        if not means or metric not in next(iter(means.values())):
            sys.exit(f"{folder}/table.json has no {metric} of '{group}'")
        pairs = [row for row in found["comparisons"] if row["group"] == group]
        gains = {row["run"]: row["metrics"][metric] for row in reversed(pairs)}
        return cls({run: float(metrics[metric]["mean"]) for run, metrics in means.items()}, gains)

    @property
    def others(self) -> list[str]:
        """Runs that are no policy's: the baselines."""
        return [run for run in self.summaries if not run.startswith(("before", "after"))]


def report(runs: Sequence[Seed], name: str, metric: str, group: str) -> None:
    """The table of one set, and the mean gains over seeds."""
    gains: dict[str, list[float]] = {}
    for place, run in enumerate(runs):
        scores = Scores.read(run.folder, name, metric, group)
        if place == 0:
            columns = ("seed", "written", "before", "after", "gain [95 %]", "p", *scores.others)
            print(f"\n{name}, {metric} of '{group}':\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        baselines = [f"{scores.summaries[other]:.3f}" for other in scores.others]
        for how, (before, after) in PAIRS.items():
            if after not in scores.gains:
                continue
            gain = scores.gains[after]
            gains.setdefault(how, []).append(gain["mean"])
            means = [f"{scores.summaries[one]:.3f}" for one in (before, after)]
            paired = [f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]", f"{gain['p']:.4f}"]
            print(f"| {' | '.join((str(run.seed), how, *means, *paired, *baselines))} |")
    for how, found in gains.items():
        spread = f", standard deviation {statistics.stdev(found):.3f}" if len(found) > 1 else ""
        print(
            f"\n{how}: mean gain {statistics.mean(found):+.3f} over {len(found)} seeds{spread}, least {min(found):+.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickstart")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/seeds"))
    parser.add_argument("--metric", help="what is shown [what the recipe is trained for]")
    parser.add_argument("--groups", nargs="+", default=["all", "2 hops"], help="2+ hops, 3 hops … [all, 2 hops]")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over the recipe's")
    arguments = parser.parse_args()
    runs = [run_seed(arguments.recipe, seed, arguments.out, arguments.settings) for seed in arguments.seeds]
    for name, group in product(("test", "unseen"), arguments.groups):
        report(runs, name, arguments.metric or METRICS.get(arguments.recipe, "em"), group)
    for run in runs:
        if run.first_reward_s is not None and run.whole_s is not None:
            first, whole = run.first_reward_s / 60, run.whole_s / 60
            print(f"seed {run.seed}: first reward after {first:.1f} min, end after {whole:.1f} min")


if __name__ == "__main__":
    main()
