"""A small web for tests: the saved pages, the canned answers of the providers, and servers that behave badly."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.models.http_site import Asked, Said, site

SECRET = "sk-SECRET-4711"
SENT_AS = {
    "serper": ("x-api-key", SECRET),
    "google": ("x-goog-api-key", SECRET),
    "brave": ("x-subscription-token", SECRET),
    "tavily": ("authorization", f"Bearer {SECRET}"),
}
"""Provider → the header that carries the key."""
PAGES = Path(__file__).parent / "pages"


@dataclass
class Site:
    """A running server."""

    url: str
    answers: dict[str, Callable[[int], Said]]
    """Path without its query → what is answered to the n-th request for it, n from 0."""
    seen: list[Asked]

    def answer(self, request: Asked) -> Said:
        path = request.path.partition("?")[0]
        reply = self.answers[path](self.count(path)) if path in self.answers else Said(status=404)
        self.seen.append(request)
        return reply

    def says(self, path: str, *answers: Said) -> None:
        """Answer with these in order; repeat the last."""
        self.answers[path] = lambda number: answers[min(number, len(answers) - 1)]

    def answer_of(self, name: str) -> str:
        """Serve the stored answer of a provider, whose results are the pages here; returns its URL."""
        text = (PAGES / f"answer.{name}.json").read_text(encoding="utf-8").replace("BASE", self.url)
        self.says("/api", Said(text.encode(), headers={"Content-Type": "application/json"}))
        return f"{self.url}/api"

    def count(self, path: str) -> int:
        return sum(request.path.partition("?")[0] == path for request in self.seen)


def html(body: bytes, content_type: str = "text/html", **headers: str) -> Said:
    return Said(body, headers={"Content-Type": content_type, **headers})


def _saved() -> dict[str, Said]:
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
        "/loop": Said(status=302, headers={"Location": "/loop"}),
        "/moved": Said(status=301, headers={"Location": "/lighthouse.html#lamp"}),
        "/to-file": Said(status=302, headers={"Location": "file:///etc/hostname"}),
        "/to-user": Said(status=302, headers={"Location": "http://me:secret@127.0.0.1/"}),
        "/to-nonsense": Said(status=302, headers={"Location": "http://[:::1/"}),
        "/gone": Said(status=404),
        "/slow": Said(b"<p>tick</p>" * 50, headers={"Content-Type": "text/html"}, dribble_s=0.05),
    }


@contextmanager
def running() -> Iterator[Site]:
    """Run a local server inside the block."""
    web = Site("", {}, [])
    for path, reply in _saved().items():
        web.says(path, reply)
    with site(web.answer) as there:
        web.url = there.url
        yield web
