"""Rollout: run an agent over many questions in batches. Budgets are enforced here (and in `agents.branching`).

An episode that reaches its budget ends; no segment is ever cut, so the tokens trained on are the tokens sampled.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from coseek.agents.episode import Episode
from coseek.agents.grammar import Action, Intent
from coseek.agents.limits import Limits as Limits
from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import make_query
from coseek.agents.tool import (
    DocumentPage,
    Result,
    Tool,
    ToolCall,
    ToolContext,
    ToolFault,
    ToolRequest,
    TurnSearches,
)
from coseek.agents.tool_threads import ToolThreads
from coseek.agents.tools.search import arguments_for
from coseek.agents.unwritable import checked_turn
from coseek.core.concurrency import concurrency_of
from coseek.core.errors import RunError
from coseek.core.files import Json
from coseek.data.evidence import ranked
from coseek.data.identities import Identities
from coseek.data.question import Question
from coseek.data.trajectory import MISSING, PAGE, PROMPT, RETRY, TOOL, Author, Call, Segment, StopReason, Trajectory
from coseek.models.model import EpisodeState, ForkableModel, Model, Ranking, Request, ServedModel, Turn, TurnEnd
from coseek.retrieval.retriever import Retriever


@dataclass(frozen=True)
class Agent:
    """A model with the protocol that it follows."""

    protocol: Protocol
    model: Model
    identities: Identities = field(default_factory=dict)
    """What the model's turns depend on besides its input, as far as known: digests of its weights (`agent`) and
    tokenizer, and the sampling settings. A run folder records them."""


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
    agent.protocol.check_retriever(retriever.name)
    if isinstance(agent.model, ForkableModel):  # a waiting row could keep an open one from its second context
        concurrency = min(concurrency, agent.model.max_rows)
    if agent.protocol.reason_in_documents:  # each episode may need a second context at any time
        concurrency = max(1, concurrency // 2)
    with ThreadPoolExecutor(1, thread_name_prefix="coseek-search") if overlap else nullcontext() as thread:
        return Driver(agent, retriever, limits, on_done, thread, keep).run(questions, seeds, concurrency)


Asking: TypeAlias = tuple[Episode, Tool, ToolRequest]
"""An episode and the call that one turn of it made."""
Ran: TypeAlias = tuple[list[Result], float]
"""The results of a batch of calls, and the seconds it took."""


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
        agent.protocol.check_tools()
        self.protocol, self.model = agent.protocol, agent.model
        self.tokenizer = agent.model.tokenizer
        self.prompt_template = agent.protocol.template
        self.limits, self.on_done, self.keep = limits, on_done, keep
        self.context = ToolContext(retriever, limits, agent.protocol.template, agent.model.tokenizer)
        self.thread = thread
        self.sought: list[tuple[Sequence[Asking], Future[Ran]]] = []
        """Batches of calls that the thread is running."""
        self.served = agent.model if isinstance(agent.model, ServedModel) else None
        self.calls: ToolThreads[Asking, Ran] | None = None
        """Runs calls while a served model writes."""
        if self.served is not None:
            searches = concurrency_of(retriever)
            search = agent.protocol.grammar.search
            self.calls = ToolThreads(
                lambda tool, asked: self._timed(tool, [request for _, _, request in asked]),
                lambda tool: searches if tool is search else 1,
                self.served.wake,
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
            while fill() or self._under_way():
                if self._under_way():
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
        sought, self.sought = self.sought, []
        turns = self.model.step()
        if not turns and not sought:
            raise RunError(f"the model has {len(self.rows)} rows to write and wrote none of them")
        self._advance(turns)
        for asked, ran in sought:
            self._hand_out(asked, *ran.result())

    def _served_step(self, served: ServedModel, calls: "ToolThreads[Asking, Ran]") -> None:
        """Wait for a turn or for the result of a call, whichever comes first."""
        all_search = calls.open_calls == len(self.rows)
        self._advance([] if all_search else served.step())
        for asked, ran in calls.take(block=all_search):
            self._hand_out(asked, *ran)

    def _under_way(self) -> bool:
        return bool(self.rows)

    def _open(self, started: Sequence[tuple[int, tuple[Question, int]]]) -> None:
        """Open rows with their prompts, and with a search of the question where the protocol opens with one."""
        opened: list[Episode] = []
        for key, (question, seed) in started:
            row = self.rows[key] = Episode(key, question, seed, time.perf_counter())
            ids, tail = self.prompt_template.prompt_ids(self.tokenizer, question)
            ids += () if self.protocol.opens_with_search else tail
            row.add(Segment(Author.ENVIRONMENT, PROMPT, self.tokenizer.decode(ids), ids))
            opened.append(row)
        if self.protocol.opens_with_search:
            calls = [ToolCall(self.protocol.grammar.search, arguments_for([row.question.question])) for row in opened]
            self._carry_out([self._asking(row, call, "") for row, call in zip(opened, calls, strict=True)])
        else:
            for row in opened:
                self._ask(row)

    def _ask(self, row: Episode) -> None:
        """Send the row to the model, or end it when its budget is spent."""
        left = self.limits.max_tokens - row.tokens
        if left < 1:
            self._finish(row, StopReason.TOKEN_LIMIT, detail=f"the prompt alone holds {row.tokens} tokens")
            return
        request = Request(row.key, row.unsent, min(left, self.limits.max_turn_tokens), row.seed, row.so_far)
        self._hand(row, request)
        row.started, row.unsent = True, ()

    def _hand(self, row: Episode, request: Request) -> None:
        if row.started:
            self.model.extend(request)
        else:
            self.model.start(request)

    def _advance(self, turns: Sequence[Turn]) -> None:
        """Process the model's turns, then run the calls of all rows, those of one tool in one batch."""
        asked: list[Asking] = []
        for turn in turns:
            if turn.key < 0:
                self._take_notes(self.rows[~turn.key], turn)
            else:
                asked += self._take(self.rows[turn.key], turn)
        self._carry_out(asked)

    def _take(self, row: Episode, turn: Turn) -> list[Asking]:
        """Process one turn. Its tool call, if it makes one, is returned."""
        turn = checked_turn(turn)
        text = self.tokenizer.decode(turn.ids)
        intent = self.protocol.grammar.intent(text)
        row.exact = row.exact and turn.exact
        row.pay(turn.cost_usd)
        if turn.ids:
            tag = intent.span.tag if intent.span else ""
            row.add(Segment(Author.AGENT, tag, text, turn.ids, turn.logprobs))
        if turn.end is TurnEnd.FAULT:
            self._finish(row, StopReason.MODEL_ERROR, detail=turn.fault)
            return []
        row.select(intent.selected)
        if intent.action is Action.ANSWER and intent.span is not None:
            self._finish(row, StopReason.ANSWERED, answer=intent.span.text.strip())
        elif intent.action is Action.COMPLETE:
            self._finish(row, StopReason.COMPLETE)
        elif intent.call is None:
            self._refuse(row, intent, turn)
        elif row.turns >= self.limits.max_turns:
            self._finish(row, StopReason.TURN_LIMIT)
        elif problem := self._over_limit(row, intent.call.tool):
            self._refuse(row, replace(intent, problem=problem), turn)
        else:
            row.turns += 1
            return [self._asking(row, intent.call, text)]
        return []

    def _over_limit(self, row: Episode, tool: Tool) -> str:
        """Why the latest turn may not call this tool, or ""."""
        most = tool.settings.max_calls
        if most is None:
            return ""
        turns = [segment.text for segment in row.segments if segment.author is Author.AGENT][:-1]
        calls = (self.protocol.grammar.intent(text).call for text in turns)
        made = sum(call is not None and call.tool is tool for call in calls)
        return f"{tool.name!r} may be called {most} times in one run" if made >= most else ""

    def _asking(self, row: Episode, call: ToolCall, written: str) -> Asking:
        query = make_query(row.question, row.history, "", written, self.protocol.grammar)
        return row, call.tool, ToolRequest(call.arguments, row.written, query, tuple(row.searches), call.fault)

    def _refuse(self, row: Episode, intent: Intent, turn: Turn) -> None:
        """Answer a turn without a valid action: ask for a retry, or end the episode."""
        if turn.end is TurnEnd.LENGTH and intent.span is None:
            self._finish(row, StopReason.TOKEN_LIMIT, detail=f"a turn of {len(turn.ids)} tokens without an action")
            return
        problem = intent.problem or ("a turn without an action" if intent.span is None else "an empty query")
        if not self.protocol.retries:
            self._finish(row, StopReason.INVALID, detail=problem)
        elif row.turns >= self.limits.max_turns:
            self._finish(row, StopReason.TURN_LIMIT)
        else:
            row.turns += 1
            self._show(row, RETRY, self.prompt_template.retry_ids(self.tokenizer, problem))

    def _show(self, row: Episode, tag: str, ids: tuple[int, ...], found: TurnSearches | Call | None = None) -> None:
        """Insert an environment segment, record the searches or the call it answers, and continue the episode."""
        if self.protocol.opens_with_search and not row.written:
            ids += self.prompt_template.prompt_ids(self.tokenizer, row.question)[1]
        if row.tokens + len(ids) >= self.limits.max_tokens:
            # Not recorded: a reward must not pay for what the agent never read.
            self._finish(row, StopReason.TOKEN_LIMIT, detail=f"no room for an observation of {len(ids)} tokens")
            return
        if isinstance(found, Call):
            row.calls.append(found)
        elif found is not None:
            row.keep(found)
        row.add(Segment(Author.ENVIRONMENT, tag, self.tokenizer.decode(ids), ids))
        self._ask(row)

    def _carry_out(self, asked: Sequence[Asking]) -> None:
        """Run calls, those of one tool in one batch, and show the results. The thread runs tools that overlap."""
        batches: dict[Tool, list[Asking]] = {}
        for one in asked:
            batches.setdefault(one[1], []).append(one)
        for tool, batch in sorted(batches.items(), key=lambda each: each[0].settings.overlaps):
            requests = [request for _, _, request in batch]
            if self.calls is not None and tool.settings.overlaps:
                self.calls.submit(tool, batch)
            elif self.thread is None or not tool.settings.overlaps:
                self._hand_out(batch, *self._timed(tool, requests))
            else:
                self.sought.append((batch, self.thread.submit(self._timed, tool, requests)))

    def _timed(self, tool: Tool, requests: Sequence[ToolRequest]) -> Ran:
        began = time.perf_counter()
        return tool.run(requests, self.context), time.perf_counter() - began

    def _hand_out(self, asked: Sequence[Asking], results: Sequence[Result], took_s: float) -> None:
        """Give each row the result of its call. Retrieval time is shared in proportion to queries."""
        queries = sum(len(result.searches) for result in results if isinstance(result, TurnSearches))
        for (row, tool, request), result in zip(asked, results, strict=True):
            if isinstance(result, TurnSearches):
                row.retriever_s += took_s * len(result.searches) / queries
                self._answer(row, result)
            else:
                self._show_result(row, tool, request, result)

    def _show_result(
        self, row: Episode, tool: Tool, request: ToolRequest, result: "DocumentPage | ToolFault | Json"
    ) -> None:
        """Show a result other than searches. A fault is recorded, not shown, and ends the episode."""
        shown = result if isinstance(result, ToolFault) else tool.render(result, self.context)
        if isinstance(shown, ToolFault):
            row.calls.append(Call(request.turn, tool.name, request.arguments, fault=shown.message))
            self._finish(row, StopReason.TOOL_ERROR, detail=shown.message)
        elif isinstance(result, DocumentPage):
            # The agent's mistake and no fault of a part: it is counted, and the run goes on.
            there = self.prompt_template.has_page(self.tokenizer, result.hit, result.page, self.limits)
            self._show(row, PAGE if there else MISSING, shown)
        else:
            self._show(row, TOOL, shown, Call(request.turn, tool.name, request.arguments, cast(Json, result)))

    def _answer(self, row: Episode, found: TurnSearches) -> None:
        """Show the results of one turn's searches. A failed query is shown as failed; when all fail, the run ends."""
        if all(search.fault is not None for search in found.searches):
            row.keep(found)
            self._finish(row, StopReason.RETRIEVER_ERROR, detail=found.searches[0].fault or "")
        elif self.protocol.ends_after_search:
            row.keep(found)
            self._finish(row, StopReason.COMPLETE)
        elif self.protocol.reason_in_documents and any(search.hits for search in found.searches):
            self._ask_for_notes(row, found)
        else:
            shown = self.protocol.grammar.search.render(found, self.context)
            assert not isinstance(shown, ToolFault)
            self._show(row, self.protocol.observation_tag, shown, found)

    def _ask_for_notes(self, row: Episode, found: TurnSearches) -> None:
        """Ask the model for notes on search results in a side context (Search-o1's reason-in-documents)."""
        asked, size = found.queries[0], self.limits.max_observation_tokens
        ids = self.prompt_template.notes_prompt_ids(
            self.tokenizer, row.question.question, asked.reasoning, found.searches, size
        )
        left = self.limits.max_tokens - len(ids)
        if left < 1:
            self._finish(row, StopReason.TOKEN_LIMIT, detail=f"a prompt for notes of {len(ids)} tokens")
            return
        row.noting = found
        row.side_contexts.append((Segment(Author.ENVIRONMENT, PROMPT, self.tokenizer.decode(ids), ids),))
        so_far = EpisodeState(row.question, tuple(row.searches), side_searches=found.searches)
        most = min(left, self.limits.max_turn_tokens)
        self.model.start(Request(row.side_key, ids, most, row.side_seed, so_far))

    def _take_notes(self, row: Episode, turn: Turn) -> None:
        """Insert the model's notes as an environment segment, which is not trained on."""
        turn = checked_turn(turn)
        found, row.noting = row.noting, None
        self.model.close(turn.key)
        row.pay(turn.cost_usd)
        if turn.ids:
            segment = Segment(Author.AGENT, "", self.tokenizer.decode(turn.ids), turn.ids, turn.logprobs)
            row.side_contexts[-1] += (segment,)
        if turn.end is TurnEnd.FAULT:
            self._finish(row, StopReason.MODEL_ERROR, detail=turn.fault)
            return
        ids = turn.ids[:-1] if turn.ids[-1:] == (self.tokenizer.eos_id,) else turn.ids
        notes = self.tokenizer.decode(ids).strip()
        shown = self.prompt_template.notes_ids(self.tokenizer, notes, self.limits.max_observation_tokens)
        self._show(row, self.protocol.observation_tag, shown, found)

    def _close(self, row: Episode) -> None:
        self.model.close(row.key)
        if row.noting is not None:
            self.model.close(row.side_key)

    def _evidence(self, row: Episode) -> tuple[str, ...]:
        """Ids of the passages found, best first: the agent's own ranking, else the default one."""
        own = self.model.evidence(row.so_far) if isinstance(self.model, Ranking) else None
        return ranked(row.searches, row.selected_ids if own is None else own)

    def _finish(self, row: Episode, stop: StopReason, answer: str | None = None, detail: str = "") -> None:
        self._close(row)
        del self.rows[row.key]
        format_error = self.protocol.grammar.format_error(self.protocol.grammar.spans(row.segments))
        trajectory = Trajectory(
            question=row.question,
            protocol=self.protocol.name,
            segments=tuple(row.segments),
            searches=tuple(row.searches),
            stop=stop,
            answer=answer,
            valid=not format_error,
            format_error=format_error,
            stop_detail=detail,
            selected_ids=row.selected_ids,
            side_contexts=tuple(row.side_contexts),
            seed=row.seed,
            timings={"wall_s": time.perf_counter() - row.began, "retriever_s": row.retriever_s},
            exact=row.exact,
            cost_usd=row.cost_usd or None,
            calls=tuple(row.calls),
            evidence=self._evidence(row),
        )
        if self.keep:
            self.done[row.key] = trajectory
        if self.on_done:
            self.on_done(trajectory)
