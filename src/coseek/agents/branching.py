"""Branching: continue a finished run from one of its searches, as if the search had found other passages.

Agentic-R's global answer correctness (eq. 2 and 3) needs this for every candidate passage of every search turn. The run
up to the search is read once, in a separate row (a trunk), which advances from search to search; each branch is forked
from it. Models that cannot fork read the past again in every branch and write the same tokens.

In groups of trajectories that share beginnings, some begin at the question; the others continue from a search of one of
them (Tree-GRPO, Ji et al. 2025, arXiv 2509.21240, section 3.2), which costs only the tokens after the fork.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import TypeAlias

from coseek.agents.drivers import Agent, Driver, contexts_of, rollout
from coseek.agents.environment import End
from coseek.agents.episode import Episode
from coseek.agents.limits import Limits, Tree
from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import replay_queries
from coseek.agents.tool import TurnSearches
from coseek.core.errors import DataError
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory
from coseek.models.model import EpisodeState, ForkableModel, Request, Turn, TurnEnd
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import Retriever


@dataclass(frozen=True)
class ReplayPoint:
    """The state of a trajectory at one of its searches."""

    trajectory: Trajectory
    segments: tuple[Segment, ...]
    """Segments up to and including the turn that searched."""
    queries: tuple[Query, ...]
    """All queries so far, those of the turn last."""
    searches: tuple[Search, ...]
    """Results of these queries, each with the number of its turn."""
    block: range
    """Indices of the turn's searches in `trajectory.searches`."""
    index: int
    """Index of the search in question."""
    turns: int
    """Turns that the environment has answered, including this one, as `Limits.max_turns` counts them."""
    side_contexts: int

    @classmethod
    def of(cls, trajectory: Trajectory, index: int, protocol: Protocol) -> "ReplayPoint":
        """Build the state at the search with this index. Raises `DataError` for another protocol or a wrong index."""
        if trajectory.protocol != protocol.name:
            raise DataError(
                f"question {trajectory.question.id!r} was run under the protocol {trajectory.protocol}, so an agent "
                f"that speaks {protocol.name} cannot continue it; name an agent of the run's own protocol"
            )
        if not trajectory.has_ids:
            raise DataError(
                f"question {trajectory.question.id!r} comes from an imported log without token ids, so no agent can "
                "continue it; label it with a method or settings that need no agent (gac=false)"
            )
        if not 0 <= index < len(trajectory.searches):
            raise DataError(
                f"question {trajectory.question.id!r} made {len(trajectory.searches)} searches; there is no search "
                f"{index} (they count from 0)"
            )
        turns = [search.turn for search in trajectory.searches]
        block = range(turns.index(turns[index]), len(turns) - turns[::-1].index(turns[index]))
        segments = _segments(trajectory, turns[index])
        noted_turns = {turns[position] for position in range(block.start) if trajectory.searches[position].hits}
        return cls(
            trajectory,
            segments,
            tuple(replay_queries(trajectory, protocol)[: block.stop]),
            trajectory.searches[: block.stop],
            block,
            index,
            turns[index],
            len(noted_turns) if protocol.file.reason_in_documents else 0,
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
        trajectory, turn = self.trajectory, self.turns
        return Episode(
            key=key,
            question=trajectory.question,
            seed=seed,
            began=time.perf_counter(),
            segments=list(self.segments),
            searches=list(self.searches[: self.block.start]),
            calls=[call for call in trajectory.calls if call.turn < turn],
            visits=[visit for visit in trajectory.visits if visit.turn < turn],
            history=list(self.queries[self.block.start].history),
            side_contexts=list(trajectory.side_contexts[: self.side_contexts]),
            tokens=len(self.ids),
            turns=turn,
            exact=trajectory.exact,
        )

    def results(self, passages: Sequence[Passage]) -> TurnSearches:
        """The results of the turn's searches, with `passages` as the result of this search. A passage keeps its score,
        which is 0 if the search did not find it."""
        searches = [replace(search, selected=None) for search in self.searches[self.block.start :]]
        index = self.index - self.block.start
        scores = {hit.passage.id: hit.score for hit in searches[index].hits}
        hits = tuple(Hit(passage, scores.get(passage.id, 0.0)) for passage in passages)
        searches[index] = replace(searches[index], hits=hits, fault=None)
        return TurnSearches(self.queries[self.block.start :], tuple(searches))


def _segments(trajectory: Trajectory, turn: int) -> tuple[Segment, ...]:
    """The segments up to the end of a turn of the agent, from 1; only the prompt for turn 0."""
    positions = [index for index, segment in enumerate(trajectory.segments) if segment.author is Author.AGENT]
    return trajectory.segments[: positions[turn - 1] + 1 if turn else 1]


def searches_by_turn(trajectory: Trajectory) -> dict[int, int]:
    """Map the number of each turn that searched, from 1, to the index of its first search."""
    turns = [search.turn for search in trajectory.searches]
    return {turn: turns.index(turn) for turn in turns if turn}


@dataclass(frozen=True, slots=True)
class Branch:
    """One continuation of a trajectory from a search."""

    trajectory: Trajectory
    search: int
    """Index in `trajectory.searches`, from 0."""
    passages: tuple[Passage, ...]
    """The new result of this search. Other queries of the same turn keep their results."""
    seed: int
    """Seed of the continuation. With the trajectory's own seed and passages, the branch equals the trajectory."""
    rank: int = 0
    """Rank of its requests (`Request.rank`)."""


def branch(
    agent: Agent,
    retriever: Retriever,
    branches: Sequence[Branch],
    limits: Limits,
    *,
    concurrency: int = 256,
    on_done: Callable[[Branch, Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Continue each branch to its end and return whole trajectories in the order of `branches`.

    Ids and log-probabilities before the search are copied from the trajectory. The new observation follows, and then
    the same tokens that a run with that past would sample. Stop reasons and faults are those of `rollout`. `on_done`
    is called with (branch, trajectory) as each branch ends.

    Budgets apply to the whole run: turns and tokens before the branch count. A branch from the agent's turn t makes at
    most `max_turns` - t further searches; a search beyond the budget ends the branch with `turn_limit` or
    `token_limit`. Later searches return `passages_per_search` passages.

    `timings` and `cost_usd` count only the branch.
    """
    trajectories: dict[int, Trajectory] = {}
    feed = iter([branches])

    def keep(branch: Branch, trajectory: Trajectory) -> None:
        trajectories[id(branch)] = trajectory
        if on_done is not None:
            on_done(branch, trajectory)

    for _ in Branching(agent, retriever, limits, lambda wait: next(feed, None), keep, concurrency=concurrency).steps():
        pass
    return [trajectories[id(branch)] for branch in branches]


@dataclass(frozen=True, slots=True)
class _Job:
    """A branch to sample."""

    past: ReplayPoint
    branch: Branch


@dataclass(slots=True)
class _Trunk:
    """A context that holds the past of branches, and the branches still to be forked from it."""

    key: int
    stages: "_Stages"
    """Remaining jobs. The trunk is at the last stage, which may be empty."""
    past: ReplayPoint
    """The state that the context holds."""
    ready: bool = False
    """Whether the model has read it, so it can be forked."""
    broken: bool = False
    """Whether the model failed to read it. Its branches are then started without it and record the fault."""
    held: set[int] = field(default_factory=set)
    """Open branches that are not forked yet."""


MOST_PASTS = 512
"""Maximum number of run states cached for further branches of the same search."""
_Stages: TypeAlias = list[list[int]]
"""Jobs of one trajectory, grouped by their past, the shortest past last."""


Feed: TypeAlias = Callable[[bool], Sequence[Branch] | None]
"""Called with (wait) when there is room. Returns the next branches, which share trunks; an empty list if none is ready
yet, which is allowed only without `wait`; `None` after the last branches."""


class Branching(Driver):
    """The rollout driver for rows that begin with a past. Branches may be added while others are running, so that no
    branch waits for the end of another."""

    def __init__(
        self,
        agent: Agent,
        retriever: Retriever,
        limits: Limits,
        feed: Feed,
        on_branch: Callable[[Branch, Trajectory], None],
        *,
        concurrency: int = 256,
    ) -> None:
        super().__init__(agent, retriever, limits, None, None)
        self.feed: Feed | None = feed
        self.on_branch = on_branch
        self.contexts = contexts_of(agent)
        """Contexts that one branch may need at once."""
        if isinstance(agent.model, ForkableModel):
            concurrency = min(concurrency, agent.model.max_rows)
        self.concurrency = max(concurrency, self.contexts)
        # A trunk needs a context beside those of a branch.
        has_room = self.concurrency > self.contexts
        self.forking = agent.model if has_room and isinstance(agent.model, ForkableModel) else None
        self.keys = count()
        self.jobs: dict[int, _Job] = {}
        self.pasts: dict[tuple[int, int], ReplayPoint] = {}
        self.trunks: dict[int, _Trunk] = {}
        self.trunk_of: dict[int, _Trunk] = {}
        """By job, until it is forked or ends."""
        self.waiting: list[_Stages] = []
        """A stack, so that branches of a trajectory that has begun come before new ones."""

    def steps(self) -> Iterator[None]:
        """Continue all branches to their ends; yields after every step."""
        try:
            yield from self._drive(self._fill)
        finally:
            for trunk in self.trunks.values():
                self.model.close(trunk.key)

    def add(self, branches: Sequence[Branch]) -> None:
        """Add branches before those that wait."""
        new_jobs = {next(self.keys): _Job(self._past(branch), branch) for branch in branches}
        self.jobs |= new_jobs
        self.waiting += self._stages([*new_jobs])[::-1]

    # --- jobs

    def _past(self, branch: Branch) -> ReplayPoint:
        """The state before a branch, shared by all branches of its search."""
        key = (id(branch.trajectory), branch.search)
        if key not in self.pasts:
            if len(self.pasts) > MOST_PASTS:
                self.pasts.clear()
            self.pasts[key] = ReplayPoint.of(branch.trajectory, branch.search, self.protocol)
        return self.pasts[key]

    def _stages(self, keys: Sequence[int]) -> list[_Stages]:
        """Group jobs by trunk; a model that cannot fork gets one group per job."""
        if self.forking is None:
            return [[[key]] for key in keys]
        by_trajectory: dict[int, dict[int, list[int]]] = {}
        for key in keys:
            past = self.jobs[key].past
            by_trajectory.setdefault(id(past.trajectory), {}).setdefault(len(past.ids), []).append(key)
        return [[stages[size] for size in sorted(stages, reverse=True)] for stages in by_trajectory.values()]

    # --- episodes and trunks

    def _has_open(self) -> bool:
        return bool(self.episodes or self.trunks)

    def _free_branches(self, trunks: int) -> int:
        """Number of branches that can still be opened with this number of trunks."""
        return (self.concurrency - trunks) // self.contexts - len(self.episodes)

    def _fill(self) -> bool:
        """Open branches while there is room, and fetch new ones for the remaining room."""
        while self._open_branches() and self.feed is not None:
            branches = self.feed(not self._has_open())
            if branches is None:
                self.feed = None
            elif branches:
                self.add(branches)
            else:
                break
        return bool(self.waiting) or self.feed is not None

    def _open_branches(self) -> bool:
        """Open branches of the trunks that are ready, then new trunks, while there is room. Returns whether there is
        room for more."""
        for trunk in list(self.trunks.values()):
            self._serve_trunk(trunk)
        reserved_count = sum(len(trunk.stages[-1]) for trunk in self.trunks.values())
        while self.waiting:
            is_alone = sum(map(len, self.waiting[-1])) == 1  # a single branch needs no trunk
            if self._free_branches(len(self.trunks) + (not is_alone)) - reserved_count < 1:
                return False
            stages = self.waiting.pop()
            if is_alone:
                self._resume(stages[0][0])
            else:
                self._open_trunk(stages)
                reserved_count += len(stages[-1])
        return self._free_branches(len(self.trunks)) - reserved_count > 0

    def _open_trunk(self, stages: _Stages) -> None:
        """Open a trunk."""
        past = self.jobs[stages[-1][0]].past
        trunk = _Trunk(next(self.keys), stages, past)
        self.trunks[trunk.key] = trunk
        self._forking().start(Request(trunk.key, past.ids, 0, 0, EpisodeState(past.trajectory.question)))

    def _advance_trunk(self, trunk: _Trunk) -> None:
        """Advance a trunk to its next search."""
        old_past, trunk.past = trunk.past, self.jobs[trunk.stages[-1][0]].past
        trunk.ready = trunk.broken
        if not trunk.broken:
            more_ids = trunk.past.ids[len(old_past.ids) :]
            self._forking().extend(Request(trunk.key, more_ids, 0, 0, EpisodeState(old_past.trajectory.question)))

    def _serve_trunk(self, trunk: _Trunk) -> None:
        """Open the branches of a trunk that is ready, then advance or close it."""
        while trunk.ready:
            if trunk.stages[-1]:
                if self._free_branches(len(self.trunks)) < 1:
                    return
                key = trunk.stages[-1].pop(0)
                self.trunk_of[key] = trunk
                trunk.held.add(key)
                self._resume(key)
            elif trunk.held:
                return
            elif len(trunk.stages) > 1:
                trunk.stages.pop()
                self._advance_trunk(trunk)
            else:
                self.model.close(trunk.key)
                del self.trunks[trunk.key]
                return

    def _resume(self, key: int) -> None:
        """Restore an episode as it was before its search was answered, and show it the new results."""
        branch, past = self.jobs[key].branch, self.jobs[key].past
        episode = self.episodes[key] = past.episode(key, branch.seed)
        if episode.turns > self.limits.max_turns:
            self._finish(episode, End(StopReason.TURN_LIMIT))
        else:
            self._continue(episode, self.environment.resume(episode, past.results(branch.passages)))

    def _send(self, episode: Episode, request: Request) -> None:
        past, trunk = self.jobs[episode.key].past, self.trunk_of.get(episode.key)
        request = replace(request, rank=self.jobs[episode.key].branch.rank)
        if episode.started:
            self.model.extend(request)
        elif trunk is None or trunk.broken:
            self.model.start(replace(request, ids=past.ids + request.ids, written=past.written))
        else:
            self._forking().fork(trunk.key, request)
        self._release_trunk(episode)

    def _release_trunk(self, episode: Episode) -> None:
        """Release an episode's trunk."""
        trunk = self.trunk_of.pop(episode.key, None)
        if trunk is not None:
            trunk.held.discard(episode.key)

    def _advance(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            if turn.key in self.trunks:
                self.trunks[turn.key].ready = True
                self.trunks[turn.key].broken = turn.end is TurnEnd.FAULT
        super()._advance([turn for turn in turns if turn.key not in self.trunks])

    def _close(self, episode: Episode) -> None:
        self._release_trunk(episode)
        super()._close(episode)

    def _finish(self, episode: Episode, end: End) -> None:
        super()._finish(episode, end)
        self.on_branch(self.jobs.pop(episode.key).branch, self.trajectories.pop(episode.key))

    def _forking(self) -> ForkableModel:
        assert self.forking is not None
        return self.forking


def rollout_groups(
    agent: Agent,
    retriever: Retriever,
    questions: Sequence[Question],
    seeds: Sequence[int],
    limits: Limits,
    tree: Tree | None,
    *,
    concurrency: int = 256,
    overlap: bool = False,
) -> list[Trajectory]:
    """Run groups of `tree.group_size` equal questions. The first `tree.roots` of each group begin at the question;
    without a tree all of them do.

    Each other trajectory forks from one of these roots in turn, after a search that its seed draws. If the root did not
    search, or failed, it also begins at the question.
    """
    if tree is None:
        return rollout(agent, retriever, questions, seeds, limits, concurrency=concurrency, overlap=overlap)

    def roll_out(indices: Sequence[int]) -> dict[int, Trajectory]:
        rows = [questions[index] for index in indices], [seeds[index] for index in indices]
        trajectories = rollout(agent, retriever, *rows, limits, concurrency=concurrency, overlap=overlap)
        return dict(zip(indices, trajectories, strict=True))

    trajectories = roll_out([index for index in range(len(questions)) if index % tree.group_size < tree.roots])
    forks: dict[int, Branch] = {}
    lone_indices: list[int] = []
    for index in range(len(questions)):
        number = index % tree.group_size
        if number >= tree.roots:
            root = trajectories[index - number + number % tree.roots]
            searches = [] if root.fault else [*searches_by_turn(root).values()]
            if searches:
                search = random.Random(seeds[index]).choice(searches)
                passages = tuple(hit.passage for hit in root.searches[search].hits)
                forks[index] = Branch(root, search, passages, seeds[index])
            else:
                lone_indices.append(index)
    trajectories |= roll_out(lone_indices)
    ends = branch(agent, retriever, [*forks.values()], limits, concurrency=concurrency)
    trajectories |= dict(zip(forks, ends, strict=True))
    return [trajectories[index] for index in range(len(questions))]
