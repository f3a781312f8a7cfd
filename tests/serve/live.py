"""Shared by tests of services: a server in a thread, and retrievers that are slow or fail on purpose.

`python -m tests.serve.live FILE` is a server whose searches wait until FILE exists. It prints its URL.
"""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from coseek.core.errors import RetrieverError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.serve.search_service import SearchService, make_app, serve
from coseek.serve.service import App, Server, Service, bound
from coseek.serve.settings import ServeSettings

CORPUS = Corpus(
    [
        Passage("ada", "Ada Lovelace", "She wrote the first program."),
        Passage("byron", "Lord Byron", "A poet, and the father of Ada."),
        Passage("curie", "Marie Curie", 'She studied "radium" in Paris.\nTwice a laureate.'),
        Passage("tide", "Tide", "The moon moves the sea. 月が海を動かす。"),
    ]
)


WEB = httpx.Client(trust_env=False, verify=False, timeout=30, limits=httpx.Limits(max_keepalive_connections=0))
"""One client for all tests: creating one reads certificates, which takes longer than a request."""


class EchoRetriever:
    """Finds every passage, in corpus order; a query of `fail` fails, and one of `bug` is one.

    `batches` keeps what each search was asked; `gate`, when given, must be opened before a search ends.
    """

    name = "echo"

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.corpus: Corpus | None = CORPUS
        self.batches: list[list[Query]] = []
        self.gate = gate

    @property
    def identity(self) -> str:
        return "echo"

    def seen(self, query: QueryLike) -> str:
        return repr(Query.of(query))

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.batches.append([Query.of(query) for query in queries])
        texts = [query.text for query in self.batches[-1]]
        if self.gate is not None and texts != ["warm up"]:
            assert self.gate.wait(30)
        if "fail" in texts:
            raise RetrieverError("the shelf fell down")
        if "bug" in texts:
            raise ZeroDivisionError("a bug")
        return [[Hit(passage, 1.0 / rank) for rank, passage in enumerate(CORPUS[:k], start=1)] for _ in queries]


def _same(retriever: Retriever) -> Retriever:
    return retriever


@contextmanager
def live(
    retrievers: Mapping[str, Retriever],
    token: str | None = None,
    **settings: float | str,
) -> Iterator[str]:
    """The URL of a server in a thread, stopped at the end."""
    given = make_settings(ServeSettings, {"port": 0, "log": False, **settings})
    listening = bound(given.host, given.port)
    service = SearchService({name: partial(_same, retriever) for name, retriever in retrievers.items()}, given)
    with in_a_thread(service, make_app(service, token), listening) as url:
        yield url


@contextmanager
def in_a_thread(service: Service, app: App, listening: socket.socket) -> Iterator[str]:
    """The URL of a service in a thread, which is stopped at the end."""
    ready = threading.Event()
    service.when_open = ready.set
    server = Server(app, service.settings)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    try:
        assert ready.wait(30)
        assert service.failure is None, service.failure
        host, port = listening.getsockname()[:2]
        yield f"http://{host}:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def until(true: Callable[..., bool]) -> None:
    """Wait until the condition is true, at most 20 s."""
    ends = time.monotonic() + 20
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


class SlowRetriever(EchoRetriever):
    """Waits before every search until a file exists; the first search creates FILE.begun."""

    def __init__(self, opens: Path) -> None:
        super().__init__()
        self.opens = opens

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        if [Query.of(query).text for query in queries] != ["warm up"]:
            Path(f"{self.opens}.begun").touch()
            while not self.opens.exists():
                time.sleep(0.01)
        return super().search(queries, k)


if __name__ == "__main__":
    serve(
        {"slow": lambda: SlowRetriever(Path(sys.argv[1]))},
        ServeSettings(port=0, batch=4),
        lambda url: print(url, flush=True),
    )
