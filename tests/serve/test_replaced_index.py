"""A running service takes the index that replaces the one it serves."""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from tests.serve.live import WEB, in_a_thread

from coseek.adapters.source import open_source
from coseek.cli.commands.serve import named, sources
from coseek.core.errors import RetrieverError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.factory import index_cards, open_retriever, stamp_of
from coseek.retrieval.index import build_index
from coseek.retrieval.index_update import update_index
from coseek.retrieval.responses import IDENTITY
from coseek.retrieval.retriever import Retriever, follow
from coseek.retrieval.retrievers.cached import CachedRetriever
from coseek.serve.running import bound
from coseek.serve.search_service import SearchService, make_app
from coseek.serve.settings import ServeSettings

QUERY = {"queries": ["ada"], "topk": 50, "return_scores": True}


def watched(source: Path) -> AbstractContextManager[str]:
    """The URL of a service that looks at its indexes all the time."""
    settings = make_settings(ServeSettings, {"port": 0, "log": False, "watch_s": 0.02})
    stamps = {name: partial(stamp_of, index_cards(one)) for name, one in sources([str(source)]).items()}
    service = SearchService(named([str(source)]), settings, stamps)
    return in_a_thread(service, make_app(service), bound(settings.host, 0))


def in_front(url: str) -> AbstractContextManager[str]:
    """The URL of a service over another one."""
    settings = make_settings(ServeSettings, {"port": 0, "log": False})
    service = SearchService(named([url]), settings)
    return in_a_thread(service, make_app(service), bound(settings.host, 0))


def version(number: int, path: Path) -> Path:
    """A corpus in which the numbers of the passages tell its version."""
    Corpus(Passage(f"{number}-{row}", "", "ada " * row + f"v{number}") for row in range(1, 6 + number % 7)).save(path)
    os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
    return path


def until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def first_id(retriever: Retriever) -> str:
    return retriever.search(["ada"], 1)[0][0].passage.id


@pytest.mark.parametrize("cached", [False, True])
def test_a_run_over_a_server_whose_index_is_replaced_does_not_go_on_over_the_new_one(
    tmp_path: Path, cached: bool
) -> None:
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    build_index(version(0, corpus), "bm25", index)
    with watched(index) as url:
        client, service, lists = open_retriever(url), follow(open_retriever(url)), tmp_path / "lists.sqlite"
        if cached:
            client, service = CachedRetriever(client, lists), follow(CachedRetriever(service, lists))
        assert first_id(client).startswith("0-") and first_id(service).startswith("0-")
        update_index(version(1, corpus), index)
        until(lambda: WEB.post(f"{url}/retrieve", json=QUERY).json()["result"][0][0]["document"]["id"][0] == "1")
        with pytest.raises(RetrieverError, match="switched to another index during this run"):
            client.search(["ada v1"], 1)
        assert service.search(["ada v1"], 1)[0][0].passage.id.startswith("1-")
        if cached:  # under no identity but its own
            assert first_id(CachedRetriever(open_retriever(url), lists)).startswith("1-")
        assert first_id(service).startswith("1-")


def test_a_service_and_an_adapter_over_a_server_go_on_over_its_new_index(tmp_path: Path) -> None:
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    build_index(version(0, corpus), "bm25", index)
    with watched(index) as under, in_front(under) as url:
        adapter, before = open_source(url, 1), WEB.post(f"{url}/retrieve", json=QUERY).headers[IDENTITY]
        assert first_id(adapter).startswith("0-")
        update_index(version(1, corpus), index)
        until(lambda: WEB.post(f"{under}/retrieve", json=QUERY).json()["result"][0][0]["document"]["id"][0] == "1")
        reply = WEB.post(f"{url}/retrieve", json=QUERY)
        assert reply.status_code == 200 and reply.json()["result"][0][0]["document"]["id"][0] == "1"
        assert reply.headers[IDENTITY] == WEB.get(f"{url}/info").json()["identity"] != before
        assert first_id(adapter).startswith("1-")


def test_servers_that_get_a_new_index_one_by_one_are_followed_and_no_search_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    corpora, indexes = [tmp_path / f"{name}.jsonl" for name in "ab"], [tmp_path / name for name in "ab"]
    for corpus, index in zip(corpora, indexes, strict=True):
        build_index(version(0, corpus), "bm25", index)

    def asked(retriever: Retriever) -> set[str]:
        return {first_id(retriever)[0] for _ in range(4)}

    with watched(indexes[1]) as two:
        with watched(indexes[0]) as one:
            made = {"retriever": "remote", "url": [one, two], "retries": 0}
            client, service = open_retriever(made), follow(open_retriever(made))
            assert asked(client) == asked(service) == {"0"}
            update_index(version(1, corpora[1]), indexes[1])
            until(lambda: WEB.post(f"{two}/retrieve", json=QUERY).json()["result"][0][0]["document"]["id"][0] == "1")
            assert asked(client) == {"0"} and "0" in asked(service)
        assert asked(service) == {"1"}  # the first one is away, to get the new index
        with pytest.raises(RetrieverError):  # a run does not go on over two indexes
            first_id(client)
    assert caplog.text.count("until then it is left out") == 1


def test_a_new_index_that_cannot_be_opened_leaves_the_old_one_in_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    build_index(version(1, corpus), "bm25", index)
    said: list[str] = []

    def complained() -> bool:
        said.append(capsys.readouterr().err)
        return "index was replaced, and the old index is kept: " in "".join(said)

    with watched(index) as url:
        before = WEB.post(f"{url}/retrieve", json=QUERY).json()
        (index / "index.json").unlink()
        (index / "index.json").write_text("{")
        until(complained)
        assert WEB.post(f"{url}/retrieve", json=QUERY).json() == before
        assert "".join(said).count("was replaced") == 1
        build_index(version(2, corpus), "bm25", index)
        until(lambda: "2-1" in WEB.post(f"{url}/retrieve", json=QUERY).text)
