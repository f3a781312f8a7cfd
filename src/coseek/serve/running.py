"""Running: a service, its work thread and its application, served on a socket until a signal stops it."""

import asyncio
import os
import socket
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import FrameType
from typing import Generic, TypeAlias, TypeVar

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from coseek.core.connections import names_this_machine
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.serve.limits import BUG, App, RefusedRequest
from coseek.serve.settings import AgentServeSettings, ListenSettings, ServeSettings

L = TypeVar("L", bound=ListenSettings)
T = TypeVar("T")
ErrorBody: TypeAlias = Callable[[int, str, str], JsonObject]
"""(status, sentence, kind) → the body of an error response."""
_BACKLOG = 1_024


class WorkThread:
    """One thread for work that must not block the event loop. Calls run one after the other."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._ended: Callable[[], bool] = lambda: True
        """Whether the last call has ended."""

    async def run(self, call: Callable[[], T]) -> T:
        """The result of a call. Cancellation does not stop a call that is running."""
        future = self._pool.submit(call)
        self._ended = future.done
        return await asyncio.wrap_future(future)

    @property
    def busy(self) -> bool:
        return not self._ended()

    def close(self) -> None:
        """End the thread after the running call, if any."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Service(ABC, Generic[L]):
    """Opens what it serves in its thread, so that `/health` responds meanwhile."""

    def __init__(self, settings: L, thread: WorkThread, opening: str) -> None:
        self.settings, self.thread = settings, thread
        self.opening = opening
        """The name of what is being opened; "" when everything is open."""
        self.failure: Exception | None = None
        """Why it could not be opened."""
        self.when_open: Callable[[], None] = lambda: None
        """Called in the event loop when everything is open or opening has failed (`failure`)."""

    @property
    def not_ready(self) -> str:
        """Why no request can be answered now; "" when the service is ready."""
        if self.failure is not None:
            return f"{self.opening} could not be opened"
        return f"{self.opening} is being opened" if self.opening else ""

    def check_ready(self) -> None:
        """Raise `RefusedRequest` (503) until everything is open."""
        if self.not_ready:
            raise RefusedRequest(503, f"{self.not_ready}; retry later", retry_after_s=1)

    def health(self) -> JsonObject:
        """The response of `/health`: `ready`, `why` not, and counts."""
        return {"ready": not self.not_ready, "why": self.not_ready, **self._counts()}

    @abstractmethod
    def _counts(self) -> JsonObject:
        """Counts of requests."""

    @abstractmethod
    def _open(self) -> None:
        """Open everything; called in the thread."""

    async def open(self) -> None:
        try:
            await self.thread.run(self._open)
            self.opening = ""
        except Exception as error:  # noqa: BLE001 (raised again by whoever runs the service)
            self.failure = error
        self.when_open()

    async def close(self) -> None:
        """Called at the end, after every request has been answered."""
        self.thread.close()


AnyService: TypeAlias = Service[ServeSettings] | Service[AgentServeSettings]


def new_app(service: AnyService, error_body: ErrorBody) -> FastAPI:
    """An application with `/health` and error responses, whose lifespan opens and closes the service."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        opening = asyncio.ensure_future(service.open())
        yield
        opening.cancel()
        await service.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None)

    @app.get("/health")
    async def health() -> Response:
        body = service.health()
        return JSONResponse(body, 200 if body["ready"] else 503)

    @app.exception_handler(RefusedRequest)
    async def refused(request: Request, error: RefusedRequest) -> Response:
        return JSONResponse(error_body(error.status, str(error), "refused"), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> Response:
        body = error_body(error.status_code, str(error.detail), "refused")
        return JSONResponse(body, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return JSONResponse(error_body(500, BUG, "bug"), 500)

    return app


def serve_app(service: AnyService, app: App, ready: Callable[[str], None]) -> None:
    """Serve until a signal arrives. `ready` is called with the URL when everything is open. Raises the error if opening
    fails."""
    server, listening = Server(app, service.settings), bound(service.settings.host, service.settings.port)
    url = url_of(listening)

    def when_open() -> None:
        if service.failure is None:
            ready(url)
        else:
            server.should_exit = True

    service.when_open = when_open
    server.run(sockets=[listening])
    if service.failure is not None:
        raise service.failure
    if service.thread.busy:  # with work that nobody waits for, but whose end the interpreter would await
        sys.stdout.flush()
        os._exit(0)


class Server(uvicorn.Server):
    """uvicorn, which ends with exit code 0 after the first signal, and immediately after a second."""

    def __init__(self, app: App, settings: ListenSettings) -> None:
        config = uvicorn.Config(
            app,
            http="httptools",
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,
            limit_concurrency=settings.max_connections + 1,
            backlog=_BACKLOG,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop. uvicorn's own handler would raise the signal again at the end, which would be the exit code."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `SettingError` if the address or port cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except socket.gaierror:
        raise SettingError(f"there is no address {host!r} on this machine; listen at 127.0.0.1") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SettingError(
            f"port {port} of {host} cannot be used: {reason}; name another, or 0 for a free one"
        ) from None


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def token_of(settings: ListenSettings) -> str | None:
    """The token that requests must send, from the environment; `None` on the loopback without `token_env`."""
    if settings.token_env is None:
        if not is_loopback(settings.host):
            raise SettingError(
                f"{settings.host} can be reached from other machines, so requests need a token; put one into an "
                "environment variable, and name that with --token-env"
            )
        return None
    token = os.environ.get(settings.token_env, "")
    if not token.strip():
        raise SettingError(f"the environment variable {settings.token_env} is empty; put the token into it")
    return token.strip()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return names_this_machine(f"[{host}]" if ":" in host else host)
