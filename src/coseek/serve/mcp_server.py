"""MCP server: a retriever's `search` and `fetch` and an agent's `ask` as tools of the Model Context Protocol.

`search` and `fetch` have the forms that chat clients expect of a knowledge source. Every result is structured content
and the same JSON as text. Searches of one server run one after the other, since a retriever need not be thread-safe.
"""

from collections import OrderedDict
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import TypeVar, cast

import anyio.to_thread
from anyio import CapacityLimiter
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse

from coseek import __version__
from coseek.agents.drivers import Agent, rollout
from coseek.agents.limits import Limits
from coseek.agents.sources import reply_in_words, sources_of
from coseek.core.errors import CoseekError, DataError
from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.core.text import as_written
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.retrieval.retriever import Retriever
from coseek.serve.service import (
    AccessMiddleware,
    App,
    Receive,
    RefusedRequest,
    Scope,
    Send,
    Server,
    bound,
    until_disconnect,
    url_of,
    whole_body,
)
from coseek.serve.settings import ListenSettings

R = TypeVar("R")

REMEMBERED = 10_000
"""Number of passages found last that `fetch` knows of a retriever without a local corpus."""
LONGEST = 32_768
"""Maximum number of characters of a query or question."""
MOST_BYTES = 16 * LONGEST
"""Maximum number of bytes of a body: JSON may need twelve for a character. The library parses it in the event loop."""
ABOUT = "Search a collection of passages, and read a passage whole by its id."
ABOUT_AGENT = " `ask` lets a search agent answer a question from it, and names the passages it read."


@dataclass(frozen=True)
class Found:
    """A passage in a list."""

    id: str
    title: str
    url: str
    """Empty for a passage without an address."""


@dataclass(frozen=True)
class SearchResults:
    """Result of `search`."""

    results: list[Found]


@dataclass(frozen=True)
class PassageRecord(Found):
    """Result of `fetch`."""

    text: str
    metadata: dict[str, object]


@dataclass(frozen=True)
class Source(Found):
    """A passage that supports an answer."""

    place: str
    """Its address or file, with the page or row; empty if unknown."""


@dataclass(frozen=True)
class AgentAnswer:
    """Result of `ask`."""

    answer: str
    """The answer, or a sentence if there is no answer."""
    stop: str
    """Why the agent stopped."""
    sources: list[Source]
    """The passages that contain the answer, or else the best passages that the agent read."""


@dataclass
class KnowledgeTools:
    """The tools, as methods that block. `CoseekError`s are messages for the client."""

    retriever: Retriever
    topk: int
    agent: Agent | None = None
    limits: Limits = field(default_factory=Limits)
    _recent: OrderedDict[str, Passage] = field(default_factory=OrderedDict, init=False)

    def search(self, query: str) -> SearchResults:
        """Find passages for a query."""
        hits = self.retriever.search([_check_text(query, "query")], self.topk)[0]
        self._remember([hit.passage for hit in hits])
        return SearchResults([_to_found(hit.passage) for hit in hits])

    def fetch(self, id: str) -> PassageRecord:  # the contract names it so
        """Read a whole passage by an id from `search` or `ask`."""
        passage = self._passage(id)
        title, text = as_written(passage.title), as_written(passage.text)
        return PassageRecord(passage.id, title, passage.url, text, dict(passage.meta))

    def ask(self, question: str) -> AgentAnswer:
        """Let the agent search and answer."""
        assert self.agent is not None
        asked_question = Question("asked", _check_text(question, "question"))
        trajectory = rollout(self.agent, self.retriever, [asked_question], [0], self.limits)[0]
        if trajectory.stop.is_fault:
            raise DataError(f"the run ended by {trajectory.stop}: {trajectory.stop_detail or 'no detail'}")
        passages = sources_of(trajectory)
        self._remember(passages)
        sources = [Source(**vars(_to_found(passage)), place=passage.place) for passage in passages]
        return AgentAnswer(reply_in_words(trajectory), str(trajectory.stop), sources)

    def _passage(self, ident: str) -> Passage:
        corpus = self.retriever.corpus
        passage = self._recent.get(ident) if corpus is None else corpus.by_id(ident) if corpus.has(ident) else None
        if passage is None:
            raise DataError(f"there is no passage {ident!r}; `search` names the ids")
        return passage

    def _remember(self, passages: list[Passage]) -> None:
        if self.retriever.corpus is not None:
            return
        for passage in passages:
            self._recent[passage.id] = passage
            self._recent.move_to_end(passage.id)
        while len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)


def make_server(tools: KnowledgeTools, name: str) -> MCPServer:
    """A server with `search` and `fetch`, and `ask` if there is an agent."""
    instructions = ABOUT + (ABOUT_AGENT if tools.agent is not None else "")
    server = MCPServer(name, instructions=instructions, version=__version__, log_level="ERROR")
    serial, parallel = CapacityLimiter(1), CapacityLimiter(8)
    annotations = ToolAnnotations(read_only_hint=True, open_world_hint=False)

    def add(call: Callable[..., object], limiter: CapacityLimiter, description: str) -> None:
        @server.tool(description=description, annotations=annotations, structured_output=True)
        @wraps(call)
        async def tool(**arguments: object) -> object:
            return await _run_in_thread(partial(call, **arguments), limiter)

    add(tools.search, serial, "Find passages for a query, best first.")
    add(tools.fetch, parallel, "Read a passage whole, by an id that was found.")
    if tools.agent is not None:
        add(tools.ask, serial, "Let a search agent answer a question from the passages.")
    return server


def serve_http(server: MCPServer, port: int, ready: Callable[[str], None]) -> None:
    """Serve streamable HTTP on loopback until a signal arrives. `ready` is called with the URL. Port 0 selects a free
    port. Raises `SettingError` for a port in use."""
    settings = make_settings(ListenSettings, {"port": port, "max_body_bytes": MOST_BYTES})
    listening = bound(settings.host, settings.port)
    app = bounded(cast(App, server.streamable_http_app(stateless_http=True, json_response=True)), settings)
    ready(f"{url_of(listening)}/mcp")
    Server(AccessMiddleware(app, None, log=False), settings).run(sockets=[listening])


def bounded(app: App, settings: ListenSettings) -> App:
    """The application with limits on the body. Its work is cancelled if the client disconnects."""

    async def handle(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            if request.method != "POST":  # a stream of events would stay empty and never end
                raise RefusedRequest(405, "calls are sent with POST")
            body = await whole_body(request, settings)
        except RefusedRequest as error:
            row: JsonObject = {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": str(error)}}
            await JSONResponse(row, error.status, {"allow": "POST", **error.headers})(scope, receive, send)
            return
        messages = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> MutableMapping[str, object]:
            return messages.pop() if messages else await receive()

        with suppress(RefusedRequest):  # the client has disconnected
            await until_disconnect(request, app(scope, replay, send))

    return handle


async def _run_in_thread(call: Callable[[], R], limiter: CapacityLimiter) -> R:
    """Run a call in a thread. A `CoseekError` becomes an error of the tool. A waiting call can be cancelled."""
    try:
        return await anyio.to_thread.run_sync(call, limiter=limiter)
    except CoseekError as error:
        raise ToolError(str(error)) from error


def _check_text(text: str, name: str) -> str:
    if not text.strip():
        raise DataError(f"the {name} is empty")
    if len(text) > LONGEST:
        raise DataError(f"the {name} has {len(text)} characters, and at most {LONGEST} are taken")
    return text


def _to_found(passage: Passage) -> Found:
    return Found(passage.id, as_written(passage.title).strip(), passage.url)
