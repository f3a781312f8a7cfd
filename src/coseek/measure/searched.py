"""Retrieval measurement: one search per question with each retriever, scored and compared.

A failed search is counted, and its question is left out of means and comparisons. It is never a 0. Results may also
come from a TREC run file, which has only ids.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean
from typing import TypeAlias

from coseek.core.errors import DataError, RetrieverError
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.data.trec import Qrels, Ranked, trec_id
from coseek.measure.rankings import JudgedRanking, Metric, grades
from coseek.measure.score import QuestionScores, ScoredRun, Scores, summaries_of
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever, fault_of_hits

FOUND, EMPTY, FAULT = "found", "nothing found", "fault"
"""Outcomes of a search, counted in `Scores.stops`."""
BY_GOLD = ("recall@5", "recall@20", "all_gold@5", "mrr@10", "ndcg@10")
BY_ANSWER = ("answer_hit@5", "answer_hit@20")
"""Default metrics: with relevant passages, and where no question has any."""


@dataclass(frozen=True, slots=True)
class SearchedQuestion:
    """Results of one search, best first, without duplicates."""

    ids: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    passages: tuple[Passage, ...] | None = ()
    """`None` if only ids are known."""
    fault: str | None = None
    """Why the search failed."""

    @classmethod
    def of(cls, question: Question, hits: Iterable[Hit], depth: int) -> "SearchedQuestion":
        """The first `depth` hits, without repeated ones and without the passage that is the question itself."""
        hits_by_id: dict[str, Hit] = {}
        for hit in hits:
            if hit.passage.id != question.own_passage:
                hits_by_id.setdefault(hit.passage.id, hit)
        first = dict(islice(hits_by_id.items(), depth))
        return cls(tuple(first), tuple(h.score for h in first.values()), tuple(h.passage for h in first.values()))

    @property
    def ranked(self) -> Ranked:
        return list(zip(self.ids, self.scores, strict=True))

    def as_rag(self, question: Question, seed: int = 0) -> Trajectory:
        """A trajectory of naive RAG: this one search, and no answer."""
        hits = tuple(Hit(*pair) for pair in zip(self.passages or (), self.scores, strict=True))
        stop = StopReason.COMPLETE if self.fault is None else StopReason.RETRIEVER_ERROR
        searches = (Search(question.searched, hits, self.fault, turn=0),)
        detail = self.fault or ""
        return Trajectory(question, "rag", (), searches, stop, valid=True, stop_detail=detail, seed=seed)


Answered: TypeAlias = tuple[Question, SearchedQuestion]


def search_questions(
    retriever: Retriever,
    questions: Sequence[Question],
    depth: int,
    batch: int = 64,
    queries: Mapping[str, Query] | None = None,
) -> Iterator[list[Answered]]:
    """Search for every question, batch by batch: for its `searched` text, or for its query in `queries`, by question
    id. A passage that is the question itself is no hit.

    The questions of a failed batch are searched one by one, so that a failure affects only its question.
    """
    for start in range(0, len(questions), batch):
        chunk = questions[start : start + batch]
        try:
            yield _search(retriever, chunk, depth, queries or {})
        except RetrieverError as error:
            if len(chunk) == 1:
                yield [(chunk[0], SearchedQuestion(fault=str(error)))]
            else:
                yield list(chain.from_iterable(search_questions(retriever, chunk, depth, 1, queries)))


def _search(
    retriever: Retriever, asked: Sequence[Question], depth: int, queries: Mapping[str, Query]
) -> list[Answered]:
    # By default the same query as an agent's whose first search is the question itself.
    batch = [queries.get(question.id) or Query(question.searched, question=question.searched) for question in asked]
    extra_hit = any(question.own_passage is not None for question in asked)
    results = retriever.search(batch, depth + extra_hit)
    if fault := next(filter(None, map(fault_of_hits, results)), ""):
        raise RetrieverError(fault)
    return [
        (question, SearchedQuestion.of(question, hits, depth)) for question, hits in zip(asked, results, strict=True)
    ]


def of_run_file(
    ranked: Mapping[str, Ranked],
    questions: Sequence[Question],
    corpus: Corpus | None = None,
    missing_is_empty: bool = True,
    depth: int | None = None,
) -> Iterator[Answered]:
    """Results of a TREC run file for these questions, the first `depth`, with passages of `corpus` where it has them.

    A question without a line has an empty result, as in ir-measures and `trec_eval -c`. With `missing_is_empty=False`
    it is left out, as in plain trec_eval.
    """
    if not any(trec_id(question.id) in ranked for question in questions):
        raise DataError("the run file holds none of the questions; are they of the same data set and split?")
    ranked_ids = {ident for rows in ranked.values() for ident, _ in rows}
    passages = {ident: passage for passage in corpus or () if (ident := trec_id(passage.id)) in ranked_ids}
    for question in questions:
        rows = ranked.get(trec_id(question.id))
        if rows is None and not missing_is_empty:
            continue
        own_id = None if question.own_passage is None else trec_id(question.own_passage)
        rows = [(ident, score) for ident, score in rows or () if ident != own_id][:depth]
        ids, scores = [ident for ident, _ in rows], [score for _, score in rows]
        known_passages = tuple(passages[ident] for ident in ids if ident in passages)
        is_complete = corpus is not None and len(known_passages) == len(ids)
        yield question, SearchedQuestion(tuple(ids), tuple(scores), known_passages if is_complete else None)


def relevance(question: Question) -> dict[str, int]:
    """Grades of a question's passages: `meta.relevance` if the data set has it, else 1 for each gold passage."""
    graded = question.meta.get("relevance")
    if not isinstance(graded, dict):
        return dict.fromkeys(question.gold_ids, 1)
    kept_grades = {
        ident: int(grade) for ident, grade in graded.items() if isinstance(grade, int | float) and grade == int(grade)
    }
    if len(kept_grades) < len(graded):
        raise DataError(f"question {question.id!r}: meta.relevance holds whole numbers by passage id")
    return kept_grades


