"""What the rule-based agent keeps of its gain where passages have no titles, and whether it loses on one-hop questions.

    python -m bench.untitled

Every real set twice: as it is, and with each title moved into its text as the first line. BM25 finds the same in both,
so only the agent can lose. The gain is the agent's all-gold@5 less that of one search. Bars: on every multi-hop set at
least .8 of the gain with titles is kept; on every one-hop set the agent is no worse than one search (its difference's
95 % interval reaches 0). Exit 1 when one is missed. About two minutes on one core.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.real import BM25, MEASURING, one_shot, rules_over
from bench.real_sets import RAW, ROOT, SETS, RealSet, questions_of, write_table

from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.measure.intervals import Interval
from coseek.measure.table import Table, show
from coseek.retrieval.retrievers.bm25 import Bm25

DOCS = ROOT / "bench" / "results" / "real-data.md"
METRIC = "all_gold@5"
KEPT = 0.8
K = (10, 5)
"""Passages a search."""
TITLES = "titles", "in the text"
COLUMNS = ("set", "titles", "passages a search", "questions", "searches", "one search", "agent", "gain", "gain kept")


def main(data: Path = RAW, work: Path = ROOT / "build" / "real") -> int:
    rows: list[tuple[str, ...]] = []
    missed: list[str] = []
    for real in SETS.values():
        dataset = real.imported(data, work / real.slug / "data")
        questions = questions_of(dataset)
        titled = Bm25.over(dataset.corpus)
        moved = Bm25.over(Corpus([Passage(one.id, "", f"{one.title}\n{one.text}") for one in dataset.corpus]))
        for k in K:
            found = list(measured(real, (titled, moved), questions, k))
            rows += [row for row, _ in found]
            missed += bars(real, questions, [gain for _, gain in found], k)
            print(Table(COLUMNS, tuple(row for row, _ in found)).markdown(), flush=True)
    write_table(DOCS, "python -m bench.untitled", (Table(COLUMNS, tuple(rows)).markdown(),))
    print("\n".join(missed) or "every bar is met")
    return 1 if missed else 0


def measured(
    real: RealSet, retrievers: tuple[Bm25, Bm25], questions: Sequence[Question], k: int
) -> Iterator[tuple[tuple[str, ...], Interval]]:
    """A row and the gain, with titles and then without."""
    before: Interval | None = None
    for titles, retriever in zip(TITLES, retrievers, strict=True):
        once = one_shot(real, BM25, retriever, questions)
        agent = rules_over(real, retriever, questions, k, "agent")
        scores = MEASURING.compare([once.run, agent.run], questions)
        gain = scores.comparisons[0].metrics[METRIC].difference
        kept = f"{gain.mean / before.mean:.2f}" if before is not None and before.mean > KEPT / 10 else "–"
        means = (show(scores.of(run.name).metrics[METRIC]) for run in (once.run, agent.run))
        cells = (real.name, titles, str(k), f"{len(questions):,}", f"{agent.searches:.2f}", *means, show(gain), kept)
        yield cells, gain
        before = before or gain


def bars(real: RealSet, questions: Sequence[Question], gains: Sequence[Interval], k: int) -> Iterator[str]:
    """What was missed on one set."""
    titled, moved = gains
    if any(len(question.gold_ids) > 1 for question in questions):
        if moved.mean < KEPT * titled.mean:
            yield f"MISSED {real.name}, k={k}: {moved.mean:.3f} of {titled.mean:.3f} kept"
        return
    for titles, gain in zip(TITLES, gains, strict=True):
        if gain.mean < 0 and (gain.high is None or gain.high < 0):
            yield f"MISSED {real.name}, {titles}, k={k}: {show(gain)} against one search"


if __name__ == "__main__":
    sys.exit(main())
