"""What the agent that quotes (`extract`) answers, and what it declines, over public one-hop sets.

    python -m bench.extract

Three times 250 questions a set, five passages a search over BM25: the set's own; the same with all their gold passages
taken out of the corpus; and questions of another set, whose answers are not in the corpus. *Quoted*: the share of own
questions whose quotation holds a gold answer. *Declined* should be low on the own questions and high on the others.
Nothing sets a bar. The least support of an answer was chosen on these sets. About a minute on one core.
"""

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from bench.real_sets import RAW, ROOT, SETS, boundless, questions_of

from coseek.agents.factory import open_agent, settings_for
from coseek.agents.rollout import rollout
from coseek.data.passage import Corpus
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.measure.intervals import bootstrap_mean
from coseek.measure.table import Table, show
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.retrievers.bm25 import Bm25

ASKED = (("qed", "xquad en"), ("xquad en", "qed"), ("xquad zh", "qed"))
"""A set, and the one that strange questions come from."""
COUNT, K = 250, 5
COLUMNS = ("set", "questions", "quoted", "declined: own", "declined: gold passages withheld", "declined: another set's")


def main(data: Path = RAW, work: Path = ROOT / "build" / "real") -> int:
    rows: list[tuple[str, ...]] = []
    for name, other in ASKED:
        dataset = SETS[name].imported(data, work / SETS[name].slug / "data")
        own = drawn(questions_of(dataset))
        strange = drawn(questions_of(SETS[other].imported(data, work / SETS[other].slug / "data")))
        gold = {ident for question in own for ident in question.gold_ids}
        whole = Bm25.over(dataset.corpus)
        runs = ask(whole, own)
        withheld = ask(Bm25.over(Corpus([one for one in dataset.corpus if one.id not in gold])), own)
        shares = [map(quotes, runs), *(map(declines, found) for found in (runs, withheld, ask(whole, strange)))]
        cells = (show(bootstrap_mean([float(one) for one in share], np.random.default_rng(0))) for share in shares)
        rows.append((name, str(len(own)), *cells))
    print(Table(COLUMNS, tuple(rows)).markdown())
    return 0


def drawn(questions: Sequence[Question]) -> list[Question]:
    return random.Random(0).sample(list(questions), COUNT)


def ask(retriever: Bm25, questions: Sequence[Question]) -> list[Trajectory]:
    agent = open_agent(settings_for("extract"))
    return rollout(agent, retriever, questions, list(range(len(questions))), boundless(K))


def declines(run: Trajectory) -> bool:
    return run.declined


def quotes(run: Trajectory) -> bool:
    """Whether the answer holds a gold answer."""
    said = f" {' '.join(words(run.answer or ''))} "
    return any(f" {' '.join(words(gold))} " in said for gold in run.question.answers)


if __name__ == "__main__":
    sys.exit(main())
