"""Past: a finished run as it stood when one of its searches had found something and nothing of it was shown yet."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from coseek.agents.episode import Episode
from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import make_past_turn, replay_queries, turn_number
from coseek.agents.tools.tool import TurnSearches
from coseek.core.errors import DataError
from coseek.data.evidence import ranked
from coseek.data.passage import Hit, Passage
from coseek.data.trajectory import Author, Search, Segment, Trajectory
from coseek.retrieval.query import Query


@dataclass(frozen=True)
class ReplayPoint:
    """What the agent had read and written, and what its turn had searched."""

    trajectory: Trajectory
    segments: tuple[Segment, ...]
    """Up to and including the turn that searched."""
    asked: tuple[Query, ...]
    """All that the run had searched, the turn's own queries last."""
    searches: tuple[Search, ...]
    """What these found, each with the number of its turn."""
    block: range
    """Places of the turn's own searches in `trajectory.searches`."""
    place: int
    """The one of them that this is about."""
    turns: int
    """Turns that the environment had answered or was about to answer: what `Limits.max_turns` counts."""
    side_contexts: int

    @classmethod
    def of(cls, trajectory: Trajectory, place: int, protocol: Protocol) -> "ReplayPoint":
        """The past of the search at `place` in `trajectory.searches`."""
        if trajectory.protocol != protocol.name:
            raise DataError(
                f"question {trajectory.question.id!r} was run under the protocol {trajectory.protocol}, so an agent "
                f"that speaks {protocol.name} cannot go on with it; name an agent of the run's own protocol"
            )
        if not 0 <= place < len(trajectory.searches):
            raise DataError(
                f"question {trajectory.question.id!r} made {len(trajectory.searches)} searches; there is no search "
                f"{place} (they count from 0)"
            )
        turns = [turn_number(trajectory, each, protocol) for each in range(len(trajectory.searches))]
        block = range(turns.index(turns[place]), len(turns) - turns[::-1].index(turns[place]))
        segments = _segments(trajectory, turns[place])
        answers = sum(segment.author is Author.ENVIRONMENT for segment in segments[1:])
        if turns[place]:
            answers += 1 - protocol.opens_with_search  # the opening search is no turn
        noted = {turns[each] for each in range(block.start) if trajectory.searches[each].hits}
        return cls(
            trajectory,
            segments,
            tuple(replay_queries(trajectory, protocol)[: block.stop]),
            tuple(replace(trajectory.searches[each], turn=turns[each]) for each in range(block.stop)),
            block,
            place,
            answers,
            len(noted) if protocol.reason_in_documents else 0,
        )

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """What the agent's context held."""
        return tuple(token for segment in self.segments for token in segment.ids)

    @cached_property
    def written(self) -> tuple[tuple[int, int], ...]:
        """Where in `ids` the agent's turns stand."""
        spans: list[tuple[int, int]] = []
        end = 0
        for segment in self.segments:
            start, end = end, end + len(segment.ids)
            if segment.author is Author.AGENT:
                spans.append((start, end))
        return tuple(spans)

    def episode(self, key: int, seed: int) -> Episode:
        """The run, under way again; nothing of it is to be handed to the model a second time."""
        run, searches = self.trajectory, self.searches[: self.block.start]
        return Episode(
            key=key,
            question=run.question,
            seed=seed,
            began=time.perf_counter(),
            segments=list(self.segments),
            searches=list(searches),
            calls=[call for call in run.calls if call.turn < (self.searches[self.place].turn or 0)],
            history=[make_past_turn(query, search) for query, search in zip(self.asked, searches, strict=False)],
            side_contexts=list(run.side_contexts[: self.side_contexts]),
            tokens=len(self.ids),
            turns=self.turns,
            exact=run.exact,
        )

    def found(self, passages: Sequence[Passage]) -> TurnSearches:
        """What the turn's searches found, with `passages` in place of what this one did."""
        searches = [replace(search, selected=None) for search in self.searches[self.block.start :]]
        at = self.place - self.block.start
        searches[at] = replace(searches[at], hits=self.hits(passages), fault=None)
        return TurnSearches(self.asked[self.block.start :], tuple(searches))

    def hits(self, passages: Sequence[Passage]) -> tuple[Hit, ...]:
        """With the score that the retriever gave a passage if it had found it here, otherwise 0."""
        scores = {hit.passage.id: hit.score for hit in self.searches[self.place].hits}
        return tuple(Hit(passage, scores.get(passage.id, 0.0)) for passage in passages)


def _segments(trajectory: Trajectory, turn: int) -> tuple[Segment, ...]:
    """The segments up to the end of the agent's turn of this number; the prompt alone for turn 0."""
    places = [at for at, segment in enumerate(trajectory.segments) if segment.author is Author.AGENT]
    if not trajectory.segments or turn > len(places):
        raise DataError(
            f"the run of question {trajectory.question.id!r} names a search of its turn {turn} and holds {len(places)} "
            "turns; its file is damaged"
        )
    return trajectory.segments[: places[turn - 1] + 1 if turn else 1]


def with_hits(run: Trajectory, place: int, hits: tuple[Hit, ...]) -> Trajectory:
    """The same run with a passage of another id but the same contents in place of what this search found."""
    search = run.searches[place]
    names = {old.passage.id: new.passage.id for old, new in zip(search.hits, hits, strict=True)}
    selected = None if search.selected is None else tuple(names[ident] for ident in search.selected)
    searches = list[Search](run.searches)
    searches[place] = replace(search, hits=hits, selected=selected)
    chosen = dict.fromkeys(ident for each in searches for ident in each.selected or ())
    # An agent's own order is kept under the new names; the order of the rule follows from the searches.
    own = run.evidence not in (None, ranked(run.searches, run.selected_ids))
    first = [names.get(ident, ident) for ident in run.evidence or ()] if own else chosen
    evidence = None if run.evidence is None else ranked(searches, first)
    return replace(run, searches=tuple(searches), selected_ids=tuple(chosen), evidence=evidence)
