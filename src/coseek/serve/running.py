"""Running: a service on a socket until a signal stops it. The first signal lets it finish, a second ends it at once."""

import asyncio
import ctypes
import os
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FrameType
from typing import Protocol, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from coseek.core.connections import names_this_machine
from coseek.core.errors import SettingError
from coseek.retrieval.factory import Stamp
from coseek.retrieval.retriever import Retriever
from coseek.serve.allocator import give_back, give_back_large_blocks
from coseek.serve.app import make_app
from coseek.serve.connection import protocol_of
from coseek.serve.middleware import App
from coseek.serve.service import RetrieverService
from coseek.serve.settings import ListenSettings, ServeSettings
from coseek.serve.worker import AnyService

_BACKLOG = 1_024
_ATTACH_FILTER = 26
"""SO_ATTACH_FILTER of Linux, which `socket` does not name."""
_TRIM_TICKS = 50
"""Tenths of a second after which freed memory is given back."""


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
    give_back_large_blocks()
    server = Server(service, app)
    listening = bound(service.settings.host, service.settings.port)
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
    if not service.close(0.0):
        # A thread in a search cannot be ended, and must not keep the process alive.
        sys.stdout.flush()
        os._exit(0)


class Listens(Protocol):
    """What connections need to know of a service."""

    stopping: bool

    @property
    def settings(self) -> ListenSettings: ...


class Server(uvicorn.Server):
    """uvicorn, with a shutdown that loses no request."""

    grace_s = 0.25
    """Seconds after the signal in which requests over open connections are still read."""
    drain_s = 10.0
    """Seconds at most in which what has arrived by then is read; a busy process is late with it."""

    def __init__(self, service: Listens, app: App) -> None:
        settings = service.settings
        self.service = service
        config = uvicorn.Config(
            app,
            http=protocol_of(settings),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # no line for each malformed request, whose writing could block
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

    async def on_tick(self, counter: int) -> bool:
        if counter % _TRIM_TICKS == 0:
            await asyncio.to_thread(give_back)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has come, accept nothing new, then close.

        A connection that waits to be accepted is reset when its port closes, hence they are accepted here; one that
        waits to be read is reset when it is closed itself, hence the waits."""
        self.service.stopping = True
        for listening in sockets or ():
            _refuse_new(listening)
        arrived = [one for listening in sockets or () for one in _waiting(listening)]
        for server in self.servers:
            server.close()
        loop = asyncio.get_running_loop()
        for one in arrived:
            await loop.connect_accepted_socket(self._connection, one)
        await asyncio.sleep(self.grace_s)
        until = time.monotonic() + self.drain_s
        while self._unread() and time.monotonic() < until:
            await asyncio.sleep(0.01)
        await super().shutdown(sockets)

    def _connection(self) -> asyncio.Protocol:
        made = cast(Callable[..., asyncio.Protocol], self.config.http_protocol_class)
        return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    def _unread(self) -> bool:
        """Whether data waits on a connection without a request under way, which uvicorn would close."""
        found = [cast(HttpToolsProtocol, one) for one in self.server_state.connections]
        idle = [one.transport for one in found if one.cycle is None or one.cycle.response_complete]
        with selectors.DefaultSelector() as selector:
            for one in idle:
                if not one.is_closing():
                    selector.register(one.get_extra_info("socket"), selectors.EVENT_READ)
            return bool(selector.get_map()) and bool(selector.select(0))


def _refuse_new(listening: socket.socket) -> None:
    """Let no more connections begin; those that wait to be accepted stay. Elsewhere than on Linux one may be reset."""
    if sys.platform == "linux":
        nothing = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))  # a packet filter: take 0 bytes
        with suppress(OSError):  # a sandbox may have no filters
            listening.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(nothing)))


def _waiting(listening: socket.socket) -> Iterator[socket.socket]:
    """The connections that wait to be accepted."""
    with suppress(BlockingIOError):
        while True:
            yield listening.accept()[0]


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


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


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
    return names_this_machine(f"[{host}]" if ":" in host else host)
