"""Oracle ranked: a retriever whose lists somebody has put in order who knows the question and its answer (DR-Synth).

    the retriever's best 50, gold passages in front → the ranker's order → the agent reads its first 5

What was ranked is kept in a sheet, so a run that was killed goes on with the same lists, and its labels are made of
what its agent saw.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, cast

from coseek.core.errors import DataError, RetrieverError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question
from coseek.graders.ranker import RankedOrder, Ranker, RankingRequest
from coseek.labels.candidates import RETRIEVER
from coseek.labels.label_set import Candidate
from coseek.labels.score_cache import ScoreCache
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retriever import Retriever

RELEVANCE = "relevance"
"""The name of the score of a ranker that has scores."""

Turn: TypeAlias = tuple[Question, Query]


@dataclass(frozen=True, slots=True)
class OracleRanking:
    """What one search found, in the ranker's order."""

    question_id: str
    """For people: questions of the same words share their rankings."""
    asked: str
    """Digest of the question and of the query with all that led to it."""
    candidates: tuple[Candidate, ...]
    """Best first; where there is no order, gold passages in front of what the retriever found."""
    texts: tuple[str, ...] = ()
    unreadable: str = ""
    """Why there is no order, where the ranker did answer."""
    fault: str | None = None
    """Why there is no answer."""

    @property
    def key(self) -> tuple[str, ...]:
        return (self.asked,)

    @property
    def shown(self) -> list[Passage]:
        """What an agent is shown: the ranker's order, or the retriever's own where there is none."""
        if self.unreadable or self.fault is not None:
            found = [candidate for candidate in self.candidates if candidate.rank]
            return [candidate.passage for candidate in sorted(found, key=lambda one: one.rank)]
        return [candidate.passage for candidate in self.candidates]

    def to_json(self) -> JsonObject:
        return {
            "question_id": self.question_id,
            "asked": self.asked,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "texts": list(self.texts),
            "unreadable": self.unreadable,
            "fault": self.fault,
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> "OracleRanking":
        candidates, texts, fault = row["candidates"], row["texts"], row["fault"]
        assert isinstance(candidates, list) and isinstance(texts, list)
        return cls(
            question_id=str(row["question_id"]),
            asked=str(row["asked"]),
            candidates=tuple(Candidate.from_json(cast(JsonObject, each)) for each in candidates),
            texts=tuple(map(str, texts)),
            unreadable=str(row["unreadable"]),
            fault=None if fault is None else str(fault),
        )


def asked_digest(question: Question, query: Query) -> str:
    """All that a ranking depends on besides the retriever and the ranker."""
    return digest_of(_knowledge(question), json.dumps(query.to_json()))[:16]


@dataclass(frozen=True)
class Rankings:
    """Finds and ranks, and remembers both."""

    over: Retriever
    ranker: Ranker
    kept: ScoreCache[OracleRanking]
    depth: int
    """Passages of the retriever that are ranked."""
    gold_in_front: bool
    """Whether the question's gold passages are put in front, found or not."""

    def of(self, turns: Sequence[Turn]) -> list[OracleRanking]:
        """One ranking a turn. Turns that ask the same are ranked once; a ranker's fault is asked again every time."""
        keys = [asked_digest(question, query) for question, query in turns]
        known = {key: self.kept.get((key,)) for key in keys}
        fresh = self._made({key: turn for key, turn in zip(keys, turns, strict=True) if known[key] is None})
        self.kept.keep(list(fresh.values()))
        return [known[key] or fresh[key] for key in keys]

    def _made(self, turns: dict[str, Turn]) -> dict[str, OracleRanking]:
        if not turns:
            return {}
        found = self.over.search([query for _, query in turns.values()], self.depth)
        pools = [self._pool(question, hits) for (question, _), hits in zip(turns.values(), found, strict=True)]
        asked = [
            RankingRequest(question, query, tuple(candidate.passage for candidate in pool))
            for (question, query), pool in zip(turns.values(), pools, strict=True)
        ]
        orders = self.ranker.rank(asked)
        return {
            key: _ranking(question.id, key, pool, order)
            for (key, (question, _)), pool, order in zip(turns.items(), pools, orders, strict=True)
        }

    def _pool(self, question: Question, hits: Sequence[Hit]) -> list[Candidate]:
        """What the retriever found, with gold passages in front. One that was found keeps its rank; others have 0."""
        found = {
            hit.passage.id: Candidate(hit.passage, rank, {RETRIEVER: hit.score})
            for rank, hit in enumerate(hits, start=1)
        }
        if not self.gold_in_front:
            return list(found.values())
        gold = {ident: found.get(ident) or Candidate(self._gold(question, ident), 0) for ident in question.gold_ids}
        return list({**gold, **found}.values())

    def _gold(self, question: Question, ident: str) -> Passage:
        corpus = self.over.corpus
        if corpus is None or not corpus.has(ident):
            raise DataError(
                f"the gold passage {ident!r} of question {question.id!r} is not at hand to be put in front; use an "
                "index of these questions' own corpus, or set gold=false"
            )
        return corpus.by_id(ident)


def _ranking(question_id: str, asked: str, pool: Sequence[Candidate], order: RankedOrder) -> OracleRanking:
    if order.scores is not None:
        pool = [
            replace(one, scores={**one.scores, RELEVANCE: score}) for one, score in zip(pool, order.scores, strict=True)
        ]
    ordered = pool if order.places is None else [pool[place] for place in order.places]
    return OracleRanking(question_id, asked, tuple(ordered), order.texts, order.unreadable, order.fault)


class OracleRanked:
    """Implements `Retriever`. A query is ranked for the question that it says it was asked for."""

    name = "oracle-ranked"

    def __init__(self, rankings: Rankings, questions: Iterable[Question]) -> None:
        self._rankings = rankings
        self._questions: dict[str, Question] = {}
        for question in questions:
            other = self._questions.setdefault(question.question, question)
            if _knowledge(other) != _knowledge(question):
                raise DataError(
                    f"the questions {other.id!r} and {question.id!r} are the same text with other answers or gold "
                    "passages, and the oracle could not tell which of them a search is for; take one of them out"
                )

    @property
    def corpus(self) -> Corpus | None:
        return self._rankings.over.corpus

    @cached_property
    def identity(self) -> str:
        known = (_knowledge(question) for question in self._questions.values())
        return digest_of(self.name, self._rankings.kept.sheet.identity, *known)

    def seen(self, query: QueryLike) -> str:
        return json.dumps(Query.of(query).to_json())

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """The first `k` of the ranker's order, scored 1, 1/2, 1/3, …"""
        turns = [(self._question(Query.of(query)), Query.of(query)) for query in queries]
        return [
            [Hit(passage, 1.0 / place) for place, passage in enumerate(ranking.shown[:k], start=1)]
            for ranking in self._rankings.of(turns)
        ]

    def _question(self, query: Query) -> Question:
        if query.question not in self._questions:
            raise RetrieverError(f"the oracle was told of no question {query.question!r}")
        return self._questions[query.question]


def _knowledge(question: Question) -> str:
    """All that is known of a question but its id."""
    return json.dumps({**question.to_json(), "id": ""}, sort_keys=True)
