"""Fears about clients that mean harm: memory without end, a thread without end, a connection that nobody closes."""

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serve.live import WEB, EchoRetriever, live
from tests.serve.test_running import ask, connected

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.serve.budgets import HeldBytes, check_values
from coseek.serve.contract import RefusedRequest
from coseek.serve.middleware import Scope
from coseek.serve.settings import ServeSettings

HEAD = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
BODY = b'{"queries": ["x"]}'
REQUEST = HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY


def ended(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    got = b""
    with suppress(ConnectionError):  # closed before it has read everything
        while part := connection.recv(65_536):
            got += part
    return got


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        (HEAD, b"X: y\r\n" * 200),
        (HEAD + b"X: ", b"y" * 5_000),
        (b"GET /", b"y" * 5_000),
        (CHUNKED, b"X: y\r\n" * 200),
        (CHUNKED + b"X: ", b"y" * 5_000),
    ],
    ids=["many headers", "a long header", "a long address", "many trailers", "a long trailer"],
)
def test_a_head_without_end_is_not_kept(sent: tuple[bytes, bytes]) -> None:
    with live({"echo": EchoRetriever()}, max_header_bytes=2_048) as url, connected(url) as greedy:
        greedy.sendall(sent[0])
        time.sleep(0.1)  # what comes with the beginning of a request is not counted twice
        greedy.sendall(sent[1])
        assert ended(greedy).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert ask(url).status_code == 200


def test_a_body_that_nobody_reads_does_not_hold_its_connection() -> None:
    with live({"echo": EchoRetriever()}, max_body_bytes=1_000) as url, connected(url) as endless:
        endless.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert endless.recv(12) == b"HTTP/1.1 200"
        endless.settimeout(10)
        chunks = b"64\r\n" + b"x" * 100 + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(200):
                endless.sendall(chunks)
                time.sleep(0.01)
            pytest.fail("20 KB were taken")


def test_a_body_in_chunks_of_a_byte_does_not_hold_the_service() -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in BODY)
    with live({"echo": EchoRetriever()}, max_body_bytes=65_536) as url:
        with connected(url) as small:
            small.sendall(head + pieces + b"0\r\n\r\n")
            assert small.recv(65_536).startswith(b"HTTP/1.1 200 OK\r\n")
        with connected(url) as greedy:
            greedy.sendall(head + b"1\r\n \r\n" * 1_000)
            assert ended(greedy).startswith(b"HTTP/1.1 413 ")
        assert ask(url).status_code == 200


def test_an_empty_line_does_not_hold_a_connection_for_ever() -> None:
    with live({"echo": EchoRetriever()}, headers_s=0.2) as url, connected(url) as idle:
        idle.sendall(REQUEST)
        assert idle.recv(65_536)
        idle.sendall(b"\r\n")
        assert ended(idle) == b""


def test_one_who_does_not_read_the_answer_is_cut_off() -> None:
    many = json.dumps({"queries": ["x"] * 4_000, "topk": 4}).encode()
    asked = HEAD + b"Content-Length: %d\r\n\r\n" % len(many) + many
    with live({"echo": EchoRetriever()}, answer_s=0.3) as url, socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        silent.connect(("127.0.0.1", int(url.rpartition(":")[2])))
        silent.sendall(asked * 4)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            try:
                silent.send(b" ", socket.MSG_DONTWAIT)
            except BlockingIOError:
                pass
            except ConnectionError:
                break
            time.sleep(0.05)
        assert time.monotonic() < until
        assert ask(url).status_code == 200


@pytest.mark.slow
def test_one_who_reads_a_long_answer_slowly_gets_it_whole() -> None:
    many = json.dumps({"queries": ["x"] * 4_000, "topk": 4}).encode()
    with live({"echo": EchoRetriever()}, answer_s=0.3) as url, connected(url) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        slow.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(many) + many)
        got = b""
        while part := slow.recv(200_000):
            got += part
            time.sleep(0.02)
    assert len(json.loads(got.partition(b"\r\n\r\n")[2])["result"]) == 4_000


def test_connections_beyond_the_limit_are_told_to_come_back() -> None:
    with live({"echo": EchoRetriever()}, max_connections=3) as url, ExitStack() as stack:
        held = [stack.enter_context(connected(url)) for _ in range(3)]
        with connected(url) as further:
            got = ended(further)
        assert got.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in got
        held[0].close()
        until = time.monotonic() + 10
        while ask(url).status_code != 200:
            assert time.monotonic() < until


