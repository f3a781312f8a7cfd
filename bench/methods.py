"""Every method of the papers on the laptop, from the same base model: what it gains, and what it costs.

    python -m bench.methods [--seeds 0] [--out runs/methods] [--only search-r1-ppo-laptop …] [SETTING=VALUE …]

Runs the recipe of each method, one after the other; what is there already is kept, and a run that was stopped is gone
on with. Methods of one protocol start from one warm policy: the one that `search-r1-grpo-laptop` makes for that seed.
`sft-laptop` is that policy itself. QAgent and s3 ask a generator: `coseek train generator` first.

Prints, on the test split, decoded greedily: the metric before and after, the paired gain and the least gain of any
number of hops, both with 95 % intervals, searches and written tokens per question, and the minutes of the run. Bar: the
interval of no number of hops ends below −.03.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.seeds import Scores, run_seed

from coseek.measure.table import Table

FIRST = "search-r1-grpo-laptop"
"""Makes the warm policy of its protocol."""
SHARED = ("search-r1-ppo-laptop", "rejection-sampling-laptop", "zerosearch-laptop")
"""Start from the warm policy of `FIRST`."""
OWN = {"qagent-laptop": "em", "s3-laptop": "gen_acc", "deepretrieval-laptop": "recall", "r1-laptop": "em"}
"""Methods of another protocol, with what each is trained for."""
SET, WORST = "test", -0.03
HOPS = ("1 hop", "2 hops", "3 hops", "4 hops")
COLUMNS = ("recipe", "seed", "metric", "before", "after", "gain", "least gain by hops", "searches", "tokens", "minutes")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--only", nargs="+", default=[*SHARED, *OWN], choices=[*SHARED, *OWN], metavar="RECIPE")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over each recipe's")
    given = parser.parse_intermixed_args(arguments)
    rows: list[tuple[str, ...]] = []
    lost: list[str] = []
    for seed in given.seeds:
        first = run_seed(FIRST, seed, given.out / FIRST, given.settings).folder
        before = Scores.read(first, SET, "em", "all").summaries["before"]
        rows.append(("sft-laptop", str(seed), "em", "–", f"{before:.3f}", *["–"] * 5))
        warm = f"policy={{folder: {first / 'policy' / 'warm'}, marks: false, words: 0}}"
        for name in (FIRST, *given.only):
            settings = [*given.settings, *([warm, "warm_start=null"] if name in SHARED else [])]
            folder = run_seed(name, seed, given.out / name, settings).folder
            row, worst = row_of(folder, OWN.get(name, "em"))
            rows.append((name, str(seed), *row))
            if worst < WORST:
                lost.append(f"{name} of seed {seed}")
    bar = f"Below {WORST} at some number of hops: {', '.join(lost) or 'none'}."
    print(Table(COLUMNS, tuple(rows), (bar,)).markdown())
    return 1 if lost else 0


def row_of(folder: Path, metric: str) -> tuple[tuple[str, ...], float]:
    """The cells of a run from its metric on, and the lower end of its least gain by hops."""
    whole = Scores.read(folder, SET, metric, "all")
    gains = {hops: Scores.read(folder, SET, metric, hops).gains["after"] for hops in HOPS}
    least = min(gains, key=lambda hops: gains[hops]["low"])
    costs = (Scores.read(folder, SET, name, "all").summaries["after"] for name in ("searches", "agent_tokens"))
    ended, began = ((folder / name).stat().st_mtime for name in ("report.html", "recipe.yaml"))
    cells = (
        metric,
        *(f"{whole.summaries[run]:.3f}" for run in ("before", "after")),
        shown(whole.gains["after"]),
        f"{least}: {shown(gains[least])}",
        *(f"{cost:.2f}" for cost in costs),
        f"{(ended - began) / 60:.0f}",
    )
    return cells, gains[least]["low"]


def shown(gain: dict[str, float]) -> str:
    return f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"


if __name__ == "__main__":
    sys.exit(main())
