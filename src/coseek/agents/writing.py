"""Writing: a writer (rules, scripted demonstrations) as a model, so that the ordinary driver runs it."""

import random

from coseek.agents.protocol import Protocol
from coseek.agents.writer import Writer
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd


class WriterModel:
    """Implements `Model`. The move is put into words by the protocol and into ids by the tokenizer handed in:
    a demonstration for a policy is written in that policy's own ids, once."""

    def __init__(self, writer: Writer, protocol: Protocol, tokenizer: Tokenizer) -> None:
        self.writer, self.protocol, self.tokenizer = writer, protocol, tokenizer
        self._waiting: list[Request] = []

    def start(self, request: Request) -> None:
        self._waiting.append(request)

    extend = start

    def step(self) -> list[Turn]:
        turns = [self._write(request) for request in self._waiting]
        self._waiting = []
        return turns

    def _write(self, request: Request) -> Turn:
        rng = random.Random(f"{request.seed}/{len(request.so_far.searches)}")
        ids = self.protocol.move_ids(self.writer.write(request.so_far, rng), self.tokenizer)
        whole = len(ids) <= request.max_tokens
        ids = ids[: request.max_tokens]
        return Turn(request.key, ids, (0.0,) * len(ids), TurnEnd.STOP if whole else TurnEnd.LENGTH)

    def close(self, key: int) -> None:
        self._waiting = [request for request in self._waiting if request.key != key]
