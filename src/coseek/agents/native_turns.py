"""Native turns: what an agent with native tool calls writes and reads, in its tokenizer's chat template where there is
one, else in our own spelling: `<tool_call>` with JSON, and each result in `<tool_response>`."""

import re

from coseek.agents.episode import Episode
from coseek.agents.prompt_template import PromptTemplate
from coseek.core.files import JsonObject
from coseek.data.trajectory import Author
from coseek.models.model import Tokenizer
from coseek.models.tokenizer import HfTokenizer
from coseek.models.tool_chat import Names
from coseek.models.written import calls_in
from coseek.models.written_calls import RESPONSE, read_turn

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


class NativeTurns:
    """Reads and frames the turns of one protocol with one tokenizer."""

    def __init__(self, template: PromptTemplate, tokenizer: Tokenizer) -> None:
        """Raises `SettingError` for a chat template that takes no tools."""
        self.template, self.tokenizer = template, tokenizer
        self.chat = template.tool_chat(tokenizer)
        if self.chat is not None:
            self.chat.check()

    def read(self, ids: tuple[int, ...]) -> JsonObject:
        """The assistant's message in a turn."""
        if self.chat is not None:
            return self.chat.read(ids)
        ids = ids[:-1] if ids[-1] == self.tokenizer.eos_id else ids
        text = self.tokenizer.decode(ids).removesuffix(RESPONSE[0])  # a stop string
        return read_turn(text, tools=self.template.grammar.schemas)

    def framed(self, row: Episode, results: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The results of an episode's latest turn as they continue its row; the first ones where there are fewer than
        calls. Raises `DataError` where the template cannot append them."""
        written = [segment for segment in row.segments if segment.author is Author.AGENT]
        names = [self._names(segment.message or {}) for segment in written]
        if self.chat is None:
            called = bool(names and names[-1])
            return [self._plain(result, called, row if at == 0 else None) for at, result in enumerate(results)]
        assert isinstance(self.tokenizer, HfTokenizer)
        end = self.chat.end_of(written[-1].ids) if written else ""
        frame = self.chat.frame(self.template.roles(row.question), names or [()], end)
        return frame.filled([self.tokenizer.decode(result) for result in results], self.tokenizer)

    def _names(self, message: JsonObject) -> Names:
        """The tools that a turn called. A template writes their names, so that one of nobody's may hold no marks."""
        return tuple(_NOT_IN_NAMES.sub("_", call.name)[:64] or "unknown" for call in calls_in(message))

    def _plain(self, result: tuple[int, ...], called: bool, row: Episode | None) -> tuple[int, ...]:
        """A result in our own spelling. The first one of a turn follows the `row`, which may end with its mark."""
        tag = self.template.grammar.by_name[self.template.grammar.observation]
        before, after = (f"\n{tag.opening}", f"{tag.closing}\n") if called else ("\n", "\n")
        if called and row is not None and row.segments[-1].text.endswith(tag.opening):
            before = ""
        return (*self.tokenizer.encode(before), *result, *self.tokenizer.encode(after))
