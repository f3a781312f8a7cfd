"""Rollout: many questions at once, any agent, any retriever. Budgets are enforced here and nowhere else.

An episode ends at its budget: nothing that was written is ever cut, and what was trained on is what was read.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coseek.agents.grammar import Action
from coseek.agents.protocol import Protocol
from coseek.agents.turns import past_turn, search_turn
from coseek.data.errors import RetrieverError
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.settings import Settings
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory
from coseek.models.model import Model, Request, SoFar, Turn, TurnEnd
from coseek.retrieval.query import PastTurn, Query
from coseek.retrieval.retriever import Retriever


class Limits(Settings):
    """Budgets of a run (settings of the run, not of the protocol)."""

    max_turns: int = 4
    """Searches the agent may make; one more ends the run with `turn_limit`."""
    passages_per_search: int = 3
    """Top-k shown for each search."""
    max_turn_tokens: int = 500
    """Tokens the agent may write in one turn; a longer turn ends the run with `token_limit`."""
    max_observation_tokens: int = 500
    """Tokens of documents in one observation, an equal share for each document."""
    max_tokens: int = 4096
    """Tokens of the whole episode, prompt and observations included."""


@dataclass(frozen=True)
class Agent:
    """A protocol and a model that speaks it."""

    protocol: Protocol
    model: Model


@dataclass(slots=True)
class _Row:
    """A run while it is under way."""

    key: int
    question: Question
    seed: int
    began: float
    segments: list[Segment] = field(default_factory=list)
    searches: list[Search] = field(default_factory=list)
    history: list[PastTurn] = field(default_factory=list)
    """`searches` as the retriever is told of them."""
    tokens: int = 0
    retriever_s: float = 0.0

    def keep(self, query: Query, search: Search) -> None:
        self.searches.append(search)
        self.history.append(past_turn(query, search))

    def add(self, segment: Segment) -> None:
        self.segments.append(segment)
        self.tokens += len(segment.ids)


def rollout(
    agent: Agent,
    retriever: Retriever,
    questions: Sequence[Question],
    seeds: Sequence[int],
    limits: Limits,
    *,
    concurrency: int = 256,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Run the agent once for each question; the trajectories come back in the order of `questions`.

    `seeds` holds one seed a question. `on_done` hears of every run as it ends, in the order of ending. Faults of the
    retriever or the model end only the run they happen to, with the reason on it.
    """
    if len(seeds) != len(questions):
        raise ValueError(f"{len(questions)} questions need as many seeds, not {len(seeds)}")
    return _Driver(agent, retriever, limits, on_done).run(questions, seeds, concurrency)


