"""Scripted model: adapts a scripted agent to the `Model` interface, so that the ordinary driver runs it."""

import random
from collections.abc import Sequence

from coseek.agents.grammar import Action
from coseek.agents.moves import move_ids, note_ids
from coseek.agents.protocol import Protocol
from coseek.agents.scripted_agent import CanConclude, Move, Ranks, ScriptedAgent
from coseek.models.model import EpisodeState, Request, Tokenizer, Turn, TurnEnd

_END = 64
"""Tokens before a turn in which its prompt may open reasoning: each is a byte of the mark at least."""


class ScriptedAgentModel:
    """Implements `Model`. The tokenizer is that of the policy which learns from the demonstrations, if there is one."""

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
        ids = self._ids(request)
        whole = len(ids) <= request.max_tokens
        ids = ids[: request.max_tokens]
        return Turn(request.key, ids, (0.0,) * len(ids), TurnEnd.STOP if whole else TurnEnd.LENGTH)

    def _ids(self, request: Request) -> tuple[int, ...]:
        so_far = request.state
        if so_far.side_searches:
            return note_ids(self.protocol, so_far.side_searches, self.tokenizer)
        called = f"/{len(so_far.calls)}" if so_far.calls else ""
        rng = random.Random(f"{request.seed}/{len(so_far.searches)}{called}")
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
        return self.agent.evidence(so_far.question.question, so_far.searches)

    def close(self, key: int) -> None:
        self._waiting = [request for request in self._waiting if request.key != key]
