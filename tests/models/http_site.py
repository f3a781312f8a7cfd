"""A small web site for tests: it writes down what it is asked, and answers what a function says."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from coseek.core.files import JsonObject


@dataclass(frozen=True)
class Asked:
    """One request."""

    number: int
    """From 0, in the order of arrival."""
    method: str
    path: str
    headers: dict[str, str]
    body: JsonObject


@dataclass(frozen=True)
class Said:
    """One answer; `hold`, where given, is waited for first."""

    body: JsonObject | bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    dribble_s: float = 0.0
    """Seconds between one byte and the next."""


@dataclass
class Site:
    url: str
    asked: list[Asked] = field(default_factory=list)
    most_at_once: int = 0


def _said(answer: Callable[[Asked], Said], asked: Asked) -> tuple[Said, bool]:
    """The site's answer, and whether the request counts: one for a list of models that the site does not have does
    not, since clients do without it."""
    if asked.method != "GET" or not asked.path.endswith("/models"):
        return answer(asked), True
    try:
        said = answer(asked)
    except (KeyError, IndexError):
        return Said({}, 404), False
    return said, isinstance(said.body, dict) and "data" in said.body


class _Quiet(ThreadingHTTPServer):
    """Says nothing of clients that have gone."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        return


@contextmanager
def site(answer: Callable[[Asked], Said]) -> Iterator[Site]:
    """The site, at 127.0.0.1 and a free port, until the block ends."""
    lock = threading.Lock()
    now = [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers.get("content-length", 0)))
            with lock:
                headers = {name.lower(): value for name, value in self.headers.items()}
                body = json.loads(text) if text else {}
                asked = Asked(len(found.asked), self.command, self.path, headers, body)
                found.asked.append(asked)
                now[0] += 1
                found.most_at_once = max(found.most_at_once, now[0])
            said, counts = _said(answer, asked)
            if not counts:
                with lock:
                    found.asked.remove(asked)
            if said.hold is not None:
                said.hold.wait(20)
            with lock:
                now[0] -= 1
            content = said.body if isinstance(said.body, bytes) else json.dumps(said.body).encode()
            try:
                self.send_response(said.status)
                for name, value in {"content-length": str(len(content)), **said.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for start in range(0, len(content), step := 1 if said.dribble_s else max(1, len(content))):
                    self.wfile.write(content[start : start + step])
                    time.sleep(said.dribble_s)
            except OSError:  # the client has gone
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    server = _Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    found = Site(f"http://127.0.0.1:{server.server_port}")
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
