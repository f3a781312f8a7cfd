"""Fears about limits: that a request or an answer has none, and that a search is made for nobody."""

import socket
from contextlib import ExitStack, suppress

from tests.serve.agent_live import until
from tests.serve.live import WEB, EchoRetriever, live
from tests.serve.test_running import ask, connected

HEAD = b"POST /retrieve HTTP/1.1\r\nHost: localhost\r\n"


def ended(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    got = b""
    with suppress(ConnectionError):  # closed before it has read everything
        while part := connection.recv(65_536):
            got += part
    return got


def test_connections_beyond_the_limit_are_refused() -> None:
    with live({"echo": EchoRetriever()}, max_connections=3) as url, ExitStack() as stack:
        held = [stack.enter_context(connected(url)) for _ in range(3)]
        until(lambda: ask(url).status_code == 503)
        held[0].close()
        until(lambda: ask(url).status_code == 200)


def test_a_body_that_is_too_long_or_too_late_is_refused() -> None:
    with live({"echo": EchoRetriever()}, max_body_bytes=1_000, body_s=0.2) as url:
        assert WEB.post(f"{url}/retrieve", content=b" " * 1_001).status_code == 413
        with connected(url) as endless:
            endless.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            with suppress(ConnectionError):
                for _ in range(20):
                    endless.sendall(b"64\r\n" + b" " * 100 + b"\r\n")
            assert ended(endless).startswith(b"HTTP/1.1 413 ")
        with connected(url) as late:
            late.sendall(HEAD + b"Content-Length: 99\r\n\r\n{")
            assert ended(late).startswith(b"HTTP/1.1 408 ")
        assert ask(url).status_code == 200
