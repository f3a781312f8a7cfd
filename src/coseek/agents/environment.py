"""Environment: responds to the turns of episodes. It never calls a model, so any driver can run its episodes.

Every method advances an episode by one step and returns what the driver does next: let the model write (`Request`), run
a tool call (`PendingCall`), or end the episode (`End`). Only `run_tool` searches. Budgets are enforced here (and in
`agents.branching`): an episode that reaches its budget ends. No segment is ever cut, so the tokens trained on are the
tokens sampled.
"""

import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TypeAlias, cast

from coseek.agents.episode import CallResult, Episode, numbered_documents
from coseek.agents.grammar import Intent
from coseek.agents.limits import Limits
from coseek.agents.prompt_template import PromptTemplate
from coseek.agents.protocol import Protocol
from coseek.agents.search_turns import make_query
from coseek.agents.tag import Action
from coseek.agents.tool import DocumentPage, Result, Tool, ToolCall, ToolContext, ToolFault, ToolRequest, TurnSearches
from coseek.agents.tools.search import arguments_for
from coseek.core.concurrency import concurrency_of
from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import (
    LAST_WORD,
    MISSING,
    PAGE,
    PROMPT,
    RETRY,
    TOOL,
    Author,
    Call,
    Search,
    Segment,
    StopReason,
    Trajectory,
    Visit,
    rank_evidence,
    stop_of_decline,
)
from coseek.models.chat import Names
from coseek.models.model import EpisodeState, Ranking, Request, Tokenizer, Turn, TurnEnd
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import RESPONSE, calls_in, opened_at_end, read_turn, without_reasoning
from coseek.retrieval.retriever import Retriever


@dataclass(frozen=True, slots=True, eq=False)
class PendingCall:
    """A tool call of an episode that is to be run."""

    episode: Episode
    tool: Tool
    request: ToolRequest


@dataclass(frozen=True, slots=True)
class End:
    """How an episode ends."""

    stop: StopReason
    answer: str | None = None
    detail: str = ""


Next: TypeAlias = Request | End
"""The next step after a result. A request with a negative key opens a side context, used for this turn only."""


