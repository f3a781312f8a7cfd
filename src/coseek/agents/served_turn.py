"""Served turn: the text of a turn that a server returned in pieces, written as the agent's protocol has it.

Servers take reasoning and tool calls out of what a model wrote. Both are put back where the protocol has a place for
them: reasoning as the thought in front, calls in the tag of tool calls. Marks inside either are made harmless.
"""

from dataclasses import dataclass
from functools import cached_property

from coseek.agents.grammar import Action, Grammar, Tag, as_json
from coseek.data.trajectory import Author
from coseek.models.dialect import ServerTurn
from coseek.models.written import ToolCallText, calls_in, opens_reasoning, reasoning_in, split_reasoning
from coseek.models.written_calls import message_of, read_turn


@dataclass(frozen=True)
class TurnWriter:
    """Writes the turns of one protocol."""

    grammar: Grammar
    reopens: bool = False
    """Whether the server applies a chat template, which may open each turn's thought by itself: the text then only
    closes it."""

    @cached_property
    def _thought(self) -> tuple[str, str] | None:
        """The marks of a thought; `None` where the protocol has no place for one."""
        for tag in self.grammar.tags:
            if tag.author is Author.AGENT and tag.action is Action.NONE and opens_reasoning(tag.opening):
                return tag.opening, tag.closing
        return ("<think>", "</think>") if self.grammar.free_text else None

    @cached_property
    def _call(self) -> Tag | None:
        return next((tag for tag in self.grammar.tags if tag.action is Action.TOOL), None)

    def __call__(self, turn: ServerTurn) -> str:
        """The text of a turn. Raises `ValueError` for tool calls that the protocol cannot write."""
        if self.grammar.native_calls:
            said = read_turn(turn.text, tools=self.grammar.schemas)  # whatever is not apart
            reasoning = "\n".join(filter(None, (turn.reasoning.strip(), reasoning_in(said))))
            return self.grammar.spell(message_of(str(said.get("content", "")), reasoning, turn.calls or calls_in(said)))
        return self._with_thought(turn) + "".join(self._written(call) for call in self._missing(turn))

    def _with_thought(self, turn: ServerTurn) -> str:
        """The text with its reasoning in the protocol's own spelling, or without it."""
        opening, closing = self._thought or ("", "")
        text, reasoning = turn.text, turn.reasoning
        if opening and (opening in text or closing in text):
            reopened = self.reopens and closing in text.partition(opening)[0]
            return f"{opening}{text}" if reopened else text
        inside, rest = split_reasoning(text)
        text = rest if inside else text
        reasoning = self.grammar.escape("\n".join(filter(None, (reasoning.strip(), inside))))
        return f"{opening}{reasoning}{closing}\n{text}" if opening and reasoning else text

    def _missing(self, turn: ServerTurn) -> tuple[ToolCallText, ...]:
        """The calls that are not in the text."""
        if not turn.calls or self.grammar.intent(turn.text).span is not None:
            return ()
        if self._call is None:
            raise ValueError(
                f"the server took a call of the tool {turn.calls[0].name!r} out of the text, and this protocol has no "
                "tool calls; start the server without its tool parser (vLLM: without --enable-auto-tool-choice)"
            )
        return turn.calls

    def _written(self, call: ToolCallText) -> str:
        assert self._call is not None
        row = as_json(call)
        return f"{self._call.opening}{self.grammar.escape(row)}{self._call.closing}"
