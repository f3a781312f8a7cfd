"""Oracle retriever: a retriever whose results are reordered by a ranker that knows the question and its answer
(DR-Synth).

    the retriever's best 50, gold passages first → the ranker's order → the agent reads the first 5

Rankings are cached, so that a resumed run reads the same lists, and its labels come from what its agent saw.
"""

import copy
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, cast

from coseek.core.concurrency import concurrency_of
from coseek.core.errors import DataError, RetrieverError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.record import Record
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.graders.ranker import ModelRanker, RankedOrder, Ranker, RankingRequest
from coseek.labels.label_folder import ScoreCache, TextStore
from coseek.labels.label_set import Candidate, ranked
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.ranking import rank_hits
from coseek.retrieval.retriever import Retriever

RELEVANCE = "relevance"
"""Name of the ranker's score."""

Turn: TypeAlias = tuple[Question, Query]


@dataclass(frozen=True, slots=True)
class OracleRanking(Record):
    """Results of one search in the ranker's order."""

    question_id: str
    """For people: equal questions share their rankings."""
    asked: str
    """Digest of the question and of the query with its history."""
    candidates: tuple[Candidate, ...]
    """Best first; without an order, gold passages before the retriever's results."""
    texts: tuple[str, ...] = ()
    unreadable: str = ""
    """Why the ranker's output could not be parsed."""
    fault: str | None = None
    """Why there is no output."""

    @property
    def key(self) -> tuple[str, ...]:
        return (self.asked,)

    @property
    def shown(self) -> list[Passage]:
        """Passages for the agent: in the ranker's order, or in the retriever's where that is unreadable."""
        if self.unreadable:
            retrieved = [candidate for candidate in self.candidates if candidate.rank]
            return [candidate.passage for candidate in sorted(retrieved, key=lambda candidate: candidate.rank)]
        return [candidate.passage for candidate in self.candidates]


@dataclass(frozen=True, slots=True)
class StoredRanking:
    """A ranking as a line of its cache, with its long texts in a `TextStore`."""

    record: JsonObject

    @property
    def key(self) -> tuple[str, ...]:
        return (str(self.record["asked"]),)

    @property
    def fault(self) -> str | None:
        return cast("str | None", self.record["fault"])

    def to_json(self) -> JsonObject:
        return self.record

    @classmethod
    def from_json(cls, record: JsonObject) -> "StoredRanking":
        return cls({name: record[name] for name in OracleRanking.__slots__})


def asked_digest(question: Question, query: Query) -> str:
    """Digest of everything that a ranking depends on besides retriever and ranker."""
    return digest_of(_text_without_id(question), json.dumps(query.to_json()))[:16]


