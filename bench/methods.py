"""Every method of the papers on the laptop, from the same base model: what it gains, and what it costs.

    python -m bench.methods [SETTING=VALUE …] [--seeds 0] [--out runs/methods] [--only search-r1-ppo …]
    python -m bench.methods --show --seeds 0 1 2            the tables of what is there already

Runs the recipe of each method, one after the other; what is there already is kept, and a run that was stopped is gone
on with. All have `preset=laptop`. Methods of one protocol start from one warm policy: the one that
`search-r1-grpo` makes for that seed, or `s3`. `sft` is that policy itself. QAgent and s3 ask a generator: `coseek train
generator` first.

Prints, on the test split, decoded greedily: the metric of naive RAG, before and after, the paired gain with its 95 %
interval, searches and written tokens per question, and the minutes of the run. Then the gain at each number of hops,
of the questions of both worlds, each averaged over the seeds. Bar: no interval of these begins below −.03. Then what
methods that share a warm policy end above the one that makes it. Writes the tables into bench/results/methods.md where
every method is in them.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TypeAlias

import numpy as np
from bench.real_sets import ROOT, write_table
from bench.seeds import METRICS, Scores, run_seed

from coseek.measure.intervals import Difference, paired_difference
from coseek.measure.score import QuestionScores
from coseek.measure.table import Table, show
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.agent_results import scored

DOCS = ROOT / "bench" / "results" / "methods.md"
GRPO, S3 = "search-r1-grpo", "s3"
METHODS: dict[str, tuple[Sequence[str], str | None]] = {
    GRPO: ([GRPO], None),
    "search-r1-ppo": (["search-r1-ppo"], GRPO),
    "search-r1-format": ([GRPO, "reward.preset=search-r1-format"], GRPO),
    "rejection-sampling": (["rejection-sampling"], GRPO),
    "zerosearch": (["zerosearch"], GRPO),
    "qagent": (["qagent"], None),
    S3: ([S3], None),
    "s3-ppo": ([S3, "rl.algorithm=ppo", "rl.steps=20"], S3),
    "deepretrieval": (["deepretrieval"], None),
    "r1": (["r1"], None),
}
"""Method → its recipe and settings, and the method whose warm policy it starts from; `None`: it makes its own."""
SETS, WORST = ("test", "unseen"), -0.03
NAIVE = ("naive RAG", "RAG k=3")
"""Names of the row that searches once."""
COLUMNS = ("recipe", "seed", "metric", "naive RAG", "before", "after", "gain", "searches", "tokens", "minutes")
HOPS = (1, 2, 3, 4)
Runs: TypeAlias = dict[str, dict[str, QuestionScores]]
"""`before` or `after` → set and question → its scores."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--only", nargs="+", default=[*METHODS], choices=[*METHODS], metavar="RECIPE")
    parser.add_argument("--show", action="store_true", help="run nothing: the tables of what is there already")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over each recipe's")
    given = parser.parse_intermixed_args(arguments)
    needed = {*given.only, *(METHODS[name][1] for name in given.only)}
    names = [name for name in METHODS if name in needed]
    if not given.show:
        for seed, name in product(given.seeds, names):
            train(name, seed, given.out, given.settings)
    rows: list[tuple[str, ...]] = []
    runs: dict[str, dict[int, Runs]] = {}
    for seed, name in product(given.seeds, names):
        folder = given.out / name / f"seed-{seed}"
        if (folder / "report.html").exists():
            rows.append((name, str(seed), *row_of(folder, metric_of(name))))
            runs.setdefault(name, {})[seed] = scores_of(folder)
    gains = {
        name: [gain_of([*found.values()], metric_of(name), [hops]) for hops in HOPS] for name, found in runs.items()
    }
    beside = beside_first(runs)
    tables = [Table(COLUMNS, tuple(rows)), by_hops(gains), *([beside] if beside.rows else [])]
    shown_tables = [table.markdown() for table in tables]
    print("\n\n".join(shown_tables))
    if runs.keys() == METHODS.keys():
        write_table(DOCS, "python -m bench.methods", shown_tables)
    return 1 if any(low(gain) < WORST for found in gains.values() for gain in found) else 0


