"""Model app: the HTTP paths of a model service. They answer with JSON; an error is `{"error": {"message": …}}`."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from coseek.core.errors import ModelError
from coseek.core.files import JsonObject
from coseek.serve.app import new_app, read_body
from coseek.serve.completions import A, ChatAsked, CompletionAsked, WeightsAsked, read_asked
from coseek.serve.connection import ARRIVED
from coseek.serve.contract import RefusedRequest
from coseek.serve.logs import Log
from coseek.serve.middleware import RECORD, AccessMiddleware, App
from coseek.serve.model_service import ModelService, Write
from coseek.serve.running import run, token_of
from coseek.serve.settings import ModelServeSettings

T = TypeVar("T")
_MANY_TOKENS = 1_000
"""Tokens from which an answer is written in a thread."""


def serve_model(folder: Path, settings: ModelServeSettings, name: str | None, ready: Callable[[str], None]) -> None:
    """Serve until a signal comes; `ready` is called with the URL once the model is open."""
    token = token_of(settings)
    service = ModelService(folder, settings, name)
    run(service, make_model_app(service, token), ready)


def make_model_app(service: ModelService, token: str | None = None) -> App:
    """The whole application. It starts and closes the service with its own lifespan."""
    log = Log() if service.settings.log else None
    app = new_app(service, log, openai_error, openapi=False)

    async def info() -> Response:
        return JSONResponse(service.info())

    async def models() -> Response:
        return JSONResponse(service.models())

    async def model(name: str) -> Response:
        service.check_name(name)
        return JSONResponse(service.model_entry())

    def fault(request: Request, error: Exception) -> Response:
        return JSONResponse(openai_error(500, f"the model failed: {error}", "model_error"), 500)

    app.add_api_route("/info", info, methods=["GET"])
    app.add_api_route("/v1/models", models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", model, methods=["GET"])
    app.add_api_route("/v1/completions", _endpoint(service, CompletionAsked, service.complete), methods=["POST"])
    app.add_api_route("/v1/chat/completions", _endpoint(service, ChatAsked, service.chat), methods=["POST"])
    app.add_api_route(
        "/update_weights_from_disk",
        _endpoint(service, WeightsAsked, lambda asked, record, arrived: service.load_weights(asked)),
        methods=["POST"],
    )
    app.add_exception_handler(ModelError, fault)
    return AccessMiddleware(cast(App, app), service, token, log)


def openai_error(status: int, sentence: str, kind: str) -> JsonObject:
    """The body of an error in OpenAI's format."""
    return {"error": {"message": sentence, "type": kind, "code": status}}


def _endpoint(
    service: ModelService, kind: type[A], write: Callable[[A, JsonObject, float | None], Awaitable[Write]]
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        asked = await read_body(request, service, partial(read_asked, kind))
        record = cast(JsonObject, request.scope[RECORD])
        answer = await while_wanted(request, write(asked, record, cast("float | None", request.scope.get(ARRIVED))))
        # ASCII: a text may end within a character.
        text = await service.aside(
            cast(int, record.get("written", 0)) > _MANY_TOKENS,
            lambda: json.dumps(answer(), allow_nan=False).encode(),
        )
        service.held.take(request.scope, len(text))
        return Response(text, media_type="application/json")

    return endpoint


async def while_wanted(request: Request, work: Awaitable[T]) -> T:
    """The result of the work, which is cancelled when the client disconnects first."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise RefusedRequest(499, "the client has gone")
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
