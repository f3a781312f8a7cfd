import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import given, strategies as st
from tests.models.http_site import Asked, Said, site
from tests.serve.live import CORPUS, EchoRetriever, live

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import Json, JsonObject
from coseek.core.settings import make_settings
from coseek.data.passage import Passage
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.query import PastTurn, Query, QueryLike
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.remote import RemoteRetriever, RemoteRetrieverSettings, Replicas, parse_response

Reply: TypeAlias = tuple[int, dict[str, str], bytes]
Answer: TypeAlias = Callable[[str, JsonObject], "Reply | Json"]
DEEP = Query("x", "Who?", "A poet", (PastTurn("Ada", "why", ("doc",)), PastTurn("Bob", "why", (), True)))


class Foreign:
    """A server that answers with a function of the test, and records its requests."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, JsonObject, dict[str, str]]] = []
        self.url = ""
        self.has_card = False
        """Whether `/info` is answered and recorded as well; it is 404 otherwise."""

    def reply(self, request: Asked) -> Said:
        if request.method == "GET" and not self.has_card:
            return Said(status=404)
        self.asked.append((request.path, request.body, request.headers))
        reply = self.answer(request.path, request.body)
        return Said(reply[2], reply[0], reply[1]) if isinstance(reply, tuple) else Said(json.dumps(reply).encode())


@contextmanager
def foreign(answer: Answer) -> Iterator[Foreign]:
    server = Foreign(answer)
    with site(server.reply) as there:
        server.url = there.url
        yield server


@contextmanager
def remote(url: str, **settings: object) -> Iterator[RemoteRetriever]:
    given = {"url": url, "backoff_s": 0.01, "retries": 2, **settings}
    client = RemoteRetriever(make_settings(RemoteRetrieverSettings, given))
    try:
        yield client
    finally:
        client.close()


@contextmanager
def asking(answer: Answer, **settings: object) -> Iterator[tuple[RemoteRetriever, Foreign]]:
    with foreign(answer) as server, remote(server.url, **settings) as client:
        yield client, server


def document(ident: str) -> JsonObject:
    return {"id": ident, "contents": f'"{ident}"\ntext of {ident}'}


def respond(path: str, body: JsonObject) -> Json:
    """The answer of Search-R1's server: each query finds a document with its own name."""
    queries = body["queries"]
    assert isinstance(queries, list)
    return {"result": [[{"document": document(str(query)), "score": 1.0}] for query in queries]}


def ids(client: Retriever, queries: Sequence[QueryLike], k: int = 3) -> list[list[str]]:
    return [[hit.passage.id for hit in hits] for hits in client.search(queries, k)]


def test_over_http_the_same_is_found_as_in_the_process() -> None:
    bm25 = Bm25.over(CORPUS)
    queries = ["radium in Paris", "the father of Ada", "", "moon 月が海", "nothing of the kind"]
    with live({"bm25": bm25}) as url, remote(url) as client:
        assert client.search(queries, 3) == bm25.search(queries, 3)
        assert client.corpus is None


def test_an_index_of_several_is_asked_by_its_name() -> None:
    retrievers: dict[str, Retriever] = {"echo": EchoRetriever(), "bm25": Bm25.over(CORPUS)}
    with live(retrievers) as url, remote(url, index="bm25") as client, remote(f"{url}/bm25/retrieve") as same:
        assert ids(client, ["radium"]) == [["curie"]] == ids(same, ["radium"])
        with remote(url, index="../info") as odd, pytest.raises(RetrieverError, match="404"):
            odd.search(["x"], 1)


def test_what_led_to_a_query_is_sent_to_a_server_that_can_read_it() -> None:
    echo = EchoRetriever()
    with live({"echo": echo}) as url, remote(url) as client:
        client.search([DEEP, "plain"], 1)
        assert echo.batches[-1] == [DEEP, Query("plain")]
        assert client.seen("plain") == "plain"
        assert client.seen(DEEP) != client.seen(Query("x"))
        given = [Query("Who? [SEP] x", given=True), Query("x"), Query("x", reasoning="r")]
        client.search(given, 1)
        assert echo.batches[-1] == given


