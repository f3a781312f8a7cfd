"""Retrievers that learn from an agent, compared by what the agent makes of them.

    python -m bench.retrievers [--seeds 0 1 2] [--work build/retrievers]     Agentic-R, AgentIR, their parts and others
    python -m bench.retrievers --factorial                                   every view with every kind of labels
    python -m bench.retrievers --small --work FOLDER                         everything once in small, to see it run

The agent of `terse` often says half of a name with a relation, or the relation alone: what it means stands in
its question or in its reasoning. One agent asks under all seeds, and stays as it is; `--expert` takes the scripted
expert that it learnt from, which needs no training. The retrievers begin with the shipped encoder, learn from the
agent's searches on questions of the train split, and are measured on the test split and in a world that no label is of.
Labels are scored by the world's oracle. Writes its tables into bench/results/retriever-study.md.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
from bench.real_sets import ROOT, write_table
from bench.retriever_arms import BM25, HYBRID, METHODS, SETS, SMALL, ZERO_SHOT, Arm, Place, Scale

from coseek.measure.intervals import Difference, paired_difference
from coseek.measure.score import ScoredRun
from coseek.measure.table import Table, show

DOCS = ROOT / "bench" / "results" / "retriever-study.md"
PAPERS_VIEWS = ("query", "question+query", "reasoning+query")
VIEWS = (*PAPERS_VIEWS, "question+reasoning+query")
BASES = (Arm(BM25, "query"), Arm(ZERO_SHOT, "query"))
"""What every retriever is compared with."""
NAMES = {
    Arm(ZERO_SHOT, "reasoning+query"): "zero-shot (AgentIR: the view without training)",
    Arm("agentic-r", "question+query"): "Agentic-R",
    Arm("agentic-r without GAC", "question+query"): "Agentic-R without GAC",
    Arm("agentic-r without LR", "question+query"): "Agentic-R without LR",
    Arm("agentic-r", "query"): "Agentic-R without the question",
    Arm("dr-synth", "reasoning+query"): "AgentIR",
    Arm("dr-synth", "query"): "AgentIR: training without the view",
    Arm("replug", "reasoning+query"): "REPLUG",
    Arm("llm-embedder", "reasoning+query"): "LLM-Embedder",
    Arm("scarlet", "reasoning+query"): "SCARLet",
    Arm("gold", "reasoning+query"): "gold labels",
    Arm(HYBRID, "question+reasoning+query"): "the combination",
}
"""The papers of REPLUG, LLM-Embedder and SCARLet know no view; theirs is AgentIR's, so that labels alone differ."""
WHOLES = {
    Arm(ZERO_SHOT, "reasoning+query"): Arm("dr-synth", "reasoning+query"),
    Arm("agentic-r without GAC", "question+query"): Arm("agentic-r", "question+query"),
    Arm("agentic-r without LR", "question+query"): Arm("agentic-r", "question+query"),
    Arm("agentic-r", "query"): Arm("agentic-r", "question+query"),
    Arm("dr-synth", "query"): Arm("dr-synth", "reasoning+query"),
}
"""Method without a part → the method. What a part is worth is the difference of the two, and no line's own height."""
COMPARISON = (*(Arm(source, view) for source, view in product((BM25, ZERO_SHOT), PAPERS_VIEWS)), *list(NAMES)[1:])
LIKELIHOODS = ("replug", "llm-embedder", "scarlet")
"""Methods that ask how likely an answer is."""
LABELS = ("agentic-r", HYBRID, "dr-synth", "gold")
FACTORIAL = (*BASES, *(Arm(labels, view) for labels, view in product(LABELS, VIEWS)))
PARENTS = (Arm("agentic-r", "question+query"), Arm("dr-synth", "reasoning+query"))
CHILD = Arm(HYBRID, "question+reasoning+query")
"""The combination that no paper has, chosen before anything was measured: one comparison needs no correction."""


