import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from tests.serve.live import EchoRetriever

from coseek.core.errors import RetrieverError
from coseek.retrieval.query import Query
from coseek.serve.batching import Batcher, SearchJob
from coseek.serve.service import RefusedRequest, WorkThread


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def texts(retriever: EchoRetriever) -> list[list[str]]:
    return [[query.text for query in batch] for batch in retriever.batches]


def found_counts(job: SearchJob) -> list[int]:
    return [len(hits) for hits in job.lists]


class Busy:
    """A retriever that is searching something else until `gate` opens, so that requests gather."""

    def __init__(self, batch: int = 4, queue: int = 100) -> None:
        self.gate = threading.Event()
        self.retriever = EchoRetriever(self.gate)
        self.batcher = Batcher(WorkThread("search"), batch, queue)

    async def ask(self, *queries: str, k: int = 2) -> "asyncio.Task[SearchJob]":
        """A request that has reached the queue."""
        task = asyncio.create_task(self.batcher.search(self.retriever, [Query(text) for text in queries], k))
        await asyncio.sleep(0)
        return task

    async def occupy(self) -> "asyncio.Task[SearchJob]":
        task = await self.ask("first")
        await until(lambda: len(self.retriever.batches) == 1)
        return task


def in_a_loop(scenario: Callable[[Busy], Awaitable[None]]) -> Callable[[], None]:
    """A test that runs a scenario in an event loop."""

    def played() -> None:
        asyncio.run(asyncio.wait_for(scenario(Busy()), 20))

    return played


@in_a_loop
async def test_requests_that_wait_are_searched_together_and_each_gets_its_own(busy: Busy) -> None:
    await busy.occupy()
    tasks = [await busy.ask("a", "b"), await busy.ask("c"), await busy.ask("d")]
    busy.gate.set()
    assert [found_counts(await task) for task in tasks] == [[2, 2], [2], [2]]
    assert texts(busy.retriever) == [["first"], ["a", "b", "c", "d"]]
    assert [(await task).batch for task in tasks] == [4, 4, 4]


@in_a_loop
async def test_only_searches_of_the_same_k_are_joined(busy: Busy) -> None:
    await busy.occupy()
    tasks = [await busy.ask("a", k=1), await busy.ask("b", k=3), await busy.ask("c", k=1)]
    busy.gate.set()
    assert [found_counts(await task) for task in tasks] == [[1], [3], [1]]
    assert texts(busy.retriever) == [["first"], ["a", "c"], ["b"]]


@in_a_loop
async def test_a_large_request_does_not_keep_a_small_one_waiting(busy: Busy) -> None:
    await busy.occupy()
    large = await busy.ask(*(f"l{number}" for number in range(9)))
    small = await busy.ask("s")
    busy.gate.set()
    assert found_counts(await small) == [2]
    assert found_counts(await large) == [2] * 9
    assert texts(busy.retriever)[1:3] == [["l0", "l1", "l2", "l3"], ["s", "l4", "l5", "l6"]]
    assert [text for batch in texts(busy.retriever) for text in batch if text[0] == "l"] == [
        f"l{number}" for number in range(9)
    ]


@in_a_loop
async def test_a_fault_fails_the_request_that_it_concerns_and_spares_its_siblings(busy: Busy) -> None:
    await busy.occupy()
    tasks = [await busy.ask("a"), await busy.ask("fail"), await busy.ask("b")]
    busy.gate.set()
    jobs = [await task for task in tasks]
    assert [found_counts(job) for job in jobs] == [[2], [], [2]]
    assert isinstance(jobs[1].fault, RetrieverError)
    assert [job.fault for job in (jobs[0], jobs[2])] == [None, None]
    assert busy.batcher.faults == 1


def test_a_bug_of_a_retriever_fails_one_request_and_not_the_service(capsys: pytest.CaptureFixture[str]) -> None:
    batcher, retriever = Batcher(WorkThread("search"), 4, 100), EchoRetriever()

    async def scenario() -> None:
        job = await batcher.search(retriever, ["bug"], 1)
        assert isinstance(job.fault, ZeroDivisionError)
        assert found_counts(await batcher.search(retriever, ["a"], 1)) == [1]

    asyncio.run(scenario())
    assert "ZeroDivisionError" in capsys.readouterr().err


@in_a_loop
async def test_a_full_queue_turns_away_and_says_when_to_come_back(busy: Busy) -> None:
    busy = Busy(queue=3)
    await busy.occupy()
    waiting = [await busy.ask("a", "b"), await busy.ask("c")]
    with pytest.raises(RefusedRequest, match="3 queries are waiting") as refused:
        await busy.batcher.search(busy.retriever, ["d"], 2)
    assert refused.value.status == 503
    assert refused.value.retry_after_s == 1
    busy.gate.set()
    assert [found_counts(await task) for task in waiting] == [[2, 2], [2]]
    assert found_counts(await busy.batcher.search(busy.retriever, ["d"], 2)) == [2]


@in_a_loop
async def test_what_nobody_waits_for_is_not_searched(busy: Busy) -> None:
    first = await busy.occupy()
    gone, stays = await busy.ask("gone", k=1), await busy.ask("stays")
    gone.cancel()
    await until(lambda: busy.batcher.waiting == 1)
    busy.gate.set()
    assert [found_counts(await task) for task in (first, stays)] == [[2], [2]]
    assert texts(busy.retriever) == [["first"], ["stays"]]
