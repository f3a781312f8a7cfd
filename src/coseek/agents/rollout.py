"""Rollout: run an agent over many questions in batches. The environment decides what each episode does next."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TypeAlias

from coseek.agents.environment import End, Environment, Next, PendingCall
from coseek.agents.episode import Episode
from coseek.agents.limits import Limits as Limits
from coseek.agents.protocol import Protocol
from coseek.agents.tool import Result, Tool
from coseek.agents.tool_threads import ToolThreads
from coseek.core.errors import RunError, SettingError
from coseek.data.identities import Identities
from coseek.data.question import Question
from coseek.data.trajectory import Trajectory
from coseek.models.model import ForkableModel, Model, Request, ServedModel, Turn
from coseek.retrieval.retriever import Retriever


@dataclass(frozen=True)
class Agent:
    """A model with the protocol that it follows."""

    protocol: Protocol
    model: Model
    identities: Identities = field(default_factory=dict)
    """What the model's turns depend on besides its input, as far as known: digests of its weights (`agent`) and
    tokenizer, and the sampling settings. A run folder records them."""
    limits: Limits | None = None
    """The budgets that it was trained within, where they are known."""

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
    """Run the agent once per question; the trajectories come back in the order of `questions`.

    `seeds` holds one seed per question. `on_done` is called with each trajectory as it ends; without `keep` it alone
    gets them, none stays in memory and the list is empty. A fault of the retriever,
    the model or a tool ends only its own run, with the reason recorded. At most `concurrency` contexts are open in the
    model at once, and never more than it has rows.

    With `overlap` a thread runs the tool calls of one model step while the model takes the next step. Their results
    are shown after that step, never earlier, so batches do not depend on timing. It pays for slow searches that use no
    CPU (a server, the web); a retriever that shares weights with the model cannot overlap. With a model behind a server
    calls always overlap, and every result is shown as soon as it is there.
    """
    if len(seeds) != len(questions):
        raise ValueError(f"{len(questions)} questions need as many seeds, not {len(seeds)}")
    contexts = contexts_of(agent)
    if isinstance(agent.model, ForkableModel):  # a waiting row could keep an open one from its second context
        concurrency = min(concurrency, agent.model.max_rows)
    concurrency = max(1, concurrency // contexts)
    with ThreadPoolExecutor(1, thread_name_prefix="coseek-search") if overlap else nullcontext() as thread:
        return Driver(agent, retriever, limits, on_done, thread, keep).run(questions, seeds, concurrency)


def contexts_of(agent: Agent) -> int:
    """Contexts that one episode may need at once. Raises `SettingError` for a model that has fewer rows."""
    contexts = 2 if agent.protocol.reason_in_documents else 1
    if isinstance(agent.model, ForkableModel) and agent.model.max_rows < contexts:
        raise SettingError(
            f"the protocol {agent.protocol.name} writes notes in a second context, and the model has "
            f"{agent.model.max_rows} row; raise max_rows (in a recipe: concurrency) and cache_gib until two rows fit"
        )
    return contexts


TimedResults: TypeAlias = list[tuple[Result, float]]
"""The results of a batch of calls, each with its seconds."""


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
        self.calls: ToolThreads[PendingCall, TimedResults] | None = None
        """Runs calls while a served model writes."""
        if self.served is not None:
            self.calls = ToolThreads(
                lambda _, calls: self.environment.run_tool(calls), self.environment.at_once, self.served.wake
            )
        self.rows: dict[int, Episode] = {}
        self.done: dict[int, Trajectory] = {}

    def run(self, questions: Sequence[Question], seeds: Sequence[int], concurrency: int) -> list[Trajectory]:
        waiting = list(enumerate(zip(questions, seeds, strict=True)))[::-1]

        def fill() -> bool:
            self._open([waiting.pop() for _ in range(min(len(waiting), concurrency - len(self.rows)))])
            return bool(waiting)

        for _ in self._drive(fill):
            pass
        return [self.done[key] for key in range(len(questions))] if self.keep else []

    def _drive(self, fill: Callable[[], bool]) -> Iterator[None]:
        """Step until no episode is open and `fill`, which opens episodes while there is room, has none left. Yields
        after every step."""
        try:
            while fill() or self._has_open():
                if self._has_open():
                    if self.served is not None and self.calls is not None:
                        self._served_step(self.served, self.calls)
                    else:
                        self._local_step()
                    yield
        finally:
            for row in list(self.rows.values()):  # an interrupted rollout must leave no row open in the model
                self._close(row)
            if self.calls is not None:
                self.calls.close()

    def _local_step(self) -> None:
        running, self.running = self.running, []
        turns = self.model.step()
        if not turns and not running:
            raise RunError(f"the model has {len(self.rows)} rows to write and wrote none of them")
        self._advance(turns)
        for calls, ran in running:
            self._show_results(calls, ran.result())

    def _served_step(self, served: ServedModel, calls: "ToolThreads[PendingCall, TimedResults]") -> None:
        """Wait for a turn or for the result of a call, whichever comes first."""
        all_search = calls.open_calls == len(self.rows)
        self._advance([] if all_search else served.step())
        for asked, ran in calls.take(block=all_search):
            self._show_results(asked, ran)

    def _has_open(self) -> bool:
        return bool(self.rows)

    def _open(self, started: Sequence[tuple[int, tuple[Question, int]]]) -> None:
        """Open rows with their prompts, and with a search of the question where the protocol opens with one."""
        asked: list[PendingCall] = []
        for key, (question, seed) in started:
            row = self.rows[key] = Episode(key, question, seed, time.perf_counter())
            asked += self._continue(row, self.environment.begin(row))
        self._run_calls(asked)

    def _continue(self, row: Episode, step: Next | PendingCall) -> list[PendingCall]:
        """Do what an episode needs next. A tool call is returned, so that calls run in batches."""
        if isinstance(step, PendingCall):
            return [step]
        if isinstance(step, End):
            self._finish(row, step)
        elif step.key < 0:
            self.model.start(step)
        else:
            self._send(row, step)
            row.started = True
        return []

    def _send(self, row: Episode, request: Request) -> None:
        if row.started:
            self.model.extend(request)
        else:
            self.model.start(request)

    def _advance(self, turns: Sequence[Turn]) -> None:
        """Process the model's turns, then run the calls of all rows, those of one tool in one batch."""
        asked: list[PendingCall] = []
        for turn in turns:
            row = self.rows[turn.key if turn.key >= 0 else ~turn.key]
            if turn.key < 0:
                self.model.close(turn.key)
            asked += self._continue(row, self.environment.take(row, turn))
        self._run_calls(asked)

    def _run_calls(self, asked: Sequence[PendingCall]) -> None:
        """Run calls, those of one tool in one batch, and show the results. The thread runs tools that overlap."""
        batches: dict[Tool, list[PendingCall]] = {}
        for one in asked:
            batches.setdefault(one.tool, []).append(one)
        for tool, batch in sorted(batches.items(), key=lambda each: each[0].settings.overlaps):
            if self.calls is not None and tool.settings.overlaps:
                self.calls.submit(tool, batch)
            elif self.thread is None or not tool.settings.overlaps:
                self._show_results(batch, self.environment.run_tool(batch))
            else:
                self.running.append((batch, self.thread.submit(self.environment.run_tool, batch)))

    def _show_results(self, calls: Sequence[PendingCall], ran: TimedResults) -> None:
        """Give each row the result of its call, and run the next call of its turn."""
        asked: list[PendingCall] = []
        for call, (result, took_s) in zip(calls, ran, strict=True):
            asked += self._continue(call.row, self.environment.answer(call, result, took_s))
        self._run_calls(asked)

    def _close(self, row: Episode) -> None:
        self.model.close(row.key)
        if row.noting is not None:
            self.model.close(row.side_key)

    def _finish(self, row: Episode, end: End) -> None:
        self._close(row)
        del self.rows[row.key]
        trajectory = self.environment.finish(row, end, self.model)
        if self.keep:
            self.done[row.key] = trajectory
        if self.on_done:
            self.on_done(trajectory)