@dataclass(frozen=True)
class Measured:
    """What the agent made of every retriever: (seed, set, arm) → the run, question by question."""

    seeds: tuple[int, ...]
    runs: Mapping[tuple[int, str, Arm], ScoredRun]

    def values(self, arm: Arm, name: str, metric: str, seeds: Sequence[int]) -> dict[str, float]:
        """Seed and question → value. A question whose run ended by a fault has none."""
        return {
            f"{seed}/{ident}": row.metrics[metric]
            for seed in seeds
            for ident, row in self.runs[seed, name, arm].questions.items()
            if metric in row.metrics
        }

    def mean(self, arm: Arm, name: str, metric: str, seed: int) -> float:
        return fmean(self.values(arm, name, metric, [seed]).values())

    def above(self, arm: Arm, base: Arm, name: str, metric: str, seeds: Sequence[int]) -> Difference:
        """`arm` − `base` over the questions that both have."""
        below, above = self.values(base, name, metric, seeds), self.values(arm, name, metric, seeds)
        found = paired_difference(below, above, np.random.default_rng(0))
        assert found is not None
        return found

    def by_seed(self, arm: Arm, base: Arm, name: str) -> list[float]:
        """`arm` − `base` in EM of every seed: what was drawn and trained anew, where questions were not."""
        return [self.above(arm, base, name, "em", [seed]).difference.mean for seed in self.seeds]

    def has(self, arm: Arm) -> bool:
        return any(known == arm for _, _, known in self.runs)

    def faults(self, name: str, seeds: Sequence[int]) -> int:
        return sum(
            row.faults for (seed, where, _), run in self.runs.items() if seed in seeds and where == name
            for row in run.questions.values()
        )  # fmt: skip


def main() -> int:
    args = _arguments()
    scale = SMALL if args.small else Scale(args.questions, args.labelled, steps=args.steps, expert=args.expert)
    arms = FACTORIAL if args.factorial else COMPARISON
    if not (args.generator / "config.json").exists():
        _say(f"no {', '.join(LIKELIHOODS)}: there is no {args.generator}; make one with `coseek train generator`")
        arms = tuple(arm for arm in arms if arm.source not in LIKELIHOODS)
    places = [Place(seed, args.work / f"seed-{seed}", args.agent, args.generator, scale, _say) for seed in args.seeds]
    measured = measure(places, arms)
    tables = [*tables_of(measured, arms, args.factorial), "### The labels", labels_table(places, arms).markdown()]
    print("\n\n".join(tables))
    if not scale.expert:
        write_table(DOCS, f"python -m bench.retrievers{' --factorial' if args.factorial else ''}", tables)
    return 0


def measure(places: Sequence[Place], arms: Sequence[Arm]) -> Measured:
    """Make what is missing, seed by seed, and read the rest."""
    runs = {(place.seed, name, arm): place.scored(arm, name) for place in places for arm in arms for name in SETS}
    return Measured(tuple(place.seed for place in places), runs)


def tables_of(measured: Measured, arms: Sequence[Arm], factorial: bool) -> list[str]:
    """Headings and tables, as Markdown."""
    parts: list[str] = []
    for name in SETS:
        if factorial:
            parts += [f"### {name}: EM by labels and view", grid(measured, name).markdown()]
        elif len(measured.seeds) > 1:
            parts += [f"### {name}: all seeds", over_seeds(measured, arms, name).markdown()]
    if factorial:
        parts.append(verdict(measured))
    else:
        parts += ["### EM beside the same view without training, all seeds", beside_view(measured, arms).markdown()]
        parts += ["### Searches where both answer right, all seeds", searches_where_right(measured, arms).markdown()]
        for seed, name in product(measured.seeds, SETS):
            parts += [f"### {name}: seed {seed}", of_seed(measured, arms, name, seed).markdown()]
    return parts