@pytest.mark.parametrize("dialect", ["search-r1", "single"])
def test_other_servers_are_sent_what_they_know(dialect: str) -> None:
    rows: list[Json] = [document("a")]
    with asking(lambda path, body: {"result": rows if "query" in body else [rows]}, dialect=dialect) as (
        client,
        server,
    ):
        assert ids(client, [DEEP]) == [["a"]]
        assert client.seen(DEEP) == "x"
    (path, body, _) = server.asked[0]
    fields = {"query": "x"} if dialect == "single" else {"queries": ["x"]}
    assert (path, body) == ("/retrieve", {**fields, "topk": 3, "return_scores": True})


def test_a_query_of_blanks_is_not_asked() -> None:
    with foreign(respond) as server, remote(server.url) as client:
        assert ids(client, ["", "a", " \n"]) == [[], ["a"], []]
        assert client.search([], 3) == []
    assert [body["queries"] for _, body, _ in server.asked] == [["a"]]


def test_a_fault_that_stays_is_one_error_with_the_address_and_what_was_said() -> None:
    with (
        asking(lambda path, body: (503, {}, b'{"error": "full"}')) as (client, server),
        pytest.raises(RetrieverError, match=r"127\.0\.0\.1:\d+/retrieve: it answered 503: .*full.*\(3 tries\)"),
    ):
        client.search(["a"], 1)
    assert len(server.asked) == 3


def test_the_token_goes_to_the_server_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSEEK_TEST_TOKEN", "s3cret")
    with live({"echo": EchoRetriever()}, token="s3cret") as url:
        with remote(url, token_env="COSEEK_TEST_TOKEN") as client:
            assert ids(client, ["x"], 1) == [["ada"]]
            assert "s3cret" not in repr(client) + repr(client.settings) + client.settings.model_dump_json()
        with remote(url) as nameless, pytest.raises(RetrieverError, match="401"):
            nameless.search(["x"], 1)


def test_a_mistake_in_the_settings_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSEEK_TEST_TOKEN", "two\nlines")
    for settings, sentence in (
        ({"url": "ftp://x"}, "is not a server address"),
        ({"url": "http://me:pw@x"}, "must not hold a password"),
        ({"url": "http://x", "token_env": "COSEEK_NO_TOKEN"}, "holds no token"),
        ({"url": "http://x", "token_env": "COSEEK_TEST_TOKEN"}, "holds no token"),
        ({"url": "http://x", "dialect": "klingon"}, "dialect"),
    ):
        with pytest.raises(SettingError, match=sentence) as error:
            open_retriever({"retriever": "remote", **settings})
        assert "pw" not in str(error.value)


def test_an_address_or_a_file_opens_it(tmp_path: Path) -> None:
    with live({"echo": EchoRetriever()}) as url:
        (tmp_path / "far.yaml").write_text(f"retriever: remote\nurl: {url}\nindex: echo\n")
        for source in (url, tmp_path / "far.yaml"):
            opened = open_retriever(source)
            assert isinstance(opened, RemoteRetriever)
            assert ids(opened, ["x"], 1) == [["ada"]]
            opened.close()


def test_the_identity_follows_the_server_where_it_gives_one() -> None:
    cards: list[Json] = [{"identity": "one"}, {"identity": "two"}]
    with foreign(lambda path, body: cards.pop(0) if cards else (404, {}, b"")) as server:
        server.has_card = True
        clients = [RemoteRetriever(RemoteRetrieverSettings(url=server.url)) for _ in range(4)]
        identities = [client.identity for client in clients]
        assert identities == [client.identity for client in clients]  # asked for once
        for client in clients:
            client.close()
    assert [path for path, _, _ in server.asked] == ["/info"] * 4
    assert identities[2] == identities[3]
    assert len(set(identities)) == 3


def hits(payload: Json, count: int = 1, k: int = 3) -> list[list[tuple[str, str, str, float]]]:
    return [
        [(hit.passage.id, hit.passage.title, hit.passage.text, hit.score) for hit in hits]
        for hits in parse_response(payload, count, k)
    ]