def test_the_bodies_of_all_requests_together_are_limited() -> None:
    with live({"echo": EchoRetriever()}, max_held_bytes=1_000) as url:
        with connected(url) as first:
            first.sendall(HEAD + b"Content-Length: 950\r\n\r\n" + b" " * 900)
            until = time.monotonic() + 10
            while (reply := ask(url, "y" * 100)).status_code == 200:
                assert time.monotonic() < until
            assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
        while ask(url).status_code != 200:
            assert time.monotonic() < until


def test_nobody_searches_for_a_client_that_has_gone() -> None:
    gate = threading.Event()
    echo = EchoRetriever(gate)
    with live({"echo": echo}, batch=1) as url:
        with connected(url) as first, connected(url) as second:
            first.sendall(REQUEST)
            while len(echo.batches) < 2:  # the first was the warm-up
                time.sleep(0.005)
            second.sendall(REQUEST.replace(b'"x"', b'"z"'))
            while not WEB.get(f"{url}/health").json()["waiting"]:
                time.sleep(0.005)
        until = time.monotonic() + 10
        while WEB.get(f"{url}/health").json()["waiting"]:
            assert time.monotonic() < until
            time.sleep(0.005)
        gate.set()
        assert ask(url, "after").status_code == 200
    assert [[query.text for query in batch] for batch in echo.batches] == [["warm up"], ["x"], ["after"]]


@pytest.mark.slow
def test_the_search_thread_outlives_clients_that_leave_while_it_waits_for_more() -> None:
    with live({"echo": EchoRetriever()}, wait_ms=300) as url:
        with connected(url) as leaving:
            leaving.sendall(REQUEST)
            while not WEB.get(f"{url}/health").json()["waiting"]:
                time.sleep(0.005)
        assert ask(url).status_code == 200


def test_pipelined_requests_are_all_answered_in_order() -> None:
    with live({"echo": EchoRetriever()}) as url, connected(url) as eager:
        eager.sendall(b"".join([REQUEST, REQUEST.replace(b'["x"]', b"[   ]")]) * 20)
        got = b""
        while got.count(b"HTTP/1.1 200") < 40:
            got += eager.recv(65_536)
    assert [part[:3] for part in got.split(b'"result":')[1:]] == [b"[[{", b"[]}"] * 20


def test_a_request_of_millions_of_values_is_refused_before_it_is_read() -> None:
    vast = b'{"queries":[' + b"[]," * 3_000_000 + b"0]}"
    with live({"echo": EchoRetriever()}) as url:
        reply = WEB.post(f"{url}/retrieve", content=vast)
        words = WEB.post(f"{url}/retrieve", json={"queries": ["a, [b], {c}" * 2_000] * 100})
    assert reply.status_code == 413 and "262144 values" in reply.json()["error"]
    assert words.status_code == 200


JSON = st.recursive(
    st.none() | st.integers() | st.text(alphabet='a,[{"\\\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=20,
)


def values(row: object) -> int:
    """Values of JSON without the outermost, whose count is what brackets and commas say."""
    inner = list(row.values()) if isinstance(row, dict) else row if isinstance(row, list) else []
    return 1 + sum(map(values, inner))


@given(JSON)
def test_what_holds_few_values_is_never_refused(row: object) -> None:
    check_values(json.dumps(row).encode(), 2 * values(row) + 2)


@given(st.lists(JSON, min_size=1, max_size=4))
def test_many_values_cannot_hide(row: list[object]) -> None:
    body = json.dumps([*row, *[[]] * 40]).encode()
    with pytest.raises(RefusedRequest):
        check_values(body, 39)


@given(st.lists(st.integers(0, 60), max_size=30))
def test_what_was_held_is_free_again(sizes: list[int]) -> None:
    held, scopes = HeldBytes(100), list[Scope]()
    for size in sizes:
        scopes.append({})
        if held.held + size <= 100:
            held.take(scopes[-1], size)
        else:
            with pytest.raises(RefusedRequest, match="retry later"):
                held.take(scopes[-1], size)
    assert 0 <= held.held <= 100
    for scope in scopes:
        held.free(scope)
    assert held.held == 0


def test_a_limit_that_refuses_everything_is_refused() -> None:
    with pytest.raises(SettingError, match="max_header_bytes"):
        make_settings(ServeSettings, {"max_header_bytes": 10})