def labels_table(places: Sequence[Place], arms: Sequence[Arm]) -> Table:
    """How many turns give labels, and how many positives are what the agent had to find next; sums over seeds."""
    rows = []
    for name in dict.fromkeys(arm.source for arm in arms if arm.source in METHODS):
        worths = [place.worth(name) for place in places]
        turns, sets, right = (sum(getattr(one, field) for one in worths) for field in ("turns", "sets", "right"))
        rows.append((name, str(turns), str(sets), f"{right / sets:.3f}" if sets else "–"))
    return Table(("labels", "turns", "label sets", "positive tells the next step"), tuple(rows))


HEAD = ("retriever", "view", "EM")
AGAINST = ("BM25", "zero-shot")
BESIDE_WHOLE = "EM − whole"
BY_SET = ("retriever", "view", *(f"{name}: − {base}" for name, base in product(SETS, AGAINST)))


def of_seed(measured: Measured, arms: Sequence[Arm], name: str, seed: int) -> Table:
    """One line a retriever; differences are paired, with 95 % intervals."""
    rows = []
    for arm in arms:
        gains = {
            metric: [measured.above(arm, base, name, metric, [seed]) if arm != base else None for base in BASES]
            for metric in ("em", "searches")
        }
        em, searches, recall = (measured.mean(arm, name, metric, seed) for metric in ("em", "searches", "recall"))
        rows.append((
            _name(arm), arm.view, f"{em:.3f}", *map(_signed, gains["em"]), _beside_whole(measured, arm, name, [seed]),
            f"{searches:.2f}", *map(_signed, gains["searches"]), f"{recall:.3f}",
        ))  # fmt: skip
    columns = (
        *HEAD, *(f"EM − {base}" for base in AGAINST), BESIDE_WHOLE, "searches",
        *(f"searches − {base}" for base in AGAINST), "recall",
    )  # fmt: skip
    return Table(columns, tuple(rows), _notes(measured, name, [seed]))


def over_seeds(measured: Measured, arms: Sequence[Arm], name: str) -> Table:
    """Mean and standard deviation over seeds; differences over the questions of all seeds, and the least of a seed (of
    a method without a part against the whole the most: that is below zero when every seed misses the part)."""
    seeds, rows = measured.seeds, []
    for arm in arms:
        cells = {metric: _spread([measured.mean(arm, name, metric, seed) for seed in seeds])
                 for metric in ("em", "searches", "recall")}  # fmt: skip
        gains = []
        for base in BASES:
            if arm == base:
                gains += ["–", "–"]
                continue
            pooled = measured.above(arm, base, name, "em", seeds)
            gains += [
                f"{_signed(pooled)}, least {min(measured.by_seed(arm, base, name)):+.3f}",
                _signed(measured.above(arm, base, name, "searches", seeds)),
            ]
        beside = _beside_whole(measured, arm, name, seeds)
        rows.append((_name(arm), arm.view, cells["em"], *gains, beside, cells["searches"], cells["recall"]))
    between = (f"{metric} − {base}" for base in AGAINST for metric in ("EM", "searches"))
    return Table((*HEAD, *between, BESIDE_WHOLE, "searches", "recall"), tuple(rows), _notes(measured, name, seeds))


def _beside_whole(measured: Measured, arm: Arm, name: str, seeds: Sequence[int]) -> str:
    """What a method loses with a part; nothing for lines that are no part of another."""
    whole = WHOLES.get(arm)
    if whole is None or not measured.has(whole):
        return "–"
    pooled = _signed(measured.above(arm, whole, name, "em", seeds))
    return pooled if len(seeds) == 1 else f"{pooled}, most {max(measured.by_seed(arm, whole, name)):+.3f}"


def beside_view(measured: Measured, arms: Sequence[Arm]) -> Table:
    """What training is worth: every retriever beside those that learn from no label and see the same of a turn."""

    def cell(arm: Arm, base: Arm, name: str) -> str:
        known = arm != base and measured.has(base)
        return _signed(measured.above(arm, base, name, "em", measured.seeds) if known else None)

    rows = [
        (_name(arm), arm.view, *(cell(arm, Arm(base.source, arm.view), name) for name, base in product(SETS, BASES)))
        for arm in arms
    ]
    return Table(BY_SET, tuple(rows))


