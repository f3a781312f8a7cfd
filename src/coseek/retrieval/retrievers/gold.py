"""Gold: the gold passages of the question first, then the hits of another retriever. The ceiling of every retriever.

With `k` up to the number of gold passages, the agent reads the evidence alone (oracle passages); with more, the other
retriever's hits follow. `within: 50` is the ceiling of a reranker instead: only the gold passages among the other
retriever's best 50 come first.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Hit
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import ContextFields, Query, QueryLike, as_queries
from coseek.retrieval.ranking import rank_hits
from coseek.retrieval.retriever import LayeredRetriever, Retriever, Shortfall


class GoldRankingSettings(Settings):
    """The questions, and the retriever for the ranks below their gold passages."""

    over: str | dict[str, object]
    """An index folder, a URL, a YAML file, or settings."""
    data: str
    """The data-set folder whose questions, of every split, have gold passages."""
    within: int | None = Field(default=None, ge=1)
    """Put only those gold passages first that are among this many best hits of `over` (oracle ranking); all by
    default."""


class GoldRetriever(LayeredRetriever):
    """Identifies a question by its text: that of the episode, or else the query itself."""

    name = "gold"

    def __init__(self, over: Retriever, data: Dataset, within: int | None = None) -> None:
        super().__init__(over)
        self._within = within
        self._gold: dict[str, list[str]] = defaultdict(list)
        """Question → gold ids; a question in two sets has those of both."""
        for split in data.splits:
            for question in data.questions(split):
                gold_ids = self._gold[question.searched]
                gold_ids += [ident for ident in question.gold_ids if ident not in gold_ids]
        if not any(self._gold.values()):
            raise SettingError(f"no question of {data.folder} names a gold passage, so none can be put first")
        self._passages = data.corpus
        self._searches = self._unknown = 0

    @property
    def identity(self) -> str:
        gold = json.dumps(sorted(self._gold.items()))
        within = [] if self._within is None else [str(self._within)]
        return digest_of(self.name, gold, self._passages.digest, self.over.identity, *within)

    @property
    def reads(self) -> ContextFields:
        return replace(super().reads, question=True)

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        return (Shortfall(self._unknown, self._searches, "searches were for questions without gold passages"),)

    def seen(self, query: QueryLike) -> str:
        return json.dumps([_question(query), self.over.seen(query)])

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """`k` passages per query, with scores 1, 1/2, 1/3, …"""
        queries = as_queries(queries, k)
        self._searches += len(queries)
        self._unknown += sum(not self._gold.get(_question(query)) for query in queries)
        candidates = self.over.search(queries, max(k, self._within or k))
        return [self._gold_first(query, hits, k) for query, hits in zip(queries, candidates, strict=True)]

    def _gold_first(self, query: QueryLike, hits: Sequence[Hit], k: int) -> list[Hit]:
        gold_ids: Sequence[str] = self._gold.get(_question(query), ())
        if self._within is not None:
            candidate_ids = {hit.passage.id for hit in hits[: self._within]}
            gold_ids = [ident for ident in gold_ids if ident in candidate_ids]
        gold = [self._passages.by_id(ident) for ident in gold_ids]
        return rank_hits([*gold, *(hit.passage for hit in hits if hit.passage.id not in gold_ids)][:k])


def _question(query: QueryLike) -> str:
    query = Query.of(query)
    return query.question or query.text


SETTINGS = GoldRankingSettings


def open(settings: GoldRankingSettings, opening: OpenContext) -> GoldRetriever:
    """Open the other retriever and read the questions."""
    return GoldRetriever(opening.open(settings.over), Dataset(opening.path(settings.data)), settings.within)
