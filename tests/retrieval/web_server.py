"""A small web for tests: the saved pages, the canned answers of the providers, and servers that behave badly."""

import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.serving import serving

SECRET = "sk-SECRET-4711"
SENT_AS = {
    "serper": ("x-api-key", SECRET),
    "google": ("x-goog-api-key", SECRET),
    "brave": ("x-subscription-token", SECRET),
    "tavily": ("authorization", f"Bearer {SECRET}"),
}
"""Provider → the header that carries the key."""
PAGES = Path(__file__).parent / "pages"


@dataclass(frozen=True)
class Answer:
    """What the server says to one request."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    dribble_s: float = 0.0
    """Seconds between one byte and the next."""


@dataclass(frozen=True)
class Seen:
    """A request as it came in."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Site:
    """A running server."""

    url: str
    answers: dict[str, Callable[[int], Answer]]
    """Path without its query → what is answered to the n-th request for it, n from 0."""
    seen: list[Seen]

    def says(self, path: str, *answers: Answer) -> None:
        """Answer these in order, the last one for ever."""
        self.answers[path] = lambda number: answers[min(number, len(answers) - 1)]

    def answer_of(self, name: str) -> str:
        """The canned answer of a provider, whose results are the pages here; gives its address."""
        text = (PAGES / f"answer.{name}.json").read_text(encoding="utf-8").replace("BASE", self.url)
        self.says("/api", Answer(text.encode(), headers={"Content-Type": "application/json"}))
        return f"{self.url}/api"

    def count(self, path: str) -> int:
        return sum(one.path.partition("?")[0] == path for one in self.seen)


def html(body: bytes, content_type: str = "text/html", **headers: str) -> Answer:
    return Answer(body, headers={"Content-Type": content_type, **headers})


def _saved() -> dict[str, Answer]:
    read = {path.name: path.read_bytes() for path in PAGES.iterdir()}
    return {
        "/lighthouse.html": html(gzip.compress(read["lighthouse.html"]), **{"Content-Encoding": "gzip"}),
        "/bridge.html": html(read["bridge.windows-1252.html"], "text/html; charset=windows-1252"),
        "/garden.html": html(read["garden.shift-jis.html"]),
        "/shell.html": html(read["shell.html"]),
        "/notes.txt": html(b"Plain notes\x00 on tides.\n", "text/plain"),
        "/photo": html(b"\x89PNG", "image/png"),
        "/long": html(b"<p>" + b"word " * 1_000_000),
        "/bomb": html(gzip.compress(b"0" * 50_000_000), **{"Content-Encoding": "gzip"}),
        "/broken-gzip": html(b"no gzip", **{"Content-Encoding": "gzip"}),
        "/brotli": html(b"x", **{"Content-Encoding": "br"}),
        "/loop": Answer(status=302, headers={"Location": "/loop"}),
        "/moved": Answer(status=301, headers={"Location": "/lighthouse.html#lamp"}),
        "/to-file": Answer(status=302, headers={"Location": "file:///etc/hostname"}),
        "/to-user": Answer(status=302, headers={"Location": "http://me:secret@127.0.0.1/"}),
        "/to-nonsense": Answer(status=302, headers={"Location": "http://[:::1/"}),
        "/gone": Answer(status=404),
        "/slow": Answer(b"<p>tick</p>" * 50, headers={"Content-Type": "text/html"}, dribble_s=0.05),
    }


@contextmanager
def running() -> Iterator[Site]:
    """A server on this machine, stopped at the end."""
    site = Site("", {}, [])
    for path, answer in _saved().items():
        site.says(path, answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(site))
    server.daemon_threads = True
    with serving(server) as site.url:
        yield site


def _handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            answer = site.answers[path](site.count(path)) if path in site.answers else Answer(status=404)
            headers = {name.lower(): value for name, value in self.headers.items()}
            site.seen.append(Seen(self.command, self.path, headers, body))
            try:
                self._answer(answer)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client had seen enough

        do_POST = do_GET

        def _answer(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            for start in range(0, len(answer.body), 1 if answer.dribble_s else 65536):
                self.wfile.write(answer.body[start : start + (1 if answer.dribble_s else 65536)])
                time.sleep(answer.dribble_s)

        def log_message(self, format: str, *args: object) -> None:
            """Not onto the terminal."""

    return Handler


def body_of(seen: Seen) -> dict[str, object]:
    value = json.loads(seen.body)
    assert isinstance(value, dict)
    return value
