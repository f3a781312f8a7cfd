"""Agent app: the HTTP paths of an agent service, its chat page, and the documents to which the page links.

The fields of `/v1/chat/completions` are OpenAI's. `content` is the answer as people write it, or a sentence if there is
no answer; `reasoning_content` holds everything that the agent wrote. `coseek` holds what the API has no field for: the
searches with their passages, the evidence with the sentences used, and why the run ended.
"""

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast

from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BeforeValidator, Field

from coseek.agents.sources import MOST, cited_answer, reply_in_words, served_context, sources_of, used_sentences
from coseek.core.files import Json, JsonObject
from coseek.core.text import as_written, decoded_as
from coseek.data.passage import Passage
from coseek.data.trajectory import Author, Search, StopReason, Trajectory
from coseek.models.chat import Message
from coseek.serve.agent_service import AgentService, QuestionInContext
from coseek.serve.service import (
    BUG,
    RECORD,
    AccessMiddleware,
    App,
    RefusedRequest,
    RequestBody,
    new_app,
    parse_body,
    print_bug,
    read_body,
    serve_app,
    token_of,
    until_disconnect,
)

Events: TypeAlias = "asyncio.Queue[tuple[str, Sequence[Search]] | None]"
"""Text and searches of the agent since the last event; `None` at its end."""
PAGE = Path(__file__).parent / "chat.html"
_ONLY_OWN = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
_CLOSED = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_SHOWN = frozenset((".pdf", ".txt", ".md", ".csv", ".html", ".htm", ".png", ".jpg", ".jpeg", ".gif"))
"""Files that a browser shows; others are downloaded."""