A, B = ("a", "A", "one", 2.0), ("b", "B", "two", 1.0)
DOC_A: JsonObject = {"id": "a", "contents": '"A"\none'}
DOC_B: JsonObject = {"id": "b", "contents": '"B"\ntwo'}


@pytest.mark.parametrize(
    "payload",
    [
        {"result": [[{"document": DOC_A, "score": 2.0}, {"document": DOC_B, "score": 1.0}]]},
        {"result": [{"document": DOC_A, "score": 2.0}, {"document": DOC_B, "score": 1.0}]},
        {"results": [[{"document": DOC_A, "score": 2}, {"document": DOC_B, "score": 1}]], "took": 3},
        [[{**DOC_A, "score": 2.0, "url": "x"}, {**DOC_B, "score": 1.0}]],
        {"result": [{"docid": "a", "title": "A", "text": "one", "score": 2.0},
                    {"docid": "b", "title": "B", "snippet": "two", "score": 1.0}]},
        {"result": [[{"document": '"A"\none', "id": "a", "score": 2.0}, {"document": DOC_B, "score": 1.0}]]},
        {"result": [[{"document": DOC_A, "score": 2.0}, None, {"document": DOC_B, "score": 1.0}, {"document": None}]]},
        {"result": [[{"document": DOC_A, "score": 2.0}, {"document": DOC_B, "score": 1.0}, -1, {"id": -1}]]},
        {"result": [[{"document": DOC_A, "score": "2.0"}, {"document": DOC_B, "score": "1"}]]},
        {"result": [{**DOC_A, "text": "", "score": 2},
                    {"id": "b", "text": " ", "title": "B", "content": "two", "score": 1}]},
        {"result": [{"id": "a", "title": "A", "contents": "one", "score": 2},
                    {"id": "b", "metadata": {"title": "B"}, "page_content": "two", "score": 1}]},
        {"result": [{"document": "one", "id": "a", "title": "A", "score": 2},
                    {"id": "b", "title": "B", "passage_text": "two", "score": 1}]},
    ],
)  # fmt: skip
def test_every_dialect_is_read(payload: Json) -> None:
    assert hits(payload) == [[A, B]]


def test_without_good_scores_the_order_of_the_server_stands() -> None:
    ranked = [[(*A[:3], 1.0), (*B[:3], 0.5)]]
    assert hits({"result": [[DOC_A, DOC_B]]}) == ranked
    assert hits({"result": [[{**DOC_A, "score": 0.1}, {**DOC_B, "score": 0.9}]]}) == ranked  # distances
    assert hits({"result": [[{**DOC_A, "score": 3}, {**DOC_B, "score": None}]]}) == ranked


def test_a_run_does_not_go_on_over_another_index_of_its_server() -> None:
    with live({"main": EchoRetriever()}) as url:
        retriever = open_retriever(url)
        assert retriever.search(["ada"], 1)[0]
        vars(retriever)["_info"] = {"identity": "that of the index before a restart"}
        with pytest.raises(RetrieverError, match="switched to another index during this run"):
            retriever.search(["ada"], 1)


def test_a_document_without_an_id_is_named_by_what_it_says() -> None:
    first, second = (
        parse_response({"result": [['"A"\none', '"B"\ntwo', '"A"\none']]}, 1, 3)[0][index].passage for index in (0, 2)
    )
    assert first == second
    assert (first.title, first.text) == ("A", "one")
    assert first.id.startswith("sha256:")


def test_chunks_under_the_id_of_their_document_stay_apart_and_a_repeated_one_is_the_same() -> None:
    rows: list[Json] = [{"id": "d", "text": text} for text in ("one", "two", "three", "two")]
    passages = [hit.passage for hit in parse_response({"result": [rows]}, 1, 4)[0]]
    assert [passage.text for passage in passages] == ["one", "two", "three", "two"]
    assert passages[0].id == "d" and passages[1] == passages[3] and len({passage.id for passage in passages}) == 3
    assert all(passage.id.startswith("d#") for passage in passages[1:])


