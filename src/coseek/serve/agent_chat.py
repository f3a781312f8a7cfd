"""Agent chat: requests and answers of `/v1/chat/completions` where an agent answers. Knows neither HTTP nor agents.

The fields are OpenAI's; `reasoning_content` holds what the agent wrote before its answer, and `coseek` what no field of
the API has: the searches with their passages, and why the run ended.
"""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from coseek.agents.sources import sources_of
from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, make_settings
from coseek.data.passage import Passage
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.serve.contract import RefusedRequest

_SENTENCE = 400
_CUT = (StopReason.TOKEN_LIMIT, StopReason.TURN_LIMIT)


class _Lenient(Settings):
    """Fields that are not known are passed over: clients send sampling fields, and how an agent samples is its own."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, strict=True)


class TextPart(_Lenient):
    """A part of a message."""

    type: Literal["text"]
    """Text alone is offered."""
    text: str
    """The text."""


class AgentMessage(_Lenient):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant"]
    """The author."""
    content: str | list[TextPart] | None = None
    """The text, whole or in parts."""

    @property
    def text(self) -> str:
        parts = [self.content or ""] if isinstance(self.content, str | None) else [one.text for one in self.content]
        return "".join(parts)


class StreamOptions(_Lenient):
    """Options of a stream."""

    include_usage: bool = False
    """Send the token counts last."""


class AgentAsked(_Lenient):
    """A request. The question is the last message, which is the user's; an agent has no memory of the others."""

    messages: Annotated[list[AgentMessage], Field(min_length=1)]
    """The chat so far."""
    model: str | None = None
    """The agent's name; may be left out."""
    stream: bool | None = None
    """Send the turns as they come."""
    stream_options: StreamOptions | None = None
    """What else to send."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """The samples depend on it and on the question alone; 0 when not set."""

    @property
    def question(self) -> str:
        last = self.messages[-1]
        if last.role != "user" or not last.text.strip():
            raise RefusedRequest(400, "the last message is the question: one of the user's, with text")
        return last.text.strip()


def read_asked(body: bytes) -> AgentAsked:
    """Read a request. Raises `RefusedRequest` (400)."""
    try:
        row = json.loads(body)
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise RefusedRequest(400, "the request holds half of a surrogate pair, which is no text") from None
    except (ValueError, RecursionError):
        raise RefusedRequest(400, "the request is not JSON in UTF-8") from None
    if not isinstance(row, dict):
        raise RefusedRequest(400, "the request is a JSON object")
    try:
        return make_settings(AgentAsked, row)
    except SettingError as error:
        raise RefusedRequest(400, str(error)[:_SENTENCE]) from None


@dataclass(frozen=True)
class ChatAnswer:
    """One answer of an agent, whole or as chunks of a stream."""

    model: str
    ident: str
    created: int

    @classmethod
    def new(cls, model: str) -> "ChatAnswer":
        return cls(model, f"chatcmpl-{secrets.token_hex(12)}", int(time.time()))

    def whole(self, run: Trajectory) -> JsonObject:
        message: JsonObject = {
            "role": "assistant",
            "content": run.answer or "",
            "reasoning_content": reasoning(run),
            "annotations": citations(run),
        }
        choice: JsonObject = {"index": 0, "message": message, "finish_reason": finish_of(run), "logprobs": None}
        body = self._body("chat.completion", [choice])
        return {**body, "usage": usage(run), "coseek": details(run)}

    def chunk(self, delta: JsonObject, finish: str | None = None) -> JsonObject:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._body("chat.completion.chunk", [choice])

    def ending(self, run: Trajectory, with_usage: bool) -> list[JsonObject]:
        """The last chunks: the answer with its sources, why it ended, and the counts where they are wanted."""
        answered = self.chunk({"content": run.answer or "", "annotations": citations(run)})
        chunks = [answered, {**self.chunk({}, finish_of(run)), "coseek": details(run)}]
        return [*chunks, {**self._body("chat.completion.chunk", []), "usage": usage(run)}] if with_usage else chunks

    def _body(self, kind: str, choices: list[Json]) -> JsonObject:
        return {"id": self.ident, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def event(row: JsonObject) -> bytes:
    """A server-sent event. ASCII: a text may end within a character."""
    return b"data: " + json.dumps(row, allow_nan=False).encode() + b"\n\n"


def finish_of(run: Trajectory) -> str:
    return "length" if run.stop in _CUT else "stop"


def reasoning(run: Trajectory) -> str:
    """All that the agent wrote, its answer last."""
    return "".join(segment.text for segment in run.segments if segment.author is Author.AGENT)


def usage(run: Trajectory) -> JsonObject:
    """Tokens that the agent wrote, and all others of its context."""
    written = sum(len(segment.ids) for segment in run.segments if segment.author is Author.AGENT)
    shown = sum(len(segment.ids) for segment in run.segments) - written
    return {"prompt_tokens": shown, "completion_tokens": written, "total_tokens": shown + written}


def citations(run: Trajectory) -> list[Json]:
    """The sources that have an address, each for the whole answer."""
    cited: list[Json] = []
    for passage in sources_of(run):
        if passage.url:
            place: JsonObject = {
                "url": passage.url,
                "title": passage.title.strip(),
                "start_index": 0,
                "end_index": len(run.answer or ""),
            }
            cited.append({"type": "url_citation", "url_citation": place})
    return cited


def details(run: Trajectory) -> JsonObject:
    """Why the run ended, what it searched, and its sources."""
    sources: list[Json] = [source(passage) for passage in sources_of(run)]
    found: JsonObject = {"stop": str(run.stop), "valid": run.valid, "seed": run.seed, "sources": sources}
    return {**found, "searches": searches(run.searches)}


def searches(made: Sequence[Search]) -> list[Json]:
    return [{"query": one.query, "passages": [source(hit.passage) for hit in one.hits]} for one in made]


def source(passage: Passage) -> JsonObject:
    return {
        "id": passage.id, "title": passage.title.strip(), "url": passage.url, "place": passage.place,
        "text": passage.text.strip(),
    }  # fmt: skip