def serve_agent(service: AgentService, ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives. `ready` is called with the URL when agent and retriever are open."""
    serve_app(service, make_agent_app(service, token_of(service.settings)), ready)


def make_agent_app(service: AgentService, token: str | None = None) -> App:
    """The whole application. It opens and closes the service with its own lifespan."""
    app = new_app(service, openai_error)

    @app.get("/info")
    async def info() -> Response:
        return JSONResponse(await asyncio.to_thread(service.info))  # a remote retriever is called for its identity

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [service.model_entry()]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        service.check_name(name)
        return JSONResponse(service.model_entry())

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        return await _chat(service, request)

    if service.settings.documents is not None:
        root = Path(service.settings.documents)
        app.add_api_route("/documents/{path:path}", lambda path: document(root, path), methods=["GET"])
    if service.settings.page:

        @app.get("/")
        async def page() -> Response:
            return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"content-security-policy": _ONLY_OWN})

    return AccessMiddleware(cast(App, app), token, service.settings.log)


async def _chat(service: AgentService, request: Request) -> Response:
    chat_request, conversation = await read_body(request, service.settings, _read_chat)
    service.check_name(chat_request.model)
    service.check_length(conversation)
    seed, record = chat_request.seed or 0, cast(JsonObject, request.scope[RECORD])
    answer = ChatAnswer(service.name, chat_request.stream_options.include_usage)
    if not chat_request.stream:
        trajectory = await until_disconnect(request, service.answer(conversation, seed))
        _log_counts(record, trajectory)
        if trajectory.stop.is_fault:
            return JSONResponse(openai_error(502, _fault_text(trajectory), "agent_error"), 502)
        return Response(json.dumps(answer.whole(trajectory), allow_nan=False), media_type="application/json")
    events: Events = asyncio.Queue()
    begun = asyncio.Event()
    answer_future = asyncio.ensure_future(
        service.answer(conversation, seed, lambda text, searches: events.put_nowait((text, searches)), begun)
    )
    answer_future.add_done_callback(lambda _: events.put_nowait(None))
    answer_future.add_done_callback(lambda _: begun.set())
    # A refusal needs its own status, and a stream begins with 200.
    await until_disconnect(request, _wait_until_begun(begun, answer_future))
    chunks = _stream(answer, events, answer_future, record)
    return StreamingResponse(chunks, media_type="text/event-stream", headers={"cache-control": "no-store"})


def _read_chat(body: bytes) -> tuple["ChatRequest", QuestionInContext]:
    example = '{"messages": [{"role": "user", "content": "…"}]}'
    chat_request = parse_body(body, ChatRequest, 400, example)
    return chat_request, _question_in(chat_request.messages)


def _question_in(messages: Sequence["AgentMessage"]) -> QuestionInContext:
    """Take the last message as the question and ignore messages of the system and of tools. Raises `RefusedRequest`
    (400)."""
    *others, last = messages
    if last.role != "user" or not last.text:
        raise RefusedRequest(400, "the last message is the question: one of the user's, with text")
    dialogue = (message for message in others if message.role in ("user", "assistant") and message.text)
    return QuestionInContext(last.text, tuple(Message(message.role, message.text) for message in dialogue))


async def _wait_until_begun(begun: asyncio.Event, answer_future: "asyncio.Future[Trajectory]") -> None:
    """Wait until a question has a row. Raises `RefusedRequest` if it gets no row. Cancellation cancels the answer."""
    try:
        await begun.wait()
    except asyncio.CancelledError:
        answer_future.cancel()
        raise
    if answer_future.done() and isinstance(error := answer_future.exception(), RefusedRequest):
        raise error


async def _stream(
    answer: "ChatAnswer", events: Events, answer_future: "asyncio.Future[Trajectory]", record: JsonObject
) -> AsyncIterator[bytes]:
    """The events of one answer, which is cancelled if the client disconnects."""
    try:
        yield answer.begin()
        while (event := await events.get()) is not None:
            text, searches = event
            yield answer.show(searches) if searches else answer.write(text)
        try:
            trajectory = answer_future.result()
        except RefusedRequest as error:
            yield answer.fail(error.status, str(error), "refused")
        except Exception:  # noqa: BLE001 (the stream has begun, so a bug can only be reported in it)
            print_bug()
            yield answer.fail(500, BUG, "bug")
        else:
            _log_counts(record, trajectory)
            is_fault = trajectory.stop.is_fault
            yield answer.fail(502, _fault_text(trajectory), "agent_error") if is_fault else answer.end(trajectory)
    finally:
        answer_future.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await answer_future


def _fault_text(trajectory: Trajectory) -> str:
    return f"the run ended by {trajectory.stop}: {trajectory.stop_detail or 'no detail'}"


def _log_counts(record: JsonObject, trajectory: Trajectory) -> None:
    """Add the counts of a trajectory to the log line."""
    record |= {"stop": str(trajectory.stop), "searches": len(trajectory.searches)}


def document(root: Path, path: str) -> Response:
    """The file of a passage's `path`, which begins with the name of the imported folder or file; for a path inside an
    archive or a mail, the archive or mail. Scripts in a file do not run. Raises `RefusedRequest` (404) for other
    paths."""
    root = root.resolve()
    try:
        file = (root.parent / path).resolve()
        file = next((parent for parent in (file, *file.parents) if parent.is_file()), file)
        is_served = file.is_relative_to(root) and file.is_file()
    except (OSError, ValueError):  # a name that no file can have
        is_served = False
    if not is_served:
        raise RefusedRequest(404, f"{path[:200]!r} is not among the documents served here")
    # A browser opens no PDF in a sandbox; scripts in a PDF have no access to this page.
    policy = _CLOSED if file.suffix.lower() == ".pdf" else f"{_CLOSED}; sandbox"
    disposition = "inline" if file.suffix.lower() in _SHOWN else "attachment"
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    response = FileResponse(file, headers=headers, filename=file.name, content_disposition_type=disposition)
    if "charset=" in response.headers["content-type"] and decoded_as(file.read_bytes(), "utf-8").lost:
        response.headers["content-type"] = str(response.media_type)
    return response


# Requests and responses of `/v1/chat/completions`.


_CUT = (StopReason.TOKEN_LIMIT, StopReason.TURN_LIMIT)


class MessagePart(RequestBody):
    """A part of a message."""

    type: str
    """`text`; other types are refused."""
    text: str | None = None
    """The text."""


_WORDS = {"image_url": "a picture", "image": "a picture", "input_audio": "a sound", "file": "a file"}


class AgentMessage(RequestBody):
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


class StreamOptions(RequestBody):
    """Options of a stream."""

    include_usage: bool = False
    """Send the token counts last."""


class ChatRequest(RequestBody):
    """A request to `/v1/chat/completions`."""

    model: str | None = None
    """The agent's name; optional."""
    messages: Annotated[list[AgentMessage], Field(min_length=1, fail_fast=True)]
    """The conversation; its last message is the question."""
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    """The samples depend only on the seed and the conversation; default: 0."""
    stream: bool | None = None
    """Send the tokens as they are written."""
    stream_options: Annotated[StreamOptions, BeforeValidator(lambda options: options or {})] = StreamOptions()
    """Options of the stream."""


@dataclass(frozen=True)
class ChatAnswer:
    """One response of an agent, whole or as the events of a stream."""

    model: str
    with_usage: bool
    ident: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

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
