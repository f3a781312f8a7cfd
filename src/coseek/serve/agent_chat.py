"""Agent chat: requests and responses of `/v1/chat/completions` for an agent. Depends neither on HTTP nor on agents.

The fields are OpenAI's. `content` is the answer as people write it, or a sentence if there is no answer;
`reasoning_content` holds everything that the agent wrote. `coseek` holds what the API has no field for: the searches
with their passages, the evidence with the sentences used, and why the run ended.
"""

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from coseek.agents.sources import MOST, cited_answer, reply_in_words, served_context, sources_of, used_sentences
from coseek.core.errors import SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import Settings, make_settings
from coseek.core.text import as_written
from coseek.data.passage import Passage
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.models.chat import Message
from coseek.serve.limits import RefusedRequest, parse_object

_CUT = (StopReason.TOKEN_LIMIT, StopReason.TURN_LIMIT)
_SENTENCE = 400
"""Maximum number of characters of a refusal."""


class LenientSettings(Settings):
    """Ignores unknown fields: clients send sampling fields, but an agent has its own sampling settings."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True, strict=True)


class MessagePart(LenientSettings):
    """A part of a message."""

    type: str
    """`text`; other types are refused."""
    text: str | None = None
    """The text."""


_WORDS = {"image_url": "a picture", "image": "a picture", "input_audio": "a sound", "file": "a file"}


class AgentMessage(LenientSettings):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """The author."""
    content: str | Annotated[list[MessagePart], Field(fail_fast=True)] | None = None
    """The text, whole or in parts."""

    @property
    def text(self) -> str:
        """The whole text. Raises `RefusedRequest` (400) for a part that is not text."""
        if isinstance(self.content, str | None):
            return (self.content or "").strip()
        return "".join(map(_text_of, self.content)).strip()


def _text_of(part: MessagePart) -> str:
    if part.type == "refusal":
        return ""
    if part.type != "text":
        kind = _WORDS.get(part.type, f"a part of the type {part.type[:50]!r}")
        raise RefusedRequest(
            400, f"the content of one of the messages holds {kind}, and the agent reads text alone; leave it out"
        )
    if part.text is None:
        raise RefusedRequest(400, f"a part of the type {part.type!r} has no 'text'; add it")
    return part.text


@dataclass(frozen=True)
class QuestionInContext:
    """The question, and the messages before it."""

    question: str
    earlier: tuple[Message, ...] = ()

    @classmethod
    def of(cls, messages: Sequence[AgentMessage]) -> "QuestionInContext":
        """Take the last message as the question and ignore messages of the system and of tools. Raises
        `RefusedRequest` (400)."""
        *others, last = messages
        if last.role != "user" or not last.text:
            raise RefusedRequest(400, "the last message is the question: one of the user's, with text")
        dialogue = (message for message in others if message.role in ("user", "assistant") and message.text)
        return cls(last.text, tuple(Message(message.role, message.text) for message in dialogue))


def read_request(body: bytes) -> "ChatRequest":
    """Parse a request. Raises `RefusedRequest` (400)."""
    row = parse_object(body, RefusedRequest(400, "the request is a JSON object"))
    try:
        return make_settings(ChatRequest, row)
    except SettingError as error:
        raise RefusedRequest(400, str(error)[:_SENTENCE]) from None


class StreamOptions(LenientSettings):
    """Options of a stream."""

    include_usage: bool = False
    """Send the token counts last."""


class ChatRequest(LenientSettings):
    """A request to `/v1/chat/completions`."""

    model: str | None = None
    """The agent's name; optional."""
    messages: Annotated[list[AgentMessage], Field(min_length=1, fail_fast=True)]
    """The conversation; its last message is the question."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """The samples depend only on the seed and the conversation; default: 0."""
    stream: bool | None = None
    """Send the tokens as they are written."""
    stream_options: StreamOptions | None = None
    """Options of the stream."""


@dataclass(frozen=True)
class ChatAnswer:
    """One response of an agent, whole or as the events of a stream."""

    model: str
    ident: str
    created: int
    with_usage: bool

    @classmethod
    def new(cls, model: str, request: ChatRequest) -> "ChatAnswer":
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        return cls(model, f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), with_usage)

    def whole(self, trajectory: Trajectory) -> JsonObject:
        message: JsonObject = {
            "role": "assistant",
            "content": reply_in_words(trajectory),
            "reasoning_content": reasoning(trajectory),
            "annotations": citations(trajectory),
        }
        choice: JsonObject = {"index": 0, "message": message, "finish_reason": finish_of(trajectory), "logprobs": None}
        body = self._body("chat.completion", [choice])
        return {**body, "usage": usage(trajectory), "coseek": details(trajectory)}

    def begin(self) -> bytes:
        return _event(self._chunk({"role": "assistant", "content": ""}))

    def write(self, text: str) -> bytes:
        return _event(self._chunk({"reasoning_content": text}))

    def show(self, made_searches: Sequence[Search]) -> bytes:
        return _event({**self._chunk({}), "coseek": {"searches": searches(made_searches)}})

    def end(self, trajectory: Trajectory) -> bytes:
        """The answer with its sources, why the run ended, and the token counts if requested."""
        chunk = self._chunk({"content": reply_in_words(trajectory), "annotations": citations(trajectory)})
        rows = [chunk, {**self._chunk({}, finish_of(trajectory)), "coseek": details(trajectory)}]
        rows += [{**self._body("chat.completion.chunk", []), "usage": usage(trajectory)}] if self.with_usage else []
        return b"".join(map(_event, rows)) + _DONE

    def fail(self, status: int, sentence: str, kind: str) -> bytes:
        return _event(openai_error(status, sentence, kind)) + _DONE

    def _chunk(self, delta: JsonObject, finish: str | None = None) -> JsonObject:
        choice: JsonObject = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return self._body("chat.completion.chunk", [choice])

    def _body(self, kind: str, choices: list[Json]) -> JsonObject:
        return {"id": self.ident, "object": kind, "created": self.created, "model": self.model, "choices": choices}


_DONE = b"data: [DONE]\n\n"


def openai_error(status: int, sentence: str, kind: str) -> JsonObject:
    """The body of an error in OpenAI's format."""
    return {"error": {"message": sentence, "type": kind, "code": status}}


