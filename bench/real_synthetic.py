"""MiniLM learns from questions made of passages alone: does an agent find more for people's questions?

    python -m bench.real_synthetic                     questions, labels, training, measurement

Questions are made of the passages of hotpotqa-pool500 and 2Wiki (`coseek data synthesize`); no question of theirs is
read before the measurement. The agent without a model (`rules`) searches them over frozen MiniLM, the gold paths label
its searches, and MiniLM is trained on the labels as in `bench.real_retriever`. Measured inside the agent, five passages
a search, on the questions of every real set. Everything stays under `--work`; a second start makes only what is
missing. Exit 1 when recall@5 on 2Wiki is not above frozen MiniLM's, the interval above zero, or falls by more than
.01 on another set.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.real import COLUMNS, MEASURING, PAIR_COLUMNS, Line
from bench.real_retriever import OTHER, OWN, Place, differences, measure, train
from bench.real_sets import RAW, ROOT, SETS, questions_of, write_table

from coseek.data.dataset import Dataset
from coseek.data.question import Question
from coseek.measure.table import Table, show
from coseek.synthesis.settings import SynthesisSettings
from coseek.synthesis.synthesis import synthesize

DOCS = ROOT / "bench" / "results" / "real-data.md"
VIEW = "query"
METRIC = "recall@5"
ABOVE = ("2wiki", OWN)
"""Sets on which the gain's interval must lie above zero."""
MOST_LOST = 0.01
"""What the mean may fall by on any other set."""
QUESTIONS = SynthesisSettings(count=4000)


@dataclass(frozen=True)
class SyntheticPlace(Place):
    """The same, with made questions to learn from."""

    def asked(self, name: str, train: bool) -> list[Question]:
        if not train:
            return questions_of(self.dataset(name))
        folder = self.work / SETS[name].slug / "asked"
        if not folder.exists():
            summary = synthesize(self.dataset(name).folder, folder, QUESTIONS)
            print(f"{name}: questions by hops {summary.questions}", file=sys.stderr)
        return questions_of(Dataset(folder))


def bar(lines: Sequence[Line]) -> tuple[bool, str]:
    """Whether one set meets its bar, and what was reached."""
    name = lines[0].real.name
    found = MEASURING.compare([line.run for line in lines], lines[0].questions)
    gain = found.comparisons[0].metrics[METRIC].difference
    met = (gain.low or 0.0) > 0 if name in ABOVE else gain.mean >= -MOST_LOST
    return met, f"{name}, {METRIC}: {show(gain)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over the recipe `two-cores`")
    parser.add_argument("--data", type=Path, default=RAW, help="folder of the raw files")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "real-synthetic", help="everything stays here")
    parser.add_argument("--learnt", nargs="+", default=[OTHER, OWN], choices=SETS, metavar="SET", help="give passages")
    parser.add_argument("--sets", nargs="+", default=[*SETS], choices=SETS, metavar="SET", help="are measured")
    args = parser.parse_args()
    place, began = SyntheticPlace(args.work, args.data, tuple(args.learnt)), time.perf_counter()
    encoder = train(place, VIEW, args.settings, args.work / "encoders")
    rows: list[tuple[str, ...]] = []
    pairs: list[tuple[str, ...]] = []
    met: list[tuple[bool, str]] = []
    for name in args.sets:
        lines = list(measure(place, name, (VIEW,), encoder))
        print(*(" | ".join(line.cells()) for line in lines), sep="\n", flush=True)
        rows += [line.cells() for line in lines]
        pairs += differences(lines)
        met.append(bar(lines))
    tables = (Table(COLUMNS, tuple(rows)).markdown(), Table(PAIR_COLUMNS, tuple(pairs)).markdown())
    print(*tables, sep="\n")
    print(f"{(time.perf_counter() - began) / 60:.1f} min")
    if args.sets == [*SETS]:
        write_table(DOCS, "python -m bench.real_synthetic", tables)
    print(*(f"{'ok    ' if good else 'MISSED'} {reached}" for good, reached in met), sep="\n")
    return 0 if all(good for good, _ in met) else 1


if __name__ == "__main__":
    sys.exit(main())
