"""Every real data set in one table: BM25, MiniLM and their hybrid with the bare question, the rule-based agent beside.

    python -m bench.real              all sets, all methods; writes the tables into bench/results/real-data.md
    python -m bench.real --quick      without MiniLM (whose indexes take minutes on two cores); writes nothing

All-gold@k is the share of questions whose gold passages are all among the first k. The sets are imported and their
indexes built once, under `--work`. Exit 1 when a bar is missed.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.real_sets import RAW, ROOT, SETS, RealSet, boundless, questions_of, rules_agent, write_table

from coseek.agents.drivers import rollout
from coseek.core.errors import RetrieverError
from coseek.data.dataset import Dataset
from coseek.data.question import Question
from coseek.data.trajectory import evidence_of
from coseek.measure.rankings import Metric
from coseek.measure.score import ScoredRun
from coseek.measure.searched import Answered, RetrievalMeasure, SearchedQuestion, search_questions
from coseek.measure.table import Table, comparison_table, show
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings

DOCS = ROOT / "bench" / "results" / "real-data.md"
DEPTH = 10
RULES_K = (10, 3)
"""Passages a search for the rule-based agent: as deep as the one-shot rows look, and as a small policy reads."""
METRICS = {
    "all-gold@2": "all_gold@2",
    "all-gold@5": "all_gold@5",
    "all-gold@10": "all_gold@10",
    "recall@5": "recall@5",
    "nDCG@10": "ndcg@10",
}
"""Column → metric."""
PAIRED = "Question by question against BM25, with 95 % bootstrap intervals and the p-value of a randomisation test:"
MEASURING = RetrievalMeasure(tuple(map(Metric.named, METRICS.values())))
BM25, STEMMED = "BM25, one shot", "BM25 stem=auto, one shot"
MINILM, HYBRID = "MiniLM, one shot", "hybrid, one shot"


@dataclass(frozen=True, slots=True)
class Line:
    """What one method found on one set."""

    real: RealSet
    questions: Sequence[Question]
    run: ScoredRun
    """Named by its method."""
    searches: float
    """Mean a question."""

    def mean(self, metric: str) -> float:
        return MEASURING.compare([self.run], self.questions).of(self.run.name).metrics[metric].mean

    def cells(self) -> tuple[str, ...]:
        found = MEASURING.compare([self.run], self.questions).of(self.run.name).metrics
        sizes = (self.real.name, f"{self.real.passages:,}", f"{len(self.questions):,}")
        return (*sizes, self.run.name, f"{self.searches:.2f}", *(show(found.get(name)) for name in METRICS.values()))


PAIR_COLUMNS = ("set", "methods", "metric", "questions", "difference", "p", "p (Holm, in its set)", "McNemar")
COLUMNS = ("set", "passages", "questions", "method", "searches", *METRICS)
BARS = (
    ("hotpotqa-pool500", BM25, 0.52),
    ("hipporag musique", BM25, 0.15),
    ("hotpotqa-pool500", f"rules over BM25, k={RULES_K[0]}", 0.65),
)
"""Set, method and the least all-gold@5."""
BELOW = 0.01
"""What the hybrid may lose to its better part, in each of `LOSSES`."""
LOSSES = ("all_gold@5", "recall@5", "ndcg@10")


def main() -> int:
    args = _arguments()
    lines: list[Line] = []
    differences: list[tuple[str, ...]] = []
    for real in SETS.values():
        found = list(measure(real, args.data, args.work, args.quick))
        lines += found
        print(Table(COLUMNS, tuple(line.cells() for line in found)).markdown(), flush=True)
        differences += [(real.name, *row) for row in paired(found)]
    table = Table(COLUMNS, tuple(line.cells() for line in lines)).markdown()
    pairs = Table(PAIR_COLUMNS, tuple(differences)).markdown()
    if not args.quick:
        print(pairs)
        write_table(DOCS, "python -m bench.real", (f"{table}\n{PAIRED}", pairs))
    return report_bars(lines)


def measure(real: RealSet, data: Path, work: Path, quick: bool) -> Iterator[Line]:
    """All methods on one set."""
    folder = work / real.slug
    dataset = real.imported(data, folder / "data")
    questions = questions_of(dataset)
    bm25 = _index(dataset, "bm25", folder / "bm25")
    yield one_shot(real, BM25, bm25, questions)
    yield one_shot(real, STEMMED, Bm25.over(dataset.corpus, Bm25Settings(stem="auto")), questions)
    if not quick:
        yield one_shot(real, MINILM, _index(dataset, "dense", folder / "minilm"), questions)
        parts = [str(folder / "bm25"), str(folder / "minilm")]
        yield one_shot(real, HYBRID, open_retriever({"retriever": "hybrid", "parts": parts}), questions)
    for k in RULES_K:
        yield rules_over(real, bm25, questions, k, f"rules over BM25, k={k}")


def paired(lines: Sequence[Line]) -> Iterator[tuple[str, ...]]:
    """The other searches against BM25 on one set."""
    one_shots = [line.run for line in lines if line.run.name in (BM25, STEMMED, MINILM, HYBRID)]
    scores = MEASURING.compare(one_shots, lines[0].questions)
    for methods, *cells in comparison_table(scores, ("all_gold@5", "recall@5", "ndcg@10")).rows:
        yield (methods.replace(", one shot", ""), *cells)


def report_bars(lines: Sequence[Line]) -> int:
    """Print each bar with what was reached; 1 when one was missed."""
    missed = 0
    for set_name, method, least in BARS:
        line = next(line for line in lines if (line.real.name, line.run.name) == (set_name, method))
        reached = line.mean("all_gold@5")
        missed += reached < least
        print(
            f"{'ok    ' if reached >= least else 'MISSED'} {set_name}, {method}: all-gold@5 {reached:.3f}, bar {least}"
        )
    for part, whole in [(one, two) for one in lines for two in lines if one.real is two.real]:
        for metric in LOSSES if whole.run.name == HYBRID and part.run.name in (BM25, MINILM) else ():
            lost = part.mean(metric) - whole.mean(metric)
            missed += lost > BELOW
            if lost > 0:
                verdict = "MISSED" if lost > BELOW else "ok    "
                print(f"{verdict} {part.real.name}: hybrid {lost:.3f} below {part.run.name} in {metric}, bar {BELOW}")
    return 1 if missed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Real data sets: one shot and rule-based agent in one table.")
    parser.add_argument("--quick", action="store_true", help="without MiniLM; writes no docs")
    parser.add_argument("--data", type=Path, default=RAW, help="folder of the raw files")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "real", help="imported sets and indexes stay here"
    )
    return parser.parse_args()


def _index(dataset: Dataset, retriever: str, folder: Path) -> Retriever:
    if folder.exists():
        return open_index(folder, dataset.corpus)
    began = time.perf_counter()
    # Thousands of questions at once: encoded together they take a third of the time; scores move in the seventh digit.
    settings = {"queries_together": 64} if retriever == "dense" else {}
    made = build_index(dataset.folder, retriever, folder, settings)
    print(f"{folder.name} over {len(dataset.corpus)} passages: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return made


def one_shot(real: RealSet, method: str, retriever: Retriever, questions: Sequence[Question]) -> Line:
    found = [answer for batch in search_questions(retriever, questions, DEPTH) for answer in batch]
    for _, one in found:
        if one.fault is not None:
            raise RetrieverError(f"{method} on {real.name}: {one.fault}")
    return Line(real, questions, MEASURING.measure(method, found), 1.0)


def rules_over(real: RealSet, retriever: Retriever, questions: Sequence[Question], k: int, method: str) -> Line:
    """The agent through the ordinary driver; only its budgets of tokens are lifted, since it reads no tokens."""
    runs = rollout(rules_agent(), retriever, questions, list(range(len(questions))), boundless(k))
    found: list[Answered] = []
    for run in runs:
        ids = evidence_of(run)  # as `coseek score` looks at it
        found.append((run.question, SearchedQuestion(ids, tuple(-float(rank) for rank in range(len(ids))), None)))
    searches = sum(len(run.searches) for run in runs) / len(runs)
    return Line(real, questions, MEASURING.measure(method, found), searches)


if __name__ == "__main__":
    sys.exit(main())
