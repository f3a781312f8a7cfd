"""Tinker sampler: samples rows on a Tinker server, with the exact ids and log-probabilities that it returns.

Each request contains the whole row; no state is kept at the server.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.models.remote import CalledRow, RowCalls, check_turn, cut_at_stop
from coseek.training.trainer.data_order import derive_seed

if TYPE_CHECKING:
    from tinker import SamplingClient
    from tinker.types import SampleResponse


@dataclass(slots=True)
class _TinkerRow(CalledRow):
    ids: list[int] = field(default_factory=list)


class TinkerSampler(RowCalls[_TinkerRow, "SampleResponse"]):
    """Implements `ServedModel`. Driven by one thread; calls run in the background."""

    failures = (Exception,)  # the client's errors have no class in common

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], temperature: float, concurrency: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.concurrency = concurrency
        self.done = SimpleQueue()
        self._stops = tuple(stops)
        self._temperature = temperature
        self._weights: SamplingClient | None = None
        self._version = 0

    def use(self, weights: "SamplingClient", version: int) -> None:
        """Sample with these weights from now on."""
        self._weights, self._version = weights, version

    def _opened(self) -> _TinkerRow:
        return _TinkerRow()

    def _call(self, row: _TinkerRow, request: Request) -> "Future[SampleResponse]":
        from tinker.types import ModelInput, SamplingParams

        assert self._weights is not None, "`use` gives the weights"
        row.ids += request.ids
        row.version = self._version
        params = SamplingParams(
            max_tokens=request.max_tokens,
            temperature=self._temperature,
            seed=derive_seed(request.seed, len(row.ids)) >> 32,  # 31 bits
            stop=[*self._stops],
        )
        call: Future[SampleResponse] = self._weights.sample(ModelInput.from_ints(row.ids), 1, params)
        return call

    def _read(self, key: int, row: _TinkerRow, answer: "SampleResponse") -> Turn:
        sequence = answer.sequences[0]
        ids, logprobs = tuple(sequence.tokens), tuple(sequence.logprobs or ())
        check_turn(ids, logprobs)
        end = TurnEnd.LENGTH if sequence.stop_reason == "length" else TurnEnd.EOS
        if self.tokenizer.eos_id in ids:  # some servers go on after it
            ids, end = ids[: ids.index(self.tokenizer.eos_id) + 1], TurnEnd.EOS
        ids, end = cut_at_stop(ids, end, self._stops, self.tokenizer, row.max_tokens)
        row.ids += ids
        return Turn(key, ids, logprobs[: len(ids)], end, version=row.version)
