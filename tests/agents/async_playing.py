"""Shared by tests and measurements of the async driver: engines over batch models, and models that write anything."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from tests.agents.playing import QUESTION, Typist, script

from coseek.agents.drivers import AsyncDriver, Sampled, Sampling
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.agents.tag import NOT_FOUND
from coseek.core.files import json_line
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.model import EpisodeState, Model, Ranking, Request, Turn, TurnEnd
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.retriever import Retriever


async def no_pause() -> None:
    """Let other coroutines run first."""
    await asyncio.sleep(0)


class OneRow:
    """The engine of one episode over a shared batch model. A turn is sampled alone, in one step."""

    def __init__(self, model: Model, pause: Callable[[], Awaitable[None]] = no_pause, version: int | None = None):
        self.model, self.pause, self.version = model, pause, version
        self.read: dict[int, tuple[int, ...]] = {}

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        await self.pause()
        (self.model.extend if request.key in self.read else self.model.start)(request)
        self.read[request.key] = self.read.get(request.key, ()) + request.ids
        assert tuple(ids) == self.read[request.key], "the context is not what the model has read and written"
        assert (sampling.max_tokens, sampling.seed) == (request.max_tokens, request.seed)
        (turn,) = self.model.step()
        self.read[request.key] += turn.ids
        if request.key < 0:
            self.model.close(request.key)
            del self.read[request.key]
        return Sampled(turn.ids, turn.logprobs, turn.end, self.version, turn.exact, turn.cost_usd, fault=turn.fault)

    def evidence(self, so_far: EpisodeState) -> Sequence[str] | None:
        return self.model.evidence(so_far) if isinstance(self.model, Ranking) else None

    def close(self) -> None:
        for key in self.read:
            self.model.close(key)


class Improviser(Typist):
    """Writes turns drawn by a row's seed and tokens: valid, broken and long turns, and faults."""

    def __init__(self, protocol: Protocol, *more: str) -> None:
        super().__init__(ByteTokenizer(protocol.grammar.special_tokens), ())
        good = script(protocol.name)
        self.texts = [*good * 4, *(text.replace("Ada", "a bad one") for text in good), "".join(good)]
        self.texts += [text.replace("1815", NOT_FOUND) for text in good if "1815" in text]
        self.texts += [text.replace("Ada", "Eve") for text in good] + ["hm", "", "</think>", "x" * 999, *more]
        if "visit" in protocol.grammar.tools:  # `id` and `url` in the two protocols that have it
            page = good[0].replace('"search"', '"visit"').replace('"query": "Ada"', '"id": "p1", "url": "p1"')
            self.texts += [page, page, page.replace("p1", "p9")]

    def _write(self, request: Request) -> Turn:
        rng = random.Random(f"{request.seed}/{len(self.read[request.key])}")
        ids = tuple(self.tokenizer.encode("noted" if request.state.side_searches else rng.choice(self.texts)))
        written = ids[: request.max_tokens]
        self.read[request.key] += written
        logprobs = tuple(-rng.random() for _ in written)
        if rng.random() < 0.03:
            return Turn(request.key, written[:2], logprobs[:2], TurnEnd.FAULT, "out of memory")
        end = TurnEnd.LENGTH if len(written) == request.max_tokens else TurnEnd.STOP
        cost = None if rng.random() < 0.01 else 1e-3
        return Turn(request.key, written, logprobs, end, exact=rng.random() > 0.05, cost_usd=cost)


def make_questions(count: int) -> list[Question]:
    return [replace(QUESTION, id=f"q{number}") for number in range(count)]


def ledger(run: Trajectory) -> str:
    """The line of a run in its ledger, without wall times."""
    return json_line(replace(run, timings={}).to_json())


async def play_async(
    protocol: Protocol,
    model: Model,
    retriever: Retriever,
    questions: Sequence[Question],
    seeds: Sequence[int],
    limits: Limits,
    *,
    at_once: int = 64,
    pause: Callable[[], Awaitable[None]] = no_pause,
) -> list[Trajectory]:
    """Play all questions as coroutines, at most `at_once` at a time."""
    room = asyncio.Semaphore(at_once)

    async def play_one(driver: AsyncDriver, question: Question, seed: int) -> Trajectory:
        async with room:
            engine = OneRow(model, pause)
            try:
                return await driver.run_episode(question, seed, engine)
            finally:
                engine.close()

    async with AsyncDriver(protocol, model.tokenizer, retriever, limits) as driver:
        return await asyncio.gather(*(play_one(driver, *row) for row in zip(questions, seeds, strict=True)))