def metric_of(name: str) -> str:
    return METRICS.get(METHODS[name][0][0], "em")


def by_hops(gains: Mapping[str, Sequence[Difference]]) -> Table:
    """A recipe's gain at each number of hops."""
    lost = [
        f"{name} at {hops}"
        for name, found in gains.items()
        for hops, gain in zip(HOPS, found, strict=True)
        if low(gain) < WORST
    ]
    cells = [(name, *(show(gain.difference) for gain in found)) for name, found in gains.items()]
    bar = f"Below {WORST} at some number of hops: {', '.join(lost) or 'none'}."
    return Table(("recipe", "gain at 1 hop", "2 hops", "3 hops", "4 hops"), tuple(cells), (bar,))


def beside_first(runs: Mapping[str, Mapping[int, Runs]]) -> Table:
    """What a method ends above the one whose warm policy it starts from, over the seeds that both have."""
    rows = []
    for name, (_, first) in METHODS.items():
        if first is None or not (seeds := runs.get(name, {}).keys() & runs.get(first, {}).keys()):
            continue
        ends = [{"before": runs[first][seed]["after"], "after": runs[name][seed]["after"]} for seed in sorted(seeds)]
        found = (gain_of(ends, metric_of(name), hops) for hops in (HOPS, *([hops] for hops in HOPS)))
        rows.append((name, first, *(show(gain.difference) for gain in found)))
    return Table(("recipe", "ends above", "by", "1 hop", "2 hops", "3 hops", "4 hops"), tuple(rows))


def train(name: str, seed: int, out: Path, settings: Sequence[str]) -> None:
    """Run a recipe to its end, from the warm policy of another where the two share one."""
    (recipe, *own), first = METHODS[name]
    settings = ["preset=laptop", *own, *settings]
    if first:
        warm = out / first / f"seed-{seed}" / "policy" / "warm"
        settings = [*settings, f"policy={{folder: {warm}, marks: false, words: 0}}", "warm_start=null"]
    run_seed(recipe, seed, out / name, settings)


def row_of(folder: Path, metric: str) -> tuple[str, ...]:
    """The cells of a run from its metric on."""
    whole = Scores.read(folder, "test", metric, "all")
    naive = [whole.summaries[name] for name in NAIVE if name in whole.summaries]
    costs = (Scores.read(folder, "test", name, "all").summaries["after"] for name in ("searches", "agent_tokens"))
    ended, began = ((folder / name).stat().st_mtime for name in ("report.html", "recipe.yaml"))
    return (
        metric,
        f"{naive[0]:.3f}" if naive else "–",
        *(f"{whole.summaries[run]:.3f}" for run in ("before", "after")),
        shown(whole.gains["after"]),
        *(f"{cost:.2f}" for cost in costs),
        f"{(ended - began) / 60:.0f}",
    )


def shown(gain: Mapping[str, float]) -> str:
    return f"{gain['mean']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"


def scores_of(folder: Path) -> Runs:
    """The greedy runs of a folder on both sets."""
    training = AgentTraining(load_recipe(str(folder / "recipe.yaml")), folder)
    found: Runs = {"before": {}, "after": {}}
    for run, name in product(found, SETS):
        rows = scored(training, run, folder / "table" / f"{run}.{name}.t0").questions
        found[run] |= {f"{name}/{ident}": row for ident, row in rows.items()}
    return found


def gain_of(seeds: Sequence[Runs], metric: str, hops: Sequence[int] = HOPS) -> Difference:
    """After − before over the questions of these numbers of hops, each averaged over the seeds."""
    values: dict[str, dict[str, list[float]]] = {"before": {}, "after": {}}
    for runs, run in product(seeds, values):
        for key, row in runs[run].items():
            if row.question.hops in hops and metric in row.metrics:
                values[run].setdefault(key, []).append(row.metrics[metric])
    before, after = ({key: fmean(some) for key, some in means.items()} for means in values.values())
    gain = paired_difference(before, after, np.random.default_rng(0))
    assert gain is not None
    return gain


def low(gain: Difference) -> float:
    return gain.difference.low if gain.difference.low is not None else gain.difference.mean


if __name__ == "__main__":
    sys.exit(main())
