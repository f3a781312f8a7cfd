"""The served agent: first token beside the bare sampler's, hang-ups, and answers beside those of a run.

    coseek quickstart --out runs/quickstart
    python -m bench.serve_agent runs/quickstart                    about four minutes
    python -m bench.serve_agent runs/quickstart --seconds 6 --questions 20      a try

`coseek serve agent` runs in a process of its own, at temperature 1. 64 clients in another process ask one question
after the other and read the stream. *Bare* is a loop over the sampler in a third process, one token a step, while the
service is idle: it keeps 64 rows open and replays the same runs, whose searches cost it nothing. A row that ends is
followed by one that is asked for at a random moment of the next step, and opened after that step, since no sampler
takes a row within a step. The service writes the first tokens of new rows before the others' next ones; bare stays the
plain loop, in which a row waits for whole steps. First token: from sending the request, or asking for the row, to the
first text; *opened* counts from opening the row, as if every request came between two steps. Exit 1 when a bar is
missed.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import urlsplit

import httpx
import numpy as np
import uvloop
from bench.serve import server

from coseek.agents.factory import limits_for, open_agent, settings_for, settled_for
from coseek.core.files import JsonObject
from coseek.data.run import Run
from coseek.data.trajectory import Author, Segment, Trajectory
from coseek.models.model import EpisodeState, Request
from coseek.models.sampler import Sampler
from coseek.serve.agent_chat import details, reasoning, usage

T = TypeVar("T")
CLIENTS = 64
MOST_RATIO = 1.5
"""Median time to the first token, served ÷ bare."""
PATH = "/v1/chat/completions"
WAIT_S = 60.0
CUTS = (b"", b"HTTP/1.1 200 ", b'"reasoning_content"')
"""What a client reads before it hangs up: nothing, the first bytes, a token."""


@dataclass
class Load:
    """What streaming clients met."""

    first_s: list[float]
    """Seconds to the first token, one for each answer."""
    failed: int


class StreamClient(asyncio.Protocol):
    """One connection that asks one question after the other, and reads the stream of each."""

    def __init__(self, requests: Iterator[bytes], until: float) -> None:
        self.requests, self.until = requests, until
        self.load = Load([], 0)
        self.done = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._answer = bytearray()
        self._sent = self._first = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self._send()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not self._first and b'"reasoning_content"' in self._answer:
            self._first = time.perf_counter()
        if not self._answer.endswith(b"0\r\n\r\n"):  # the last chunk is empty
            return
        if self._answer.startswith(b"HTTP/1.1 200 ") and self._first and b'"coseek": {"stop"' in self._answer:
            self.load.first_s.append(self._first - self._sent)
        else:
            self.load.failed += 1
        if time.perf_counter() < self.until:
            self._send()
            return
        self.done.set_result(None)
        assert self._transport is not None
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.load.failed += 1
            self.done.set_result(None)

    def _send(self) -> None:
        assert self._transport is not None
        self._answer.clear()
        self._first, self._sent = 0.0, time.perf_counter()
        self._transport.write(next(self.requests))


def request_of(url: str, run: Trajectory) -> bytes:
    messages: list[JsonObject] = [{"role": "user", "content": run.question.question}]
    body = json.dumps({"messages": messages, "seed": run.seed, "stream": True}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def loaded(url: str, folder: Path, seconds: float) -> Load:
    """Run the clients; called in a process of its own."""

    async def clients() -> Load:
        requests = cycle([request_of(url, run) for run in Run(folder).trajectories()])
        loop, host, port = asyncio.get_running_loop(), urlsplit(url).hostname or "", urlsplit(url).port or 80
        until = time.perf_counter() + seconds
        made = [
            (await loop.create_connection(lambda: StreamClient(requests, until), host, port))[1] for _ in range(CLIENTS)
        ]
        _, late = await asyncio.wait([one.done for one in made], timeout=seconds + WAIT_S)
        failed = sum(one.load.failed for one in made) + len(late)
        return Load([first for one in made for first in one.load.first_s], failed)

    return uvloop.run(clients())


class BareRows:
    """Rows of a sampler that replay runs, one after the other."""

    def __init__(self, sampler: Sampler, runs: Sequence[Trajectory], max_turn_tokens: int) -> None:
        self.sampler, self.most = sampler, max_turn_tokens
        self.first_s: list[tuple[float, float]] = []
        """Seconds to the first token since each row was asked for, and since it was opened."""
        self._runs = enumerate(cycle(runs))
        self._left: dict[int, tuple[Trajectory, list[Segment]]] = {}
        self._began: dict[int, tuple[float, float]] = {}
        self._wanted = CLIENTS
        self._rng = random.Random(0)

    def step(self) -> None:
        """Write one token on each row, then open those that were asked for meanwhile."""
        started, wanted, self._wanted = time.perf_counter(), self._wanted, 0
        turns = self.sampler.step(1)
        now = time.perf_counter()
        for key in {turn.key for turn in turns} | {key for key in self._began if self.sampler.written(key)}:
            if began := self._began.pop(key, None):
                self.first_s.append((now - began[0], now - began[1]))
        for turn in turns:
            run, shown = self._left.pop(turn.key)
            if shown:
                self.sampler.extend(self._request(turn.key, run, shown[0]))
                self._left[turn.key] = run, shown[1:]
            else:
                self.sampler.close(turn.key)
                self._wanted += 1
        for _ in range(wanted):
            self._open(self._rng.uniform(started, now))

    def _open(self, asked: float) -> None:
        key, run = next(self._runs)
        shown = [segment for segment in run.segments if segment.author is Author.ENVIRONMENT]
        self._began[key] = asked, time.perf_counter()
        self.sampler.start(self._request(key, run, shown[0]))
        self._left[key] = run, shown[1:]

    def _request(self, key: int, run: Trajectory, shown: Segment) -> Request:
        return Request(key, shown.ids, self.most, run.seed, EpisodeState(run.question))


def bare(policy: Path, folder: Path, seconds: float) -> list[tuple[float, float]]:
    """`BareRows.first_s`; called in a process of its own."""
    chosen = settings_for(str(policy)).model_copy(update={"temperature": 1.0})
    sampler = open_agent(settled_for(chosen, chosen)).model
    assert isinstance(sampler, Sampler)
    rows = BareRows(sampler, list(Run(folder).trajectories()), limits_for(chosen).max_turn_tokens)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        rows.step()
    return rows.first_s


def first_tokens(url: str, policy: Path, folder: Path, seconds: float, rounds: int) -> list[tuple[bool, str]]:
    """Both sides in turns."""
    ratios, failed, answers = list[float](), 0, 0
    print("| round | answers | served p50 ms | p95 | bare p50 | p95 | opened p50 | served ÷ bare | ÷ opened |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number in range(rounds):
        load = apart(partial(loaded, url, folder, seconds / rounds))
        alone = np.array(apart(partial(bare, policy, folder, seconds / rounds / 2))) * 1e3
        ours, ours_late = np.percentile(np.array(load.first_s) * 1e3, (50, 95))
        (theirs, opened), (theirs_late, _) = np.percentile(alone, (50, 95), axis=0)
        ratios.append(float(ours / theirs))
        failed, answers = failed + load.failed, answers + len(load.first_s)
        row = f"| {number + 1} | {len(load.first_s)} | {ours:.1f} | {ours_late:.1f} | {theirs:.1f} | {theirs_late:.1f} "
        print(f"{row}| {opened:.1f} | {ratios[-1]:.2f} | {ours / opened:.2f} |", flush=True)
    ratio, spread = float(np.median(ratios)), f"{min(ratios):.2f} to {max(ratios):.2f}"
    return [
        (failed == 0, f"{CLIENTS} streaming clients, {seconds:g} s: {failed} errors in {answers} answers, bar 0"),
        (ratio <= MOST_RATIO, f"first token {ratio:.2f} × the bare sampler's ({spread}), bar {MOST_RATIO}"),
    ]


def hang_ups(url: str, runs: Sequence[Trajectory], count: int) -> list[tuple[bool, str]]:
    """Clients that go: before the answer, after its first bytes, after its first token."""

    async def hang_up(request: bytes, after: bytes, delay_s: float) -> bool:
        await asyncio.sleep(delay_s)
        reader, writer = await asyncio.open_connection(urlsplit(url).hostname, urlsplit(url).port)
        writer.write(request)
        await writer.drain()
        read = b""
        while after not in read and (part := await reader.read(65_536)):
            read += part
        writer.close()
        return not read.endswith(b"0\r\n\r\n")

    async def all_of_them() -> int:
        rng = random.Random(0)
        chosen = islice(cycle(runs), count)
        given = [(request_of(url, run), rng.choice(CUTS), rng.uniform(0, 3)) for run in chosen]
        return sum(await asyncio.gather(*(hang_up(*one) for one in given)))

    cut = uvloop.run(all_of_them())
    began = time.perf_counter()
    while any(open_now := counts(url)) and time.perf_counter() - began < WAIT_S:
        time.sleep(0.02)
    took = time.perf_counter() - began
    left = sum(open_now)
    return [(cut >= count * 0.98 and left == 0, f"{cut} hang-ups leave {left} rows open after {took:.2f} s, bar 0")]


def counts(url: str) -> tuple[int, int, int]:
    health = httpx.get(f"{url}/health", trust_env=False).json()
    return health["open_rows"], health["running"], health["waiting"]


def same_answers(url: str, runs: Sequence[Trajectory]) -> list[tuple[bool, str]]:
    """Ask what the runs were asked, many at once: as a stream of one API, and whole from the other."""
    with httpx.Client(base_url=url, trust_env=False, timeout=WAIT_S) as web, ThreadPoolExecutor(32) as threads:
        same = sum(threads.map(partial(is_same, web), runs))
    searches, right = sum(len(run.searches) for run in runs), sum(run.answer in run.question.answers for run in runs)
    about = f"{searches} searches, {right} right"
    return [(same == len(runs), f"{same} of {len(runs)} answers are those of `coseek run` ({about}), bar all")]


def is_same(web: httpx.Client, run: Trajectory) -> bool:
    text = run.question.question
    messages = [{"role": "user", "content": text}]
    wish = {"messages": messages, "seed": run.seed, "stream": True, "stream_options": {"include_usage": True}}
    lines = web.post(PATH, json=wish).text.split("\n\n")
    rows = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    deltas = [row["choices"][0]["delta"] for row in rows if row["choices"]]
    streamed = (
        "".join(delta.get("reasoning_content", "") for delta in deltas),
        "".join(delta.get("content", "") for delta in deltas),
        rows[-1]["usage"],
        rows[-2]["coseek"],
    )
    whole = web.post("/v1/responses", json={"input": text, "seed": run.seed}).json()
    parts = [part["text"] for item in whole["output"] for part in item.get("content", ())]
    wanted = reasoning(run), run.answer or "", usage(run), details(run)
    return streamed == wanted and ("".join(parts[:-1]), parts[-1], whole["coseek"]) == (*wanted[:2], wanted[3])


def apart(call: Callable[[], T]) -> T:
    """The result of a call in a process of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(call).result()


