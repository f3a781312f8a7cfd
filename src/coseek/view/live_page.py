"""Live page: the page of runs under way, made anew at every load, on loopback only."""

from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from coseek.core.connections import names_this_machine
from coseek.core.errors import CoseekError, SettingError

HOST = "127.0.0.1"


class LivePage(ThreadingHTTPServer):
    """Answers GET / with a page. Port 0 takes a free one; `url` names it."""

    daemon_threads = True

    def __init__(self, port: int, make: Callable[[], str]) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise SettingError(f"port {port} cannot be listened at ({error}); choose another --port, or 0") from None
        self.make = make
        self.lock = Lock()
        """One page at a time: each reads whole runs."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: LivePage

    def do_GET(self) -> None:
        if not names_this_machine(self.headers.get("Host", "")):
            self.answer(HTTPStatus.MISDIRECTED_REQUEST, f"open {self.server.url}", "text/plain")
        elif self.path.partition("?")[0] != "/":
            self.answer(HTTPStatus.NOT_FOUND, f"the only page is {self.server.url}", "text/plain")
        else:
            try:
                with self.server.lock:
                    page = self.server.make()
            except CoseekError as error:
                self.answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n", "text/plain")
            else:
                self.answer(HTTPStatus.OK, page, "text/html")

    def answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        with suppress(ConnectionError):  # the browser left before the page was made
            self.send(status, body, kind)

    def send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the page's own address is all that was asked for."""
