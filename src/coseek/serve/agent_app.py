"""Agent app: the HTTP paths of an agent service, and a page for trying it."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol as Interface
from typing import TypeAlias, TypeVar, cast

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse

from coseek.core.files import JsonObject
from coseek.data.trajectory import Search, Trajectory
from coseek.serve.agent_chat import ChatAnswer, ChatRequest
from coseek.serve.agent_responses import ResponsesAnswer, ResponsesRequest
from coseek.serve.agent_service import AgentService
from coseek.serve.app import new_app, openai_error, read_body, while_wanted
from coseek.serve.contract import BUG, RefusedRequest
from coseek.serve.conversation import QuestionInContext, read_request
from coseek.serve.documents import document
from coseek.serve.logs import Log, print_bug
from coseek.serve.middleware import RECORD, AccessMiddleware, App
from coseek.serve.running import run, token_of

Heard: TypeAlias = "asyncio.Queue[tuple[str, Sequence[Search]] | None]"
"""What the agent wrote and searched since, and `None` at its end."""
A = TypeVar("A", ChatRequest, ResponsesRequest)
PAGE = Path(__file__).parent / "chat.html"
_ONLY_OWN = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


def serve_agent(service: AgentService, ready: Callable[[str], None]) -> None:
    """Serve until a signal comes; `ready` is called with the URL once agent and retriever are open."""
    token = token_of(service.settings)
    run(service, make_agent_app(service, token), ready)


def make_agent_app(service: AgentService, token: str | None = None) -> App:
    """The whole application. It starts and closes the service with its own lifespan."""
    log = Log() if service.settings.log else None
    app = new_app(service, log, openai_error, openapi=False)
    _end_episodes_first(app, service)

    async def info() -> Response:
        return JSONResponse(await service.aside(True, service.info))  # a remote retriever is asked what it serves

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
    for path, endpoint in (
        ("/v1/chat/completions", _endpoint(service, ChatRequest, ChatAnswer.new)),
        ("/v1/responses", _endpoint(service, ResponsesRequest, ResponsesAnswer)),
    ):
        app.add_api_route(path, endpoint, methods=["POST"], response_model=None)
    if service.settings.documents is not None:
        root = Path(service.settings.documents)
        app.add_api_route("/documents/{path:path}", lambda path: document(root, path), methods=["GET"])
    if service.settings.page:
        app.add_api_route("/", page, methods=["GET"])
    return AccessMiddleware(cast(App, app), service, token, log)


def _end_episodes_first(app: FastAPI, service: AgentService) -> None:
    """Let the application's life hold that of the episodes: they end before the engine does."""
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with inner(app), service.episodes():
            yield

    app.router.lifespan_context = lifespan


class Answer(Interface):
    """An answer in the words of one API, whole or as the events of a stream."""

    def whole(self, run: Trajectory) -> JsonObject: ...

    def begin(self) -> bytes: ...

    def write(self, text: str) -> bytes:
        """What the agent wrote further."""

    def show(self, made: Sequence[Search]) -> bytes:
        """Searches that were made since."""

    def end(self, run: Trajectory) -> bytes: ...

    def fail(self, status: int, sentence: str, kind: str) -> bytes: ...


def _endpoint(
    service: AgentService, kind: type[A], new: Callable[[str, A], Answer]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        asked, conversation = await read_body(request, service, partial(_read, kind))
        service.check_name(asked.model)
        seed = asked.seed or 0
        service.check_length(conversation)
        record = cast(JsonObject, request.scope[RECORD])
        answer = new(service.name, asked)
        if not asked.stream:
            run = await while_wanted(request, service.answer(conversation, seed))
            _note(record, run)
            if run.stop.is_fault:
                return JSONResponse(openai_error(502, _fault(run), "agent_error"), 502)
            text = json.dumps(answer.whole(run), allow_nan=False).encode()
            service.held.take(request.scope, len(text))
            return Response(text, media_type="application/json")
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


def _read(kind: type[A], body: bytes) -> tuple[A, QuestionInContext]:
    asked = read_request(kind, body)
    return asked, asked.conversation


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
    answer: Answer, heard: Heard, running: "asyncio.Future[Trajectory]", record: JsonObject
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
