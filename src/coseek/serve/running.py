"""Running: a service on a socket until a signal stops it. The first signal lets it finish, a second ends it at once."""

import asyncio
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Mapping
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coseek.core.errors import SettingError
from coseek.retrieval.factory import Stamp
from coseek.retrieval.retriever import Retriever
from coseek.serve.app import make_app
from coseek.serve.middleware import App
from coseek.serve.service import RetrieverService
from coseek.serve.settings import ListenSettings, ServeSettings
from coseek.serve.worker import AnyService

_BACKLOG = 1_024


def serve(
    openers: Mapping[str, Callable[[], Retriever]],
    settings: ServeSettings,
    ready: Callable[[str], None],
    stamps: Mapping[str, Callable[[], Stamp | None]] | None = None,
) -> None:
    """Serve until a signal comes; `ready` is called with the URL once everything is open. See `RetrieverService`."""
    token = token_of(settings)
    service = RetrieverService(openers, settings, stamps)
    run(service, make_app(service, token), ready)


def run(service: AnyService, app: App, ready: Callable[[str], None]) -> None:
    """Listen until a signal comes."""
    server = Server(service, app)
    listening = bound(service.settings.host, service.settings.port)
    host, port = listening.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def when_open() -> None:
        if service.failure is None:
            ready(url)
        else:
            server.should_exit = True

    service.when_open = when_open
    server.run(sockets=[listening])
    if service.failure is not None:
        raise service.failure
    if not service.close(0.0):
        # A thread in a search cannot be ended, and must not keep the process alive.
        sys.stdout.flush()
        os._exit(0)


class Server(uvicorn.Server):
    """uvicorn, with a shutdown that loses no request."""

    grace_s = 0.25
    """Seconds after the signal in which requests over open connections are still accepted."""

    def __init__(self, service: AnyService, app: App) -> None:
        settings = service.settings
        self.service = service
        config = uvicorn.Config(
            app,
            http=_patient(settings.headers_s),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=settings.keep_alive_s,
            backlog=_BACKLOG,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; a second signal ends the process. uvicorn's own handler would raise the signal again at the end."""
        if self.should_exit:
            os._exit(128 + sig)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing new, answer what has come, then close."""
        self.service.stopping = True
        for server in self.servers:
            server.close()
        await asyncio.sleep(self.grace_s)
        await super().shutdown(sockets)


def _patient(headers_s: float) -> type[HttpToolsProtocol]:
    """uvicorn's HTTP protocol with a time limit for a request's headers, which it lacks."""

    class Patient(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait_for_headers()

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._wait_for_headers()

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait_for_headers(self) -> None:
            if self._timer is None:
                self._timer = self.loop.call_later(headers_s, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Patient


def bound(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `SettingError` where the address or port cannot be used."""
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


def token_of(settings: ListenSettings) -> str | None:
    """The token that requests must carry, from the environment; `None` on the loopback without `token_env`."""
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
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
