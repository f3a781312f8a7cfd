"""Agent app: the HTTP paths of an agent service, and a page for trying it."""

import asyncio
import contextlib
import json
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse

from coseek.core.files import JsonObject
from coseek.data.trajectory import Search, Trajectory
from coseek.serve.agent_chat import AgentAsked, ChatAnswer, event, read_asked, searches
from coseek.serve.agent_service import AgentService
from coseek.serve.app import new_app, whole_body
from coseek.serve.contract import BUG, RefusedRequest
from coseek.serve.logs import Log
from coseek.serve.middleware import RECORD, AccessMiddleware, App
from coseek.serve.model_app import openai_error, while_wanted
from coseek.serve.running import run, token_of

PAGE = Path(__file__).parent / "chat.html"
_ONLY_OWN = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


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
        return JSONResponse(service.info())

    async def models() -> Response:
        return JSONResponse(service.models())

    async def page() -> Response:
        return HTMLResponse(PAGE.read_text(encoding="utf-8"), headers={"content-security-policy": _ONLY_OWN})

    app.add_api_route("/info", info, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/chat/completions", _chat(service), methods=["POST"], response_model=None)
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


def _chat(service: AgentService) -> Callable[[Request], object]:
    async def chat(request: Request) -> Response:
        asked = read_asked(await whole_body(request, service.settings))
        question = _question(asked, service)
        record = cast(JsonObject, request.scope[RECORD])
        answer = ChatAnswer.new(service.name)
        if not asked.stream:
            run = await while_wanted(request, service.answer(question, asked.seed or 0))
            _note(record, run)
            if run.stop.is_fault:
                return JSONResponse(openai_error(502, _fault(run), "agent_error"), 502)
            return Response(json.dumps(answer.whole(run), allow_nan=False).encode(), media_type="application/json")
        service.check_room()  # a refusal is a status, and a stream has begun with 200
        parts = _stream(service, asked, question, answer, record)
        return StreamingResponse(parts, media_type="text/event-stream", headers={"cache-control": "no-store"})

    return chat


async def _stream(
    service: AgentService, asked: AgentAsked, question: str, answer: ChatAnswer, record: JsonObject
) -> AsyncIterator[bytes]:
    """The events of one answer. Where the client goes, the run is cancelled."""
    heard: asyncio.Queue[tuple[str, Sequence[Search]] | None] = asyncio.Queue()
    running = asyncio.ensure_future(
        service.answer(question, asked.seed or 0, lambda text, made: heard.put_nowait((text, made)))
    )
    running.add_done_callback(lambda _: heard.put_nowait(None))
    try:
        yield event(answer.chunk({"role": "assistant", "content": ""}))
        while (one := await heard.get()) is not None:
            text, made = one
            if text:
                yield event(answer.chunk({"reasoning_content": text}))
            if made:
                yield event({**answer.chunk({}), "coseek": {"searches": searches(made)}})
        try:
            run = running.result()
        except RefusedRequest as error:
            yield event(openai_error(error.status, str(error), "refused"))
        except Exception:  # noqa: BLE001 (the stream has begun, so a bug can only be told in it)
            traceback.print_exc(file=sys.stderr)
            yield event(openai_error(500, BUG, "bug"))
        else:
            _note(record, run)
            if run.stop.is_fault:
                yield event(openai_error(502, _fault(run), "agent_error"))
            else:
                with_usage = asked.stream_options is not None and asked.stream_options.include_usage
                for chunk in answer.ending(run, with_usage):
                    yield event(chunk)
        yield b"data: [DONE]\n\n"
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await running


def _question(asked: AgentAsked, service: AgentService) -> str:
    if asked.model is not None and asked.model != service.name:
        raise RefusedRequest(404, f"{asked.model!r} is not served here; the agent is {service.name!r}")
    question, most = asked.question, service.settings.max_question_chars
    if len(question) > most:
        raise RefusedRequest(413, f"the question has {len(question)} characters, and at most {most} are taken")
    return question


def _fault(run: Trajectory) -> str:
    return f"the run ended by {run.stop}: {run.stop_detail or 'no detail'}"


def _note(record: JsonObject, run: Trajectory) -> None:
    """Add the counts of a run to the log line."""
    record |= {"stop": str(run.stop), "searches": len(run.searches)}
