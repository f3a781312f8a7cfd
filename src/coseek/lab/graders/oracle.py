"""The oracle of a laptop world as judge, relevance scorer and ranker. It makes no errors.

The core finds this module by its name (`graders/factory.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.grade_cache import Verdict
from coseek.graders.judge import Claim
from coseek.graders.ranker import RankedOrder, RankingRequest
from coseek.graders.relevance import CandidateList, Rating
from coseek.lab.world.oracle import Oracle


def judge(world: str) -> "OracleJudge":
    """The judge of a world's folder."""
    return OracleJudge(Oracle.load(Path(world)), world)


def relevance(world: str) -> "OracleRelevance":
    """The relevance scorer of a world's folder."""
    return OracleRelevance(Oracle.load(Path(world)), world)


def ranker(world: str) -> "OracleRanker":
    """The ranker of a world's folder."""
    return OracleRanker(Oracle.load(Path(world)))


@dataclass(frozen=True)
class OracleGrader:
    """An oracle and the folder of its world."""

    oracle: Oracle
    source: str

    @cached_property
    def identity(self) -> str:
        return digest_of("oracle", json.dumps(self.oracle.to_json(), sort_keys=True))

    @property
    def card(self) -> JsonObject:
        return {"oracle": self.source}


class OracleJudge(OracleGrader):
    """The oracle of a laptop world as a judge."""

    def judge(self, claims: Sequence[Claim]) -> list[Verdict]:
        rights = [self.oracle.judge(claim.question, claim.response) for claim in claims]
        return [
            Verdict(claim.question.id, claim.response, right, asked=claim.asked)
            for claim, right in zip(claims, rights, strict=True)
        ]


class OracleRelevance(OracleGrader):
    """The oracle of a laptop world, which knows the hop of a query and the passages that state that hop's fact.

    A query that matches no hop of the plan, or two hops equally, counts for every hop; a passage then gets its best
    score over the hops.
    """

    def rate(self, asked: Sequence[CandidateList]) -> list[Rating]:
        return [Rating(candidates.turn.id, candidates.digest, self._scores(candidates)) for candidates in asked]

    def _scores(self, candidates: CandidateList) -> dict[str, float]:
        question = candidates.turn.question
        hop = self.oracle.hop_of(question, candidates.turn.query.text)
        return {passage.id: float(self.oracle.relevance(question, passage, hop)) for passage in candidates.passages}


@dataclass(frozen=True)
class OracleRanker:
    """The oracle of a laptop world: by relevance for the hop of the query; ties keep the given order."""

    oracle: Oracle

    @cached_property
    def identity(self) -> str:
        return digest_of("oracle ranker", json.dumps(self.oracle.to_json(), sort_keys=True))

    @property
    def card(self) -> JsonObject:
        return {"ranker": "the oracle of a laptop world"}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        return [self._order(request) for request in asked]

    def _order(self, request: RankingRequest) -> RankedOrder:
        hop = self.oracle.hop_of(request.question, request.query.text)
        scores = [float(self.oracle.relevance(request.question, passage, hop)) for passage in request.passages]
        return RankedOrder(tuple(sorted(range(len(scores)), key=lambda rank: -scores[rank])), scores=tuple(scores))
