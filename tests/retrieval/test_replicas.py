"""Fears about replicas: a dead server that fails searches, hits that depend on the server, and a client of several that
behaves unlike a client of one."""

from contextlib import ExitStack

import pytest
from tests.retrieval.test_remote import foreign
from tests.serve.live import WEB, EchoRetriever, live

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import JsonObject
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.remote import Replicas

QUICK = {"retriever": "remote", "retries": 0, "connect_s": 1.0}
QUERIES = [f"query {number}" for number in range(10)]


class OtherIndex(EchoRetriever):
    identity = "another"


def texts(retriever: Retriever, queries: list[str] | None = None) -> list[list[str]]:
    return [[hit.passage.id for hit in hits] for hits in retriever.search(queries or QUERIES, 2)]


@pytest.mark.slow
def test_a_batch_is_shared_by_all_replicas_and_a_dead_one_costs_no_query() -> None:
    with ExitStack() as stack:
        echoes = [EchoRetriever() for _ in range(3)]
        urls = [stack.enter_context(live({"main": echo})) for echo in echoes[:2]]
        with live({"main": echoes[2]}) as last:
            found = open_retriever({**QUICK, "url": [*urls, last]})
            assert isinstance(found, Replicas)
            stack.callback(found.close)
            whole = texts(found)
            asked = [sum(len(batch) for batch in echo.batches if batch[0].text != "warm up") for echo in echoes]
            assert sum(asked) == 10 and min(asked) == 3 and found.concurrency == 96
        for _ in range(5):
            assert texts(found) == whole == texts(open_retriever({**QUICK, "url": urls[0]}))
        assert found.moved == 1  # and then it is left alone
        more = open_retriever({**QUICK, "url": list(reversed(urls))})
        assert more.identity == found.identity  # so a run may go on with other addresses


@pytest.mark.slow
def test_replicas_behind_one_address_are_a_service_like_any_other() -> None:
    with live({"main": EchoRetriever()}) as one, live({"main": EchoRetriever()}) as two:
        front = open_retriever({**QUICK, "url": [one, two]})
        with live({"main": front}) as url:
            body = {"queries": QUERIES, "topk": 2, "return_scores": True}
            assert WEB.post(f"{url}/retrieve", json=body).json() == WEB.post(f"{one}/retrieve", json=body).json()


def test_servers_of_different_indexes_are_refused() -> None:
    with live({"main": EchoRetriever()}) as one, live({"main": OtherIndex()}) as two:
        found = open_retriever({**QUICK, "url": [one, two]})
        with pytest.raises(SettingError, match="server 2 of 2 searches another index than server 1"):
            found.search(QUERIES, 2)


def test_a_search_fails_where_all_replicas_do_and_servers_that_state_no_index_are_taken() -> None:
    with pytest.raises(RetrieverError, match="the connection failed"):
        open_retriever({**QUICK, "url": ["http://127.0.0.1:9", "http://127.0.0.1:10"]}).search(["x"], 1)
    hit: JsonObject = {"document": {"id": "a", "contents": '"A"\nb'}, "score": 1.0}
    with foreign(lambda _, body: {"result": [[hit] for _ in body["queries"]]}) as one:  # type: ignore[union-attr]
        assert texts(open_retriever({**QUICK, "url": [one.url, one.url]}), ["x", "y"]) == [["a"], ["a"]]
    with pytest.raises(SettingError):
        open_retriever({**QUICK, "url": []})
