"""The oracle of a laptop world as judge, relevance scorer and ranker. It makes no errors.

The core finds this module by its name (`graders/factory.py`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.data.grade_cache import Verdict
from coseek.data.passage import Passage
from coseek.data.question import Question
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
    return OracleRanker(Oracle.load(Path(world)), world)


@dataclass(frozen=True)
class OracleGrader:
    """An oracle and the folder of its world."""

    KIND: ClassVar[str] = "oracle"
    oracle: Oracle
    source: str

    @cached_property
    def identity(self) -> str:
        return digest_of(self.KIND, json.dumps(self.oracle.to_json(), sort_keys=True))

    @property
    def card(self) -> JsonObject:
        return {"oracle": self.source}

    def scores(self, question: Question, query: str, passages: Sequence[Passage]) -> list[float]:
        """Relevance of each passage for the hop of the query; the best over all hops if it matches none or two."""
        hop = self.oracle.hop_of(question, query)
        return [float(self.oracle.relevance(question, passage, hop)) for passage in passages]


class OracleJudge(OracleGrader):
    """The oracle of a laptop world as a judge."""

    def judge(self, claims: Sequence[Claim]) -> list[Verdict]:
        rulings = [(claim, self.oracle.judge(claim.question, claim.response)) for claim in claims]
        return [Verdict(claim.question.id, claim.response, right, asked=claim.asked) for claim, right in rulings]


class OracleRelevance(OracleGrader):
    """The oracle of a laptop world as a relevance scorer."""

    def rate(self, asked: Sequence[CandidateList]) -> list[Rating]:
        return [self._rating(candidates) for candidates in asked]

    def _rating(self, candidates: CandidateList) -> Rating:
        scores = self.scores(candidates.turn.question, candidates.turn.query.text, candidates.passages)
        ids = (passage.id for passage in candidates.passages)
        return Rating(candidates.turn.id, candidates.digest, dict(zip(ids, scores, strict=True)))


class OracleRanker(OracleGrader):
    """The oracle of a laptop world as a ranker; ties keep the given order."""

    KIND = "oracle ranker"

    @property
    def card(self) -> JsonObject:
        return {"ranker": "the oracle of a laptop world"}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        return [self._order(request) for request in asked]

    def _order(self, request: RankingRequest) -> RankedOrder:
        scores = self.scores(request.question, request.query.text, request.passages)
        return RankedOrder(tuple(sorted(range(len(scores)), key=lambda rank: -scores[rank])), scores=tuple(scores))