@dataclass(frozen=True)
class OracleSearch:
    """Searches, ranks and caches the rankings."""

    over: Retriever
    ranker: Ranker
    cache: ScoreCache[StoredRanking]
    texts: TextStore
    depth: int
    """Passages of the retriever that are ranked."""
    gold_in_front: bool
    """Whether the question's gold passages are put first, whether retrieved or not."""

    def of(self, turns: Sequence[Turn]) -> list[OracleRanking]:
        """One ranking per turn. Equal queries are ranked once; a fault of the ranker is retried in every call."""
        keys = [asked_digest(question, query) for question, query in turns]
        rankings = {key: ranking for key in keys if (ranking := self._cached(key)) is not None}
        new_rankings = self._rank({key: turn for key, turn in zip(keys, turns, strict=True) if key not in rankings})
        self.cache.keep([StoredRanking(self.texts.shorten(ranking.to_json())) for ranking in new_rankings.values()])
        rankings |= new_rankings
        return [rankings[key] for key in keys]

    def _cached(self, key: str) -> OracleRanking | None:
        stored = self.cache.get((key,))
        return None if stored is None else OracleRanking.from_json(self.texts.restore(copy.deepcopy(stored.record)))

    def _rank(self, turns: dict[str, Turn]) -> dict[str, OracleRanking]:
        if not turns:
            return {}
        results = self.over.search([query for _, query in turns.values()], self.depth)
        pools = [self._pool(question, hits) for (question, _), hits in zip(turns.values(), results, strict=True)]
        requests = [
            RankingRequest(question, query, tuple(candidate.passage for candidate in pool))
            for (question, query), pool in zip(turns.values(), pools, strict=True)
        ]
        orders = self.ranker.rank(requests)
        return {
            key: _ranking(question.id, key, pool, order)
            for (key, (question, _)), pool, order in zip(turns.items(), pools, orders, strict=True)
        }

    def _pool(self, question: Question, hits: Sequence[Hit]) -> list[Candidate]:
        """The retriever's results with gold passages first. A gold passage that was not retrieved has rank 0."""
        retrieved = {candidate.passage.id: candidate for candidate in ranked(hits)}
        if not self.gold_in_front:
            return list(retrieved.values())
        gold = {ident: retrieved.get(ident) or Candidate(self._gold(question, ident), 0) for ident in question.gold_ids}
        return list({**gold, **retrieved}.values())

    def _gold(self, question: Question, ident: str) -> Passage:
        corpus = self.over.corpus
        if corpus is None or not corpus.has(ident):
            raise DataError(
                f"the gold passage {ident!r} of question {question.id!r} is not in the retriever's corpus; use an "
                "index of these questions' own corpus, or set gold=false"
            )
        return corpus.by_id(ident)


def _ranking(question_id: str, query_digest: str, pool: Sequence[Candidate], order: RankedOrder) -> OracleRanking:
    if order.scores is not None:
        pairs = zip(pool, order.scores, strict=True)
        pool = [replace(candidate, scores={**candidate.scores, RELEVANCE: score}) for candidate, score in pairs]
    ordered = pool if order.value is None else [pool[index] for index in order.value]
    return OracleRanking(question_id, query_digest, tuple(ordered), order.texts, order.unreadable, order.fault)


class OracleRetriever:
    """Implements `Retriever`. Ranks a query's results for the question that the query names."""

    name = "oracle-ranked"

    def __init__(self, rankings: OracleSearch, questions: Iterable[Question]) -> None:
        self._rankings = rankings
        self._questions: dict[str, Question] = {}
        for question in questions:
            stored = self._questions.setdefault(question.searched, question)
            if _text_without_id(stored) != _text_without_id(question):
                raise DataError(
                    f"the questions {stored.id!r} and {question.id!r} are the same text with other answers or gold "
                    "passages, and the oracle could not tell which of them a search is for; take one of them out"
                )

    @property
    def corpus(self) -> Corpus | None:
        return self._rankings.over.corpus

    @cached_property
    def identity(self) -> str:
        knowledge = (_text_without_id(question) for question in self._questions.values())
        return digest_of(self.name, self._rankings.cache.identity, *knowledge)

    @property
    def concurrency(self) -> int:
        """The maximum number of concurrent searches."""
        ranker = self._rankings.ranker
        return concurrency_of(ranker.model if isinstance(ranker, ModelRanker) else self._rankings.over)

    def seen(self, query: QueryLike) -> str:
        return json.dumps(Query.of(query).to_json())

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The first `k` passages of the ranker's order, with scores 1, 1/2, 1/3, … Raises `RetrieverError` for a fault
        of the ranker: an agent that read another list would get labels of one that it never saw."""
        turns = [(self._question(Query.of(query)), Query.of(query)) for query in queries]
        rankings = self._rankings.of(turns)
        for ranking in rankings:
            if ranking.fault is not None:
                raise RetrieverError(ranking.fault)
        return [rank_hits(ranking.shown[:k]) for ranking in rankings]

    def _question(self, query: Query) -> Question:
        if query.question not in self._questions:
            raise RetrieverError(f"the oracle has no question {query.question!r}")
        return self._questions[query.question]


def _text_without_id(question: Question) -> str:
    """A question without its id, as text."""
    return json.dumps({**question.to_json(), "id": ""}, sort_keys=True)