def test_the_address_of_a_hit_is_kept_for_citations() -> None:
    rows: list[Json] = [
        {"id": "a", "text": "one", "url": "https://x.org/a", "meta": {"page": 3}},
        {"id": "b", "text": "two", "metadata": {"url": "https://x.org/b"}},
        {"id": "https://x.org/c", "text": "three"},
        {"id": "https://x.org/c", "text": "four"},
    ]
    passages = [hit.passage for hit in parse_response({"result": [rows]}, 1, 4)[0]]
    assert [passage.url for passage in passages] == [f"https://x.org/{name}" for name in "abcc"]
    assert passages[0].place == "https://x.org/a#page=3"


def test_a_document_of_a_title_alone_and_an_empty_one_of_our_own_servers_are_kept() -> None:
    assert hits({"result": [[{"id": "a", "title": "A", "text": ""}]]}) == [[("a", "A", "", 1.0)]]
    own: JsonObject = {"id": "a", "title": "", "text": "", "contents": "\n"}
    (hit,) = parse_response({"result": [[own]]}, 1, 1)[0]
    assert (hit.passage, hit.passage.contents) == (Passage("a", "", ""), "\n")


def test_lists_are_cut_at_k_and_may_be_short() -> None:
    assert hits({"result": [[DOC_A, DOC_B], [], None, [DOC_B]]}, 4, 1) == [[(*A[:3], 1.0)], [], [], [(*B[:3], 1.0)]]
    assert hits({"result": []}) == [[]]
    assert hits({"result": []}, 0) == []


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (None, 1), ("x", 1), ({}, 1), ({"result": None}, 1), ({"result": {"a": 1}}, 1),
        ({"result": [[]]}, 2), ({"result": []}, 2), ({"result": [[], []]}, 1), ({"result": [DOC_A, DOC_B]}, 2),
        ({"result": [[7]]}, 1), ({"result": [[{"id": "a"}]]}, 1), ({"result": [[{"document": [1]}]]}, 1),
        ({"result": [[{"id": "a", "text": " ", "contents": ""}]]}, 1), ({"result": [[""]]}, 1),
        ({"result": [[{**DOC_A, "score": "high"}]]}, 1), ({"result": [[{**DOC_A, "score": "nan"}]]}, 1),
        ({"result": [[{**DOC_A, "score": float("nan")}]]}, 1),
        ({"result": [[{**DOC_A, "score": float("inf")}]]}, 1), ({"result": [[{**DOC_A, "score": True}]]}, 1),
        ({"result": [[{**DOC_A, "score": 10**400}]]}, 1),
    ],
)  # fmt: skip
def test_an_answer_that_breaks_the_contract_is_an_error(payload: Json, count: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_response(payload, count, 3)
    queries = [f"q{number}" for number in range(count)]
    body = json.dumps(payload).encode()
    with (
        asking(lambda path, _: (200, {}, body)) as (client, server),
        pytest.raises(RetrieverError, match="cannot be understood"),
    ):
        client.search(queries, 3)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("reply", "reason", "requests"),
    [
        ({"result": [[]], "error": "shard failure"}, "it answered: shard failure", 1),
        ({"result": [], "errors": [{"message": "no shard"}]}, "it answered: no shard", 1),
        ({"results": [], "status": "error", "message": "not loaded"}, "it answered: not loaded", 1),
        ({"result": [[], None], "success": False, "detail": {"error": "not loaded"}}, "it answered: not loaded", 1),
        ({"result": [], "code": 500, "msg": "out of memory"}, r"it answered 500: out of memory \(3 tries\)", 3),
        ({"result": [], "code": -1, "msg": "out of memory"}, "it answered: out of memory", 1),
        ({"results": [], "timed_out": True}, 'it answered: .*"timed_out": true', 1),
    ],
)
def test_an_error_with_status_200_is_no_empty_search(reply: Json, reason: str, requests: int) -> None:
    with asking(lambda path, body: reply) as (client, server), pytest.raises(RetrieverError, match=reason):
        client.search(["q"], 3)
    assert len(server.asked) == requests


