"""Replay: restore a finished run to the moment after one of its searches and before its results were shown."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

from coseek.agents.episode import Episode
from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import replay_queries, turn_number
from coseek.agents.tool import TurnSearches
from coseek.core.errors import DataError
from coseek.data.evidence import ranked
from coseek.data.passage import Hit, Passage
from coseek.data.trajectory import Author, Search, Segment, Trajectory
from coseek.retrieval.query import Query


@dataclass(frozen=True)
class ReplayPoint:
    """The state of a trajectory at one of its searches."""

    trajectory: Trajectory
    segments: tuple[Segment, ...]
    """Segments up to and including the turn that searched."""
    asked: tuple[Query, ...]
    """All queries so far, those of the turn last."""
    searches: tuple[Search, ...]
    """Results of these queries, each with the number of its turn."""
    block: range
    """Indices of the turn's own searches in `trajectory.searches`."""
    place: int
    """Index of the search in question."""
    turns: int
    """Turns that the environment has answered, this one included: what `Limits.max_turns` counts."""
    side_contexts: int

    @classmethod
    def of(cls, trajectory: Trajectory, place: int, protocol: Protocol) -> "ReplayPoint":
        """Build the state at the search with index `place`. Raises `DataError` for another protocol or index."""
        if trajectory.protocol != protocol.name:
            raise DataError(
                f"question {trajectory.question.id!r} was run under the protocol {trajectory.protocol}, so an agent "
                f"that speaks {protocol.name} cannot go on with it; name an agent of the run's own protocol"
            )
        if not trajectory.has_ids:
            raise DataError(
                f"question {trajectory.question.id!r} is of an imported log without token ids, so no agent can go on "
                "with it; label it with a method or settings that need no agent (gac=false)"
            )
        if not 0 <= place < len(trajectory.searches):
            raise DataError(
                f"question {trajectory.question.id!r} made {len(trajectory.searches)} searches; there is no search "
                f"{place} (they count from 0)"
            )
        turns = [turn_number(trajectory, each, protocol) for each in range(len(trajectory.searches))]
        block = range(turns.index(turns[place]), len(turns) - turns[::-1].index(turns[place]))
        segments = _segments(trajectory, turns[place])
        noted = {turns[each] for each in range(block.start) if trajectory.searches[each].hits}
        return cls(
            trajectory,
            segments,
            tuple(replay_queries(trajectory, protocol)[: block.stop]),
            tuple(replace(trajectory.searches[each], turn=turns[each]) for each in range(block.stop)),
            block,
            place,
            turns[place],
            len(noted) if protocol.reason_in_documents else 0,
        )

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """Token ids of the agent's context."""
        return tuple(chain.from_iterable(segment.ids for segment in self.segments))

    @cached_property
    def written(self) -> tuple[tuple[int, int], ...]:
        """The agent's turns as (start, end) positions in `ids`."""
        spans: list[tuple[int, int]] = []
        end = 0
        for segment in self.segments:
            start, end = end, end + len(segment.ids)
            if segment.author is Author.AGENT:
                spans.append((start, end))
        return tuple(spans)

    def episode(self, key: int, seed: int) -> Episode:
        """Build an unfinished episode from this state, with no ids left to send to the model."""
        run, searches = self.trajectory, self.searches[: self.block.start]
        return Episode(
            key=key,
            question=run.question,
            seed=seed,
            began=time.perf_counter(),
            segments=list(self.segments),
            searches=list(searches),
            calls=[call for call in run.calls if call.turn < (self.searches[self.place].turn or 0)],
            visits=[visit for visit in run.visits if visit.turn < (self.searches[self.place].turn or 0)],
            history=list(self.asked[self.block.start].history),
            side_contexts=list(run.side_contexts[: self.side_contexts]),
            tokens=len(self.ids),
            turns=self.turns,
            exact=run.exact,
        )

    def found(self, passages: Sequence[Passage]) -> TurnSearches:
        """The results of the turn's searches, with `passages` as the result of this one."""
        searches = [replace(search, selected=None) for search in self.searches[self.block.start :]]
        at = self.place - self.block.start
        searches[at] = replace(searches[at], hits=self.hits(passages), fault=None)
        return TurnSearches(self.asked[self.block.start :], tuple(searches))

    def hits(self, passages: Sequence[Passage]) -> tuple[Hit, ...]:
        """Build hits with the score that the retriever gave each passage here, 0 for other passages."""
        scores = {hit.passage.id: hit.score for hit in self.searches[self.place].hits}
        return tuple(Hit(passage, scores.get(passage.id, 0.0)) for passage in passages)


def _segments(trajectory: Trajectory, turn: int) -> tuple[Segment, ...]:
    """The segments up to the end of this turn of the agent, from 1; the prompt alone for turn 0."""
    places = [at for at, segment in enumerate(trajectory.segments) if segment.author is Author.AGENT]
    if not trajectory.segments or turn > len(places):
        raise DataError(
            f"the run of question {trajectory.question.id!r} names a search of its turn {turn} and holds {len(places)} "
            "turns; its file is damaged"
        )
    return trajectory.segments[: places[turn - 1] + 1 if turn else 1]


def with_hits(run: Trajectory, place: int, hits: tuple[Hit, ...]) -> Trajectory:
    """Replace the hits of one search by hits of equal contents and other passage ids."""
    search = run.searches[place]
    names = {old.passage.id: new.passage.id for old, new in zip(search.hits, hits, strict=True)}
    selected = None if search.selected is None else tuple(names[ident] for ident in search.selected)
    searches = list[Search](run.searches)
    searches[place] = replace(search, hits=hits, selected=selected)
    chosen = dict.fromkeys(ident for each in searches for ident in each.selected or ())
    # An agent's own ranking is kept under the new ids; otherwise the default ranking follows from the searches.
    own = run.evidence not in (None, ranked(run.searches, run.selected_ids, run.visits))
    first = [names.get(ident, ident) for ident in run.evidence or ()] if own else chosen
    evidence = None if run.evidence is None else ranked(searches, first, run.visits)
    return replace(run, searches=tuple(searches), selected_ids=tuple(chosen), evidence=evidence)
