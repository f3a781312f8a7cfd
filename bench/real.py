"""Every real data set in one table: BM25 and MiniLM with the bare question, the rule-based agent beside them.

    python bench/real.py              all sets, all methods; writes the table into docs/real-data.md
    python bench/real.py --quick      without MiniLM (whose indexes take minutes on two cores); writes nothing

All-gold@k is the share of questions whose gold passages are all among the first k. The sets are imported and their
indexes built once, under `--work`. Exit 1 when a bar is missed.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coseek.agents.protocol import load_protocol
from coseek.agents.rollout import Agent, Limits, rollout
from coseek.agents.writers.rules import Rules
from coseek.agents.writing import WriterModel
from coseek.data.dataset import Dataset
from coseek.data.imports import import_data
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.measure.intervals import bootstrap_mean
from coseek.measure.retrieval import all_gold, recall
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retriever import Retriever

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs" / "real-data.md"
BEGIN, END = "<!-- table: python bench/real.py -->", "<!-- end of table -->"
DEPTH = 10
RULES_K = (10, 3)
"""Passages a search for the rule-based agent: as deep as the one-shot rows look, and as a small policy reads."""


@dataclass(frozen=True, slots=True)
class RealSet:
    """One data set: where it comes from, and how many passages it must have."""

    name: str
    format: str
    sources: tuple[str, ...]
    passages: int


SETS = (
    RealSet("hotpotqa-pool500", "hotpotqa", ("hotpotqa-pool500",), 4_937),
    RealSet("hipporag hotpotqa", "hotpotqa", ("hipporag-train100",), 994),
    RealSet("hipporag musique", "musique", ("hipporag-train100",), 1_890),
    RealSet("2wiki", "2wiki", ("2wiki-train500",), 3_112),
    # 3,112 own and 6,119 distractors, of which 483 are own passages of some question
    RealSet("2wiki + distractors", "2wiki", ("2wiki-train500", "hipporag-2wiki-corpus"), 8_748),
    RealSet("qed", "qed", ("qed",), 1_343),
    RealSet("xquad en", "squad", ("xquad/xquad.en.json.gz",), 240),
    RealSet("xquad zh", "squad", ("xquad/xquad.zh.json.gz",), 240),
)


@dataclass(frozen=True, slots=True)
class Line:
    """What one method found on one set: a ranking of ids for every question."""

    set_name: str
    corpus: Corpus
    questions: Sequence[Question]
    method: str
    rankings: Sequence[Sequence[str]]
    searches: float

    def all_gold_at(self, k: int) -> list[float]:
        pairs = zip(self.questions, self.rankings, strict=True)
        return [float(bool(all_gold(question.gold_ids, ids[:k]))) for question, ids in pairs]

    def recall_at(self, k: int) -> list[float]:
        pairs = zip(self.questions, self.rankings, strict=True)
        return [recall(question.gold_ids, ids[:k]) or 0.0 for question, ids in pairs]

    def markdown(self) -> str:
        measures = [*(self.all_gold_at(k) for k in (2, 5, 10)), self.recall_at(5)]
        cells = [str(bootstrap_mean(values, np.random.default_rng(0))) for values in measures]
        return (
            f"| {self.set_name} | {len(self.corpus):,} | {len(self.questions):,} | {self.method} "
            f"| {self.searches:.2f} | {' | '.join(cells)} |"
        )


HEADER = (
    "| set | passages | questions | method | searches | all-gold@2 | all-gold@5 | all-gold@10 | recall@5 |\n"
    "|---|---|---|---|---|---|---|---|---|"
)

BARS = (
    ("hotpotqa-pool500", "BM25, one shot", 0.52),
    ("hipporag musique", "BM25, one shot", 0.15),
    ("hotpotqa-pool500", f"rules over BM25, k={RULES_K[0]}", 0.65),
)
"""Set, method and the least all-gold@5."""


def main() -> int:
    args = _arguments()
    lines: list[Line] = []
    print(HEADER)
    for real in SETS:
        for line in measure(real, args.data, args.work, args.quick):
            lines.append(line)
            print(line.markdown(), flush=True)
    if not args.quick:
        write_docs([HEADER, *(line.markdown() for line in lines)])
    return report_bars(lines)


def measure(real: RealSet, data: Path, work: Path, quick: bool) -> list[Line]:
    """All methods on one set."""
    folder = work / real.name.replace(" ", "-")
    dataset = _imported(real, data, folder / "data")
    questions = [question for split in dataset.splits for question in dataset.questions(split)]
    bm25 = _index(dataset, "bm25", folder / "bm25")
    lines = [_one_shot(real, "BM25, one shot", bm25, questions)]
    if not quick:
        lines.append(_one_shot(real, "MiniLM, one shot", _index(dataset, "dense", folder / "minilm"), questions))
    return lines + [_rules(real, bm25, questions, k) for k in RULES_K]


def report_bars(lines: Sequence[Line]) -> int:
    """Print each bar with what was reached; 1 when one was missed."""
    missed = 0
    for set_name, method, least in BARS:
        line = next(line for line in lines if (line.set_name, line.method) == (set_name, method))
        reached = sum(line.all_gold_at(5)) / len(line.questions)
        missed += reached < least
        print(
            f"{'ok    ' if reached >= least else 'MISSED'} {set_name}, {method}: all-gold@5 {reached:.3f}, bar {least}"
        )
    return 1 if missed else 0


def write_docs(table: Sequence[str]) -> None:
    """Put the table between the markers of docs/real-data.md."""
    text = DOCS.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCS.write_text(before + BEGIN + "\n" + "\n".join(table) + "\n" + END + after, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Real data sets: one shot and rule-based agent in one table.")
    parser.add_argument("--quick", action="store_true", help="without MiniLM; writes no docs")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the raw files")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "real", help="imported sets and indexes stay here"
    )
    return parser.parse_args()


def _imported(real: RealSet, data: Path, folder: Path) -> Dataset:
    if not folder.exists():
        import_data(real.format, [data / source for source in real.sources], folder)
    dataset = Dataset(folder)
    if len(dataset.corpus) != real.passages:
        raise SystemExit(
            f"{real.name} has {len(dataset.corpus)} passages, not {real.passages}: are the files complete?"
        )
    return dataset


def _index(dataset: Dataset, retriever: str, folder: Path) -> Retriever:
    if folder.exists():
        return open_index(folder, dataset.corpus)
    began = time.perf_counter()
    # Thousands of questions at once: encoded together they take a third of the time; scores move in the seventh digit.
    settings = {"queries_together": 64} if retriever == "dense" else {}
    made = build_index(dataset.folder, retriever, folder, settings)
    print(f"{folder.name} over {len(dataset.corpus)} passages: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return made


def _one_shot(real: RealSet, method: str, retriever: Retriever, questions: Sequence[Question]) -> Line:
    found = retriever.search([question.question for question in questions], DEPTH)
    rankings = [[hit.passage.id for hit in hits] for hits in found]
    return Line(real.name, corpus_of(retriever), questions, method, rankings, 1.0)


def corpus_of(retriever: Retriever) -> Corpus:
    assert retriever.corpus is not None
    return retriever.corpus


def _rules(real: RealSet, retriever: Retriever, questions: Sequence[Question], k: int) -> Line:
    """The agent through the ordinary driver; only its budgets of tokens are lifted, since it reads no tokens."""
    protocol, rules = load_protocol("search-r1"), Rules()
    agent = Agent(protocol, WriterModel(rules, protocol, ByteTokenizer(protocol.grammar.special_tokens)))
    plenty = 1_000_000
    limits = Limits(
        passages_per_search=k, max_turn_tokens=plenty, max_observation_tokens=plenty, max_tokens=100 * plenty
    )
    runs = rollout(agent, retriever, questions, list(range(len(questions))), limits)
    rankings = [rules.evidence(run.question.question, run.searches) for run in runs]
    searches = sum(len(run.searches) for run in runs) / len(runs)
    return Line(real.name, corpus_of(retriever), questions, f"rules over BM25, k={k}", rankings, searches)


if __name__ == "__main__":
    sys.exit(main())
