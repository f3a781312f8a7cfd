"""Async driver: plays single episodes over a coroutine that samples, so that an engine of any kind can host them.

The environment is that of the batch driver, so that both write the same ledger of the same samples.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Protocol as Interface

from coseek.agents.environment import End, Environment, PendingCall
from coseek.agents.episode import Episode
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.agents.tool import Result, Tool
from coseek.agents.tool_threads import ToolThreads
from coseek.core.errors import ModelError
from coseek.core.strict_json import replace_surrogates
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.retrieval.retriever import Retriever


@dataclass(frozen=True, slots=True)
class Sampling:
    """What an episode sets for one turn; temperature and the like belong to the engine."""

    max_tokens: int
    stops: tuple[str, ...]
    """The turn ends with the token that completes one of these strings."""
    seed: int
    """The same for all turns of a context: an engine that restarts its random numbers adds the position."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine sampled for one turn. The fields are those of `Turn`."""

    ids: Sequence[int]
    """With the tokens of the stop string, and the end-of-text token if it was sampled."""
    logprobs: Sequence[float]
    """Natural log at the sampling temperature, one per id."""
    stop: TurnEnd
    version: int | None = None
    """The version of the weights that sampled the ids; recorded in the ledger."""
    exact: bool = True
    cost_usd: float | None = 0.0
    fault: str = ""
    """Why the turn ended, for `TurnEnd.FAULT`; what had been sampled stays in the ledger."""


class Generate(Interface):
    """Continues a context. An exception is a fault of its episode, recorded with its message."""

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        """`ids` is the whole context. All turns of an episode have the same `request.key`, and `request.ids` holds the
        tokens that are new since its last turn. A negative key is a side context, which has one turn."""


class AsyncDriver:
    """Plays episodes of one protocol over one retriever, each as a coroutine. They share threads for their calls.

    Use it in `async with`: leaving it ends the threads, and cancels the episodes that wait for a call. All episodes run
    in the event loop that entered it.
    """

    def __init__(
        self,
        protocol: Protocol,
        tokenizer: Tokenizer,
        retriever: Retriever,
        limits: Limits,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """`timeout_s`: a turn that takes longer is a fault of its episode."""
        self.environment = Environment(protocol, tokenizer, retriever, limits)
        self.timeout_s = timeout_s
        self._stops = protocol.stops_for(tokenizer)
        self._keys = count()
        self._results: dict[PendingCall, asyncio.Future[tuple[Result, float]]] = {}
        """The calls under way, until their episodes are cancelled."""

    async def __aenter__(self) -> "AsyncDriver":
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(self._hand_out)

        self._threads: ToolThreads[PendingCall, list[tuple[Result, float]] | Exception] = ToolThreads(
            self._run, self.environment.at_once, wake
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for future in self._results.values():
            future.cancel()
        await asyncio.to_thread(self._threads.close)

    async def run_episode(self, question: Question, seed: int, generate: Generate) -> Trajectory:
        """Play one episode to its end. A fault of `generate`, the retriever or a tool ends it, with the reason
        recorded. If it is cancelled, its call is dropped and nothing of it stays."""
        row = Episode(next(self._keys), question, seed, time.perf_counter())
        step = self.environment.begin(row)
        while not isinstance(step, End):
            if isinstance(step, PendingCall):
                step = self.environment.answer(step, *await self._result(step))
            else:
                step = self.environment.take(row, await self._turn(row, step, generate))
        return self.environment.finish(row, step, generate)

    async def _turn(self, row: Episode, request: Request, generate: Generate) -> Turn:
        ids = request.ids if request.key < 0 else row.ids
        sampling = Sampling(request.max_tokens, self._stops, request.seed)
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                sampled = await generate(ids, sampling=sampling, request=request)
            return _turn_of(request, sampled)
        except ModelError as error:
            fault = str(error)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            fault = "the engine cancelled the turn"
        except Exception as error:  # noqa: BLE001 (an engine may raise anything)
            late = isinstance(error, TimeoutError) and limit.expired()
            fault = f"no turn within {self.timeout_s:g} s" if late else f"{type(error).__name__}: {error}"
        return Turn(request.key, (), (), TurnEnd.FAULT, replace_surrogates(fault))

    async def _result(self, call: PendingCall) -> tuple[Result, float]:
        if not call.tool.settings.overlaps:
            return self.environment.run_tool([call])[0]
        future: asyncio.Future[tuple[Result, float]] = asyncio.get_running_loop().create_future()
        self._results[call] = future
        try:
            self._threads.submit(call.tool, [call])
            return await future
        finally:
            self._threads.withdraw(call.tool, call)
            del self._results[call]

    def _run(self, _: Tool, calls: Sequence[PendingCall]) -> list[tuple[Result, float]] | Exception:
        """Run calls in a thread. An exception of a built-in tool is a bug, and is raised in each of the episodes."""
        try:
            return self.environment.run_tool(calls)
        except Exception as error:  # noqa: BLE001 (raised again in the episodes)
            return error

    def _hand_out(self) -> None:
        """Give each episode the result of its call; one that was cancelled is no longer there."""
        for calls, ran in self._threads.take(block=False):
            for place, call in enumerate(calls):
                future = self._results.get(call)
                if future is None or future.done():
                    continue
                if isinstance(ran, Exception):
                    future.set_exception(ran)
                else:
                    future.set_result(ran[place])


def _turn_of(request: Request, sampled: Sampled) -> Turn:
    """Check what an engine sampled. Raises `ModelError` for a turn that no model could have written."""
    ids, logprobs = tuple(map(int, sampled.ids)), tuple(map(float, sampled.logprobs))
    if len(ids) != len(logprobs):
        raise ModelError(f"the engine returned {len(ids)} token ids and {len(logprobs)} log-probabilities")
    if len(ids) > request.max_tokens:
        raise ModelError(f"the engine wrote {len(ids)} tokens, but at most {request.max_tokens} were requested")
    version = None if sampled.version is None else int(sampled.version)
    end = TurnEnd(sampled.stop)
    return Turn(request.key, ids, logprobs, end, sampled.fault, sampled.exact, sampled.cost_usd, version)
