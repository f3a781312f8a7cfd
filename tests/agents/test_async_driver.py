"""Episodes as coroutines: the ledger is that of the batch driver, whatever the order, the fault or the interruption."""

import asyncio
import gc
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.agents.async_playing import Improviser, OneRow, asked, ledger, no_pause, play_async, shelf_for
from tests.agents.playing import OURS, QUESTION, WIDE, Shelf, script, typist
from tests.agents.test_tools import ECHO, tool, with_tool
from tests.models.networks import network

from coseek.agents.drivers import Agent, AsyncDriver, Generate, Sampled, Sampling, rollout
from coseek.agents.episode import Episode
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol, load_protocol
from coseek.core.errors import ModelError
from coseek.data.passage import Hit
from coseek.data.trajectory import StopReason, Trajectory
from coseek.models.model import Model, Request, TurnEnd
from coseek.models.sampler import Sampler, SamplerSettings
from coseek.models.tokenizer import ByteTokenizer
from coseek.retrieval.query import QueryLike

TIGHT = Limits(max_turns=3, max_turn_tokens=400, max_observation_tokens=300, max_tokens=3000)
COUNT = 40


def protocol_of(name: str) -> Protocol:
    return load_protocol(name, run_files=True)


def batch_ledgers(
    protocol: Protocol, model: Model, count: int, limits: Limits = TIGHT, concurrency: int = 256
) -> list[str]:
    agent = Agent(protocol, model)
    runs = rollout(agent, shelf_for(protocol), asked(count), range(count), limits, concurrency=concurrency)
    return [ledger(run) for run in runs]


def async_ledgers(
    protocol: Protocol,
    model: Model,
    count: int,
    limits: Limits = TIGHT,
    pause: Callable[[], Awaitable[None]] = no_pause,
) -> list[str]:
    played = play_async(protocol, model, shelf_for(protocol), asked(count), range(count), limits, pause=pause)
    return [ledger(run) for run in asyncio.run(played)]


@pytest.mark.parametrize("name", OURS, ids=lambda name: Path(name).stem)
def test_the_async_driver_writes_the_ledger_of_the_batch_driver(name: str) -> None:
    protocol = protocol_of(name)
    expected = batch_ledgers(protocol, Improviser(protocol), COUNT)
    assert async_ledgers(protocol, Improviser(protocol), COUNT) == expected


def test_a_users_own_tool_and_a_page_that_is_opened_are_run_as_in_a_batch(tmp_path: Path) -> None:
    source = ECHO.replace('request.arguments["text"]', '9 // len(request.arguments["text"])')
    source = source.replace("return result", "return str(result)")
    protocol = protocol_of(with_tool(tmp_path, source))
    calls = [tool("mine", text=text) for text in ("", "a", "ab")]
    expected = batch_ledgers(protocol, Improviser(protocol, *calls * 3), COUNT)
    assert async_ledgers(protocol, Improviser(protocol, *calls * 3), COUNT) == expected
    runs = [Trajectory.from_json(json.loads(line)) for line in expected]
    tags = {segment.tag for run in runs for segment in run.segments}
    assert {"page", "missing", "tool"} <= tags and StopReason.TOOL_ERROR in {run.stop for run in runs}


class Turnstile:
    """Lets waiting coroutines go on one at a time, in a given order."""

    def __init__(self, order: Sequence[int]) -> None:
        self.order, self.place = order, 0
        self.waiting: list[asyncio.Future[None]] = []

    async def pause(self) -> None:
        loop = asyncio.get_running_loop()
        self.waiting.append(loop.create_future())
        mine = self.waiting[-1]
        loop.call_later(0.0005, self.release)
        await mine

    def release(self) -> None:
        chosen = self.order[self.place % len(self.order)] % len(self.waiting)
        self.place += 1
        self.waiting.pop(chosen).set_result(None)


QAGENT = protocol_of("qagent")
IN_ORDER = batch_ledgers(QAGENT, Improviser(QAGENT), 8)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 63), min_size=1, max_size=40))
def test_episodes_that_take_turns_in_any_order_do_not_change_each_other(order: list[int]) -> None:
    assert async_ledgers(QAGENT, Improviser(QAGENT), 8, pause=Turnstile(order).pause) == IN_ORDER


# --- faults


def one(
    generate: Generate, shelf: Shelf | None = None, *, name: str = "search-r1", timeout_s: float | None = None
) -> Trajectory:
    protocol = protocol_of(name)

    async def play() -> Trajectory:
        tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
        async with AsyncDriver(protocol, tokenizer, shelf or Shelf(), WIDE, timeout_s=timeout_s) as driver:
            return await driver.run_episode(QUESTION, 7, generate)

    return asyncio.run(play())


class Failing:
    """Writes the first turn of a search, and then does something else."""

    def __init__(self, instead: Callable[[], Awaitable[Sampled]]) -> None:
        self.good = OneRow(typist(protocol_of("search-r1"), *script("search-r1")))
        self.instead = instead

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        if self.good.read:
            return await self.instead()
        return await self.good(ids, sampling=sampling, request=request)


async def raise_model_error() -> Sampled:
    raise ModelError("the server is gone")


