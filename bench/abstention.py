"""Does an agent learn to decline, and what does it cost? The recipe `abstain-laptop` beside the same without declining.

    python -m bench.abstention [--seeds 0 1 2] [--out runs/abstention] [SETTING=VALUE …]

The control has the same world and the same questions in its table, no unanswerable question in its demonstrations and
its training, and strict EM alone as its reward. *EM lost* is the control's EM minus the agent's on the answerable
questions of the test split, paired, greedy; *declined* the share of the unanswerable ones that the agent declines. Bar:
in every seed at least 80 % declined at no more than .02 of EM lost. An arm takes forty minutes on one thread.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.seeds import run_seed

from coseek.data.run import Run
from coseek.measure.score import Scores, score_runs
from coseek.measure.table import Table, abstention_tables, show

RECIPE = "abstain-laptop"
CONTROL = ("reward={exact_match: 1.0}", "warm_start.world.unanswerable=0", "select.answerable=true")
LEAST_DECLINED, MOST_LOST = 0.8, 0.02
SETS = ("test", "unseen")
"""The set that the bar is about, and the world without training."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/abstention"))
    given, settings = parser.parse_known_args(arguments)
    rows: list[tuple[str, ...]] = []
    kept: list[bool] = []
    for seed in given.seeds:
        folders = {
            "control": run_seed(RECIPE, seed, given.out / "control", [*CONTROL, *settings]).folder,
            "agent": run_seed(RECIPE, seed, given.out / "agent", settings).folder,
        }
        for name in SETS:
            found = scores(folders, name)
            rows.append((str(seed), name, *cells(found)))
            if name == SETS[0]:
                kept.append(keeps_the_bar(found))
                print(
                    f"seed {seed}, {name}:",
                    *(table.markdown() for table in abstention_tables(found).values()),
                    sep="\n\n",
                )
    columns = (
        "seed",
        "set",
        "EM, control",
        "EM",
        "difference",
        "declined",
        "declined, answerable",
        "right when answered",
    )
    bar = f"Declined ≥ {LEAST_DECLINED:.0%} and EM lost ≤ {MOST_LOST} on {SETS[0]}: {sum(kept)} of {len(kept)} seeds."
    print(Table(columns, tuple(rows), (bar,)).markdown())
    return 0 if all(kept) else 1


def scores(folders: dict[str, Path], name: str) -> Scores:
    """The greedy runs of both arms on one set; the agent is compared with the control."""
    runs = {arm: Run(folder / "table" / f"after.{name}.t0").trajectories() for arm, folder in folders.items()}
    return score_runs(runs, metrics=("em",))


def cells(found: Scores) -> tuple[str, ...]:
    own, difference = found.abstention["agent"], found.comparisons[0].metrics["em"].difference
    means = (found.of(arm).metrics["em"] for arm in ("control", "agent"))
    shares = (own.declined_unanswerable, own.declined_answerable, own.right_when_answered)
    return (*map(show, means), show(difference), *map(show, shares))


def keeps_the_bar(found: Scores) -> bool:
    declined = found.abstention["agent"].declined_unanswerable
    lost = -found.comparisons[0].metrics["em"].difference.mean
    return declined is not None and declined.mean >= LEAST_DECLINED and lost <= MOST_LOST


if __name__ == "__main__":
    sys.exit(main())