def default_metrics(questions: Iterable[Question], qrels: Qrels | None = None) -> tuple[str, ...]:
    """`BY_GOLD`, or `BY_ANSWER` where no question has a relevant passage, as in most published question files."""
    return BY_GOLD if qrels is not None or any(map(relevance, questions)) else BY_ANSWER


@dataclass(frozen=True)
class RetrievalMeasure:
    """Metrics and relevance judgements."""

    metrics: tuple[Metric, ...]
    qrels: Qrels | None = None
    """Judgements that replace the questions' own, by ids of TREC files."""

    def gold(self, question: Question) -> dict[str, int]:
        """Grades by passage id, in the form of TREC files, so that ids of all sources are comparable."""
        if self.qrels is not None:
            return self.qrels.get(trec_id(question.id), {})
        return {trec_id(ident): grade for ident, grade in relevance(question).items()}

    def judge(self, question: Question, hits: SearchedQuestion) -> dict[str, float]:
        """Every metric that is defined for this question."""
        texts = None if hits.passages is None else tuple(f"{passage.title} {passage.text}" for passage in hits.passages)
        ranking = JudgedRanking(self.gold(question), question.answers, tuple(map(trec_id, hits.ids)), texts)
        values = {metric.name: metric.of(ranking) for metric in self.metrics}
        return {name: value for name, value in values.items() if value is not None}

    def measure(self, name: str, rows: Iterable[Answered]) -> ScoredRun:
        """Score the results of one retriever. They are read once and not stored."""
        question_scores: dict[str, QuestionScores] = {}
        stops = dict.fromkeys((FOUND, EMPTY, FAULT), 0)
        for question, hits in rows:
            failed = hits.fault is not None
            stops[FAULT if failed else FOUND if hits.ids else EMPTY] += 1
            metrics = {} if failed else self.judge(question, hits)
            question_scores[question.id] = QuestionScores(question, metrics, int(not failed), int(failed))
        return ScoredRun(name, question_scores, {stop: count for stop, count in stops.items() if count})

    def unjudged(self, questions: Iterable[Question]) -> int:
        """Number of questions without a relevant passage; only answer_hit is defined for them."""
        return sum(not grades(self.gold(question)) for question in questions)

    def compare(
        self,
        runs: Sequence[ScoredRun],
        questions: Sequence[Question],
        by: Sequence[str] = (),
        seed: int = 0,
        pairs: Iterable[tuple[ScoredRun, ScoredRun]] | None = None,
    ) -> Scores:
        """Means with intervals over all questions and by group, and comparisons of `pairs`; by default of every later
        retriever with the first."""
        return summaries_of(runs, questions, by, [metric.name for metric in self.metrics], seed, pairs=pairs)


def by_owner(run: ScoredRun, owners: Mapping[str, Question]) -> ScoredRun:
    """A run whose rows are searches (by id in `owners`) as one whose rows are questions: a question's value is the
    mean over its searches, which are not independent."""
    by_question: dict[str, list[QuestionScores]] = {}
    for ident, question_scores in run.questions.items():
        by_question.setdefault(owners[ident].id, []).append(question_scores)
    questions = {owner.id: owner for owner in owners.values()}
    scores: dict[str, QuestionScores] = {}
    for ident, rows in by_question.items():
        names = dict.fromkeys(name for row in rows for name in row.metrics)
        means = {name: fmean(row.metrics[name] for row in rows if name in row.metrics) for name in names}
        counts = sum(row.rows for row in rows), sum(row.faults for row in rows)
        scores[ident] = QuestionScores(questions[ident], means, *counts)
    return ScoredRun(run.name, scores, run.stops)