def main() -> int:
    args = arguments()
    policy, index = args.run / "policy" / "trained", args.run / "data.index"
    command = [sys.executable, "-m", "coseek.cli.main"]
    agent = [str(policy), "--retriever", str(index), "--temperature", "1"]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        asked = [str(args.run / "data"), "--split", "test", "--count", str(args.questions), "--out", str(folder)]
        subprocess.run([*command, "run", "--agent", *agent, *asked], check=True, stdout=subprocess.DEVNULL)
        runs = list(Run(folder).trajectories())
        with server([*command, "serve", "agent", *agent, "--port", "0", "--quiet"]) as url:
            bars = same_answers(url, runs)
            bars += hang_ups(url, runs, args.hang_ups)
            bars += first_tokens(url, policy, folder, args.seconds, args.rounds)
    for reached, sentence in bars:
        print(f"{'ok    ' if reached else 'MISSED'} {sentence}")
    return 0 if all(reached for reached, _ in bars) else 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="coseek serve agent against the bare sampler and a run.")
    parser.add_argument("run", type=Path, help="the folder of a quickstart")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load; the bare sampler gets half as many")
    parser.add_argument("--rounds", type=int, default=3, help="turns in which the seconds are spent")
    parser.add_argument("--questions", type=int, default=200, help="whose answers are compared")
    parser.add_argument("--hang-ups", type=int, default=500, help="clients that go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
