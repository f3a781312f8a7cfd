"""Found: what retrievers find for a set of questions, one search a question, measured and compared.

A search that failed is data: it is counted, and its question is in no mean and in no pair. It is never a 0.
What is found may also come from a TREC run file, which knows ids alone.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coseek.core.errors import DataError, RetrieverError
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trec import Qrels, Ranked, trec_id
from coseek.measure.rankings import Judged, Metric, grades
from coseek.measure.score import Scored, ScoredRun, Scores, summaries_of
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever, fault_of_hits

FOUND, EMPTY, FAULT = "found", "nothing found", "fault"
"""How a search ended, as `Scores.stops` counts it."""


@dataclass(frozen=True, slots=True)
class SearchedQuestion:
    """What one search found, best first. A passage that a retriever gave twice stands here once."""

    ids: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    passages: tuple[Passage, ...] | None = ()
    """`None` where only ids are known."""
    fault: str | None = None
    """Why there was no search."""

    @classmethod
    def of(cls, hits: Iterable[Hit]) -> "SearchedQuestion":
        first: dict[str, Hit] = {}
        for hit in hits:
            first.setdefault(hit.passage.id, hit)
        return cls(tuple(first), tuple(h.score for h in first.values()), tuple(h.passage for h in first.values()))

    @property
    def ranked(self) -> Ranked:
        return list(zip(self.ids, self.scores, strict=True))


Answered: TypeAlias = tuple[Question, SearchedQuestion]


def search_questions(
    retriever: Retriever, questions: Sequence[Question], depth: int, batch: int = 64
) -> Iterator[list[Answered]]:
    """Search for every question's own text, batch by batch.

    A batch that fails is asked again one by one, so that a question which cannot be searched takes no others along.
    """
    for start in range(0, len(questions), batch):
        asked = questions[start : start + batch]
        try:
            yield [(question, SearchedQuestion.of(hits)) for question, hits in _search(retriever, asked, depth)]
        except RetrieverError:
            yield [(question, _alone(retriever, question, depth)) for question in asked]


def _search(retriever: Retriever, asked: Sequence[Question], depth: int) -> Iterator[tuple[Question, list[Hit]]]:
    # An agent whose first search is the question itself would ask just this.
    queries = [Query(question.question, question=question.question) for question in asked]
    found = retriever.search(queries, depth)
    if fault := next(filter(None, map(fault_of_hits, found)), ""):
        raise RetrieverError(fault)
    return zip(asked, found, strict=True)


def _alone(retriever: Retriever, question: Question, depth: int) -> SearchedQuestion:
    try:
        ((_, hits),) = _search(retriever, [question], depth)
    except RetrieverError as error:
        return SearchedQuestion(fault=str(error))
    return SearchedQuestion.of(hits)


def of_run_file(
    ranked: Mapping[str, Ranked],
    questions: Sequence[Question],
    corpus: Corpus | None = None,
    missing_is_empty: bool = True,
) -> Iterator[Answered]:
    """What a TREC run file holds for these questions; passages of `corpus` where it has them.

    A question without a line found nothing, as ir-measures and `trec_eval -c` count it: a run file has no other way to
    say so. With `missing_is_empty=False` it was not asked, as plain trec_eval counts it.
    """
    if not any(trec_id(question.id) in ranked for question in questions):
        raise DataError("the run file holds none of the questions; are they of the same data set and split?")
    wanted = {ident for rows in ranked.values() for ident, _ in rows}
    at = {ident: passage for passage in corpus or () if (ident := trec_id(passage.id)) in wanted}
    for question in questions:
        rows = ranked.get(trec_id(question.id))
        if rows is None and not missing_is_empty:
            continue
        ids, scores = [ident for ident, _ in rows or ()], [score for _, score in rows or ()]
        known = tuple(at[ident] for ident in ids if ident in at)
        whole = corpus is not None and len(known) == len(ids)
        yield question, SearchedQuestion(tuple(ids), tuple(scores), known if whole else None)


def relevance(question: Question) -> dict[str, int]:
    """The grades of a question's passages: `meta.relevance` where a data set has them, else 1 for each gold passage."""
    graded = question.meta.get("relevance")
    if not isinstance(graded, dict):
        return dict.fromkeys(question.gold_ids, 1)
    kept = {ident: grade for ident, grade in graded.items() if isinstance(grade, int)}
    if len(kept) < len(graded):
        raise DataError(f"question {question.id!r}: meta.relevance holds whole numbers by passage id")
    return kept


@dataclass(frozen=True)
class RetrievalMeasure:
    """What is measured, and against which judgements."""

    metrics: tuple[Metric, ...]
    qrels: Qrels | None = None
    """Judgements that stand in place of the questions' own; their ids are those of TREC files."""

    def gold(self, question: Question) -> dict[str, int]:
        """Grades by the passages' ids as they stand in TREC files, so that all sources of ids can be compared."""
        if self.qrels is not None:
            return self.qrels.get(trec_id(question.id), {})
        return {trec_id(ident): grade for ident, grade in relevance(question).items()}

    def judge(self, question: Question, found: SearchedQuestion) -> dict[str, float]:
        """Every metric that this question can have."""
        texts = None if found.passages is None else tuple(f"{one.title} {one.text}" for one in found.passages)
        judged = Judged(self.gold(question), question.answers, tuple(map(trec_id, found.ids)), texts)
        values = {metric.name: metric.of(judged) for metric in self.metrics}
        return {name: value for name, value in values.items() if value is not None}

    def measure(self, name: str, rows: Iterable[Answered]) -> ScoredRun:
        """One retriever, question by question; what was found is looked at once and not kept."""
        scored: dict[str, Scored] = {}
        stops = dict.fromkeys((FOUND, EMPTY, FAULT), 0)
        for question, found in rows:
            failed = found.fault is not None
            stops[FAULT if failed else FOUND if found.ids else EMPTY] += 1
            metrics = {} if failed else self.judge(question, found)
            scored[question.id] = Scored(question, metrics, int(not failed), int(failed))
        return ScoredRun(name, scored, {stop: count for stop, count in stops.items() if count})

    def unjudged(self, questions: Iterable[Question]) -> int:
        """Questions of which no passage is known to be relevant: they are in no mean but that of answer_hit."""
        return sum(not grades(self.gold(question)) for question in questions)

    def compare(
        self, runs: Sequence[ScoredRun], questions: Sequence[Question], by: Sequence[str] = (), seed: int = 0
    ) -> Scores:
        """Means with intervals over all questions and by group, and every later retriever paired with the first."""
        return summaries_of(runs, questions, by, [metric.name for metric in self.metrics], seed)
