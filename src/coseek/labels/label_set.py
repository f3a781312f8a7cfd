"""Label set: training label of one search turn for a retriever, with all scores that determined it."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeAlias, cast

from coseek.agents.search_turns import SearchTurn, TurnId, TurnRecord
from coseek.core.errors import DataError, RetrieverError
from coseek.core.files import Json, JsonObject, write_jsonl
from coseek.core.record import OMIT_EMPTY, OMIT_NONE, Record, Schema
from coseek.data.digests import value_digest
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.graders.structured_output import FAULT, CallCounts
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever, search_each
from coseek.retrieval.views import find_view, render_view

SCHEMA = 2
"""Version of the label set object in `labels.jsonl`. In schema 1 every text stands in its row."""


@dataclass(frozen=True, slots=True)
class Candidate(Record):
    """A passage that a search turn could have been shown, with its scores."""

    passage: Passage
    rank: int
    """Rank of the retriever, from 1; 0 for a passage that the maker added (a gold passage that was not retrieved)."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """By name: `retriever`, `lr` (0 to 100), `gac` (0 or 1), … Only computed scores."""

    def _written(self, row: JsonObject) -> JsonObject:
        return {**cast(JsonObject, row.pop("passage")), **row}

    @classmethod
    def _to_read(cls, row: JsonObject) -> JsonObject:
        return {**row, "passage": row}


@dataclass(frozen=True, slots=True)
class LabelSet(Record):
    """One positive and several negatives for the query of a search turn, or target probabilities."""

    SCHEMA = Schema(SCHEMA, "a label set", ": label it again")
    KEYS = ("question", "turn", "query", "positive", "negatives", "candidates", "targets", "copy", "trajectory")
    turn: TurnId
    question: Question
    query: Query
    """The query; every query view is rendered from it, so that labels do not depend on a view."""
    candidates: tuple[Candidate, ...]
    """All scored passages, best first by the maker's rule."""
    positive: str
    """Id of a candidate."""
    negatives: tuple[str, ...]
    """Ids of other candidates."""
    targets: Annotated[tuple[float, ...] | None, OMIT_NONE] = None
    """Target probability of each candidate, in their order, with sum 1 (REPLUG); `None` for labels with only a
    positive and negatives."""
    copy: Annotated[int, OMIT_EMPTY] = 0
    """Index among the label sets of one turn, for makers with several positives per turn."""
    trajectory: Annotated[str, OMIT_EMPTY] = ""
    """Digest of the trajectory that was labelled (`trajectory_digest`); empty in imported rows."""

    def __post_init__(self) -> None:
        idents = [candidate.passage.id for candidate in self.candidates]
        chosen = [self.positive, *self.negatives]
        if len(set(idents)) != len(idents) or len(set(chosen)) != len(chosen) or not set(chosen) <= set(idents):
            raise DataError(f"the label set of {self.turn} names a passage twice, or one that is no candidate")
        if self.targets is not None and len(self.targets) != len(idents):
            raise DataError(
                f"the label set of {self.turn} has {len(self.targets)} targets for {len(idents)} candidates"
            )

    @classmethod
    def ranked(
        cls,
        turn: SearchTurn,
        candidates: Sequence[Candidate],
        negatives: Sequence[Candidate],
        targets: tuple[float, ...] | None = None,
    ) -> "LabelSet":
        """The label set of a turn whose positive is the first of the candidates."""
        chosen = tuple(negative.passage.id for negative in negatives)
        best = candidates[0].passage.id
        return cls(turn.id, turn.question, turn.query, tuple(candidates), best, chosen, targets)

    def passage(self, ident: str) -> Passage:
        """The candidate with this id."""
        return next(candidate.passage for candidate in self.candidates if candidate.passage.id == ident)

    def _written(self, row: JsonObject) -> JsonObject:
        turn: JsonObject = {"seed": self.turn.seed, "search": self.turn.search}
        del row["turn"]
        return {"schema": row["schema"], "question": row["question"], **turn, **row}

    @classmethod
    def _to_read(cls, row: JsonObject) -> JsonObject:
        ident = cast(JsonObject, row["question"])["id"]
        return {**row, "turn": {"question_id": ident, "seed": row["seed"], "search": row["search"]}}


@dataclass(frozen=True, slots=True)
class DroppedTurn(TurnRecord):
    """A search turn without a label, and the reason."""

    turn: TurnId
    reason: str
    """Short name of the reason, such as `no-positive` or `unreadable`."""
    detail: str = ""
    trajectory: Annotated[str, OMIT_EMPTY] = ""
    """Digest of the trajectory; empty in imported rows."""


