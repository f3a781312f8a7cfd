"""Co-training over rounds and seeds: what does each round of agent and retriever bring?

    python -m bench.rounds [SETTING=VALUE …] [--seeds 0 1 2] [--rounds 3] [--agent runs/terse] [--out runs/together]

Runs `coseek train together laptop` for each seed, one after the other, each from the agent that `coseek train agent
terse` left; what is there already is kept, and a run that was stopped or has fewer rounds is gone on with. Seeds
share the agent, the world and its questions; what they draw anew is order, sampling and labels. Prints the metric of
every agent over every retriever on the test split, greedily, and what each half of a round gains over the one before:
of each question the mean over seeds, with 95 % intervals over questions, and every seed. Writes these tables into
bench/results/co-training.md.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from bench.methods import gain_of
from bench.real_sets import ROOT, write_table

from coseek.measure.intervals import Difference
from coseek.measure.score import QuestionScores
from coseek.measure.table import Table, show
from coseek.pipelines.together.paths import CoTrainingPaths
from coseek.pipelines.together.together import Pair, Pairs, compared_pairs
from coseek.pipelines.together_recipe import load_together_recipe

DOCS = ROOT / "bench" / "results" / "co-training.md"
METRICS = ("em", "recall", "searches")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--agent", type=Path, default=Path("runs/terse"), help="a run of `terse`")
    parser.add_argument("--out", type=Path, default=Path("runs/together"))
    parser.add_argument("--show", action="store_true", help="run nothing: the tables of what is there already")
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over the recipe's")
    given = parser.parse_intermixed_args(arguments)
    folders = {seed: given.out / f"seed-{seed}" for seed in given.seeds}
    for seed, folder in folders.items():
        if not given.show:
            train(folder, seed, given.rounds, given.agent, given.settings)
    courses = {seed: Course(folder) for seed, folder in folders.items() if rounds_of(folder) >= given.rounds}
    if not courses:
        sys.exit(f"{given.out} has no co-training of {given.rounds} rounds; leave --show out to run one")
    tables = tables_of([*courses.values()], [*courses], given.rounds)
    print("\n\n".join(tables))
    write_table(DOCS, "python -m bench.rounds", tables)
    return 0


def train(folder: Path, seed: int, rounds: int, agent: Path, settings: Sequence[str]) -> None:
    """One co-training, to its end."""
    begins = f"agent.policy={{folder: {agent.absolute() / 'policy' / 'warm'}, marks: false, words: 0}}"
    own = [f"seed={seed}", f"rounds={rounds}", "stop=null", begins, "agent.warm_start=null", *settings]
    command = [sys.executable, "-m", "coseek", "train", "together", "laptop", *own, "--resume", "--out", str(folder)]
    if code := subprocess.run(command).returncode:
        sys.exit(f"the co-training of seed {seed} ended with {code}")


def rounds_of(folder: Path) -> int:
    """The rounds that a folder's table is of; 0 where there is none yet."""
    path = folder / "table.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["rounds"]) if path.exists() else 0


class Course:
    """The measured pairs of one co-training."""

    def __init__(self, folder: Path) -> None:
        self.pairs = Pairs(CoTrainingPaths(load_together_recipe(str(folder / "recipe.yaml")), folder))

    def questions(self, pair: Pair) -> dict[str, QuestionScores]:
        return {**self.pairs.scored(pair).questions}


def tables_of(courses: Sequence[Course], seeds: Sequence[int], rounds: int) -> list[str]:
    """The grid, the rounds and the steps, as Markdown."""
    retrievers = (None, *range(rounds + 1))
    beside = courses[0].pairs.beside
    heads = tuple(beside if one is None else f"retriever {one}" for one in retrievers)
    grid = [
        (f"agent {agent}", *(f"{_mean(courses, Pair(agent, one), 'em'):.3f}" for one in retrievers))
        for agent in range(rounds + 1)
    ]
    along = [
        (
            str(number),
            ", ".join(f"{_mean([course], Pair(number, number), 'em'):.3f}" for course in courses),
            *(f"{_mean(courses, Pair(number, number), metric):.3f}" for metric in METRICS),
            f"{_mean(courses, Pair(number, None), 'em'):.3f}",
        )
        for number in range(rounds + 1)
    ]
    compared = [*compared_pairs(rounds, beside=True)]
    if rounds > 1:
        compared.append((Pair(rounds, rounds), Pair(1, 1)))  # what all rounds after the first bring
    steps = [
        (
            f"{one.name(beside)} − {other.name(beside)}",
            show(_gain(courses, one, other).difference),
            ", ".join(f"{_gain([course], one, other).difference.mean:+.3f}" for course in courses),
        )
        for one, other in compared
    ]
    named = ", ".join(map(str, seeds))
    return [
        Table(("rounds", f"EM of seeds {named}", *METRICS, f"EM over {beside}"), tuple(along)).markdown(),
        Table(("EM", *heads), tuple(grid)).markdown(),
        Table(("EM", "mean of seeds", f"seeds {named}"), tuple(steps)).markdown(),
    ]


def _mean(courses: Sequence[Course], pair: Pair, metric: str) -> float:
    """The mean of the seeds' means; a question whose run ended by a fault has none."""
    rows = (course.questions(pair).values() for course in courses)
    return fmean(fmean(row.metrics[metric] for row in some if metric in row.metrics) for some in rows)


def _gain(courses: Sequence[Course], one: Pair, other: Pair) -> Difference:
    """`one` − `other` in EM over the questions, each the mean of the seeds that have it."""
    return gain_of([{"before": course.questions(other), "after": course.questions(one)} for course in courses], "em")


if __name__ == "__main__":
    sys.exit(main())
