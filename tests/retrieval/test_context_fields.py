import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.retrieval.test_remote import asking, ids, remote, respond
from tests.serve.live import CORPUS, EchoRetriever, live

from coseek.core.files import Json, JsonObject
from coseek.retrieval.query import EVERYTHING, ContextFields, PastTurn, Query, fitted
from coseek.retrieval.retriever import fields_read
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings
from coseek.retrieval.retrievers.noisy import NoisyRetriever, NoisySettings
from coseek.retrieval.views import VIEWS, find_view, render_view

NAMES = [*VIEWS, "last-1-turns", "last-2-turns", "last-3-turns"]
WORDS = st.sampled_from(["", "a", "a b", "who was  he ?", "[SEP]", "one two three four five"])
TURN = st.builds(PastTurn, WORDS, WORDS, st.lists(WORDS, max_size=3).map(tuple), st.booleans())
QUERY = st.builds(Query, WORDS, WORDS, WORDS, st.lists(TURN, max_size=4).map(tuple))


def count(text: str) -> int:
    return len(text.split())


@given(QUERY, st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from([None, 3, 8, 20]))
def test_a_view_reads_nothing_of_what_was_left_out(query: Query, view: str, other: str, limit: int | None) -> None:
    alone = find_view(view).fields
    both = alone | find_view(other).fields
    whole = render_view(view, query, limit=limit, count=count)
    for fields in (alone, both, both | alone, EVERYTHING, ContextFields.from_json(both.to_json())):
        assert render_view(view, fields.of(query), limit=limit, count=count) == whole
    assert EVERYTHING.of(query) == query


@given(QUERY, st.integers(0, 80), st.sampled_from(NAMES))
def test_what_is_dropped_to_fit_is_what_a_view_drops_first(query: Query, most: int, view: str) -> None:
    short = fitted(query, most)
    now = len(query.question) + len(query.reasoning)
    assert short.context_chars <= max(most, now)
    assert short == query or query.context_chars > most
    limit = count(render_view(view, short))
    if render_view(view, short).strip():
        assert render_view(view, query, limit=limit, count=count) == render_view(view, short, limit=limit, count=count)


def test_retrievers_of_several_parts_read_what_any_part_reads() -> None:
    past = Bm25.over(CORPUS, Bm25Settings(view="last-2-turns"))
    by_question = Bm25.over(CORPUS, Bm25Settings(view="question+query"))
    hybrid = Hybrid([past, by_question], HybridSettings(parts=["a", "b"]))
    assert fields_read(hybrid) == ContextFields(question=True, reasoning=True, past="reasonings", turns=2)
    assert fields_read(NoisyRetriever(by_question, NoisySettings(over="a"))) == ContextFields(question=True)
    assert fields_read(EchoRetriever()) == EVERYTHING, "a retriever that does not say is sent everything"
    with live({"hybrid": hybrid, "echo": EchoRetriever()}) as url, remote(url) as client:
        assert client.reads == fields_read(hybrid)
        with remote(url, index="echo") as other:
            assert other.reads == EVERYTHING


CARD: Json = {"identity": "x", "limits": {"max_queries": 4, "max_hits": 9, "max_body_bytes": 900, "odd": "7"}}


def serving(path: str, body: JsonObject) -> Json:
    return CARD if path == "/info" else respond(path, body)


@pytest.mark.parametrize(
    ("texts", "k", "sizes"),
    [
        (["a"] * 10, 1, [4, 4, 2]),
        (["a"] * 5, 3, [3, 2]),
        (["a" * 300] * 4, 1, [1] * 4),
        (["a", "a" * 2_000], 1, [1, 1]),
    ],
)
def test_a_batch_above_the_servers_limits_becomes_several_requests(texts: list[str], k: int, sizes: list[int]) -> None:
    with asking(serving) as (client, server):
        server.has_card = True
        queries = [f"{number}{text}" for number, text in enumerate(texts)]
        assert ids(client, queries, k) == [[query] for query in queries]
        batches = [body["queries"] for path, body, _ in server.asked if path != "/info"]
    assert sorted((len(batch) for batch in batches if isinstance(batch, list)), reverse=True) == sizes
