"""Scripted agent: an agent without a model. It receives the searches and calls so far and returns the next move.

Demonstrators and rule-based agents are scripted agents. The protocol writes the move as text and the tokenizer encodes
it, so a scripted agent's trajectory is an ordinary trajectory. The grammar's order determines the tags of a move: a
thought goes into the thinking tags between the run's state and the search, call or answer. If there are several
(QAgent's reflection and plan), its last sentence goes into the last tag.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol as Interface, cast, runtime_checkable

from coseek.agents.episode import latest_block, shown_documents
from coseek.agents.grammar import END, FALSE, START, TRUE, Grammar, as_json
from coseek.agents.protocol import Protocol
from coseek.agents.tag import NOT_FOUND, Action, QueryFormat, Tag, says_one_of
from coseek.agents.tools.search import SearchSettings
from coseek.core.files import Json, JsonObject
from coseek.data.trajectory import Author, Search
from coseek.models.model import EpisodeState, Request, Tokenizer, Turn, TurnEnd
from coseek.models.written import ToolCallText, closing_of


@dataclass(frozen=True, slots=True)
class Move:
    """What an agent does in one turn: think, then search, call a tool, or answer."""

    thought: str
    queries: tuple[str, ...] = ()
    answer: str | None = None
    """`NOT_FOUND` declines; it is written in the words of the protocol."""
    call: tuple[str, JsonObject] | None = None
    """The name of a tool of the protocol, and its arguments."""
    selected: tuple[str, ...] | None = None
    """Ids of the passages of the latest block to select, in protocols with selections. `None` makes no selection, which
    keeps all passages."""

    def __post_init__(self) -> None:
        if bool(self.queries) + (self.answer is not None) + (self.call is not None) != 1:
            raise ValueError("a move either searches, calls a tool or answers")


class ScriptedAgent(Interface):
    """Returns moves, one per turn."""

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return the next move. `rng` is seeded by row and turn, so a resumed run writes the same."""
        ...


@runtime_checkable
class Ranks(Interface):
    """A scripted agent that ranks its evidence."""

    def evidence(self, question: str, searches: Sequence[Search]) -> Sequence[str]:
        """Return the ids of all passages found, best first."""
        ...


