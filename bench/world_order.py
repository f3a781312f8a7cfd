"""Is a world worth measuring in? What one agent makes of retrievers from random to an oracle's, and what a comparison
there costs.

    coseek train agent terse-laptop --out build/terse                   the agent; 20 minutes on one thread
    python -m bench.world_order [--world world-1] [--agent build/terse] [--questions 2000]

The agent is frozen and asks greedily; retrievers read its query alone, but for the good encoder, which has learnt from
its searches to read its reasoning, too (AgentIR). *oracle* shows the passages of the plan first. Bar: EM rises from
random over BM25 and the good encoder to the oracle, by at least .05 each time, the intervals of the differences above
zero. Beside them stand the shipped encoder, which has seen no search of an agent, and BM25 that reads the
reasoning.

Power: from the share of questions on which two retrievers disagree (d), the questions that a paired test needs to find
a difference of 3 points in four of five experiments: (1.96 + .84)² (d − .03²) / .03² (McNemar; Connor 1987); and from
the spread of a difference over seeds of a training, the seeds that it needs.
"""

import argparse
import math
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from bench.real_sets import ROOT
from bench.retriever_arms import BEST, BM25, RANDOM, ZERO_SHOT, Arm, Place, Scale

from coseek.measure.intervals import bootstrap_mean, paired_difference
from coseek.measure.score import ScoredRun
from coseek.measure.table import Table, show

ORDER = (Arm(RANDOM, "query"), Arm(BM25, "query"), Arm("dr-synth", "reasoning+query"), Arm(BEST, "query"))
"""From the worst to the best."""
BESIDE = (Arm(ZERO_SHOT, "query"), Arm(BM25, "reasoning+query"))
METRICS = ("em", "recall", "searches")
COLUMNS = ("better − worse", "EM", "p", "disagree", "questions to find 3 points")
LEAST_GAP = 0.05
POINTS, NORMAL = 0.03, 1.96 + 0.84
"""The difference that is to be found; quantiles of a two-sided test at 5 % with power .8."""
SPREADS = (0.01, 0.02, 0.03)
"""Standard deviations of a difference over seeds; those of our trainings lie between."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", default="world-1", help="a reference world")
    parser.add_argument("--agent", type=Path, default=ROOT / "build" / "terse", help="where the agent is, or goes")
    parser.add_argument("--questions", type=int, default=2000)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "world-order", help="everything made stays here")
    args = parser.parse_args(arguments)
    scale = Scale(args.questions, agent=(f"data.world={args.world}",))
    place = Place(0, args.work / args.world, args.agent, Path("none"), scale)
    began = time.perf_counter()
    runs = {arm: place.scored(arm, "test") for arm in (*ORDER, *BESIDE)}
    minutes = (time.perf_counter() - began) / 60
    rows = [(arm.source, arm.view, *(mean(run, name) for name in METRICS)) for arm, run in runs.items()]
    print(Table(("retriever", "view", *METRICS), tuple(rows)).markdown())
    table, kept = gaps(runs)
    print(table.markdown())
    seeds = ", ".join(f"{spread}: {needed_seeds(spread)}" for spread in SPREADS)
    print(f"Seeds to find {POINTS}, by the standard deviation of a difference over seeds: {seeds}.")
    print(f"{minutes / len(runs):.1f} min a retriever for what was not there yet.")
    return 0 if kept else 1


def values(run: ScoredRun, metric: str) -> dict[str, float]:
    """Question → value, of those whose run had no fault."""
    return {ident: row.metrics[metric] for ident, row in run.questions.items() if metric in row.metrics}


def mean(run: ScoredRun, metric: str) -> str:
    return show(bootstrap_mean([*values(run, metric).values()], np.random.default_rng(0)))


def gaps(runs: dict[Arm, ScoredRun]) -> tuple[Table, bool]:
    """Each retriever of the order beside the one below it, and whether all gaps meet the bar."""
    rows: list[tuple[str, ...]] = []
    kept = True
    for worse, better in pairwise(ORDER):
        below, above = (values(runs[arm], "em") for arm in (worse, better))
        found = paired_difference(below, above, np.random.default_rng(0))
        assert found is not None
        gap = found.difference
        both = below.keys() & above.keys()
        share = sum(below[key] != above[key] for key in both) / len(both)
        kept &= gap.mean >= LEAST_GAP and (gap.low or 0.0) > 0
        name = f"{better.source} − {worse.source}"
        rows.append((name, show(gap), f"{found.p:.4f}", f"{share:.3f}", f"{needed_questions(share):,}"))
    return Table(COLUMNS, tuple(rows), (f"Bar: every gap at least {LEAST_GAP}.",)), kept


def needed_questions(disagreeing: float) -> int:
    """Questions of a paired test, from the share on which two arms disagree."""
    return math.ceil(NORMAL**2 * (disagreeing - POINTS**2) / POINTS**2)


def needed_seeds(spread: float) -> int:
    """Seeds of a training, from the standard deviation of the paired difference over seeds; at least two, which any
    spread at all takes to be seen."""
    return max(2, math.ceil((NORMAL * spread / POINTS) ** 2))


if __name__ == "__main__":
    sys.exit(main())
