import pytest
from tests.serve.live import CORPUS, live

from coseek.retrieval.retrievers.bm25 import Bm25


@pytest.mark.slow
def test_odd_requests_are_answered_and_never_with_a_5xx() -> None:
    from bench.fuzz_service import fuzz

    with live({"bm25": Bm25.over(CORPUS)}) as url:
        fuzzed = fuzz(url, 300)
    assert fuzzed.requests >= 300
    assert set(fuzzed.statuses) <= {200, 400, 413, 422}
    assert {200, 422} <= set(fuzzed.statuses)
