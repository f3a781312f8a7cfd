"""Tinker sampler: samples rows on a Tinker server, with the exact ids and log-probabilities that it returns.

Each request contains the whole row; no state is kept at the server. A failure is a fault of its row only.
"""

from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from coseek.core.errors import ModelError
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.stop_strings import stopped_after
from coseek.training.trainer.data_order import derive_seed

if TYPE_CHECKING:
    from tinker import SamplingClient
    from tinker.types import SampleResponse


@dataclass(slots=True)
class _Row:
    ids: list[int]
    max_tokens: int = 0
    future: "Future[SampleResponse] | None" = None
    version: int = 0
    """The version of the weights when the turn was asked for."""


class TinkerSampler:
    """Implements `ServedModel`. Driven by one thread; calls run in the background."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], temperature: float, concurrency: int) -> None:
        self.tokenizer = tokenizer
        self.concurrency = concurrency
        self._stops = tuple(stops)
        self._temperature = temperature
        self._weights: SamplingClient | None = None
        self._version = 0
        self._rows: dict[int, _Row] = {}
        self._done: SimpleQueue[tuple[int, Future[SampleResponse]] | None] = SimpleQueue()

    def use(self, weights: "SamplingClient", version: int) -> None:
        """Sample with these weights from now on."""
        self._weights, self._version = weights, version

    def start(self, request: Request) -> None:
        if request.key in self._rows:
            raise ValueError(f"a row with the key {request.key} is open already; close it first")
        self._rows[request.key] = _Row([])
        self._send(request)

    def extend(self, request: Request) -> None:
        row = self._rows.get(request.key)
        if row is None or row.future is not None:
            raise ValueError(f"row {request.key} is not open or has not stopped yet, so it cannot be extended")
        self._send(request)

    def step(self) -> list[Turn]:
        """Wait for at least one row, or until `wake`; returns the turns of all finished rows."""
        if not any(row.future is not None for row in self._rows.values()):
            return []
        turns: list[Turn] = []
        ended = self._done.get()
        while ended is not None:
            turns += self._taken(*ended)
            try:
                ended = self._done.get(block=not turns)
            except Empty:
                break
        return turns

    def wake(self) -> None:
        self._done.put(None)

    def close(self, key: int) -> None:
        """Close a row and cancel its pending call."""
        row = self._rows.pop(key, None)
        if row is not None and row.future is not None:
            row.future.cancel()

    def _send(self, request: Request) -> None:
        from tinker.types import ModelInput, SamplingParams

        assert self._weights is not None, "`use` gives the weights"
        row, key, done = self._rows[request.key], request.key, self._done
        row.ids += request.ids
        row.max_tokens, row.version = request.max_tokens, self._version
        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=self._temperature,
            seed=derive_seed(request.seed, len(row.ids)) >> 32,  # 31 bits
            stop=[*self._stops],
        )
        row.future = self._weights.sample(ModelInput.from_ints(row.ids), 1, params)
        row.future.add_done_callback(lambda future: done.put((key, future)))

    def _taken(self, key: int, future: "Future[SampleResponse]") -> list[Turn]:
        """The turn in an answer; none for a row that was closed meanwhile."""
        row = self._rows.get(key)
        if row is None or row.future is not future:
            return []
        row.future = None
        try:
            error = future.exception()
        except CancelledError:
            error = ModelError("the call was cancelled")
        if error is None:
            try:
                turn = self._turn(key, row, future.result())
            except ValueError as wrong:
                error = wrong
        if error is not None:
            return [Turn(key, (), (), TurnEnd.FAULT, str(error) or type(error).__name__)]
        row.ids += turn.ids
        return [turn]

    def _turn(self, key: int, row: _Row, answer: "SampleResponse") -> Turn:
        sequence = answer.sequences[0]
        ids, logprobs = tuple(sequence.tokens), tuple(sequence.logprobs or ())
        if len(ids) != len(logprobs):
            raise ValueError(f"its answer holds {len(ids)} token ids and {len(logprobs)} log-probabilities")
        end = TurnEnd.LENGTH if sequence.stop_reason == "length" else TurnEnd.EOS
        if self.tokenizer.eos_id in ids:  # some servers go on after it
            ids, end = ids[: ids.index(self.tokenizer.eos_id) + 1], TurnEnd.EOS
        length = stopped_after(ids, self._stops, self.tokenizer)
        if length is not None:
            ids, end = ids[:length], TurnEnd.STOP
        if len(ids) > row.max_tokens:
            raise ValueError(f"it wrote {len(ids)} tokens, but at most {row.max_tokens} were requested")
        return Turn(key, ids, logprobs[: len(ids)], end, version=row.version)