class Environment:
    """The loop of a protocol over a retriever. One environment serves any number of episodes."""

    def __init__(self, protocol: Protocol, tokenizer: Tokenizer, retriever: Retriever, limits: Limits) -> None:
        protocol.check_tools()
        protocol.check_retriever(retriever.name)
        self.protocol, self.tokenizer, self.limits = protocol, tokenizer, limits
        self.prompt_template = protocol.template
        self.context = ToolContext(retriever, limits, protocol.template, tokenizer)
        self.native_turns = NativeTurns(protocol.template, tokenizer) if protocol.grammar.native_calls else None
        self.last_word = tuple(tokenizer.encode(protocol.file.last_word)) if protocol.file.last_word else ()
        last_turn_tokens = len(self.last_word) + limits.max_turn_tokens if self.last_word else 0
        self._reserved_tokens = min(last_turn_tokens, limits.max_tokens // 2)

    # --- an episode's steps

    def reset(self, episode: Episode) -> Next | PendingCall:
        """Show an episode its prompt. A protocol that opens with a search first searches the question."""
        ids, _ = self.prompt_template.prompt_ids(self.tokenizer, episode.question, self.protocol.file.opens_with_search)
        episode.add(Segment(Author.ENVIRONMENT, PROMPT, self.tokenizer.decode(ids), ids))
        if not self.protocol.file.opens_with_search:
            return self._ask(episode)
        arguments = arguments_for([episode.question.searched])
        return self._pending_call(episode, ToolCall(self.protocol.grammar.search, arguments))

    def step(self, episode: Episode, turn: Turn) -> Next | PendingCall:
        """Process what the model wrote for the episode's latest request."""
        turn = checked_turn(turn)
        if turn.key < 0:
            return self._take_notes(episode, turn)
        message = self.native_turns.read(turn.ids) if self.native_turns is not None and turn.ids else None
        text = self.tokenizer.decode(turn.ids)
        segment = Segment(Author.AGENT, "", text, turn.ids, turn.logprobs, turn.version, message)
        intent = self.protocol.grammar.intent_of(self.protocol.grammar.read(segment))
        episode.exact = episode.exact and turn.exact
        episode.add_cost(turn.cost_usd)
        if turn.ids:
            episode.add(replace(segment, tag=intent.span.tag if intent.span else ""))
        if turn.end is TurnEnd.FAULT:
            return End(StopReason.MODEL_ERROR, detail=turn.fault)
        episode.select(intent.selected)
        if self.native_turns is not None and turn.end is TurnEnd.LENGTH and intent.call is None:
            return self._refuse(episode, Intent(), turn)  # a text that the limit cut is not an answer
        if intent.action is Action.ANSWER and intent.span is not None:
            if self.protocol.grammar.is_decline(intent.span):
                stop, detail = stop_of_decline(episode.searches)
                return End(stop, detail=detail)
            return End(StopReason.ANSWERED, answer=intent.span.text.strip())
        if intent.action is Action.COMPLETE:
            return End(StopReason.COMPLETE)
        if episode.limit is not None:
            return End(episode.limit[0], detail=episode.limit[1])
        shows_problem = self.native_turns is not None and self.protocol.file.retries and bool(intent.calls)
        if intent.call is None and not shows_problem:
            return self._refuse(episode, intent, turn)
        if episode.turns >= self.limits.max_turns:
            return self.at_limit(episode, End(StopReason.TURN_LIMIT))
        calls = [self._checked_call(episode, intent, index) for index in range(len(intent.calls))]
        if isinstance(calls[0], str) and not shows_problem:
            return self._refuse(episode, intent, turn, calls[0])
        episode.turns += 1
        episode.waiting = calls
        return self._next_call(episode)

    def observe(self, call: PendingCall, result: Result, took_s: float) -> Next | PendingCall:
        """Show an episode the result of its call. `took_s` counts as retrieval time if the call searched."""
        if isinstance(result, TurnSearches):
            call.episode.retriever_s += took_s
            return self._show_searches(call.episode, result)
        return self._show_result(call, result)

    def resume(self, episode: Episode, results: TurnSearches) -> Next:
        """Show the results of all searches of a stored turn, and run its other calls."""
        queries, searches = iter(results.queries), iter(results.searches)
        if self.native_turns is None:  # the turn has one call
            step = self._show_searches(episode, results)
        else:
            intent = self.protocol.grammar.intent_of(self.protocol.grammar.read(episode.segments[-1]))
            episode.waiting = [self._checked_call(episode, intent, index) for index in range(len(intent.calls))]
            step = self._next_call(episode)
        while isinstance(step, PendingCall):
            if step.tool is self.protocol.grammar.search:
                count = len(cast(list[str], step.request.arguments["queries"]))
                call_results = TurnSearches(tuple(islice(queries, count)), tuple(islice(searches, count)))
                step = self._show_searches(episode, call_results)
            else:
                step = self.observe(step, *self.run_tool([step])[0])
        return step

    def room(self, episode: Episode) -> int:
        """Tokens that an episode may have, without those reserved for a final turn that is still to come."""
        return self.limits.max_tokens - (self._reserved_tokens if episode.limit is None else 0)

    def at_limit(self, episode: Episode, end: End) -> Next:
        """End an episode that reached a limit, or ask the agent once for its final turn instead of showing the results
        of its calls."""
        if not self.last_word or episode.limit is not None:
            return end if episode.limit is None else End(episode.limit[0], detail=episode.limit[1])
        episode.limit = end.stop, end.detail
        episode.waiting.clear()
        call_count = len(calls_in(episode.segments[-1].message or {})) if self.native_turns is not None else 1
        episode.shown = [CallResult(LAST_WORD, self.last_word)] * max(1, call_count)
        no_room = self._insert(episode)
        return self._ask(episode) if no_room is None else End(end.stop, detail=end.detail)

    def _show_searches(self, episode: Episode, results: TurnSearches) -> Next | PendingCall:
        """Show the results of one call's searches. A failed query is shown as failed; if all fail, the run ends."""
        if all(search.fault is not None for search in results.searches):
            return self._fail(episode, results, End(StopReason.RETRIEVER_ERROR, detail=results.searches[0].fault or ""))
        if self.protocol.file.ends_after_search:
            episode.record(results)
            return End(StopReason.COMPLETE)
        if self.protocol.file.reason_in_documents and any(search.hits for search in results.searches):
            return self._ask_for_notes(episode, results)
        earlier_searches = episode.turn_searches
        results = replace(results, before=len(numbered_documents([*episode.searches, *earlier_searches])))
        ids = self.protocol.grammar.search.render(_without_repeats(results, earlier_searches), self.context)
        assert not isinstance(ids, ToolFault)
        return self._show(episode, self.protocol.grammar.observation, ids, results)

    def finish(self, episode: Episode, end: End, model: object) -> Trajectory:
        """Build the trajectory of an episode that ended. `model` ranks its passages if it is a `Ranking`."""
        format_error = self.protocol.grammar.format_error(self.protocol.grammar.spans(episode.segments))
        ranking = model.evidence(episode.so_far) if isinstance(model, Ranking) else None
        return Trajectory(
            question=episode.question,
            protocol=self.protocol.name,
            segments=tuple(episode.segments),
            searches=tuple(episode.searches),
            stop=end.stop,
            answer=end.answer,
            valid=not format_error,
            format_error=format_error,
            stop_detail=end.detail,
            selected_ids=episode.selected_ids,
            side_contexts=tuple(episode.side_contexts),
            seed=episode.seed,
            timings={"wall_s": time.perf_counter() - episode.began, "retriever_s": episode.retriever_s},
            exact=episode.exact,
            cost_usd=episode.cost_usd or None,
            calls=tuple(episode.calls),
            evidence=rank_evidence(
                episode.searches, episode.selected_ids if ranking is None else ranking, episode.visits
            ),
            visits=tuple(episode.visits),
        )

    # --- tools

    def run_tool(self, calls: Sequence[PendingCall]) -> list[tuple[Result, float]]:
        """Run calls of one tool in one batch. Returns each result with its seconds: the time of a batch of searches is
        divided in proportion to their queries."""
        began = time.perf_counter()
        results = calls[0].tool.run([call.request for call in calls], self.context)
        took_s = time.perf_counter() - began
        counts = [len(result.searches) if isinstance(result, TurnSearches) else 0 for result in results]
        return [(result, took_s * count / max(1, sum(counts))) for result, count in zip(results, counts, strict=True)]

    def max_parallel_calls(self, tool: Tool) -> int:
        """Number of calls of a tool that may run at the same time."""
        return concurrency_of(self.context.retriever) if tool is self.protocol.grammar.search else 1

    # --- within a step

    def _checked_call(self, episode: Episode, intent: Intent, index: int) -> ToolCall | str:
        """A call of the latest turn, or why it cannot be carried out."""
        call, grammar = intent.calls[index].call, self.protocol.grammar
        if call is None:
            return intent.calls[index].problem or "an empty query"
        if (max_calls := call.tool.settings.max_calls) is None:
            return call
        turns = [segment for segment in episode.segments if segment.author is Author.AGENT][:-1]
        earlier_actions = chain(*(grammar.intent_of(grammar.read(turn)).calls for turn in turns), intent.calls[:index])
        count = sum(action.call is not None and action.call.tool is call.tool for action in earlier_actions)
        return f"{call.tool.name!r} may be called {max_calls} times in one run" if count >= max_calls else call

    def _next_call(self, episode: Episode) -> Next | PendingCall:
        """Return the turn's next call, or show why it cannot be run."""
        call = episode.waiting.pop(0)
        if isinstance(call, str):
            return self._show(episode, RETRY, self.prompt_template.retry_ids(self.tokenizer, call))
        return self._pending_call(episode, call)

    def _pending_call(self, episode: Episode, call: ToolCall) -> PendingCall:
        last_segment = episode.segments[-1] if episode.written else None
        query = make_query(episode.question, episode.history, "", last_segment, self.protocol.grammar)
        searches, visits = tuple(episode.searches), tuple(episode.visits)
        request = ToolRequest(call.arguments, episode.written, query, searches, call.fault, visits)
        return PendingCall(episode, call.tool, request)

    def _ask(self, episode: Episode) -> Next:
        """Let the model write, or end the episode if its budget is used up."""
        tokens_left = self.room(episode) - episode.tokens
        if tokens_left < 1:
            detail = f"the prompt alone holds {episode.tokens} tokens"
            return self.at_limit(episode, End(StopReason.TOKEN_LIMIT, detail=detail))
        ids, episode.pending_ids = episode.pending_ids, ()
        return Request(episode.key, ids, min(tokens_left, self.limits.max_turn_tokens), episode.seed, episode.so_far)

    def _refuse(self, episode: Episode, intent: Intent, turn: Turn, problem: str = "") -> Next:
        """Respond to a turn without a valid action: ask for a retry, or end the episode."""
        if turn.end is TurnEnd.LENGTH and intent.span is None:
            detail = f"a turn of {len(turn.ids)} tokens without an action"
            return self.at_limit(episode, End(StopReason.TOKEN_LIMIT, detail=detail))
        default_problem = "a turn without an action" if intent.span is None else "an empty query"
        problem = problem or intent.problem or default_problem
        if not self.protocol.file.retries:
            return End(StopReason.INVALID, detail=problem)
        if episode.turns >= self.limits.max_turns:
            return self.at_limit(episode, End(StopReason.TURN_LIMIT))
        episode.turns += 1
        return self._show_turn(episode, CallResult(RETRY, self.prompt_template.retry_ids(self.tokenizer, problem)))

    def _show(
        self, episode: Episode, tag: str, ids: tuple[int, ...], outcome: TurnSearches | Call | Visit | None = None
    ) -> Next | PendingCall:
        """Collect the results of a turn's calls, and show them after the last one."""
        result = CallResult(tag, ids, outcome)
        if not episode.waiting:
            return self._show_turn(episode, result)
        episode.shown.append(result)
        return self._next_call(episode)

    def _show_turn(self, episode: Episode, result: CallResult) -> Next:
        """Show the results of a turn, `result` last, and let the model write."""
        episode.shown.append(result)
        end = self._insert(episode)
        if end is not None and end.stop is StopReason.TOKEN_LIMIT:
            return self.at_limit(episode, end)
        return end or self._ask(episode)

    def _insert(self, episode: Episode) -> End | None:
        """Insert the results of a turn as environment segments and record what they show, or end the episode."""
        results, episode.shown = episode.shown, []
        framed = [result.ids for result in results]
        if self.native_turns is not None:
            try:
                framed = self.native_turns.frame(episode, framed)
            except DataError as error:
                return End(StopReason.MODEL_ERROR, detail=str(error))
        elif self.protocol.file.opens_with_search and not episode.written:
            framed[-1] += self.prompt_template.prompt_ids(self.tokenizer, episode.question, goes_on=True)[1]
        size = sum(map(len, framed))
        if episode.tokens + size >= self.room(episode):
            # Not recorded: a reward must not pay for passages that the agent never read.
            return End(StopReason.TOKEN_LIMIT, detail=f"no room for an observation of {size} tokens")
        for result, ids in zip(results, framed, strict=True):
            episode.record(result.outcome)
            episode.add(Segment(Author.ENVIRONMENT, result.tag, self.tokenizer.decode(ids), ids))
        return None

    def _fail(self, episode: Episode, failed: TurnSearches | Call, end: End) -> End:
        """End an episode with a fault, after showing the results of the turn's earlier calls."""
        episode.waiting.clear()
        if episode.shown and (no_room := self._insert(episode)) is not None:
            return no_room
        episode.record(failed)
        return end

    def _show_result(self, call: PendingCall, result: "DocumentPage | ToolFault | Json") -> Next | PendingCall:
        """Show the result of a tool other than search. A fault is not shown: it is recorded and ends the episode."""
        episode, tool, request = call.episode, call.tool, call.request
        ids = result if isinstance(result, ToolFault) else tool.render(result, self.context)
        if isinstance(ids, ToolFault):
            failed = Call(request.turn, tool.name, request.arguments, fault=ids.message)
            return self._fail(episode, failed, End(StopReason.TOOL_ERROR, detail=ids.message))
        if isinstance(result, DocumentPage):
            # A page that does not exist is a mistake of the agent, not a fault: it is counted, and the run continues.
            absent = replace(result, passage=None, document=())
            exists = ids != self.prompt_template.page_ids(self.tokenizer, absent, self.limits.max_observation_tokens)
            visit = Visit(request.turn, result.ident, result.document) if result.document else None
            return self._show(episode, PAGE if exists else MISSING, ids, visit)
        return self._show(episode, TOOL, ids, Call(request.turn, tool.name, request.arguments, cast(Json, result)))

    def _ask_for_notes(self, episode: Episode, results: TurnSearches) -> Next:
        """Ask the model for notes on search results in a side context (Search-o1's reason-in-documents)."""
        question, reasoning = episode.question.question, results.queries[0].reasoning
        ids = self.prompt_template.notes_prompt_ids(self.tokenizer, question, reasoning, results.searches, self.limits)
        tokens_left = self.limits.max_tokens - len(ids)
        if tokens_left < 1:
            return End(StopReason.TOKEN_LIMIT, detail=f"a prompt for notes of {len(ids)} tokens")
        episode.awaiting_notes = results
        episode.side_contexts.append((Segment(Author.ENVIRONMENT, PROMPT, self.tokenizer.decode(ids), ids),))
        so_far = EpisodeState(episode.question, tuple(episode.searches), side_searches=results.searches)
        return Request(episode.side_key, ids, min(tokens_left, self.limits.max_turn_tokens), episode.side_seed, so_far)

    def _take_notes(self, episode: Episode, turn: Turn) -> Next:
        """Insert the model's notes as an environment segment, which is not trained on."""
        results, episode.awaiting_notes = episode.awaiting_notes, None
        episode.add_cost(turn.cost_usd)
        if turn.ids:
            text = self.tokenizer.decode(turn.ids)
            episode.side_contexts[-1] += (Segment(Author.AGENT, "", text, turn.ids, turn.logprobs, turn.version),)
        if turn.end is TurnEnd.FAULT:
            return End(StopReason.MODEL_ERROR, detail=turn.fault)
        ids = turn.ids[:-1] if turn.ids[-1:] == (self.tokenizer.eos_id,) else turn.ids
        notes = without_reasoning(opened_at_end(episode.side_contexts[-1][0].text) + self.tokenizer.decode(ids)).strip()
        if turn.end is TurnEnd.LENGTH and not notes:
            return End(StopReason.TOKEN_LIMIT, detail=f"no notes in {len(turn.ids)} tokens; raise max_turn_tokens")
        shown_ids = self.prompt_template.notes_ids(self.tokenizer, notes, self.limits.max_observation_tokens)
        return self._show_turn(episode, CallResult(self.protocol.grammar.observation, shown_ids, results))


def _without_repeats(results: TurnSearches, earlier_searches: Sequence[Search]) -> TurnSearches:
    """The searches of a call without the passages that earlier calls of its turn found."""
    repeated_ids = {hit.passage.id for search in earlier_searches for hit in search.hits}
    searches = (
        replace(search, hits=tuple(hit for hit in search.hits if hit.passage.id not in repeated_ids))
        for search in results.searches
    )
    return replace(results, searches=tuple(searches)) if repeated_ids else results


_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


class NativeTurns:
    """Reads turns with native calls and frames their results."""

    def __init__(self, template: PromptTemplate, tokenizer: Tokenizer) -> None:
        """Raises `SettingError` if the chat template does not support tools."""
        self.template, self.tokenizer = template, tokenizer
        self.chat = template.tool_chat(tokenizer)
        if self.chat is not None:
            self.chat.check()

    def read(self, ids: tuple[int, ...]) -> JsonObject:
        """Parse the assistant's message of a turn."""
        if self.chat is not None:
            return self.chat.read(ids)
        ids = ids[:-1] if ids[-1] == self.tokenizer.eos_id else ids
        text = self.tokenizer.decode(ids).removesuffix(RESPONSE[0])  # a stop string
        return read_turn(text, tools=self.template.grammar.schemas)

    def frame(self, episode: Episode, results: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Frame results of the latest turn's calls, so that they continue the episode's text. Raises `DataError` if the
        template cannot append them."""
        written_segments = [segment for segment in episode.segments if segment.author is Author.AGENT]
        names = [self._names(segment.message or {}) for segment in written_segments]
        if self.chat is None:
            has_calls = bool(names and names[-1])
            text = episode.segments[-1].text
            return [self._frame_plain(result, has_calls, "" if index else text) for index, result in enumerate(results)]
        assert isinstance(self.tokenizer, HfTokenizer)
        end = self.chat.end_of(written_segments[-1].ids) if written_segments else ""
        frame = self.chat.frame(self.template.roles(episode.question), names or [()], end)
        return frame.fill([self.tokenizer.decode(result) for result in results], self.tokenizer)

    def _names(self, message: JsonObject) -> Names:
        """The tools that a turn called. A template writes these names, so the name of an unknown tool must not hold
        marks."""
        return tuple(_NOT_IN_NAMES.sub("_", call.name)[:64] or "unknown" for call in calls_in(message))

    def _frame_plain(self, result: tuple[int, ...], has_calls: bool, text: str) -> tuple[int, ...]:
        """Frame a result in the protocol's marks. The `text` before it may already end with the opening mark."""
        tag = self.template.grammar.by_name[self.template.grammar.observation]
        before, after = (f"\n{tag.opening}", f"{tag.closing}\n") if has_calls else ("\n", "\n")
        if has_calls and text.endswith(tag.opening):
            before = ""
        return (*self.tokenizer.encode(before), *result, *self.tokenizer.encode(after))


def checked_turn(turn: Turn) -> Turn:
    """Return the turn, or a model fault if one of its numbers is not finite."""
    if all(map(math.isfinite, turn.logprobs)) and math.isfinite(turn.cost_usd or 0.0):
        return turn
    return Turn(turn.key, (), (), TurnEnd.FAULT, "the model gave a log-probability or a cost that is no finite number")
