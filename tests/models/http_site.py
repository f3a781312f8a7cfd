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


def _reply_to(answer: Callable[[Asked], Said], request: Asked) -> tuple[Said, bool]:
    """The site's answer, and whether the request counts: one for a list of models that the site does not have does
    not, since clients do without it."""
    if request.method != "GET" or not request.path.endswith("/models"):
        return answer(request), True
    try:
        reply = answer(request)
    except (KeyError, IndexError):
        return Said({}, 404), False
    return reply, isinstance(reply.body, dict) and "data" in reply.body


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
                request = Asked(len(recorded.asked), self.command, self.path, headers, body)
                recorded.asked.append(request)
                now[0] += 1
                recorded.most_at_once = max(recorded.most_at_once, now[0])
            reply, counts = _reply_to(answer, request)
            if not counts:
                with lock:
                    recorded.asked.remove(request)
            if reply.hold is not None:
                reply.hold.wait(20)
            with lock:
                now[0] -= 1
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            try:
                self.send_response(reply.status)
                for name, value in {"content-length": str(len(content)), **reply.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                for start in range(0, len(content), step := 1 if reply.dribble_s else max(1, len(content))):
                    self.wfile.write(content[start : start + step])
                    time.sleep(reply.dribble_s)
            except OSError:  # the client has gone
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            return

    server = _Quiet(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    recorded = Site(f"http://127.0.0.1:{server.server_port}")
    try:
        yield recorded
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
