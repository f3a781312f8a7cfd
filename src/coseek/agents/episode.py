"""Episode: one run while it is under way. It only remembers; what happens next is the driver's to say."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from coseek.agents.document_block import apply_selection, latest_block
from coseek.agents.search_turns import make_past_turn
from coseek.agents.tools.tool import TurnSearches
from coseek.data.question import Question
from coseek.data.trajectory import Author, Call, Search, Segment
from coseek.models.model import EpisodeState
from coseek.retrieval.query import PastTurn


@dataclass(slots=True)
class Episode:
    """A run while it is under way."""

    key: int
    question: Question
    seed: int
    began: float
    segments: list[Segment] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    history: list[PastTurn] = field(default_factory=list)
    """`searches` as the retriever is told of them."""
    side_contexts: list[tuple[Segment, ...]] = field(default_factory=list)
    noting: TurnSearches | None = None
    """What the model is writing notes on, in the context that `side_key` names."""
    unsent: tuple[int, ...] = ()
    """What the model has not been handed yet."""
    started: bool = False
    """The model has this row."""
    tokens: int = 0
    turns: int = 0
    """Turns that the environment has answered; the search that opens a run is none."""
    retriever_s: float = 0.0
    exact: bool = True
    cost_usd: float | None = 0.0

    @property
    def side_key(self) -> int:
        """Names a side context: rows have keys from 0, so these are free."""
        return ~self.key

    @property
    def side_seed(self) -> int:
        """The seed of the next side context follows from the row's own."""
        return int.from_bytes(
            hashlib.sha256(f"{self.seed}/aside/{len(self.side_contexts)}".encode()).digest()[:6], "big"
        )

    @property
    def written(self) -> int:
        """The agent's turns so far."""
        return sum(segment.author is Author.AGENT for segment in self.segments)

    @property
    def so_far(self) -> EpisodeState:
        return EpisodeState(self.question, tuple(self.searches), calls=tuple(self.calls))

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.tokens += len(segment.ids)
        if segment.author is Author.ENVIRONMENT:
            self.unsent += segment.ids

    def pay(self, cost_usd: float | None) -> None:
        """Add the price of a turn; once a part of it is not known, the whole is not."""
        self.cost_usd = None if cost_usd is None or self.cost_usd is None else self.cost_usd + cost_usd

    def keep(self, found: TurnSearches) -> None:
        """These searches are part of the run now: what they found is shown, or they failed."""
        self.searches += found.searches
        self.history += [
            make_past_turn(query, search) for query, search in zip(found.queries, found.searches, strict=True)
        ]

    def select(self, numbers: Sequence[int] | None) -> None:
        """Note which documents of the latest block the agent chose; `None` chooses nothing and leaves all."""
        if numbers is not None:
            block = latest_block(self.searches)
            self.searches[len(self.searches) - len(block) :] = apply_selection(block, numbers)

    @property
    def selected_ids(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(ident for search in self.searches for ident in search.selected or ()))
