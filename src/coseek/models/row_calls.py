"""Row calls: rows of a model whose turns are asked for in the background, one call a turn.

A row is requested as soon as it is opened or extended, and returned as soon as its call ends. A failure is a fault of
its row only.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import ClassVar, Generic, TypeVar

from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.stop_strings import stopped_after


@dataclass(slots=True)
class CalledRow:
    """A row so far."""

    max_tokens: int = 0
    """Of the turn that was asked for last."""
    version: int | None = None
    """The version of the weights when the turn was asked for."""


AnswerT = TypeVar("AnswerT")
RowT = TypeVar("RowT", bound=CalledRow)
EndedCall = tuple[int, "Future[AnswerT]"]
"""A row's key, and its call."""


class RowCalls(ABC, Generic[RowT, AnswerT]):
    """Implements `ServedModel` but for `tokenizer` and `concurrency`. Driven by one thread."""

    done: "SimpleQueue[EndedCall[AnswerT] | None]"
    """Rows with their ended calls; `None` wakes `step`."""
    failures: ClassVar[tuple[type[Exception], ...]]
    """What a call raises when it fails, and `ValueError` for an answer that is none."""

    def __init__(self) -> None:
        self._rows: dict[int, RowT] = {}
        self._calls: dict[int, Future[AnswerT]] = {}
        """The calls of turns that were asked for and not taken yet, by row."""

    @abstractmethod
    def _opened(self) -> RowT:
        """A row without tokens."""

    @abstractmethod
    def _call(self, row: RowT, request: Request) -> "Future[AnswerT]":
        """Add a request's ids to its row, and ask for the next turn."""

    @abstractmethod
    def _read(self, key: int, row: RowT, answer: AnswerT) -> Turn:
        """The turn in an answer, whose ids are added to the row. Raises `ValueError` for an answer that is none."""

    def _why(self, row: RowT, error: Exception) -> str:
        """The fault of a row whose call failed."""
        return str(error) or type(error).__name__

    def start(self, request: Request) -> None:
        if request.key in self._rows:
            raise ValueError(f"a row with the key {request.key} is open already; close it first")
        self._rows[request.key] = self._opened()
        self._send(request)

    def extend(self, request: Request) -> None:
        if request.key not in self._rows or request.key in self._calls:
            raise ValueError(f"row {request.key} is not open or has not stopped yet, so it cannot be extended")
        self._send(request)

    @property
    def pending(self) -> "list[Future[AnswerT]]":
        """The calls of turns that were asked for and not taken yet."""
        return list(self._calls.values())

    def wake(self) -> None:
        self.done.put(None)

    def step(self) -> list[Turn]:
        """Wait for at least one row, or until `wake`; returns the turns of all finished rows."""
        if not self._calls:
            return []
        turns: list[Turn] = []
        ended = self.done.get()
        while ended is not None:
            turns += self.taken(*ended)
            try:
                ended = self.done.get(block=not turns)
            except Empty:
                break
        return turns

    def close(self, key: int) -> None:
        """Close a row and cancel its pending call."""
        self._rows.pop(key, None)
        call = self._calls.pop(key, None)
        if call is not None:
            call.cancel()

    def taken(self, key: int, call: "Future[AnswerT]") -> list[Turn]:
        """The turn of an ended call; none for a row that was closed meanwhile."""
        if self._calls.get(key) is not call:
            return []
        del self._calls[key]
        try:
            return [self._read(key, self._rows[key], call.result())]
        except CancelledError:
            fault = "the connection to the server was closed"
        except self.failures as error:
            fault = self._why(self._rows[key], error)
        return [Turn(key, (), (), TurnEnd.FAULT, fault)]

    def _send(self, request: Request) -> None:
        row, key, done = self._rows[request.key], request.key, self.done
        row.max_tokens = request.max_tokens
        self._calls[key] = call = self._call(row, request)
        call.add_done_callback(lambda call: done.put((key, call)))


def check_turn(ids: Sequence[int], logprobs: Sequence[float]) -> None:
    """Raises `ValueError` unless each token has its log-probability."""
    if len(ids) != len(logprobs):
        raise ValueError(f"its answer holds {len(ids)} token ids and {len(logprobs)} log-probabilities")


def cut_at_stop(
    ids: tuple[int, ...], end: TurnEnd, stops: Sequence[str], tokenizer: Tokenizer, max_tokens: int
) -> tuple[tuple[int, ...], TurnEnd]:
    """The ids up to the first stop string, which a server may check for only every few tokens, and why they end.
    Raises `ValueError` if they are more than were requested."""
    length = stopped_after(ids, stops, tokenizer)
    if length is not None:
        ids, end = ids[:length], TurnEnd.STOP
    if len(ids) > max_tokens:
        raise ValueError(f"it wrote {len(ids)} tokens, but at most {max_tokens} were requested")
    return ids, end
