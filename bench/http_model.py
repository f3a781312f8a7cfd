"""What a model behind HTTP costs: the client's own time a call, and rows a second as more calls are under way.

    python bench/http_model.py                    # --calls 2000 --capacity 64 --latency-ms 200

The server is a process of its own that answers vLLM's requests with canned ids, at once or after a fixed time, and
works on `capacity` requests at once, so that the curve has a known ceiling: capacity / latency.
"""

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coseek.core.http import HttpSettings
from coseek.data.question import Question
from coseek.models.model import EpisodeState, Request, TurnEnd
from coseek.models.remote import RemoteModelSettings, open_remote
from coseek.models.tokenizer import ByteTokenizer

PROMPT = tuple(b"a prompt of some length, as agents have it. " * 20)
WRITTEN = b"<search> what a policy might ask for </search>"
STOPS = ("</search>", "</answer>")


def answer() -> bytes:
    """vLLM's answer to a request for ids."""
    choice = {
        "text": WRITTEN.decode(),
        "finish_reason": "stop",
        "token_ids": list(WRITTEN),
        "logprobs": {"token_logprobs": [-0.123456] * len(WRITTEN)},
    }
    usage = {"prompt_tokens": len(PROMPT), "completion_tokens": len(WRITTEN)}
    body = json.dumps({"choices": [choice], "usage": usage}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


async def listen(latency_s: float, capacity: int) -> None:
    """The server: as little work a request as there can be."""
    room, reply = asyncio.Semaphore(capacity), answer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0"
                )
                await reader.readexactly(int(length.split(b":")[1]))
                if latency_s:
                    async with room:
                        await asyncio.sleep(latency_s)
                writer.write(reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def serving(latency_s: float, capacity: int) -> Iterator[int]:
    """The port of such a server, in a process of its own."""
    command = [sys.executable, __file__, "--serve", str(latency_s), str(capacity)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


@dataclass(frozen=True)
class Measured:
    """What so many turns took."""

    calls: int
    wall_s: float
    cpu_s: float
    """Of this process, all its threads: what the client itself needs, however busy the machine is."""

    @property
    def rate(self) -> float:
        return self.calls / self.wall_s


def measured(port: int, concurrency: int, calls: int) -> Measured:
    """Turns through the client, which is given all rows at once."""
    settings = RemoteModelSettings(dialect="vllm", model="m", patience=HttpSettings(concurrency=concurrency))
    model = open_remote(f"http://127.0.0.1:{port}", settings, ByteTokenizer(), STOPS)
    question = EpisodeState(Question("q", "?"))
    for key in range(-concurrency, 0):  # connections are opened outside of the measurement
        model.start(Request(key, PROMPT, 64, 0, question))
    left = concurrency
    while left:
        left -= len(model.step())
    began, worked = time.perf_counter(), time.process_time()
    for key in range(calls):
        model.start(Request(key, PROMPT, 64, key, question))
    left = calls
    while left:
        turns = model.step()
        assert all(turn.end is TurnEnd.STOP and turn.exact for turn in turns), turns[0]
        left -= len(turns)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
    model.calls.close()
    return Measured(calls, wall_s, cpu_s)


def plain(port: int, calls: int) -> Measured:
    """The same requests one after another through Python's own HTTP, without reading what the answers say."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = json.dumps({"prompt": PROMPT})
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(calls):
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        connection.getresponse().read()
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
    connection.close()
    return Measured(calls, wall_s, cpu_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--capacity", type=int, default=64)
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        asyncio.run(listen(float(given.serve[0]), int(given.serve[1])))
        return
    print("instant server, milliseconds a call:\n| | wall | CPU of the client |\n|--|--:|--:|")
    with serving(0.0, 1) as port:
        show("Python's plain HTTP, one at a time", plain(port, given.calls))
        show("this client, one at a time", measured(port, 1, given.calls))
        show("this client, 32 at once", measured(port, 32, given.calls))
    ceiling = given.capacity / given.latency_ms * 1e3
    print(f"\nserver of {given.latency_ms:g} ms a request, {given.capacity} at once: at most {ceiling:.0f} rows/s")
    print("| calls at once | rows/s | of what they could be | CPU ms a call |\n|--:|--:|--:|--:|")
    with serving(given.latency_ms / 1e3, given.capacity) as port:
        concurrency = 1
        while concurrency <= 2 * given.capacity:
            calls = max(20, min(given.calls, given.calls * concurrency // given.capacity))
            found = measured(port, concurrency, calls)
            best = min(concurrency, given.capacity) / given.latency_ms * 1e3
            print(f"| {concurrency} | {found.rate:.0f} | {found.rate / best:.2f} | {1e3 * found.cpu_s / calls:.2f} |")
            concurrency *= 2


def show(what: str, found: Measured) -> None:
    print(f"| {what} | {1e3 * found.wall_s / found.calls:.2f} | {1e3 * found.cpu_s / found.calls:.2f} |", flush=True)


if __name__ == "__main__":
    main()