@runtime_checkable
class CanConclude(Interface):
    """A scripted agent that can answer at any time, as protocols without searches need."""

    def conclude(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return a move with an answer."""
        ...


_END = 64
"""Number of tokens before a turn in which the prompt may open reasoning; each holds at least one byte of the mark."""


class ScriptedAgentModel:
    """Implements `Model`. The tokenizer is that of the policy that learns from the demonstrations, if any."""

    def __init__(self, agent: ScriptedAgent, protocol: Protocol, tokenizer: Tokenizer) -> None:
        self.agent, self.protocol, self.tokenizer = agent, protocol, tokenizer
        self._waiting: list[Request] = []

    def start(self, request: Request) -> None:
        self._waiting.append(request)

    extend = start

    def step(self) -> list[Turn]:
        turns = [self._write(request) for request in self._waiting]
        self._waiting = []
        return turns

    def _write(self, request: Request) -> Turn:
        ids = self._turn_ids(request)
        end = TurnEnd.STOP if len(ids) <= request.max_tokens else TurnEnd.LENGTH
        ids = ids[: request.max_tokens]
        return Turn(request.key, ids, (0.0,) * len(ids), end)

    def _turn_ids(self, request: Request) -> tuple[int, ...]:
        so_far = request.state
        if so_far.side_searches:
            return note_ids(self.protocol, so_far.side_searches, self.tokenizer)
        suffix = f"/{len(so_far.calls)}" if so_far.calls else ""
        rng = random.Random(f"{request.seed}/{len(so_far.searches)}{suffix}")
        opened = self.protocol.grammar.opened_mark(self.tokenizer.decode(request.ids[-_END:]))
        return move_ids(self.protocol, self._move(request, rng), self.tokenizer, so_far, opened)

    def _move(self, request: Request, rng: random.Random) -> Move:
        may_search = any(tag.action in (Action.SEARCH, Action.TOOL) for tag in self.protocol.grammar.tags)
        if not may_search and isinstance(self.agent, CanConclude):
            return self.agent.conclude(request.state, rng)
        return self.agent.write(request.state, rng)

    def evidence(self, so_far: EpisodeState) -> Sequence[str] | None:
        """Implement `Ranking`: the agent's own order, or `None`."""
        if not isinstance(self.agent, Ranks):
            return None
        return self.agent.evidence(so_far.question.searched, so_far.searches)

    def close(self, key: int) -> None:
        self._waiting = [request for request in self._waiting if request.key != key]


_SENTENCES = re.compile(r"(?<=[.!?])(?=\s)")
"""Matches between two sentences."""


def move_ids(
    protocol: Protocol, move: Move, tokenizer: Tokenizer, so_far: EpisodeState, opened: str = ""
) -> tuple[int, ...]:
    """Token ids of a scripted agent's move in this protocol. Its texts are data, since they may quote passages.
    `opened` is the mark with which the prompt opens reasoning: it is not written again, and it is closed if the move
    has no tag for it."""
    grammar = protocol.grammar
    can_end = any(tag.action in (Action.ANSWER, Action.COMPLETE) for tag in grammar.tags)
    if move.answer is not None and not can_end:  # the protocol only searches, so search the answer
        move = replace(move, queries=(move.answer,), answer=None)
    state = grammar.observation if so_far.searches or so_far.calls else START
    path = _path(grammar, state, move)
    thinking = [tag for tag in path if tag.action is Action.NONE]
    thoughts = iter(_shares(move.thought, len(thinking)))
    ids: list[int] = []
    if grammar.free_text and not thinking:
        ids += tokenizer.encode_data(grammar.escape(move.thought))
    if opened and path and path[0].opening != opened and not grammar.free_text:
        ids += tokenizer.encode(closing_of(opened))
    for index, tag in enumerate(path):
        ids += [] if index == 0 and tag.opening == opened else tokenizer.encode(tag.opening)
        if tag.action is Action.NONE:
            ids += tokenizer.encode_data(grammar.escape(next(thoughts)))
        else:
            ids += _inner_ids(protocol, tag, move, so_far.searches, tokenizer)
        ids += tokenizer.encode(tag.closing)
    return (*ids, tokenizer.eos_id) if grammar.native_calls else tuple(ids)


def note_ids(protocol: Protocol, searches: Sequence[Search], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Token ids of a scripted agent's notes on searches: the best document of each."""
    best = (hit.passage for search in searches for hit in search.hits[:1])
    notes = " ".join(f"{passage.title} : {passage.text}" for passage in best)
    return tuple(tokenizer.encode_data(protocol.grammar.escape(notes)))


def _path(grammar: Grammar, state: str, move: Move) -> list[Tag]:
    """The agent's tags from a state to the search, call, answer or end; one thinking tag and the target if the order
    allows no path."""
    searching = (Action.SEARCH, Action.TOOL) if move.call is None else (Action.TOOL,)
    actions = searching if move.answer is None else (Action.ANSWER,)
    target = next((tag for tag in grammar.tags if tag.action in actions), None)
    paths = list(_paths(grammar, state, target.name if target else END, flag=move.answer is not None, visited=()))
    if not paths:  # such as an answer where a search must come first; the turn is invalid
        thinking = [tag for tag in grammar.tags if tag.author is Author.AGENT and tag.action is Action.NONE]
        return [*thinking[:1], *([target] if target else [])]

    def selects(path: list[Tag]) -> bool:
        return any(tag.action is Action.SELECT for tag in path)

    # Native calls may have no thought; a thought needs its tag.
    size = -1 if grammar.native_calls and move.thought else 1
    return min(paths, key=lambda path: (selects(path) == (move.selected is None), size * len(path)))


def _paths(grammar: Grammar, state: str, target: str, flag: bool, visited: tuple[Tag, ...]) -> Iterator[list[Tag]]:
    """All paths to a tag or to the end through tags of the agent without a call or answer, each used at most once."""
    if target in grammar.order.get(state, ()):
        yield [*visited, *([grammar.by_name[target]] if target != END else [])]
    for tag in grammar.tags:
        ends = tag.action in (Action.SEARCH, Action.TOOL, Action.ANSWER)
        if tag.author is Author.AGENT and not ends and tag.name in grammar.order.get(state, ()) and tag not in visited:
            value = (TRUE if flag else FALSE) if tag.action is Action.COMPLETE else ""
            yield from _paths(grammar, tag.name + value, target, flag, (*visited, tag))


def _inner_ids(protocol: Protocol, tag: Tag, move: Move, searches: Sequence[Search], tokenizer: Tokenizer) -> list[int]:
    """Token ids of the text inside a tag with an action."""
    grammar = protocol.grammar
    if tag.action is Action.SELECT:
        numbers = enumerate(shown_documents(latest_block(searches)), start=1)
        return tokenizer.encode(
            str([number for number, (_, hit) in numbers if hit.passage.id in (move.selected or ())])
        )
    if tag.action is Action.COMPLETE:
        return tokenizer.encode(str(move.answer is not None))
    if tag.action is Action.ANSWER:
        answer = move.answer or ""
        if tag.declines and says_one_of(answer, (NOT_FOUND,)):
            answer = f" {tag.declines[0]}"
        return tokenizer.encode_data(grammar.escape(answer))
    if move.call is not None:
        return tokenizer.encode_data(grammar.escape(as_json(ToolCallText(None, *move.call))))
    queries = [grammar.escape(query) for query in move.queries]
    if tag.action is Action.TOOL or tag.query_format is QueryFormat.JSON:
        # A word has other tokens after a quotation mark than after a blank, and a policy that copies token by token
        # could not copy it. So a template that puts blanks before words has them here, too.
        queries = [query if protocol.template.file.space_before else query.strip() for query in queries]
        value: Json = queries[0] if len(queries) == 1 else [*queries]
        if tag.action is not Action.TOOL:
            return tokenizer.encode_data(json.dumps({tag.item: value}, ensure_ascii=False))
        argument = cast(SearchSettings, grammar.search.settings).query
        return tokenizer.encode_data(as_json(ToolCallText(None, grammar.search.name, {argument: value})))
    if tag.query_format is QueryFormat.ITEMS:
        opening, closing = (tokenizer.encode(mark) for mark in tag.inner_marks)
        return [token for query in queries for token in (*opening, *tokenizer.encode_data(query), *closing)]
    return tokenizer.encode_data(" ".join(queries))


def _shares(thought: str, count: int) -> list[str]:
    """Split a thought over `count` tags: the last sentence for the last tag, the rest for each of the others."""
    if count < 2:
        return [thought][:count]
    sentences = [sentence for sentence in _SENTENCES.split(thought) if sentence.strip()] or [thought]
    return ["".join(sentences[:-1]) or thought] * (count - 1) + [sentences[-1]]