@pytest.mark.parametrize(
    ("reply", "found_ids"),
    [
        ({"result": [[]], "error": None, "errors": [], "success": True, "timed_out": False, "message": "none"}, []),
        ({"result": [], "code": 20000, "msg": "ok"}, []),
        ({"result": [], "message": "no documents match", "status": "success"}, []),
        ({"result": [[DOC_A]], "error": "shard 2 failed", "timed_out": True}, ["a"]),
    ],
)
def test_an_empty_search_and_hits_beside_a_warning_are_no_error(reply: Json, found_ids: list[str]) -> None:
    with asking(lambda path, body: reply) as (client, _):
        assert ids(client, ["q"]) == [found_ids]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        ((200, {"Content-Type": "text/html"}, b"<html>\n<title>Sign in"),
         r"is not JSON \(text/html: <html> <title>Sign in\) \(3 tries\)"),
        ((200, {"Content-Type": "application/json"}, b'{"result": [[{"id'),
         r'is not JSON \(application/json: \{"result": \[\[\{"id\) \(3 tries\)'),
        ({"took": 3, "hits": {"hits": []}}, r"no list under .result. \(fields: 'took', 'hits'\); .*mine.py, .*part.md"),
        ({name * 50: 1 for name in "abcdefgh"}, "aaa', 'bbb.*write-a-part.md"),
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_shown(reply: "Reply | Json", says: str) -> None:
    with asking(lambda path, body: reply) as (client, _), pytest.raises(RetrieverError, match=says):
        client.search(["q"], 3)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.sampled_from(["", "a", '"T"\nb']),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["result", "document", "score", "id", "contents", "title", "text", "url", "meta"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON, st.integers(0, 3), st.integers(1, 3))
def test_any_answer_is_hits_in_order_or_a_value_error(payload: Json, count: int, k: int) -> None:
    try:
        lists = parse_response(payload, count, k)
    except ValueError:
        return
    assert len(lists) == count
    for hit_list in lists:
        assert len(hit_list) <= k
        assert all(isinstance(hit.passage, Passage) for hit in hit_list)
        assert [hit.score for hit in hit_list] == sorted((hit.score for hit in hit_list), reverse=True)


# --- replicas


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
            replicas = open_retriever({**QUICK, "url": [*urls, last]})
            assert isinstance(replicas, Replicas)
            stack.callback(replicas.close)
            whole = texts(replicas)
            counts = [sum(len(batch) for batch in echo.batches if batch[0].text != "warm up") for echo in echoes]
            assert sum(counts) == 10 and min(counts) == 3 and replicas.concurrency == 96
        for _ in range(5):
            assert texts(replicas) == whole == texts(open_retriever({**QUICK, "url": urls[0]}))
        assert replicas._order()[-1] == 2  # the dead one is tried last
        more = open_retriever({**QUICK, "url": list(reversed(urls))})
        assert more.identity == replicas.identity  # so that a run can be resumed with other addresses


@pytest.mark.medium
def test_servers_of_different_indexes_are_refused() -> None:
    with live({"main": EchoRetriever()}) as first, live({"main": OtherIndex()}) as second:
        retriever = open_retriever({**QUICK, "url": [first, second]})
        with pytest.raises(SettingError, match="server 2 of 2 searches another index than server 1"):
            retriever.search(QUERIES, 2)


def test_a_search_fails_where_all_replicas_do_and_servers_that_state_no_index_are_taken() -> None:
    with pytest.raises(RetrieverError, match="the connection failed"):
        open_retriever({**QUICK, "url": ["http://127.0.0.1:9", "http://127.0.0.1:10"]}).search(["x"], 1)
    hit: JsonObject = {"document": {"id": "a", "contents": '"A"\nb'}, "score": 1.0}
    with foreign(lambda _, body: {"result": [[hit] for _ in body["queries"]]}) as server:  # type: ignore[union-attr]
        assert texts(open_retriever({**QUICK, "url": [server.url, server.url]}), ["x", "y"]) == [["a"], ["a"]]
    with pytest.raises(SettingError):
        open_retriever({**QUICK, "url": []})
