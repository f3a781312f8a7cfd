"""Agent app: the HTTP paths of an agent service, a page for trying it, and the documents to which the page links."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, StreamingResponse

from coseek.core.files import JsonObject
from coseek.data.trajectory import Search, Trajectory
from coseek.serve.agent_chat import ChatAnswer, ChatRequest, QuestionInContext, openai_error, read_request
from coseek.serve.agent_service import AgentService
from coseek.serve.limits import (
    BUG,
    RECORD,
    AccessMiddleware,
    App,
    RefusedRequest,
    aside,
    print_bug,
    read_body,
    while_wanted,
)
from coseek.serve.running import new_app, run, token_of

Heard: TypeAlias = "asyncio.Queue[tuple[str, Sequence[Search]] | None]"
"""What the agent wrote and searched since, and `None` at its end."""
PAGE = Path(__file__).parent / "chat.html"
_ONLY_OWN = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
_CLOSED = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_SHOWN = frozenset((".pdf", ".txt", ".md", ".csv", ".html", ".htm", ".png", ".jpg", ".jpeg", ".gif"))
"""Files that a browser shows; others are downloaded."""


def serve_agent(service: AgentService, ready: Callable[[str], None]) -> None:
    """Serve until a signal comes; `ready` is called with the URL once agent and retriever are open."""
    token = token_of(service.settings)
    run(service, make_agent_app(service, token), ready)


def make_agent_app(service: AgentService, token: str | None = None) -> App:
    """The whole application. It opens and closes the service with its own lifespan."""
    app = new_app(service, openai_error)

    async def info() -> Response:
        return JSONResponse(await aside(True, service.info))  # a remote retriever is asked what it serves

    async def models() -> Response:
        return JSONResponse(service.models())

    async def model(name: str) -> Response:
        service.check_name(name)
        return JSONResponse(service.model_entry())

    async def page() -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"content-security-policy": _ONLY_OWN})

    app.add_api_route("/info", info, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", model, methods=["GET"])
    app.add_api_route("/v1/chat/completions", _endpoint(service), methods=["POST"], response_model=None)
    if service.settings.documents is not None:
        root = Path(service.settings.documents)
        app.add_api_route("/documents/{path:path}", lambda path: document(root, path), methods=["GET"])
    if service.settings.page:
        app.add_api_route("/", page, methods=["GET"])
    return AccessMiddleware(cast(App, app), token, service.settings.log)


def _endpoint(service: AgentService) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        asked, conversation = await read_body(request, service.settings, _read)
        service.check_name(asked.model)
        seed = asked.seed or 0
        service.check_length(conversation)
        record = cast(JsonObject, request.scope[RECORD])
        answer = ChatAnswer.new(service.name, asked)
        if not asked.stream:
            run = await while_wanted(request, service.answer(conversation, seed))
            _note(record, run)
            if run.stop.is_fault:
                return JSONResponse(openai_error(502, _fault(run), "agent_error"), 502)
            return Response(json.dumps(answer.whole(run), allow_nan=False), media_type="application/json")
        heard: Heard = asyncio.Queue()
        begun = asyncio.Event()
        running = asyncio.ensure_future(
            service.answer(conversation, seed, lambda text, made: heard.put_nowait((text, made)), begun)
        )
        running.add_done_callback(lambda _: heard.put_nowait(None))
        running.add_done_callback(lambda _: begun.set())
        # A refusal is a status, and a stream begins with 200.
        await while_wanted(request, _begun_or_refused(begun, running))
        parts = _stream(answer, heard, running, record)
        return StreamingResponse(parts, media_type="text/event-stream", headers={"cache-control": "no-store"})

    return endpoint


def _read(body: bytes) -> tuple[ChatRequest, QuestionInContext]:
    asked = read_request(body)
    return asked, QuestionInContext.of(asked.messages)


async def _begun_or_refused(begun: asyncio.Event, running: "asyncio.Future[Trajectory]") -> None:
    """Wait until a run has a row. Raises `RefusedRequest` where it gets none; cancelled, the run is, too."""
    try:
        await begun.wait()
    except asyncio.CancelledError:
        running.cancel()
        raise
    if running.done() and isinstance(error := running.exception(), RefusedRequest):
        raise error


async def _stream(
    answer: ChatAnswer, heard: Heard, running: "asyncio.Future[Trajectory]", record: JsonObject
) -> AsyncIterator[bytes]:
    """The events of one answer. Where the client goes, the run is cancelled."""
    try:
        yield answer.begin()
        while (one := await heard.get()) is not None:
            text, made = one
            yield answer.show(made) if made else answer.write(text)
        try:
            run = running.result()
        except RefusedRequest as error:
            yield answer.fail(error.status, str(error), "refused")
        except Exception:  # noqa: BLE001 (the stream has begun, so a bug can only be told in it)
            print_bug()
            yield answer.fail(500, BUG, "bug")
        else:
            _note(record, run)
            yield answer.fail(502, _fault(run), "agent_error") if run.stop.is_fault else answer.end(run)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await running


def _fault(run: Trajectory) -> str:
    return f"the run ended by {run.stop}: {run.stop_detail or 'no detail'}"


def _note(record: JsonObject, run: Trajectory) -> None:
    """Add the counts of a run to the log line."""
    record |= {"stop": str(run.stop), "searches": len(run.searches)}


def document(root: Path, path: str) -> Response:
    """The file of a passage's `path`, which begins with the name of what was imported. Raises `RefusedRequest` (404)
    for any other one; a script in a file does not run."""
    root = root.resolve()
    try:
        file = (root.parent / path).resolve()
        known = file.is_relative_to(root) and file.is_file()
    except (OSError, ValueError):  # a name that no file can have
        known = False
    if not known:
        raise RefusedRequest(404, f"{path[:200]!r} is not among the documents served here")
    # A browser opens no PDF in a sandbox, and runs none of its scripts on this page's behalf.
    policy = _CLOSED if file.suffix.lower() == ".pdf" else f"{_CLOSED}; sandbox"
    kind = "inline" if file.suffix.lower() in _SHOWN else "attachment"
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff"}
    return FileResponse(file, headers=headers, filename=file.name, content_disposition_type=kind)