async def raise_anything() -> Sampled:
    raise KeyError("a lone \ud800")


async def cancel() -> Sampled:
    raise asyncio.CancelledError


async def never() -> Sampled:
    await asyncio.sleep(60)
    raise AssertionError


async def unequal() -> Sampled:
    return Sampled((1, 2), (-1.0,), TurnEnd.STOP)


async def too_many() -> Sampled:
    return Sampled((1,) * 4001, (0.0,) * 4001, TurnEnd.LENGTH)


async def nan() -> Sampled:
    return Sampled((1,), (float("nan"),), TurnEnd.STOP)


@pytest.mark.parametrize(
    ("instead", "detail"),
    [
        (raise_model_error, "the server is gone"),
        (raise_anything, "KeyError: 'a lone \\ud800'"),
        (cancel, "the engine cancelled the turn"),
        (never, "no turn within 0.05 s"),
        (unequal, "the engine returned 2 token ids and 1 log-probabilities"),
        (too_many, "the engine wrote 4001 tokens, but at most 4000 were requested"),
        (nan, "the model gave a log-probability or a cost that is no finite number"),
    ],
)
def test_a_fault_of_the_engine_is_recorded_with_what_came_before_it(
    instead: Callable[[], Awaitable[Sampled]], detail: str
) -> None:
    run = one(Failing(instead), timeout_s=0.05 if instead is never else None)
    assert (run.stop, run.stop_detail) == (StopReason.MODEL_ERROR, detail)
    assert [segment.tag for segment in run.segments] == ["prompt", "search", "information"] and run.searches
    assert Trajectory.from_json(run.to_json()) == run


class Broken(Shelf):
    """A retriever with a bug."""

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        raise ZeroDivisionError


def test_a_bug_of_a_part_is_raised_and_hangs_no_episode() -> None:
    with pytest.raises(ZeroDivisionError):
        one(OneRow(typist(protocol_of("search-r1"), *script("search-r1"))), Broken())


# --- cancellation


class Slow(Shelf):
    """A retriever that answers when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = threading.Event(), threading.Event()

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.begun.set()
        assert self.may_end.wait(10)
        return super().search(queries, k)


def test_a_cancelled_episode_leaves_nothing_and_costs_no_other_its_result() -> None:
    protocol, shelf = protocol_of("search-r1"), Slow()
    engines = [OneRow(typist(protocol, *script("search-r1"))) for _ in range(3)]

    async def play() -> Trajectory:
        async with AsyncDriver(protocol, engines[0].model.tokenizer, shelf, WIDE) as driver:
            tasks = []
            for engine in engines:
                tasks.append(asyncio.create_task(driver.run_episode(QUESTION, 7, engine)))
                await asyncio.to_thread(shelf.begun.wait, 10)
            while len(driver._results) < len(tasks):
                await asyncio.sleep(0)
            assert open_episodes() == len(tasks)
            for task in tasks[:2]:  # the search of the first is under way, and that of the second waits for it
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            shelf.may_end.set()
            return await tasks[2]

    assert asyncio.run(play()).answer == "1815"
    assert len(shelf.asked) == 2  # the call that waited was never made
    assert open_episodes() == 0


def open_episodes() -> int:
    gc.collect()
    return sum(isinstance(one, Episode) for one in gc.get_objects())


def test_a_cancelled_turn_is_cancelled_in_the_engine() -> None:
    cancelled: list[bool] = []

    async def wait_long(ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        try:
            return await never()
        finally:
            cancelled.append(True)

    async def play() -> None:
        protocol = protocol_of("search-r1")
        async with AsyncDriver(protocol, ByteTokenizer(), Shelf(), WIDE) as driver:
            task = asyncio.create_task(driver.run_episode(QUESTION, 7, wait_long))
            await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(play())
    assert cancelled == [True]


# --- versions


def test_the_version_that_sampled_a_turn_stands_in_the_ledger() -> None:
    protocol = protocol_of("search-o1")
    engine = OneRow(typist(protocol, *script("search-o1")), version=3)

    async def play() -> Trajectory:
        async with AsyncDriver(protocol, engine.model.tokenizer, Shelf(), WIDE) as driver:
            return await driver.run_episode(QUESTION, 7, engine)

    run = asyncio.run(play())
    written = [*run.segments, *run.side_contexts[0]]
    assert {segment.version for segment in written if segment.logprobs} == {3}
    assert {segment.version for segment in written if not segment.logprobs} == {None}
    assert Trajectory.from_json(run.to_json()) == run


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["search-o1", "qagent"])
def test_a_network_writes_the_same_tokens_and_logprobs_in_both_drivers(name: str, temperature: float) -> None:
    few = Limits(max_turns=2, max_turn_tokens=24, max_observation_tokens=60, max_tokens=1500)
    protocol, module = protocol_of(name), network("lfm2")

    def sampler() -> Sampler:
        tokenizer = ByteTokenizer(protocol.grammar.special_tokens)
        return Sampler(module, tokenizer, protocol.grammar.stops, SamplerSettings(temperature=temperature, max_rows=8))

    expected = batch_ledgers(protocol, sampler(), 6, few, concurrency=1)
    assert async_ledgers(protocol, sampler(), 6, few) == expected