def trajectory_digest(trajectory: Trajectory) -> str:
    """Digest of everything in a trajectory that labels depend on. Seconds, prices and log-probabilities are excluded,
    so that a run that is repeated with the same result keeps its labels."""
    segments: list[Json] = [[str(segment.author), segment.tag, segment.text] for segment in trajectory.segments]
    searches: list[Json] = [search.to_json() for search in trajectory.searches]
    content: JsonObject = {"question": trajectory.question.to_json(), "segments": segments, "searches": searches}
    return value_digest({**content, "stop": str(trajectory.stop), "answer": trajectory.answer})[:32]


# Tevatron: label sets as training rows of other trainers.
#
# One JSON object per line: `{query_id, query, positive_passages: [{docid, title, text}], negative_passages: […]}`. The
# query is rendered through the chosen view.


def write_tevatron(path: Path, sets: Iterable[LabelSet], view: str) -> int:
    """Write the rows; returns how many."""
    find_view(view)  # raises for an unknown view before the file is created
    return write_jsonl(path, (tevatron_row(label_set, view) for label_set in sets))


def tevatron_row(labels: LabelSet, view: str) -> JsonObject:
    """One label set."""
    turn = labels.turn
    copy = f"/{labels.copy}" if labels.copy else ""
    negatives: list[Json] = [_passage_json(labels.passage(ident)) for ident in labels.negatives]
    return {
        "query_id": f"{turn.question_id}/{turn.seed}/{turn.search}{copy}",
        "query": render_view(view, labels.query),
        "positive_passages": [_passage_json(labels.passage(labels.positive))],
        "negative_passages": negatives,
    }


def _passage_json(passage: Passage) -> JsonObject:
    return {"docid": passage.id, "title": passage.title, "text": passage.text}


# Candidates: the current retriever's results for search turns, through its own view.

RETRIEVER = "retriever"
"""Name of the retriever's own score."""

Candidates: TypeAlias = tuple[Candidate, ...]


def find_candidates(
    retriever: Retriever, turns: Sequence[SearchTurn], k: int, tally: CallCounts
) -> list[Candidates | None]:
    """The `k` best passages of every turn, best first; `None` where the search failed, which affects no other query.
    Equal queries are searched once."""
    unique = list(dict.fromkeys(turn.query for turn in turns))
    results = [None if isinstance(hits, RetrieverError) else ranked(hits) for hits in search_each(retriever, unique, k)]
    by_query = dict(zip(unique, results, strict=True))
    tally.add(FAULT + RETRIEVER, sum(by_query[turn.query] is None for turn in turns))
    return [by_query[turn.query] for turn in turns]


def ranked(hits: Sequence[Hit]) -> Candidates:
    """The hits as candidates, with the retriever's rank and score."""
    return tuple(Candidate(hit.passage, rank, {RETRIEVER: hit.score}) for rank, hit in enumerate(hits, start=1))


# Negatives of a search turn, and label sets with drawn negatives.


def pick_negatives(turn: TurnId, pool: Sequence[str], count: int, seed: int, copy: int = 0) -> tuple[str, ...]:
    """`count` ids of the pool, or all when there are fewer, in the pool's order.

    The draw depends only on the seed, the turn, the copy and the pool. The labels of a turn therefore do not depend on
    the other turns or their order.
    """
    if len(pool) <= count:
        return tuple(pool)
    drawn = random.Random(f"{seed} {turn.question_id} {turn.seed} {turn.search} {copy}").sample(range(len(pool)), count)
    return tuple(pool[index] for index in sorted(drawn))


def not_equal_to(candidates: Sequence[Candidate], others: Sequence[Passage]) -> list[Candidate]:
    """The candidates that differ from these passages in id and text: a copy of a positive is no negative."""
    texts = {(passage.title, passage.text) for passage in others}
    idents = {passage.id for passage in others}
    return [
        candidate
        for candidate in candidates
        if candidate.passage.id not in idents and (candidate.passage.title, candidate.passage.text) not in texts
    ]


def label_sets(
    turn: SearchTurn,
    candidates: Sequence[Candidate],
    positives: Sequence[Passage],
    pool: Sequence[str],
    count: int,
    seed: int,
) -> Iterator[LabelSet]:
    """One label set per positive, each with `count` negatives drawn from the pool."""
    for copy, positive in enumerate(positives):
        negatives = pick_negatives(turn.id, pool, count, seed, copy)
        yield LabelSet(turn.id, turn.question, turn.query, tuple(candidates), positive.id, negatives, copy=copy)
