"""Episode: the state of an unfinished run, and its documents in the order shown."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby

from coseek.agents.tool import ToolCall, TurnSearches
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Author, Call, Search, Segment, StopReason, Visit
from coseek.models.model import EpisodeState
from coseek.retrieval.query import PastTurn, Query


def shown_documents(searches: Sequence[Search]) -> list[tuple[int, Hit]]:
    """List the documents of a block in the order shown, each with the index of its search.

    Results are in the order of the queries. A passage found by several queries is shown once, with the first.
    """
    first: dict[str, tuple[int, Hit]] = {}
    for index, search in enumerate(searches):
        for hit in search.hits:
            first.setdefault(hit.passage.id, (index, hit))
    return list(first.values())


def numbered_documents(searches: Sequence[Search]) -> list[Passage]:
    """List the documents of all blocks in the order shown: number n of a run is at index n − 1. A passage that two
    blocks show has two numbers."""
    blocks = (list(block) for _, block in groupby(searches, lambda search: search.turn))
    return [hit.passage for block in blocks for _, hit in shown_documents(block)]


def latest_block(searches: Sequence[Search]) -> Sequence[Search]:
    """The searches of the latest turn that searched."""
    count = sum(search.turn == searches[-1].turn for search in searches) if searches else 0
    return searches[len(searches) - count :]


def apply_selection(searches: Sequence[Search], numbers: Sequence[int]) -> list[Search]:
    """Select documents of one block by number from 1; other numbers are ignored."""
    chosen_documents = [document for number, document in enumerate(shown_documents(searches), 1) if number in numbers]
    return [
        replace(search, selected=tuple(hit.passage.id for owner, hit in chosen_documents if owner == index))
        for index, search in enumerate(searches)
    ]


@dataclass(frozen=True, slots=True)
class CallResult:
    """The environment's response to a turn, or to one of its calls."""

    tag: str
    ids: tuple[int, ...]
    outcome: TurnSearches | Call | Visit | None = None
    """Recorded when the result is shown."""


@dataclass(slots=True)
class Episode:
    """The state of an unfinished run."""

    key: int
    question: Question
    seed: int
    began: float
    segments: list[Segment] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)
    history: list[PastTurn] = field(default_factory=list)
    """`searches` in the form that a retriever receives."""
    waiting: list[ToolCall | str] = field(default_factory=list)
    """Calls of the latest turn that are not run yet; a text says why a call cannot be run."""
    shown: list[CallResult] = field(default_factory=list)
    """Results of the latest turn's earlier calls, which are shown together with the last result."""
    side_contexts: list[tuple[Segment, ...]] = field(default_factory=list)
    awaiting_notes: TurnSearches | None = None
    """The searches on which the model is writing notes in the context `side_key`."""
    pending_ids: tuple[int, ...] = ()
    """Environment ids that the model has not received yet."""
    started: bool = False
    """Whether the model has opened this episode."""
    tokens: int = 0
    turns: int = 0
    """Turns that the environment has answered, except the search that opens a run."""
    limit: tuple[StopReason, str] | None = None
    """The limit at which the agent was asked for its final turn, and its detail."""
    retriever_s: float = 0.0
    exact: bool = True
    cost_usd: float | None = 0.0

    @property
    def side_key(self) -> int:
        """Key of a side context: negative, because episodes have keys from 0."""
        return ~self.key

    @property
    def side_seed(self) -> int:
        """Seed of the next side context, derived from the episode's seed."""
        return seed_of(f"{self.seed}/aside/{len(self.side_contexts)}")

    @property
    def written(self) -> int:
        """Number of the agent's turns so far."""
        return sum(segment.author is Author.AGENT for segment in self.segments)

    @property
    def ids(self) -> tuple[int, ...]:
        """All token ids so far."""
        return tuple(chain.from_iterable(segment.ids for segment in self.segments))

    @property
    def so_far(self) -> EpisodeState:
        return EpisodeState(self.question, tuple(self.searches), calls=tuple(self.calls))

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.tokens += len(segment.ids)
        if segment.author is Author.ENVIRONMENT:
            self.pending_ids += segment.ids

    def add_cost(self, cost_usd: float | None) -> None:
        """Add the cost of a turn in dollars; the total is `None` as soon as one cost is unknown."""
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def record(self, outcome: TurnSearches | Call | Visit | None) -> None:
        """Record a result that is shown, or searches and calls that failed."""
        if isinstance(outcome, Call):
            self.calls.append(outcome)
        elif isinstance(outcome, Visit):
            self.visits.append(outcome)
        elif outcome is not None:
            for query, search in zip(outcome.queries, outcome.searches, strict=True):
                same_turn = bool(self.searches) and self.searches[-1].turn == search.turn
                self.searches.append(search)
                self.history.append(make_past_turn(query, search, same_turn))

    @property
    def turn_searches(self) -> list[Search]:
        """The searches of the latest turn's earlier calls."""
        outcomes = [result.outcome for result in self.shown]
        return [search for outcome in outcomes if isinstance(outcome, TurnSearches) for search in outcome.searches]

    def select(self, numbers: Sequence[int] | None) -> None:
        """Record which documents of the latest block the agent selected; `None` means it made no selection."""
        if numbers is not None:
            block = latest_block(self.searches)
            self.searches[len(self.searches) - len(block) :] = apply_selection(block, numbers)

    @property
    def selected_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(ident for search in self.searches for ident in search.selected or ()))


def seed_of(name: str) -> int:
    """A seed derived from a name, of 48 bits, which every JSON reader keeps exactly."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")


def make_past_turn(query: Query, search: Search, same_turn: bool) -> PastTurn:
    """Build the history entry of a finished search, for the queries of later turns."""
    return PastTurn(query.text, query.reasoning, tuple(hit.passage.contents for hit in search.hits), same_turn)
