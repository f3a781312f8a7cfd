"""MiniLM learns from an agent's searches on real questions: does the agent find more, also on questions unlike these?

    python -m bench.real_retriever                     labels, training, measurement
    python -m bench.real_retriever --views all         the same encoder asked by every view

The agent is the one without a model (`rules`); its searches over frozen MiniLM on the 200 questions of hipporag and on
350 of the 2Wiki questions are labelled by gold evidence (`coseek label --method gold`), and MiniLM is trained on them.
Measured inside the agent, five passages a search: the other 150 2Wiki questions over their own passages and the
distractors, and hotpotqa-pool500, of which nothing was trained on. Everything stays under `--work`; a second start
makes only what is missing. Exit 1 when the encoder, asked as it was trained, misses a bar: more recall@5 than frozen
MiniLM with the query alone on the 2Wiki questions, the interval above zero, and no less all-gold@5 on the other set.
"""

import argparse
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.real import COLUMNS, MEASURING, PAIR_COLUMNS, Line, rules_over
from bench.real_sets import RAW, ROOT, SETS, boundless, questions_of, rules_agent, write_table

from coseek.agents.run_questions import run_questions
from coseek.agents.search_turns import search_turns
from coseek.core.files import write_json
from coseek.data.dataset import Dataset
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.graders.structured_output import CallCounts
from coseek.labels.label_folder import LabelFolder
from coseek.labels.labelling import LabelSummary, make_labels
from coseek.labels.makers import gold
from coseek.labels.resources import LabelResources
from coseek.measure.table import Table, comparison_table, show
from coseek.pipelines.encoder import RetrieverTraining
from coseek.retrieval.index import IndexCard, build_index
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers import dense
from coseek.retrieval.views import VIEWS
from coseek.training.encoder.recipe import load_retriever_recipe

DOCS = ROOT / "bench" / "results" / "real-data.md"
LEARNT = ("hipporag hotpotqa", "hipporag musique", "2wiki + distractors")
OWN, OTHER = "2wiki + distractors", "hotpotqa-pool500"
HELD_OUT = 150
"""2Wiki questions that nothing is trained on."""
ALL_VIEWS = (*VIEWS, "last-2-turns")
K = 5
"""Passages a search."""
FROZEN, TRAINED = "frozen", "trained"
SUMMARY = "summary.json"
"""What labels came to; written last."""
BARS = {OWN: "recall@5", OTHER: "all_gold@5"}
"""What is compared on which set."""


@dataclass(frozen=True)
class Place:
    """Where everything is, and what the two measured sets are."""

    work: Path
    data: Path
    learnt: tuple[str, ...] = LEARNT
    """Sets whose questions give labels."""

    def dataset(self, name: str) -> Dataset:
        return SETS[name].imported(self.data, self.work / SETS[name].slug / "data")

    def asked(self, name: str, train: bool) -> list[Question]:
        """The questions of a set: those of 2Wiki are dealt out by a seeded draw."""
        questions = questions_of(self.dataset(name))
        if name != OWN:
            return questions
        held_out = {question.id for question in random.Random(0).sample(questions, HELD_OUT)}
        return [question for question in questions if (question.id not in held_out) == train]

    def retriever(self, name: str, view: str, encoder: Path | None = None) -> Retriever:
        """MiniLM as it is, or an encoder made of it, asked by a view: that changes no vector of what is indexed."""
        slug, dataset = SETS[name].slug, self.dataset(name)
        folder = encoder.parent / "indexes" / slug if encoder else self.work / slug / FROZEN
        if not folder.exists():
            start = {"encoder": str(encoder)} if encoder else {}
            build_index(dataset.folder, "dense", folder, {"queries_together": 64, **start})
        settings = dense.SETTINGS.model_validate({**IndexCard.read(folder).settings, "view": view})
        return dense.load(folder, dataset.corpus, settings)

    def labels(self, name: str) -> Path:
        """Runs of the agent over frozen MiniLM, labelled by gold evidence. They are done when what they came to stands
        beside them; a start that was killed before is gone on with."""
        out = self.work / SETS[name].slug / "labels"
        if not (out / SUMMARY).exists():
            said = self._label(name, out)
            write_json(out / SUMMARY, said.to_json())
            print(f"{name}: {said.turns} turns, {said.sets} label sets, dropped {dict(said.dropped)}", file=sys.stderr)
        return out

    def _label(self, name: str, out: Path) -> LabelSummary:
        retriever, agent, folder = self.retriever(name, "query"), rules_agent(), out.parent / "run"
        run = Run(folder) if (folder / "run.yaml").exists() else Run.create(folder, {"set": name})
        run_questions(run, agent, retriever, self.asked(name, train=True), boundless(K))
        tally = CallCounts()
        maker = gold.open(gold.SETTINGS(every=True), LabelResources(out, found_by=retriever, tally=tally))
        turns = [turn for run_of in run.trajectories() for turn in search_turns(run_of, agent.protocol)]
        labels = LabelFolder.begin(out, {"method": "gold"}, maker.identity, resume=True)
        return make_labels(labels, maker, turns, tally)


