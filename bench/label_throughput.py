"""Labels from a server: what share of its ceiling label making reaches, and whether a prompt is paid twice.

    python -m bench.label_throughput          # --runs 200 --slots 64 --latency-ms 200 --refused .05 --repeats 3

The server is a process of its own. It works on `slots` requests at once, each for `latency`, so its ceiling is slots /
latency. It plays the scorer, the model of sub-answers and the agent, refuses a share of the prompts with HTTP 400, and
counts every prompt. Trajectories come from the scripted expert in a laptop world; the labels are Agentic-R's, by the
command line. The share is (requests × latency) / (slots × time from the first request to the last answer). `tenths` are
the mean slots in use in each tenth of that time; `client_cpu_s` is the processor time of the whole command.

The client opens half as many calls again as the server has slots, so that a slot that becomes free finds a prompt
waiting. With `--concurrency 64` it is empty for the way there and back.
"""

import argparse
import asyncio
import hashlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import zlib
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import cast

import uvloop

from coseek.cli.main import main as coseek
from coseek.hardware.host import Host
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
COUNTED = re.compile(r"(\d+) (?:passages|searches)")
QUERIES = ("birthplace", "founder", "capital", "author", "river")


@dataclass
class Server:
    """The state of the server."""

    latency_s: float
    slots: int
    refused: float
    answers: dict[str, str]
    """Question → accepted answer."""
    seen: Counter[bytes] = field(default_factory=Counter)
    """Requests by digest of their body."""
    first: float = 0.0
    last: float = 0.0
    refusals: int = 0
    at_once: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)
    """The slots in use since a time."""
    waiting: "deque[tuple[Connection, str, bytes]]" = field(default_factory=deque)

    def reply(self, path: str, body: bytes) -> tuple[int, dict[str, object]]:
        """The status and the answer of one prompt."""
        asked = json.loads(body)
        prompt = asked["prompt"] if path.endswith("/v1/completions") else asked["messages"][0]["content"]
        number = zlib.crc32(prompt.encode())
        if number % 1000 < self.refused * 1000:
            self.refusals += 1
            return 400, {"error": "this prompt is refused"}
        if path.endswith("/chat/completions"):
            return 200, {"choices": [{"message": {"content": scores(prompt, number)}, "finish_reason": "stop"}]}
        return 200, {"choices": [{"text": self._move(prompt, number), "finish_reason": "stop"}]}

    def _move(self, prompt: str, number: int) -> str:
        """The agent: one or two more searches, then an answer that is right in about half of the cases."""
        if number // 1000 % 3 == 0:
            return f"<think> more is needed </think> <search> {QUERIES[number % len(QUERIES)]} of it </search>"
        question = next((question for question in self.answers if question in prompt), "")
        right = number // 3000 % 2 == 0
        return (
            f"<think> now it is known </think> <answer> {self.answers.get(question, '') if right else 'no'} </answer>"
        )

    def begin(self, connection: "Connection", path: str, body: bytes) -> None:
        """Work on a prompt when a slot is free."""
        self.seen[hashlib.sha256(body).digest()] += 1
        self.first = self.first or time.perf_counter()
        self.waiting.append((connection, path, body))
        self._admit()

    def _admit(self) -> None:
        while self.waiting and self.at_once < self.slots:
            self._count(1)
            asyncio.get_running_loop().call_later(self.latency_s, self._end, *self.waiting.popleft())

    def _end(self, connection: "Connection", path: str, body: bytes) -> None:
        self._count(-1)
        self._admit()
        connection.send(*self.reply(path, body))
        self.last = time.perf_counter()

    def _count(self, more: int) -> None:
        self.at_once += more
        self.changes.append((time.perf_counter(), self.at_once))

    def stats(self) -> dict[str, object]:
        return {
            "requests": self.seen.total(),
            "twice": self.seen.total() - len(self.seen),
            "refused": self.refusals,
            "seconds": self.last - self.first,
            "most_at_once": max((at_once for _, at_once in self.changes), default=0),
            "at_once": self.at_once,
            "tenths": self._tenths(),
            "server_cpu_s": time.process_time(),
        }

    def _tenths(self) -> list[int]:
        """The mean number of slots in use in each tenth of the time."""
        used, width = [0.0] * 10, (self.last - self.first) / 10
        for (start, at_once), (end, _) in pairwise(self.changes):
            for tenth in range(10):
                begins = self.first + tenth * width
                used[tenth] += at_once * max(0.0, min(end, begins + width) - max(start, begins))
        return [round(each / width) for each in used] if width else []

    async def listen(self) -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Connection(self), "127.0.0.1", backlog=1024)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