def searches_where_right(measured: Measured, arms: Sequence[Arm]) -> Table:
    """Searches of the agent beside each base, on questions that it answers right over both retrievers.

    A better retriever may also get those answered that need more searches, and so raise the mean over all questions.
    """

    def right(arm: Arm, name: str) -> set[str]:
        return {key for key, em in measured.values(arm, name, "em", measured.seeds).items() if em == 1}

    def cell(arm: Arm, base: Arm, name: str) -> str:
        both = right(arm, name) & right(base, name)
        if arm == base or not both:
            return "–"
        searches = (measured.values(one, name, "searches", measured.seeds) for one in (base, arm))
        below, above = ({key: values[key] for key in both} for values in searches)
        return f"{_signed(paired_difference(below, above, np.random.default_rng(0)))} (n={len(both)})"

    rows = [(_name(arm), arm.view, *(cell(arm, base, name) for name, base in product(SETS, BASES))) for arm in arms]
    return Table(BY_SET, tuple(rows))


def grid(measured: Measured, name: str) -> Table:
    """Labels by views."""

    def cell(arm: Arm) -> str:
        return _spread([measured.mean(arm, name, "em", seed) for seed in measured.seeds])

    rows = [(labels, *(cell(Arm(labels, view)) for view in VIEWS)) for labels in LABELS]
    bases = tuple(f"{_name(base)}, the query alone: {cell(base)}." for base in BASES)
    return Table(("labels", *VIEWS), tuple(rows), (*bases, *_notes(measured, name, measured.seeds)))


def verdict(measured: Measured) -> str:
    """Does the combination beat both of its parents on both sets: with the interval above zero, and in every seed?

    An interval over the questions of all seeds holds nothing of how an encoder comes out of another training, so that
    alone would let one lucky seed decide.
    """
    better, said = True, []
    for parent, name in product(PARENTS, SETS):
        found, least = (
            measured.above(CHILD, parent, name, "em", measured.seeds),
            min(measured.by_seed(CHILD, parent, name)),
        )
        better = better and (found.difference.low or 0.0) > 0 and least > 0
        said.append(f"{_signed(found)}, least of a seed {least:+.3f}, to {_name(parent)}, {name}")
    verb = "beats both parents: make it the default" if better else "does not beat both parents, and is no default"
    return f"{CHILD.source}, {CHILD.view}, {verb}: {'; '.join(said)}."


def _name(arm: Arm) -> str:
    return NAMES.get(arm, arm.source)


def _signed(found: Difference | None) -> str:
    if found is None:
        return "–"
    text = show(found.difference)
    return text if text.startswith("-") else f"+{text}"


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _notes(measured: Measured, name: str, seeds: Sequence[int]) -> tuple[str, ...]:
    faults = measured.faults(name, seeds)
    return (f"{faults} runs ended by a fault and are left out.",) if faults else ()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--questions", type=int, default=Scale().questions, help="of each set")
    parser.add_argument("--labelled", type=int, default=Scale().labelled, help="train questions that labels are of")
    parser.add_argument(
        "--steps", type=int, default=Scale().steps, help="updates of an encoder that learns from labels"
    )
    parser.add_argument(
        "--expert", action="store_true", help="the scripted expert, always with ambiguous queries, in the agent's place"
    )
    parser.add_argument("--factorial", action="store_true", help="every view with every kind of labels")
    parser.add_argument(
        "--small", action="store_true", help="everything once, in a tiny world, with the expert as agent"
    )
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "retrievers", help="everything made stays here")
    parser.add_argument("--agent", type=Path, default=ROOT / "build" / "terse", help="where the agent is, or goes")
    parser.add_argument(
        "--generator", type=Path, default=ROOT / "build" / "protocols" / "generator" / "generator",
        help="a model folder that says how likely answers are (REPLUG)",
    )  # fmt: skip
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
