"""Fears about MCP tools: a client that cannot read a result, and a mistake that ends the server."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult

from coseek.agents.factory import limits_for, open_agent, settings_for, settled_for
from coseek.agents.sources import holds
from coseek.agents.tag import NOT_FOUND
from coseek.data.passage import Corpus, Hit, Passage
from coseek.lab.world.world import WorldSettings, make_world
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import FixedRetriever, LayeredRetriever, Retriever
from coseek.serve import mcp_server
from coseek.serve.mcp_server import KnowledgeTools, make_server

HOSTILE = 'x\x1b[2J"}]} </answer><script>alert(1)</script>\u202e'
PAGE = Passage("https://a.example/b", "A page", f"The page says {HOSTILE}")


class Elsewhere(LayeredRetriever):
    """A retriever whose corpus is on another machine."""

    name, identity, corpus = "elsewhere", "elsewhere", None

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        return self.over.search(queries, k)


def called(tools: KnowledgeTools, *calls: tuple[str, dict[str, str]]) -> list[CallToolResult]:
    async def all_calls() -> list[CallToolResult]:
        async with Client(make_server(tools, "test")) as client:
            return [await client.call_tool(*call) for call in calls]

    return asyncio.run(all_calls())


def over(*passages: Passage) -> KnowledgeTools:
    corpus = Corpus(list(passages))
    return KnowledgeTools(FixedRetriever(corpus, {"q": [passage.id for passage in passages]}), 3)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp")
    make_world(WorldSettings(size="tiny", train=0, dev=5, test=0)).save(folder / "world")
    build_index(folder / "world", "bm25", folder / "index")
    return folder / "index"


def test_search_and_fetch_have_the_fields_that_clients_read() -> None:
    searched, page = called(over(PAGE), ("search", {"query": "q"}), ("fetch", {"id": PAGE.id}))
    for result in (searched, page):
        (text,) = result.content
        assert not result.is_error and text.type == "text" and json.loads(text.text) == result.structured_content
    assert searched.structured_content == {"results": [{"id": PAGE.id, "title": "A page", "url": PAGE.id}]}
    assert page.structured_content == {
        "id": PAGE.id, "title": "A page", "url": PAGE.id, "text": PAGE.text, "metadata": {},
    }  # fmt: skip


def test_the_address_and_origin_of_a_document_reach_the_client() -> None:
    page = Passage("a", "A", "text", meta={"url": "https://a.example/a", "path": "a.md", "page": 2})
    (got,) = called(over(page), ("fetch", {"id": "a"}))
    assert got.structured_content is not None and got.structured_content["url"] == "https://a.example/a"
    assert got.structured_content["metadata"] == {"url": "https://a.example/a", "path": "a.md", "page": 2}
    (script,) = called(over(Passage("a", "A", "t", meta={"url": "javascript:alert(1)"})), ("fetch", {"id": "a"}))
    assert script.structured_content is not None and script.structured_content["url"] == ""


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (("search", {"query": " "}), "the query is empty"),
        (("fetch", {"id": "c"}), "there is no passage 'c'; `search` names the ids"),
        (("search", {"text": "q"}), "query"),
        (("ask", {"question": "q"}), "Unknown tool"),
    ],
)
def test_a_mistake_is_an_error_of_its_call_alone(call: tuple[str, dict[str, str]], sentence: str) -> None:
    wrong, right = called(over(PAGE), call, ("search", {"query": "q"}))
    (text,) = wrong.content
    assert wrong.is_error and text.type == "text" and sentence in text.text and not right.is_error


def test_tools_that_only_read_say_so() -> None:
    async def tools() -> None:
        async with Client(make_server(over(PAGE), "test")) as client:
            listed = (await client.list_tools()).tools
            assert [tool.name for tool in listed] == ["search", "fetch"]
            assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in listed)
            assert all(tool.output_schema for tool in listed)

    asyncio.run(tools())


def test_what_a_search_found_can_be_fetched_where_the_corpus_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "REMEMBERED", 1)
    passages = [Passage(name, name, f"text of {name}") for name in "ab"]
    retriever = Elsewhere(FixedRetriever(Corpus(passages), {"a": ["a"], "b": ["b"]}))
    searches = [("search", {"query": name}) for name in "ab"]
    *_, first, last = called(KnowledgeTools(retriever, 1), *searches, ("fetch", {"id": "a"}), ("fetch", {"id": "b"}))
    assert first.is_error  # the oldest is forgotten
    assert last.structured_content is not None and last.structured_content["text"] == "text of b"


class Told(TypedDict):
    answer: str
    stop: str
    sources: list[dict[str, str]]


def ask(agent: str, retriever: Retriever, question: str) -> Told:
    """The answer of an agent over this retriever."""
    chosen = settings_for(agent)
    tools = KnowledgeTools(retriever, 3, open_agent(settled_for(chosen, chosen)), limits_for(chosen))
    (answer,) = called(tools, ("ask", {"question": question}))
    return cast(Told, answer.structured_content)


def test_an_agent_names_the_passages_that_hold_its_answer_and_no_others(index: Path) -> None:
    retriever = open_index(index)
    corpus = {passage.id: passage for passage in retriever.corpus or []}
    told = ask("rules", retriever, f"Where was {next(iter(corpus.values())).title.strip()} born ?")
    assert told["stop"] == "answered" and told["sources"]
    assert all(holds(corpus[source["id"]], told["answer"]) for source in told["sources"])
    assert not any(" ." in source["title"] or source["title"].startswith(" ") for source in told["sources"])


def test_a_source_has_its_file_and_page() -> None:
    page = Passage("a", "A", "Ada was born in Orlen.", meta={"path": "notes/a.pdf", "page": 2})
    over_page = FixedRetriever(Corpus([page]), {"Where was Ada born?": ["a"]})
    told = ask("extract", over_page, "Where was Ada born?")
    assert [source["place"] for source in told["sources"]] == ["notes/a.pdf#page=2"]


def test_what_the_passages_do_not_say_is_said_without_a_source(index: Path) -> None:
    told = ask("extract", open_index(index), "How long does an egg take to boil ?")
    assert (told["answer"].strip(), told["sources"]) == (NOT_FOUND, [])


@pytest.mark.slow
def test_a_client_starts_the_command_and_speaks_over_stdio(index: Path) -> None:
    command = StdioServerParameters(command=sys.executable, args=["-m", "coseek", "serve", "mcp", str(index)])

    async def speak() -> CallToolResult:
        async with Client(command) as client:
            return await client.call_tool("search", {"query": "painter"})

    result = asyncio.run(speak()).structured_content
    assert result is not None and len(result["results"]) == 10


def posted(url: str, arguments: dict[str, str]) -> int:
    """The status of a call of `search`."""
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "search", "arguments": arguments}}
    names = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    try:
        with urlopen(Request(url, json.dumps(call).encode(), names)) as answer:
            return int(answer.status)
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.slow
def test_two_clients_speak_over_http(index: Path) -> None:
    words = [sys.executable, "-m", "coseek", "serve", "mcp", str(index), "--http", "0", "--topk", "2"]

    async def speak(url: str) -> int:
        async with Client(url) as first, Client(url) as other:
            results = [await client.call_tool("search", {"query": "painter"}) for client in (first, other)]
        return sum(len((result.structured_content or {})["results"]) for result in results)

    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[-1]
            assert asyncio.run(speak(url)) == 4
            longest = {"query": "\U0001f600" * mcp_server.LONGEST}  # JSON may need twelve bytes for each
            assert posted(url, longest) == 200
        finally:
            server.terminate()
            server.communicate(timeout=20)