def _event(row: JsonObject) -> bytes:
    # ASCII, because a text may end within a character.
    return b"data: " + json.dumps(row, allow_nan=False).encode() + b"\n\n"


def finish_of(trajectory: Trajectory) -> str:
    return "length" if trajectory.stop in _CUT else "stop"


def reasoning(trajectory: Trajectory) -> str:
    """Everything that the agent wrote, its answer last."""
    return "".join(segment.text for segment in trajectory.segments if segment.author is Author.AGENT)


def usage(trajectory: Trajectory) -> JsonObject:
    """Number of tokens that the agent wrote, and of all other tokens of its context."""
    written, read = trajectory.agent_tokens, len(trajectory.ids) - trajectory.agent_tokens
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def citations(trajectory: Trajectory) -> list[Json]:
    """The sources with an address, each for the whole answer."""
    span: JsonObject = {"start_index": 0, "end_index": len(reply_in_words(trajectory))}
    cited = [passage for passage in sources_of(trajectory) if passage.url]
    citations = [{"url": passage.url, "title": passage.title.strip(), **span} for passage in cited]
    return [{"type": "url_citation", "url_citation": citation} for citation in citations]


def details(trajectory: Trajectory) -> JsonObject:
    """Why the run ended, its searches, its sources, and its evidence with the sentences used."""
    fields: JsonObject = {"stop": str(trajectory.stop), "valid": trajectory.valid, "seed": trajectory.seed}
    fields["sources"] = [source(passage) for passage in sources_of(trajectory)]
    if (cited := cited_answer(trajectory)) is not None:
        fields["citations"] = {"given": len(cited.passages), "dropped": cited.dropped}
    return {**fields, "evidence": _evidence(trajectory), "searches": searches(trajectory.searches)}


def _evidence(trajectory: Trajectory) -> list[Json]:
    """The sources, then the other passages served, each with the sentence that was used, or ""."""
    sources = sources_of(trajectory)
    passages = [*sources, *(passage for passage in served_context(trajectory) if passage not in sources)][: 2 * MOST]
    # As people write them, so that a page can find the sentence in the text of its source.
    readable = [replace(passage, text=as_written(passage.text).strip()) for passage in passages]
    sentences = used_sentences(trajectory, readable)
    return [{**source(passage), "used": sentence} for passage, sentence in zip(passages, sentences, strict=True)]


def searches(made: Sequence[Search]) -> list[Json]:
    return [
        {"query": as_written(search.query), "passages": [source(hit.passage) for hit in search.hits]} for search in made
    ]


def source(passage: Passage) -> JsonObject:
    """A passage as people write it; its id and place are unchanged."""
    return {
        "id": passage.id, "title": as_written(passage.title).strip(), "url": passage.url, "place": passage.place,
        "text": as_written(passage.text).strip(),
    }  # fmt: skip
