"""Drivers: run episodes. `rollout` runs an agent over many questions in batches; `AsyncDriver` runs single episodes
over a coroutine that samples, so that any engine can host them.

The environment decides the next step of each episode, so both record the same trajectory for the same samples.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from types import TracebackType
from typing import Protocol as Interface, TypeAlias

from coseek.agents.environment import End, Environment, Next, PendingCall
from coseek.agents.episode import Episode
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.agents.tool import Result, Tool
from coseek.core.errors import ModelError, RunError, SettingError
from coseek.core.strict_json import replace_surrogates
from coseek.data.digests import Identities
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.model import ForkableModel, Model, Request, ServedModel, Tokenizer, Turn, TurnEnd
from coseek.retrieval.retriever import Retriever

MAX_THREADS = 256
TimedResults: TypeAlias = list[tuple[Result, float]]
"""The results of a batch of calls, each with its seconds."""


class ToolThreads:
    """Runs tool calls in threads.

    A tool that takes parallel calls gets each call in a separate thread. Any other tool gets one batch at a time; the
    calls that arrive meanwhile are its next batch.
    """

    def __init__(self, environment: Environment, on_result: Callable[[], object]) -> None:
        """`on_result` is called from a thread when a batch is finished."""
        self._environment, self._on_result = environment, on_result
        self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="coseek-tools")
        self._waiting: dict[Tool, list[PendingCall]] = {}
        self._batches: dict[Future[TimedResults], Sequence[PendingCall]] = {}
        """Batches whose results were not taken yet."""
        self._running: Counter[Tool] = Counter()
        """Number of these batches by tool."""

    @property
    def open_calls(self) -> int:
        """Number of calls whose results were not taken yet."""
        return sum(map(len, self._waiting.values())) + sum(map(len, self._batches.values()))

    def submit(self, tool: Tool, calls: Sequence[PendingCall]) -> None:
        """Run calls of one tool."""
        self._waiting.setdefault(tool, []).extend(calls)
        self._start(tool)

    def withdraw(self, call: PendingCall) -> None:
        """Drop a call that has not started. The result of a started call can still be taken."""
        if call in (waiting := self._waiting.get(call.tool, [])):
            waiting.remove(call)

    def take(self, block: bool) -> list[tuple[Sequence[PendingCall], Future[TimedResults]]]:
        """Take the finished batches. With `block` wait for at least one, if any is running."""
        if block and self._batches:
            wait(self._batches, return_when=FIRST_COMPLETED)
        finished_batches = [(self._batches.pop(future), future) for future in list(self._batches) if future.done()]
        for calls, _ in finished_batches:
            self._running[calls[0].tool] -= 1
            self._start(calls[0].tool)
        return finished_batches

    def close(self) -> None:
        """Wait for running calls and drop the others."""
        for waiting in self._waiting.values():
            waiting.clear()
        self._pool.shutdown(cancel_futures=True)

    def _start(self, tool: Tool) -> None:
        waiting, max_parallel = self._waiting[tool], self._environment.max_parallel_calls(tool)
        while waiting and self._running[tool] < max_parallel:
            calls = waiting[:1] if max_parallel > 1 else waiting[:]
            del waiting[: len(calls)]
            self._running[tool] += 1
            future = self._pool.submit(self._environment.run_tool, calls)
            self._batches[future] = calls
            future.add_done_callback(lambda _: self._on_result())


@dataclass(frozen=True)
class Agent:
    """A model with the protocol that it follows."""

    protocol: Protocol
    model: Model
    identities: Identities = field(default_factory=dict)
    """What the model's turns depend on besides its input, as far as known: digests of its weights (`agent`) and
    tokenizer, and the sampling settings. They are stored in the run folder."""
    limits: Limits | None = None
    """Its budgets (`factory.limits_for`), if it was opened from settings."""

    def __repr__(self) -> str:
        return f"Agent(protocol={self.protocol.name!r}, model={type(self.model).__name__})"


def rollout(
    agent: Agent,
    retriever: Retriever,
    questions: Sequence[Question],
    seeds: Sequence[int],
    limits: Limits,
    *,
    concurrency: int = 256,
    overlap: bool = False,
    on_done: Callable[[Trajectory], None] | None = None,
    keep: bool = True,
) -> list[Trajectory]:
    """Run the agent once per question and return the trajectories in the order of `questions`.

    `seeds` holds one seed per question. `on_done` is called with each trajectory as it ends; with `keep=False` the
    returned list is empty. A fault of the retriever, the model or a tool ends only its own run, with the reason
    recorded. At most `concurrency` contexts are open in the model at once, and never more than it has rows.

    With `overlap` a thread runs the tool calls of one model step while the model takes the next step. Their results
    are shown after that step, never earlier, so batches do not depend on timing. It pays for slow searches that use no
    CPU (a server, the web); a retriever that shares weights with the model cannot overlap. With a served model calls
    always overlap, and every result is shown as soon as it arrives.
    """
    contexts = contexts_of(agent)
    if isinstance(agent.model, ForkableModel):  # a waiting row could keep an open row from its second context
        concurrency = min(concurrency, agent.model.max_rows)
    concurrency = max(1, concurrency // contexts)
    with ThreadPoolExecutor(1, thread_name_prefix="coseek-search") if overlap else nullcontext() as thread:
        return Driver(agent, retriever, limits, on_done, thread, keep).run(questions, seeds, concurrency)


def contexts_of(agent: Agent) -> int:
    """Number of contexts that one episode may need at once. Raises `SettingError` if the model has fewer rows."""
    contexts = 2 if agent.protocol.file.reason_in_documents else 1
    if isinstance(agent.model, ForkableModel) and agent.model.max_rows < contexts:
        raise SettingError(
            f"the protocol {agent.protocol.name} writes notes in a second context, and the model has "
            f"{agent.model.max_rows} row; raise max_rows (in a recipe: concurrency) and cache_gib until two rows fit"
        )
    return contexts


class Driver:
    """Advances all open episodes turn by turn until they end."""

    def __init__(
        self,
        agent: Agent,
        retriever: Retriever,
        limits: Limits,
        on_done: Callable[[Trajectory], None] | None,
        thread: ThreadPoolExecutor | None,
        keep: bool = True,
    ) -> None:
        self.environment = Environment(agent.protocol, agent.model.tokenizer, retriever, limits)
        self.protocol, self.model, self.limits = agent.protocol, agent.model, limits
        self.on_done, self.keep = on_done, keep
        self.thread = thread
        self.running: list[tuple[Sequence[PendingCall], Future[TimedResults]]] = []
        """Batches of calls that the thread is running."""
        self.served = agent.model if isinstance(agent.model, ServedModel) else None
        self.tool_threads = None if self.served is None else ToolThreads(self.environment, self.served.wake)
        """Runs calls while a served model writes."""
        self.episodes: dict[int, Episode] = {}
        self.trajectories: dict[int, Trajectory] = {}

    def run(self, questions: Sequence[Question], seeds: Sequence[int], concurrency: int) -> list[Trajectory]:
        waiting = list(enumerate(zip(questions, seeds, strict=True)))[::-1]

        def fill() -> bool:
            self._open_episodes([waiting.pop() for _ in range(min(len(waiting), concurrency - len(self.episodes)))])
            return bool(waiting)

        for _ in self._drive(fill):
            pass
        return [self.trajectories[key] for key in range(len(questions))] if self.keep else []

    def _drive(self, fill: Callable[[], bool]) -> Iterator[None]:
        """Step until no episode is open and `fill`, which opens episodes while there is room, returns False. Yields
        after every step."""
        try:
            while fill() or self._has_open():
                if self._has_open():
                    if self.served is not None and self.tool_threads is not None:
                        self._served_step(self.served, self.tool_threads)
                    else:
                        self._local_step()
                    yield
        finally:
            for episode in list(self.episodes.values()):  # an interrupted rollout must leave no row open in the model
                self._close(episode)
            if self.tool_threads is not None:
                self.tool_threads.close()

    def _local_step(self) -> None:
        running, self.running = self.running, []
        turns = self.model.step()
        if not turns and not running:
            raise RunError(f"the model wrote no turn for its {len(self.episodes)} open episodes")
        self._advance(turns)
        for calls, future in running:
            self._show_results(calls, future.result())

    def _served_step(self, served: ServedModel, tool_threads: ToolThreads) -> None:
        """Wait for a turn or for the result of a call, whichever comes first."""
        all_wait_for_tools = tool_threads.open_calls == len(self.episodes)
        self._advance([] if all_wait_for_tools else served.step())
        for calls, future in tool_threads.take(block=all_wait_for_tools):
            self._show_results(calls, future.result())

    def _has_open(self) -> bool:
        return bool(self.episodes)

    def _open_episodes(self, started: Sequence[tuple[int, tuple[Question, int]]]) -> None:
        """Open episodes with their prompts, and search the question if the protocol opens with a search."""
        calls: list[PendingCall] = []
        for key, (question, seed) in started:
            episode = self.episodes[key] = Episode(key, question, seed, time.perf_counter())
            calls += self._continue(episode, self.environment.reset(episode))
        self._run_calls(calls)

    def _continue(self, episode: Episode, step: Next | PendingCall) -> list[PendingCall]:
        """Carry out the next step of an episode. A tool call is returned, so that calls run in batches."""
        if isinstance(step, PendingCall):
            return [step]
        if isinstance(step, End):
            self._finish(episode, step)
        elif step.key < 0:
            self.model.start(step)
        else:
            self._send(episode, step)
            episode.started = True
        return []

    def _send(self, episode: Episode, request: Request) -> None:
        if episode.started:
            self.model.extend(request)
        else:
            self.model.start(request)

    def _advance(self, turns: Sequence[Turn]) -> None:
        """Process the model's turns, then run the calls of all episodes."""
        calls: list[PendingCall] = []
        for turn in turns:
            episode = self.episodes[turn.key if turn.key >= 0 else ~turn.key]
            if turn.key < 0:
                self.model.close(turn.key)
            calls += self._continue(episode, self.environment.step(episode, turn))
        self._run_calls(calls)

    def _run_calls(self, calls: Sequence[PendingCall]) -> None:
        """Run the calls of each tool in one batch and show the results. The thread runs tools that overlap."""
        batches: dict[Tool, list[PendingCall]] = {}
        for call in calls:
            batches.setdefault(call.tool, []).append(call)
        for tool, batch in sorted(batches.items(), key=lambda item: item[0].settings.overlaps):
            if self.tool_threads is not None and tool.settings.overlaps:
                self.tool_threads.submit(tool, batch)
            elif self.thread is None or not tool.settings.overlaps:
                self._show_results(batch, self.environment.run_tool(batch))
            else:
                self.running.append((batch, self.thread.submit(self.environment.run_tool, batch)))

    def _show_results(self, calls: Sequence[PendingCall], results: TimedResults) -> None:
        """Pass each episode the result of its call and run the next call of its turn."""
        next_calls: list[PendingCall] = []
        for call, (result, took_s) in zip(calls, results, strict=True):
            next_calls += self._continue(call.episode, self.environment.observe(call, result, took_s))
        self._run_calls(next_calls)

    def _close(self, episode: Episode) -> None:
        self.model.close(episode.key)
        if episode.awaiting_notes is not None:
            self.model.close(episode.side_key)

    def _finish(self, episode: Episode, end: End) -> None:
        self._close(episode)
        del self.episodes[episode.key]
        trajectory = self.environment.finish(episode, end, self.model)
        if self.keep:
            self.trajectories[episode.key] = trajectory
        if self.on_done:
            self.on_done(trajectory)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What an episode sets for one turn. Temperature and other sampling parameters belong to the engine."""

    max_tokens: int
    stops: tuple[str, ...]
    """The turn ends with the token that completes one of these strings."""
    seed: int
    """The same for all turns of a context; an engine that restarts its random generator must add the position."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """What an engine sampled for one turn. The fields are those of `Turn`."""

    ids: Sequence[int]
    """Sampled ids, including the tokens of the stop string and a sampled end-of-text token."""
    logprobs: Sequence[float]
    """Natural log at the sampling temperature, one per id."""
    stop: TurnEnd
    version: int | None = None
    """The version of the weights that sampled the ids; stored with the turn."""
    exact: bool = True
    cost_usd: float | None = 0.0
    fault: str = ""
    """Why the turn ended, for `TurnEnd.FAULT`; the ids sampled before are kept."""


class Generate(Interface):
    """Continues a context. An exception is a fault of its episode, recorded with its message."""

    async def __call__(self, ids: Sequence[int], *, sampling: Sampling, request: Request) -> Sampled:
        """Sample one turn after `ids`, the whole context. All turns of an episode have the same `request.key`, and
        `request.ids` holds the tokens added since its last turn. A negative key is a side context, which has one
        turn."""


class AsyncDriver:
    """Runs episodes of one protocol over one retriever, each as a coroutine. Their calls share threads.

    Use it in `async with`: leaving it ends the threads and cancels the episodes that wait for a call. All episodes run
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
        """The results that episodes wait for."""

    async def __aenter__(self) -> "AsyncDriver":
        loop = asyncio.get_running_loop()
        self._threads = ToolThreads(self.environment, lambda: loop.call_soon_threadsafe(self._deliver_results))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for future in self._results.values():
            future.cancel()
        await asyncio.to_thread(self._threads.close)

    async def run_episode(self, question: Question, seed: int, generate: Generate) -> Trajectory:
        """Run one episode to its end. A fault of `generate`, the retriever or a tool ends it, with the reason recorded.
        Cancellation drops its pending call."""
        episode = Episode(next(self._keys), question, seed, time.perf_counter())
        step = self.environment.reset(episode)
        while not isinstance(step, End):
            if isinstance(step, PendingCall):
                step = self.environment.observe(step, *await self._result(step))
            else:
                step = self.environment.step(episode, await self._turn(episode, step, generate))
        return self.environment.finish(episode, step, generate)

    async def _turn(self, episode: Episode, request: Request, generate: Generate) -> Turn:
        ids = request.ids if request.key < 0 else episode.ids
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
            timed_out = isinstance(error, TimeoutError) and limit.expired()
            fault = f"no turn within {self.timeout_s:g} s" if timed_out else f"{type(error).__name__}: {error}"
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
            self._threads.withdraw(call)
            del self._results[call]

    def _deliver_results(self) -> None:
        """Pass each episode the result of its call, unless it was cancelled. An exception of a built-in tool is a bug,
        which is raised in each of the episodes."""
        for calls, batch in self._threads.take(block=False):
            error = batch.exception()
            for index, call in enumerate(calls):
                future = self._results.get(call)
                if future is None or future.done():
                    continue
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(batch.result()[index])


def _turn_of(request: Request, sampled: Sampled) -> Turn:
    """Convert what an engine sampled to a turn. Raises `ModelError` for one that is not well-formed."""
    ids, logprobs = tuple(map(int, sampled.ids)), tuple(map(float, sampled.logprobs))
    if len(ids) != len(logprobs):
        raise ModelError(f"the engine returned {len(ids)} token ids and {len(logprobs)} log-probabilities")
    if len(ids) > request.max_tokens:
        raise ModelError(f"the engine wrote {len(ids)} tokens, but at most {request.max_tokens} were requested")
    version = None if sampled.version is None else int(sampled.version)
    end = TurnEnd(sampled.stop)
    return Turn(request.key, ids, logprobs, end, sampled.fault, sampled.exact, sampled.cost_usd, version)
