"""Fears about odd requests: that one is answered with a 5xx, hangs, or is not answered as the OpenAPI document says."""

import json
from collections import Counter

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from tests.serve.live import CORPUS, live

from coseek.retrieval.retrievers.bm25 import Bm25

TIMEOUT_S = 20.0
ALLOWED = {200, 400, 413, 422}
EACH = settings(max_examples=100, database=None, deadline=None, suppress_health_check=list(HealthCheck))


def odd_bytes() -> st.SearchStrategy[bytes]:
    """Bodies that are JSON of any shape under our names, damaged JSON, or nothing of the kind."""
    leaf = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    names = st.sampled_from(
        ["queries", "query", "topk", "return_scores", "contexts", "question", "history", "documents"]
    )
    value = st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4), max_leaves=10
    )
    whole = st.dictionaries(names | st.text(max_size=5), value, max_size=5).map(lambda row: json.dumps(row).encode())
    damaged = st.tuples(whole, st.integers(0, 60), st.binary(max_size=3)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + 1 :]
    )
    return whole | damaged | st.binary(max_size=200)


def checks() -> list[schemathesis.CheckFunction]:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    return [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


@pytest.mark.slow
def test_odd_requests_are_answered_as_the_document_says_and_never_with_a_5xx() -> None:
    statuses: Counter[int] = Counter()
    with live({"bm25": Bm25.over(CORPUS)}) as url, requests.Session() as session:
        schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @EACH
            @given(schema.as_strategy(mode))
            def send(case: Case) -> None:  # type: ignore[type-arg]  # of whatever operation
                reply = case.call(session=session, timeout=TIMEOUT_S)
                statuses[reply.status_code] += 1
                case.validate_response(reply, checks=checks())

            send()

        @EACH
        @given(odd_bytes())
        def send_bytes(body: bytes) -> None:
            reply = session.post(f"{url}/retrieve", data=body, timeout=TIMEOUT_S)
            statuses[reply.status_code] += 1
            assert reply.status_code == 200 or isinstance(reply.json()["error"], str)

        send_bytes()
    assert statuses.total() >= 250
    assert {200, 422} <= set(statuses) <= ALLOWED
