"""The contract of `/retrieve`, row by row of trap 32, asked of a live server by a plain HTTP client."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from tests.serve.live import CORPUS, WEB, EchoRetriever, live

from coseek.core.files import JsonObject
from coseek.data.corpus_file import CorpusFile
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.query import PastTurn, Query
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.random import RandomRetriever
from coseek.retrieval.retrievers.remote import RemoteRetriever, RemoteRetrieverSettings


@pytest.fixture(scope="module")
def echo() -> EchoRetriever:
    return EchoRetriever()


@pytest.fixture(scope="module")
def url(echo: EchoRetriever) -> Iterator[str]:
    retrievers: dict[str, Retriever] = {"echo": echo, "bm25": Bm25.over(CORPUS)}
    with live(retrievers, max_queries=50, max_query_chars=100, max_body_bytes=20_000, queue=100) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, trust_env=False) as client:
        yield client


def ids(reply: httpx.Response) -> list[list[str]]:
    assert reply.status_code == 200, reply.text
    return [[row["document"]["id"] for row in rows] for rows in reply.json()["result"]]


def refused(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    sentence = reply.json()["error"]
    assert isinstance(sentence, str) and sentence
    assert "\n" not in sentence
    return sentence


def test_a_batch_is_answered_with_one_list_a_query_in_input_order(client: httpx.Client) -> None:
    body = {"queries": ["radium", "poet", "nonsense", "月が海"], "topk": 3, "return_scores": True}
    reply = client.post("/bm25/retrieve", json=body)
    assert ids(reply) == [["curie"], ["byron"], [], ["tide"]], "fewer than topk where no more are found"
    assert reply.json()["result"][3][0]["document"]["text"].endswith("月が海を動かす。")
    row = reply.json()["result"][0][0]
    assert row["document"] == {
        "id": "curie",
        "contents": '"Marie Curie"\nShe studied "radium" in Paris.\nTwice a laureate.',
        "title": "Marie Curie",
        "text": 'She studied "radium" in Paris.\nTwice a laureate.',
    }
    assert row["score"] > 0


def test_the_fields_of_a_passage_reach_a_remote_client() -> None:
    corpus = Corpus([Passage("a", "Heron", "It waits.", meta={"path": "birds.pdf", "page": 3})])
    with live({"bm25": Bm25.over(corpus)}) as url:
        remote = RemoteRetriever(RemoteRetrieverSettings(url=url))
        with closing(remote):
            ((hit,),) = remote.search(["waits"], 1)
    assert hit.passage.meta == {"path": "birds.pdf", "page": 3}
    assert Hit.from_json(hit.to_json()).passage.meta == hit.passage.meta


@pytest.mark.parametrize("body", [{"return_scores": False}, {}, {"return_scores": None}])
def test_without_scores_the_inner_lists_hold_the_documents_alone(client: httpx.Client, body: dict[str, object]) -> None:
    reply = client.post("/retrieve", json={"queries": ["x"], "topk": 2, **body})
    assert [[document["id"] for document in documents] for documents in reply.json()["result"]] == [["ada", "byron"]]


@pytest.mark.parametrize("body", [{"query": "x"}, {"queries": None, "query": "x"}])
def test_one_query_as_a_string_is_answered_with_a_flat_list(client: httpx.Client, body: dict[str, object]) -> None:
    for more in ({"return_scores": True}, {}):
        rows = client.post("/retrieve", json={**body, "topk": 2, **more}).json()["result"]
        assert [row.get("document", row)["id"] for row in rows] == ["ada", "byron"]
    assert client.post("/retrieve", json={"query": " "}).json() == {"result": []}


FOUND = ["ada", "byron", "curie", "tide"]


@pytest.mark.parametrize(
    ("body", "count"),
    [
        *(({**query, "topk": 1}, 1) for query in ({"queries": "x"}, {"query": ["x"]}, {"queries": "x", "query": "y"})),
        *(({"queries": ["x"], **topk}, 3) for topk in ({"topk": None}, {"topk": 0}, {})),  # the server's default
        *(({"queries": ["x"], "topk": topk}, 4) for topk in (4, 5, 1_000_000, 10**30, 4.0)),  # all passages
    ],
)
def test_a_single_query_in_any_dialect_has_one_list_of_topk(client: httpx.Client, body: JsonObject, count: int) -> None:
    assert ids(client.post("/retrieve", json={**body, "return_scores": True})) == [FOUND[:count]]


@pytest.mark.parametrize("topk", [-1, -(10**9), True, "3", 2.5, [3], {}])
def test_a_topk_that_counts_nothing_is_refused(client: httpx.Client, topk: object) -> None:
    assert "topk" in refused(client.post("/retrieve", json={"queries": ["x"], "topk": topk}), 422)


def test_an_empty_query_finds_nothing_and_disturbs_no_other(client: httpx.Client, echo: EchoRetriever) -> None:
    assert client.post("/retrieve", json={"queries": []}).json() == {"result": []}
    echo.batches.clear()
    reply = client.post("/retrieve", json={"queries": ["", "x", " \n"], "topk": 1, "return_scores": True})
    assert ids(reply) == [[], ["ada"], []]
    assert echo.batches == [[Query("x")]]


def test_fields_that_are_not_known_and_the_type_of_the_content_are_passed_over(client: httpx.Client) -> None:
    body = b'{"queries": ["x"], "topk": 1, "return_scores": true, "data_source": "nq", "ids": [7]}'
    assert ids(client.post("/retrieve", content=body)) == [["ada"]]


def test_half_a_surrogate_in_a_query_breaks_nothing(client: httpx.Client, echo: EchoRetriever) -> None:
    echo.batches.clear()
    body = rb'{"queries": ["a\ud800b", "\ud83d\ude00"], "topk": 1, "return_scores": true}'
    assert ids(client.post("/retrieve", content=body)) == [["ada"], ["ada"]]
    assert echo.batches == [[Query("a\ufffdb"), Query("😀")]]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400),
        (b'{"queries": ["x"]', 400),
        (b'{"queries": ["\xff"]}', 400),
        (b"[" * 100_000, 413),
        (b"[" * 19_000, 400),
        (b'{"queries": ["\\u0020"], "x": ' + b"[" * 700 + b"]" * 700 + b"}", 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"queries": {"a": 1}}', 422),
        (b'{"queries": ["x", 3]}', 422),
        (b'{"queries": [null]}', 422),
        (b'{"queries": ["x"], "topk": NaN}', 422),
        (b'{"queries": ["x"], "topk": ' + b"9" * 5_000 + b"}", 400),
        (b'{"queries": ["x"], "return_scores": "yes"}', 422),
        (b'{"queries": ["x"], "contexts": {}}', 422),
        (b'{"queries": ["x"], "contexts": []}', 422),
        (b'{"queries": ["x"], "contexts": [{"question": 3}]}', 422),
        (b'{"queries": ["x"], "contexts": [{"history": [{"documents": [1]}]}]}', 422),
    ],
)
def test_what_breaks_the_contract_is_refused_with_a_sentence(client: httpx.Client, content: bytes, status: int) -> None:
    refused(client.post("/retrieve", content=content), status)


def test_too_much_for_one_request_is_refused(client: httpx.Client) -> None:
    assert "split" in refused(client.post("/retrieve", json={"queries": ["x"] * 51}), 413)
    assert "characters" in refused(client.post("/retrieve", json={"queries": ["x" * 101]}), 413)
    assert "bytes" in refused(client.post("/retrieve", json={"queries": ["x" * 30_000]}), 413)

    def unannounced() -> Iterator[bytes]:  # sent in chunks, without a Content-Length
        yield b'{"queries": ["'
        for _ in range(100):
            yield b"x" * 1_000

    assert "bytes" in refused(client.post("/retrieve", content=unannounced()), 413)


@pytest.mark.medium
def test_a_batch_of_search_r1s_grpo_script_is_answered() -> None:
    with live({"echo": EchoRetriever()}, batch=4_096) as url:
        body = {"queries": [f"q{number}" for number in range(2_560)], "topk": 3, "return_scores": True}
        assert ids(WEB.post(f"{url}/retrieve", json=body, timeout=30)) == [["ada", "byron", "curie"]] * 2_560


def test_a_small_request_cannot_ask_for_a_huge_answer() -> None:
    with live({"echo": EchoRetriever()}, max_hits=50, max_answer_bytes=1_000) as url:
        assert "split" in refused(WEB.post(f"{url}/retrieve", json={"queries": ["x"] * 26, "topk": 2}), 413)
        assert "bytes" in refused(WEB.post(f"{url}/retrieve", json={"queries": ["x"] * 10, "topk": 4}), 413)
        assert WEB.post(f"{url}/retrieve", json={"queries": ["x"], "topk": 4}).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "contents", ["no title", "Bare title\nbody", '"Quoted"\nbody', '"\nhalf', "", "A\n\nB\n", "\n"]
)
def test_contents_go_out_byte_for_byte_as_the_corpus_has_them(tmp_path: Path, contents: str) -> None:
    rows = [{"id": "a", "contents": contents}, {"id": "b", "title": "T", "text": "body", "contents": contents}]
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    copy = tmp_path / "copy.jsonl"
    Corpus.load(path).save(copy)
    for corpus in (Corpus.load(copy), CorpusFile.scan(path)):
        retriever = RandomRetriever(corpus)
        with live({"random": retriever}) as url, closing(RemoteRetriever(RemoteRetrieverSettings(url=url))) as client:
            reply = WEB.post(f"{url}/retrieve", json={"queries": ["x"], "topk": 2}).json()["result"][0]
            assert [row["contents"] for row in reply] == [contents] * 2
            assert {hit.passage.contents for hit in client.search(["x"], 2)[0]} == {contents}
            assert client.search(["x"], 2) == retriever.search(["x"], 2)


def test_what_led_to_a_query_reaches_the_retriever(client: httpx.Client, echo: EchoRetriever) -> None:
    echo.batches.clear()
    context = {
        "question": "Who was her father?",
        "reasoning": "A poet, I think",
        "history": [{"query": "Ada", "reasoning": "", "documents": ['"Ada"\nText']}],
    }
    body = {"queries": ["x", "y"], "topk": 1, "return_scores": True, "contexts": [context, None]}
    assert ids(client.post("/retrieve", json=body)) == [["ada"], ["ada"]]
    past = (PastTurn("Ada", "", ('"Ada"\nText',)),)
    assert echo.batches == [[Query("x", "Who was her father?", "A poet, I think", past), Query("y")]]


def test_without_word_of_it_no_two_searches_share_a_turn(client: httpx.Client, echo: EchoRetriever) -> None:
    echo.batches.clear()
    rows = [{"query": "a"}, {"query": "b"}]
    for history in (rows, [rows[0], {**rows[1], "same_turn": True}]):
        client.post("/retrieve", json={"queries": ["x"], "topk": 1, "contexts": [{"history": history}]})
    old, new = (Query.of(query) for (query,) in echo.batches)
    assert (len(old.past_turns()), len(new.past_turns())) == (2, 1)
    assert [Query.from_json(query.to_json()) for query in (old, new)] == [old, new]
    assert "same_turn" not in json.dumps(old.to_json()), "digests of queries with one search a turn stay as they were"
    odd = {"queries": ["x"], "contexts": [{"history": [{"query": "a", "same_turn": 1}]}]}
    assert "true or false" in refused(client.post("/retrieve", json=odd), 422)


def test_a_fault_of_the_retriever_is_a_502_with_its_sentence(client: httpx.Client) -> None:
    assert "the shelf fell down" in refused(client.post("/retrieve", json={"queries": ["x", "fail"]}), 502)
    assert client.get("/health").json()["faults"] >= 1


def test_paths_and_methods_that_do_not_exist_are_refused_as_json(client: httpx.Client) -> None:
    refused(client.get("/retrieve"), 405)
    refused(client.post("/nowhere", json={}), 404)
    refused(client.post("/echo/../../etc/passwd", json={}), 404)


def test_info_says_what_is_served(client: httpx.Client, echo: EchoRetriever) -> None:
    card = client.get("/info").json()
    assert (card["index"], card["identity"], card["passages"], card["topk"]) == ("echo", "echo", 4, 3)
    assert card["indexes"] == ["echo", "bm25"]
    card = client.get("/bm25/info").json()
    assert (card["name"], card["view"], card["settings"]["k1"]) == ("bm25", "query", 1.2)
    assert client.get("/health").json()["ready"] is True


def test_every_answer_has_an_id_and_a_clients_own_is_kept(client: httpx.Client) -> None:
    first, second = (client.get("/health").headers["x-request-id"] for _ in range(2))
    assert first != second
    assert client.get("/health", headers={"x-request-id": "turn-7.a"}).headers["x-request-id"] == "turn-7.a"
    assert client.get("/health", headers={"x-request-id": "a b"}).headers["x-request-id"] != "a b"
