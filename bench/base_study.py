"""The base model by size and by minutes, and without each of its tasks: what are weights, time and tasks worth?

    python -m bench.base_study [SETTING=VALUE …] [--only '0.6 M' 'no copy' …] [--out runs/base-study]
    python -m bench.base_study --show               the tables of what is there already

Runs `coseek train base` for each arm at a fifth of its length, one after the other: the recipe's 2 M parameters, three
other sizes, the recipe under two more seeds, and the recipe with one task left out. What is there already is kept, and
a run that was stopped is gone on with. Prints what each can do in a held-out world of drawn words, and the EM of
reading (gold among five passages) as training goes on, on 150 dev questions. Without `--only`, writes the tables into
bench/results/base-model.md.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, cast

import torch
from bench.real_sets import ROOT, write_table
from transformers import AutoConfig, AutoModelForCausalLM

from coseek.core.files import read_jsonl
from coseek.measure.table import Table
from coseek.training.sft.base_tasks import BaseTaskSettings

DOCS = ROOT / "bench" / "results" / "base-model.md"
LENGTH = ("sft.steps=2400", "sft.evaluate_every=400", "tasks.worlds=400")
WHOLE = "2.0 M"
SIZES = {
    "0.6 M": ("laptop.hidden=64", "laptop.feed_forward=160"),
    "1.2 M": ("laptop.hidden=96", "laptop.feed_forward=240"),
    WHOLE: (),
    "4.2 M": ("laptop.hidden=192", "laptop.feed_forward=480"),
}
AGAIN = {f"{WHOLE}, seed {seed}": (f"seed={seed}",) for seed in (1, 2)}
TASKS = {f"no {task}": (f"tasks.shares.{task}=0",) for task in BaseTaskSettings().shares}
ARMS = SIZES | AGAIN | TASKS
READ, TASK, FACT, COPY = "gold among 5", ("drill", "next", "support", "check", "enough"), "fact, ", "copy after "
GROUPS = ("all", "1 hop", "2 hops", "3 hops", "4 hops")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[*ARMS], choices=[*ARMS], metavar="ARM")
    parser.add_argument("--out", type=Path, default=Path("runs/base-study"))
    parser.add_argument("--show", action="store_true", help="run nothing: the tables of what is there already")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over the recipe's")
    given = parser.parse_intermixed_args(arguments)
    folders = {arm: given.out / arm.replace(",", "").replace(" ", "-") for arm in ARMS if arm in given.only}
    for arm, folder in folders.items():
        if not given.show and not (folder / "table.json").exists():
            train(folder, [*LENGTH, *ARMS[arm], *given.settings])
    made = {arm: folder for arm, folder in folders.items() if (folder / "table.json").exists()}
    tables = [abilities(made).markdown(), by_minutes(made).markdown()]
    print("\n\n".join(tables))
    if made and given.only == [*ARMS]:
        write_table(DOCS, "python -m bench.base_study", tables)
    return 0


def train(folder: Path, settings: Sequence[str]) -> None:
    """One arm, to its end."""
    command = [sys.executable, "-m", "coseek", "train", "base", "--out", str(folder), "--resume", *settings]
    if code := subprocess.run(command).returncode:
        sys.exit(f"{folder} ended with {code}")


def abilities(folders: dict[str, Path]) -> Table:
    """An arm a row: strict EM of reading, then the shares of right cases of the tasks."""
    rows = []
    for arm, folder in folders.items():
        table = json.loads((folder / "table.json").read_text(encoding="utf-8"))
        read = {row["group"]: row["metrics"]["em"] for row in table["summaries"] if row["run"] == READ}
        right = {name: ability["mean"] for name, ability in table["abilities"].items()}
        together = (fmean(right[name] for name in right if name.startswith(mark)) for mark in (FACT, COPY))
        whole = read[GROUPS[0]]
        rows.append((
            arm, f"{parameters(folder):,}", f"{looks(folder)[-1].minute:.0f}",
            f"{whole['mean']:.3f} [{whole['low']:.3f}, {whole['high']:.3f}]",
            " / ".join(f"{read[group]['mean']:.2f}" for group in GROUPS[1:]),
            *(f"{right[task]:.2f}" for task in TASK), *(f"{mean:.3f}" for mean in together),
        ))  # fmt: skip
    columns = ("arm", "parameters", "minutes", "EM, gold among five", "1 / 2 / 3 / 4 hops", *TASK, "facts", "copies")
    return Table(columns, tuple(rows))


def by_minutes(folders: dict[str, Path]) -> Table:
    """EM at every look, and the minute of the look."""
    found = {arm: looks(folder) for arm, folder in folders.items()}
    steps = next(iter(found.values()), [])
    rows = [(arm, *(f"{look.em:.2f} ({look.minute:.0f})" for look in some)) for arm, some in found.items()]
    return Table(("EM (minute) at step", *(f"{look.step:,}" for look in steps)), tuple(rows))


class Look(NamedTuple):
    """A measurement in training."""

    step: int
    minute: float
    """At the mean pace since the training was last started."""
    em: float


def looks(folder: Path) -> list[Look]:
    rows = [cast(dict[str, float], row) for _, row in read_jsonl(folder / "training" / "round-1" / "metrics.jsonl")]
    return [
        Look(int(row["step"]), row["tokens"] / row["tokens_per_s"] / 60, row["eval/em"])
        for row in rows
        if "eval/em" in row
    ]


def parameters(folder: Path) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder / "start"))
    return sum(weight.numel() for weight in model.parameters())


if __name__ == "__main__":
    sys.exit(main())
