"""Ten thousand odd requests against a live service: none may be answered with a 5xx, and none may hang.

    python bench/fuzz_service.py --requests 10000      some minutes on one core

A third follows the service's own OpenAPI document, a third breaks it, a third are bytes that need not be JSON. What
the document promises of an answer (its status, its type, its schema) is checked, too. Exit 1 at the first failure.
"""

import argparse
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index

TIMEOUT_S = 20.0
"""A request that is not answered by then hangs."""
_CHUNK = 100
"""Requests of one kind in a row."""


@dataclass
class Fuzzed:
    """What the service answered."""

    statuses: Counter[int] = field(default_factory=Counter)
    slowest_s: float = 0.0

    @property
    def requests(self) -> int:
        return self.statuses.total()

    def note(self, status: int, began: float) -> None:
        self.statuses[status] += 1
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
        assert status < 500, f"a {status}"


def fuzz(url: str, count: int, first_seed: int = 0) -> Fuzzed:
    """Send at least `count` requests; the first answer that is a failure is raised, made as small as it goes."""
    fuzzed = Fuzzed()
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    with requests.Session() as session:

        def send(case: Case) -> None:  # type: ignore[type-arg]  # of whatever operation
            began = time.perf_counter()
            reply = case.call(session=session, timeout=TIMEOUT_S)
            fuzzed.note(reply.status_code, began)
            case.validate_response(reply, checks=_checks())

        def send_bytes(body: bytes) -> None:
            began = time.perf_counter()
            reply = session.post(f"{url}/retrieve", data=body, timeout=TIMEOUT_S)
            fuzzed.note(reply.status_code, began)
            assert reply.status_code == 200 or isinstance(reply.json()["error"], str)

        kinds: list[Callable[[int], None]] = [
            lambda number: _run(send, schema.as_strategy(GenerationMode.POSITIVE), number),
            lambda number: _run(send, schema.as_strategy(GenerationMode.NEGATIVE), number),
            lambda number: _run(send_bytes, odd_bytes(), number),
        ]
        turn = 0
        while fuzzed.requests < count:
            kinds[turn % len(kinds)](first_seed + turn)
            turn += 1
    return fuzzed


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


def _run(send: Callable[..., None], strategy: st.SearchStrategy[object], number: int) -> None:
    """A chunk of requests from a strategy."""
    once = settings(
        max_examples=_CHUNK,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    seed(number)(once(given(strategy)(send)))()


def _checks() -> list[schemathesis.CheckFunction]:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    return [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]


def main() -> int:
    parser = argparse.ArgumentParser(description="Odd requests against a live service.")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = Corpus(Passage(str(number), f"Title {number}", f"word{number % 7} text") for number in range(50))
        corpus.save(folder / "corpus.jsonl")
        build_index(folder / "corpus.jsonl", "bm25", folder / "index")
        command = [sys.executable, "-m", "coseek.cli.main", "serve", "retriever", str(folder / "index"), "--port", "0"]
        with subprocess.Popen([*command, "--quiet"], stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            url = re.search(r"http://\S+", service.stdout.readline())
            assert url is not None
            began = time.perf_counter()
            fuzzed = fuzz(url[0], args.requests, args.seed)
            health = requests.get(f"{url[0]}/health", timeout=TIMEOUT_S).json()
            service.send_signal(signal.SIGTERM)
            code = service.wait(30)
    print(f"{fuzzed.requests} requests in {time.perf_counter() - began:.0f} s, slowest {fuzzed.slowest_s:.2f} s")
    print("answers:", ", ".join(f"{status} × {count}" for status, count in sorted(fuzzed.statuses.items())))
    print(f"afterwards: {health}, exit {code}")
    return 0 if health["ready"] and code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