class _Driver:
    def __init__(
        self, agent: Agent, retriever: Retriever, limits: Limits, on_done: Callable[[Trajectory], None] | None
    ) -> None:
        self.protocol, self.model = agent.protocol, agent.model
        self.tokenizer = agent.model.tokenizer
        self.retriever, self.limits, self.on_done = retriever, limits, on_done
        self.rows: dict[int, _Row] = {}
        self.done: dict[int, Trajectory] = {}

    def run(self, questions: Sequence[Question], seeds: Sequence[int], concurrency: int) -> list[Trajectory]:
        waiting = list(enumerate(zip(questions, seeds, strict=True)))[::-1]
        try:
            while waiting or self.rows:
                self._open([waiting.pop() for _ in range(min(len(waiting), concurrency - len(self.rows)))])
                if self.rows:
                    self._advance(self.model.step())
        finally:
            for key in list(self.rows):  # an interrupted rollout leaves no row behind in the model
                self.model.close(key)
        return [self.done[key] for key in range(len(questions))]

    def _open(self, started: Sequence[tuple[int, tuple[Question, int]]]) -> None:
        """Write the prompts of new rows; where the protocol begins with a search, make it."""
        opened: list[_Row] = []
        for key, (question, seed) in started:
            row = self.rows[key] = _Row(key, question, seed, time.perf_counter())
            ids = self.protocol.wording.prompt_ids(self.tokenizer, question.question)
            row.add(Segment(Author.ENVIRONMENT, "prompt", self.tokenizer.decode(ids), ids))
            opened.append(row)
        if self.protocol.opens_with_search:
            self._search([(row, self._query(row, row.question.question, "")) for row in opened], opening=True)
        else:
            for row in opened:
                self._ask(row, row.segments[0].ids, opening=True)

    def _ask(self, row: _Row, ids: tuple[int, ...], opening: bool = False) -> None:
        """Hand the row to the model, unless its budget is spent."""
        left = self.limits.max_tokens - row.tokens
        if left < 1:
            self._finish(row, StopReason.TOKEN_LIMIT, detail=f"the prompt alone holds {row.tokens} tokens")
            return
        request = Request(
            row.key, ids, min(left, self.limits.max_turn_tokens), row.seed, SoFar(row.question, tuple(row.searches))
        )
        if opening:
            self.model.start(request)
        else:
            self.model.extend(request)

    def _advance(self, turns: Sequence[Turn]) -> None:
        """Take what the model wrote; answer the searches of all rows in one batch."""
        asked: list[tuple[_Row, Query]] = []
        for turn in turns:
            row = self.rows[turn.key]
            text = self.tokenizer.decode(turn.ids)
            action, span = self.protocol.grammar.action(text)
            if turn.ids:
                row.add(Segment(Author.AGENT, span.tag if span else "", text, turn.ids, turn.logprobs))
            if turn.end is TurnEnd.FAULT:
                self._finish(row, StopReason.MODEL_ERROR, detail=turn.fault)
            elif action is Action.ANSWER and span is not None:
                self._finish(row, StopReason.ANSWERED, answer=span.text.strip())
            elif action is Action.SEARCH and span is not None:
                if not span.text.strip():
                    self._finish(row, StopReason.INVALID, detail="an empty query")
                elif len(row.searches) >= self.limits.max_turns:
                    self._finish(row, StopReason.TURN_LIMIT)
                else:
                    asked.append((row, self._query(row, span.text.strip(), text)))
            elif turn.end is TurnEnd.LENGTH:
                self._finish(row, StopReason.TOKEN_LIMIT, detail=f"a turn of {len(turn.ids)} tokens without an action")
            else:
                self._finish(row, StopReason.INVALID, detail="a turn without an action")
        self._search(asked)

    def _query(self, row: _Row, text: str, written: str) -> Query:
        return search_turn(row.question, row.history, text, written, self.protocol.grammar)

    def _search(self, asked: Sequence[tuple[_Row, Query]], opening: bool = False) -> None:
        if not asked:
            return
        began = time.perf_counter()
        found = self._found([query for _, query in asked])
        share = (time.perf_counter() - began) / len(asked)
        for (row, query), search in zip(asked, found, strict=True):
            row.retriever_s += share
            if search.fault is not None:
                row.keep(query, search)
                self._finish(row, StopReason.RETRIEVER_ERROR, detail=search.fault)
                continue
            ids = self.protocol.wording.observation_ids(self.tokenizer, search.hits, self.limits.max_observation_tokens)
            if row.tokens + len(ids) >= self.limits.max_tokens:
                # Not shown, so not part of the run: a reward must not pay for what the agent never read.
                self._finish(row, StopReason.TOKEN_LIMIT, detail=f"no room for an observation of {len(ids)} tokens")
                continue
            row.keep(query, search)
            row.add(Segment(Author.ENVIRONMENT, self.protocol.observation_tag, self.tokenizer.decode(ids), ids))
            self._ask(row, row.segments[0].ids + ids if opening else ids, opening)

    def _found(self, queries: Sequence[Query]) -> list[Search]:
        """Search in one batch; when that fails, one by one, so that a bad query costs no sibling its result."""
        try:
            return [Search(query.text, tuple(hits)) for query, hits in zip(queries, self._hits(queries), strict=True)]
        except RetrieverError as error:
            if len(queries) == 1:
                return [Search(queries[0].text, fault=str(error))]
            return [search for query in queries for search in self._found([query])]

    def _hits(self, queries: Sequence[Query]) -> list[list[Hit]]:
        return self.retriever.search(queries, self.limits.passages_per_search)

    def _finish(self, row: _Row, stop: StopReason, answer: str | None = None, detail: str = "") -> None:
        self.model.close(row.key)
        del self.rows[row.key]
        complaint = self.protocol.grammar.complaint(self.protocol.grammar.spans(row.segments))
        trajectory = Trajectory(
            question=row.question,
            protocol=self.protocol.name,
            segments=tuple(row.segments),
            searches=tuple(row.searches),
            stop=stop,
            answer=answer,
            valid=not complaint,
            complaint=complaint,
            detail=detail,
            seed=row.seed,
            timings={"wall_s": time.perf_counter() - row.began, "retriever_s": row.retriever_s},
        )
        self.done[row.key] = trajectory
        if self.on_done:
            self.on_done(trajectory)