def train(place: Place, view: str, settings: Sequence[str], out: Path) -> Path:
    """MiniLM after the labels of all sets."""
    folders = [str(place.labels(name)) for name in place.learnt]
    recipe = load_retriever_recipe("two-cores", [f"view={view}", *settings], folders)
    training = RetrieverTraining(recipe, out / view)
    training.begin(resume=True)
    training.train()
    return training.encoder_folder


def measure(place: Place, name: str, views: Sequence[str], encoder: Path) -> Iterator[Line]:
    """Frozen MiniLM inside the agent on one set, then the trained encoder, each asked by every view."""
    for kind, folder in ((FROZEN, None), (TRAINED, encoder)):
        for view in views:
            yield rules_over(
                SETS[name], place.retriever(name, view, folder), place.asked(name, train=False), K, f"{kind}, {view}"
            )


def differences(lines: Sequence[Line]) -> Iterator[tuple[str, ...]]:
    """Every line of one set against frozen MiniLM with the query alone, question by question."""
    scores = MEASURING.compare([line.run for line in lines], lines[0].questions)
    for methods, *cells in comparison_table(scores, ("recall@5", "all_gold@5")).rows:
        yield (lines[0].real.name, methods, *cells)


def bars(lines: Mapping[str, Sequence[Line]], view: str) -> Iterator[tuple[bool, str]]:
    """Met or not, and what was reached."""
    for name, metric in BARS.items():
        found = MEASURING.compare([line.run for line in lines[name]], lines[name][0].questions)
        gain = next(one for one in found.comparisons if one.run == f"trained, {view}").metrics[metric].difference
        met = (gain.low or 0.0) > 0 if name == OWN else gain.mean >= 0
        yield met, f"{name}, {metric}: {show(gain)}"


def main() -> int:
    args = _arguments()
    views = list(dict.fromkeys(["query", args.view, *(ALL_VIEWS if "all" in args.views else args.views)]))
    place, out = Place(args.work, args.data), args.out or args.work / "encoders"
    began = time.perf_counter()
    rows: list[tuple[str, ...]] = []
    pairs: list[tuple[str, ...]] = []
    lines: dict[str, list[Line]] = {}
    encoder = train(place, args.view, args.settings, out)
    for name in (OWN, OTHER):
        lines[name] = []
        for line in measure(place, name, views, encoder):
            print(*line.cells(), sep=" | ", flush=True)
            lines[name].append(line)
        rows += [line.cells() for line in lines[name]]
        pairs += differences(lines[name])
    tables = (Table(COLUMNS, tuple(rows)).markdown(), Table(PAIR_COLUMNS, tuple(pairs)).markdown())
    print(*tables, sep="\n")
    print(f"{(time.perf_counter() - began) / 60:.1f} min")
    write_table(DOCS, "python -m bench.real_retriever", tables)
    met = list(bars(lines, args.view))
    print(*(f"{'ok    ' if good else 'MISSED'} {reached}" for good, reached in met), sep="\n")
    return 0 if all(good for good, _ in met) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="NAME=VALUE", help="settings over the recipe `two-cores`")
    parser.add_argument("--view", default="query", choices=ALL_VIEWS, help="what the encoder is trained on")
    parser.add_argument(
        "--views", nargs="+", default=[], choices=["all", *ALL_VIEWS], help="by which it is asked as well"
    )
    parser.add_argument("--data", type=Path, default=RAW, help="folder of the raw files")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "real-retriever", help="everything stays here")
    parser.add_argument("--out", type=Path, help="encoders stay here [WORK/encoders]")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