class Connection(asyncio.Protocol):
    """One connection, with one request at a time. Not asyncio's streams, which take more of the client's processors."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.received += data
        ends = self.received.find(b"\r\n\r\n") + 4
        if ends < 4:
            return
        head = bytes(self.received[:ends])
        length = LENGTH.search(head)
        whole = ends + (int(length[1]) if length is not None else 0)
        if len(self.received) < whole:
            return
        path, body = head.split(b" ", 2)[1].decode(), bytes(self.received[ends:whole])
        self.received.clear()
        if path == "/stats":
            self.send(200, self.server.stats())
        else:
            self.server.begin(self, path, body)

    def send(self, status: int, reply: dict[str, object]) -> None:
        text = json.dumps(reply).encode()
        head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write(head % (status, len(text)) + text)


def scores(prompt: str, number: int) -> str:
    """A line for every passage or search. About one passage in six has a relevance of 60 or more."""
    found = COUNTED.findall(prompt)
    count = int(found[-1]) if found else 1
    if "its number in square brackets and then the fact" in prompt:
        return "\n".join(f"[{place}] some fact" for place in range(1, count + 1))
    return "\n".join(f"[{place}] {(number // place + 17 * place) % 72}" for place in range(1, count + 1))


@contextmanager
def serving(given: argparse.Namespace, questions: Path) -> Iterator[str]:
    """The address of such a server, in a process of its own."""
    command = [sys.executable, "-m", "bench.label_throughput", "--serve", str(questions)]
    command += ["--slots", str(given.slots), "--latency-ms", str(given.latency_ms), "--refused", str(given.refused)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def listen(given: argparse.Namespace) -> None:
    rows = [json.loads(line) for line in given.serve.read_text(encoding="utf-8").splitlines()]
    answers = {row["question"]: row["answers"][0] for row in rows}
    uvloop.run(Server(given.latency_ms / 1e3, given.slots, given.refused, answers).listen())


def labelled(given: argparse.Namespace, folder: Path, number: int) -> tuple[dict[str, float], str]:
    """Label the runs once; returns the server's counts, and a digest of the labels."""
    with serving(given, folder / "world" / "questions.train.jsonl") as url:
        patience = f"patience: {{concurrency: {given.concurrency}}}"
        (folder / "scorer.yaml").write_text(f"url: {url}\nmodel: m\n{patience}\n", encoding="utf-8")
        server = f"server: {{dialect: completions, model: m, {patience}}}"
        agent = f"name: {url}\nprotocol: search-r1\nprompt_template: laptop\ntokenizer: bytes\n{server}\n"
        (folder / "agent.yaml").write_text(agent, encoding="utf-8")
        out = folder / f"labels-{number}"
        who = ("--agent", folder / "agent.yaml", "--scorer", folder / "scorer.yaml")
        began = time.process_time()
        if typed("label", folder / "run", "--method", "agentic-r", *who, "--out", out):
            raise SystemExit("label making failed")
        with urllib.request.urlopen(f"{url}/stats") as answer:
            counts = {**json.load(answer), "client_cpu_s": time.process_time() - began}
    text = b"".join((out / name).read_bytes() for name in ("labels.jsonl", "dropped.jsonl"))
    return counts, hashlib.sha256(text).hexdigest()[:12]


def typed(*words: object) -> int:
    return coseek([str(word) for word in words])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="trajectories")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=96, help="open calls of the client")
    parser.add_argument("--latency-ms", type=float, default=200.0)
    parser.add_argument("--refused", type=float, default=0.05, help="share of prompts")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", default="compact", help="of the world")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        listen(given)
        return 0
    print(f"{Host.here().instructions}; {given.runs} trajectories")
    print(f"{given.slots} slots of {given.latency_ms:g} ms, {given.concurrency} calls open")
    shares, twice, digests = [], 0, set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_world(WorldSettings.model_validate({"size": given.size, "train": given.runs, "dev": 0, "test": 0})).save(
            folder / "world"
        )
        typed("index", folder / "world", "--out", folder / "index")
        typed("run", folder / "world", "--agent", "expert", "--retriever", folder / "index", "--out", folder / "run")
        for number in range(given.repeats):
            counts, digest = labelled(given, folder, number)
            shares.append(counts["requests"] * given.latency_ms / 1e3 / given.slots / counts["seconds"])
            twice += int(counts["twice"])
            digests.add(digest)
            print(f"share {shares[-1]:.3f}: {counts}, labels {digest}", flush=True)
    spread = f"{min(shares):.3f} to {max(shares):.3f}"
    print(f"share of the ceiling: median {statistics.median(shares):.3f} ({spread}); prompts paid twice: {twice}")
    return 1 if twice or len(digests) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
