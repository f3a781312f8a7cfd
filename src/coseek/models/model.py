"""Model: the interface of models that continue token sequences. Knows no tags, questions or passages beyond a request.

The calls for a row are `start → step → extend → step … → close`. The model keeps a row's cache, so that no token is
read twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from coseek.data.question import Question
from coseek.data.trajectory import Call, Search


class Tokenizer(Protocol):
    """Text ↔ ids. `decode(encode(text)) == text` need not hold; trajectories store ids and their decoded text."""

    eos_id: int

    def encode(self, text: str) -> list[int]:
        """Ids of trusted text: special tokens in it are recognised, none are added."""

    def encode_data(self, text: str) -> list[int]:
        """Ids of untrusted text (questions, passages): special tokens in it are encoded as ordinary characters."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, including special tokens, without clean-up."""


class TurnEnd(StrEnum):
    """Why a turn ended."""

    STOP = "stop"
    """A stop string was completed."""
    EOS = "eos"
    LENGTH = "length"
    """`max_tokens` were sampled."""
    FAULT = "fault"
    """The model failed; see `Turn.fault`."""


@dataclass(frozen=True, slots=True)
class EpisodeState:
    """The state of an episode at the start of a turn. Token models ignore it; scripted agents read it."""

    question: Question
    searches: tuple[Search, ...] = ()
    side_searches: tuple[Search, ...] = ()
    """In a request for notes, outside the episode's own context: the searches to take notes on."""
    calls: tuple[Call, ...] = ()
    """Calls of tools other than search and visit."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to read `ids`, then sample up to `max_tokens`."""

    key: int
    """The row's key, chosen by the caller and unique while the row is open."""
    ids: tuple[int, ...]
    """For `start` the whole prompt; for `extend` the new tokens since the row's last one."""
    max_tokens: int
    seed: int
    """The row's seed: samples depend on it and on the row's own tokens only."""
    state: EpisodeState
    written: tuple[tuple[int, int], ...] = ()
    """For `start`: the (start, end) ranges of the model's earlier turns in `ids`. Token models ignore it."""
    rank: int = 0
    """Priority in a server's queue: lower ranks go first. No token depends on it."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The model's output for one request. `ids` includes the tokens of the stop string, and EOS if it was sampled."""

    key: int
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural log of each token's probability under the full softmax at the sampling temperature (at temperature 1 for
    greedy decoding)."""
    end: TurnEnd
    fault: str = ""
    exact: bool = True
    """Whether `ids` and `logprobs` are those sampled. Inexact turns, from text-only servers, are not trained on."""
    cost_usd: float | None = 0.0
    """The cost of the turn; `None` if there is a price and the server reports no token counts."""
    version: int | None = None
    """The version of the weights that sampled it, if the model states it."""


class Model(Protocol):
    """Continues many rows at once. Each row is returned as soon as it stops."""

    tokenizer: Tokenizer

    def start(self, request: Request) -> None:
        """Open a row."""

    def extend(self, request: Request) -> None:
        """Continue an open row after the environment's tokens `request.ids`."""

    def step(self) -> list[Turn]:
        """Sample until at least one row stops; returns the stopped rows' turns. Empty if no row waits."""

    def close(self, key: int) -> None:
        """Close a row and free its cache."""


@runtime_checkable
class Ranking(Protocol):
    """A model that can rank the passages found in an episode, as scripted agents do."""

    def evidence(self, so_far: EpisodeState) -> Sequence[str] | None:
        """Ids of the passages found, best first; `None` to keep the retriever's order."""


@runtime_checkable
class ServedModel(Model, Protocol):
    """A model behind a server, whose rows do not depend on each other's timing."""

    @property
    def concurrency(self) -> int:
        """Rows that the server continues at once."""

    def wake(self) -> None:
        """Make a waiting `step` return at once, with the finished turns. Called from any thread."""


@runtime_checkable
class ForkableModel(Model, Protocol):
    """A model whose rows can be forked, so that a common past is read once. A request with `max_tokens` 0 is read, then
    stops at once, ready to be forked."""

    @property
    def max_rows(self) -> int:
        """The maximum number of open rows when forking."""

    def fork(self, key: int, request: Request) -> None:
        """Open `request.key` as a second row with the past of `key`, which has stopped and stays as it is."""
