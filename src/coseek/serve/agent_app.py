"""Agent app: the HTTP paths of an agent service, its chat page, and the documents to which the page links."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, StreamingResponse

from coseek.core.files import JsonObject
from coseek.core.text import decoded_as
from coseek.data.trajectory import Search, Trajectory
from coseek.serve.agent_chat import ChatAnswer, ChatRequest, QuestionInContext, openai_error, read_request
from coseek.serve.agent_service import AgentService
from coseek.serve.limits import (
    BUG,
    RECORD,
    AccessMiddleware,
    App,
    RefusedRequest,
    print_bug,
    read_body,
    until_disconnect,
)
from coseek.serve.running import new_app, serve_app, token_of

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
    answer = ChatAnswer.new(service.name, chat_request)
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


def _read_chat(body: bytes) -> tuple[ChatRequest, QuestionInContext]:
    chat_request = read_request(body)
    return chat_request, QuestionInContext.of(chat_request.messages)


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
    answer: ChatAnswer, events: Events, answer_future: "asyncio.Future[Trajectory]", record: JsonObject
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
