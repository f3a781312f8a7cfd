"""Model: what continues token sequences. Knows nothing of tags, questions or passages beyond what a request says.

A conversation between a driver and a model goes `start → step → extend → step … → close`: the model keeps whatever
it has read of a row (its cache), so nothing is ever read twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from coseek.data.question import Question
from coseek.data.trajectory import Call, Search


class Tokenizer(Protocol):
    """Text ↔ ids. `decode(encode(text)) == text` need not hold; the ledger keeps ids and what they decode to."""

    eos_id: int

    def encode(self, text: str) -> list[int]:
        """Ids of text that we wrote; special tokens in it are recognised. No special token is added."""
        ...

    def encode_data(self, text: str) -> list[int]:
        """Ids of text that others wrote (questions, passages): a special token in it is ordinary characters."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included, nothing cleaned up."""
        ...


class TurnEnd(StrEnum):
    """Why a model stopped writing."""

    STOP = "stop"
    """One of the stop strings was completed."""
    EOS = "eos"
    LENGTH = "length"
    """`max_tokens` were written."""
    FAULT = "fault"
    """The model failed; see `Turn.fault`."""


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """What a run knows at the start of a turn. Token models ignore it; scripted agents read it."""

    question: Question
    searches: tuple[Search, ...] = ()
    side_searches: tuple[Search, ...] = ()
    """Not empty in a request outside of the run's own context: the searches whose documents it asks for notes on."""
    calls: tuple[Call, ...] = ()
    """Calls of tools other than search and visit."""


@dataclass(frozen=True, slots=True)
class Request:
    """Read `ids`, then write up to `max_tokens`."""

    key: int
    """Names the row; the driver mints it and it is unique while the row is open."""
    ids: tuple[int, ...]
    """For `start` the whole prompt; for `extend` only what is new since the row's last token."""
    max_tokens: int
    seed: int
    """Seed of this row's randomness: what is sampled depends on it and on the row's own tokens alone."""
    state: EpisodeState
    written: tuple[tuple[int, int], ...] = ()
    """For `start`: where in `ids` (from, to) earlier turns of the model stand, in a row that begins with a past. Token
    models ignore it; what is told of turns needs it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What a model wrote for one request. `ids` includes the tokens of the stop string, and EOS when it was sampled."""

    key: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log of each sampled token under the distribution it was drawn from (the full softmax at the temperature;
    at temperature 0, under temperature 1)."""
    end: TurnEnd
    fault: str = ""
    exact: bool = True
    """`ids` and `logprobs` are what was sampled. False for a server that cannot say: such a turn is not trained on."""
    cost_usd: float | None = 0.0
    """What was paid for it; `None` where a server has a price and does not say what it counted."""


class Model(Protocol):
    """Continues many rows at once. Rows leave as they finish, so one slow row holds up nobody."""

    tokenizer: Tokenizer

    def start(self, request: Request) -> None:
        """Open a row."""
        ...

    def extend(self, request: Request) -> None:
        """Go on with an open row after the environment has written `request.ids`."""
        ...

    def step(self) -> list[Turn]:
        """Write until at least one row has stopped; returns those. Empty when no row is waiting to be written."""
        ...

    def close(self, key: int) -> None:
        """Forget a row and free its cache."""
        ...


@runtime_checkable
class Ranking(Protocol):
    """A model that may rank what a run found: agents by rule do."""

    def evidence(self, so_far: EpisodeState) -> Sequence[str] | None:
        """Ids of the passages found, best first; `None` where it has no order of its own."""
        ...


@runtime_checkable
class ForkableModel(Model, Protocol):
    """A model that lets several rows go on from one past, which is read once.

    A request for no tokens (`max_tokens` is 0) is read and stops at once, ready to be forked.
    """

    @property
    def max_rows(self) -> int:
        """Rows that may be open at once if they are to be forked."""
        ...

    def fork(self, key: int, request: Request) -> None:
        """Open `request.key` as a second row with the past of `key`, which has stopped and stays as it is."""
        ...
