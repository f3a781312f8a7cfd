"""Load: as many clients as are asked for, each sending one single-query request after the other over its connection.

    python bench/load.py URL QUERIES.json --clients 64 --seconds 60      prints one JSON object

Requests are made by hand and sent over plain asyncio protocols: an HTTP library here would eat the processors that the
server is to be measured on. `bench/serve.py` starts this in a process of its own.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

TIMEOUT_S = 60.0
"""A request that takes longer has failed."""


class Client(asyncio.Protocol):
    """One connection. `latencies` gets the seconds of every request that was answered with 200."""

    def __init__(self, requests: Iterator[bytes], until: float, latencies: list[float]) -> None:
        self.requests = requests
        self.until = until
        self.latencies = latencies
        self.failed = 0
        self.done = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._answer = bytearray()
        self._length = -1
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if self._length < 0:
            head = self._answer.find(b"\r\n\r\n")
            if head < 0:
                return
            self._length = head + 4 + content_length(bytes(self._answer[:head]))
        if len(self._answer) >= self._length:
            self._answered(self._answer.startswith(b"HTTP/1.1 200 "))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.failed += 1  # closed in the middle of a request
            self.done.set_result(None)

    def _answered(self, well: bool) -> None:
        now = time.perf_counter()
        if well:
            self.latencies.append(now - self._sent)
        else:
            self.failed += 1
        if now < self.until:
            self._send()
            return
        self.done.set_result(None)
        if self._transport is not None:
            self._transport.close()

    def _send(self) -> None:
        self._answer.clear()
        self._length = -1
        self._sent = time.perf_counter()
        assert self._transport is not None
        self._transport.write(next(self.requests))


def content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ValueError("an answer without a length")


def requests_of(host: str, queries: list[str], rng: random.Random) -> Iterator[bytes]:
    """Ready-made requests in random order, for ever."""
    ready = []
    for query in queries:
        body = json.dumps({"queries": [query], "topk": 3, "return_scores": True}).encode()
        head = f"POST /retrieve HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        ready.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    while True:
        rng.shuffle(ready)
        yield from ready


async def load(url: str, queries: list[str], count: int, seconds: float, seed: int) -> dict[str, float | list[float]]:
    """Run `count` clients for `seconds`, and let the last requests come back."""
    host, port = urlsplit(url).hostname or "", urlsplit(url).port or 80
    requests = requests_of(f"{host}:{port}", queries, random.Random(seed))
    began = time.perf_counter()
    latencies: list[float] = []
    loop = asyncio.get_running_loop()
    clients = [
        (await loop.create_connection(lambda: Client(requests, began + seconds, latencies), host, port))[1]
        for _ in range(count)
    ]
    _, late = await asyncio.wait([client.done for client in clients], timeout=seconds + TIMEOUT_S)
    took = time.perf_counter() - began
    failed = sum(client.failed for client in clients) + len(late)
    return {"seconds": took, "failed": failed, "latencies_s": latencies}


def main() -> int:
    parser = argparse.ArgumentParser(description="Clients that ask one query after the other.")
    parser.add_argument("url", help="of the server")
    parser.add_argument("queries", type=Path, help="a JSON list of strings")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    queries = json.loads(args.queries.read_text(encoding="utf-8"))
    found = uvloop.run(load(args.url, queries, args.clients, args.seconds, args.seed))
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
