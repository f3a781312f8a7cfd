"""Hostile load: one server at a time under good, slow, greedy, hostile and vanishing clients, until it is stopped.

    python -m bench.hostile_load --server retriever --minutes 10 --clients 64      also: model, agent, mcp
    python -m bench.hostile_load --minutes 1                                       all four, one after the other

The server is the command as a user starts it, in a process of its own. Two thirds of the clients are good, and every
answer of theirs is compared with what the library gives; the others take turns in doing harm. In the end the server is
told to stop under load. Bars: no 5xx but a 503 that says when to retry, every accepted request answered, and answered
rightly, no connection that hangs, memory at most 5 % and descriptors at most 32 more in the last minute than in the
second, exit 0. Exit 1 when one is missed.
"""

import argparse
import asyncio
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import uvloop
from bench.hostile_clients import Client, Tally, repeated, roles_of
from bench.hostile_servers import MODEL, TOKEN_ENV, Target, target_of

SERVERS = ("retriever", "model", "agent", "mcp")
MOST_GROWTH = 0.05
PART_S = 60.0
"""Length of the two parts of a run that are compared, or a third of it where that is shorter. Medians of 20 seconds
differ by 5 % in a server whose memory does not grow."""
MOST_FILES = 32
"""Descriptors by which a server may hold more in the end: connections under way differ."""
STOP_S = 150.0


@dataclass
class Usage:
    """What a process holds, once a second."""

    times: list[float] = field(default_factory=list)
    megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def look(self, pid: int, since: float) -> None:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        found = re.search(r"VmRSS:\s+(\d+)", status)
        if found is not None:
            self.times.append(time.monotonic() - since)
            self.megabytes.append(int(found[1]) / 1024)
            self.files.append(len(os.listdir(f"/proc/{pid}/fd")))

    def ends(self) -> tuple[slice, slice]:
        """The part after the first one, and the last one."""
        size = max(1, round(min(PART_S, self.times[-1] / 3) / self.times[-1] * len(self.times)))
        return slice(size, 2 * size), slice(len(self.times) - size, None)

    def by_minute(self) -> list[float]:
        """Median memory of each minute."""
        minutes = [int(at // 60) for at in self.times]
        return [
            median(size for size, of in zip(self.megabytes, minutes, strict=True) if of == minute)
            for minute in sorted(set(minutes))
        ]

    def growth(self) -> float:
        """Median memory of the last part over that of the second, less 1."""
        first, last = self.ends()
        return median(self.megabytes[last]) / median(self.megabytes[first]) - 1


@dataclass
class Outcome:
    """One run."""

    tally: Tally
    usage: Usage
    code: int | None
    stop_s: float
    tracebacks: int

    def bars(self) -> list[tuple[bool, str]]:
        faults, first_last = self.tally.faults, self.usage.ends()
        first, last = (median(self.usage.files[part]) for part in first_last)
        return [
            (not faults["5xx"], f"5xx other than a deliberate 503: {faults['5xx']}"),
            (not faults["unanswered"], f"accepted requests without an answer: {faults['unanswered']}"),
            (not faults["wrong"], f"answers that differ from the library's: {faults['wrong']}"),
            (not faults["hung"], f"connections that hang: {faults['hung']}"),
            (self.usage.growth() <= MOST_GROWTH, f"memory, last part over second: {self.usage.growth():+.1%}"),
            (last <= first + MOST_FILES, f"descriptors, second and last part: {first:.0f}, {last:.0f}"),
            (self.code == 0 and not self.tracebacks, f"exit {self.code}, {self.tracebacks} tracebacks"),
        ]


@contextmanager
def started(target: Target, token: str) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """The server's process, its address, and the file with what it wrote to stderr."""
    with tempfile.NamedTemporaryFile("w", suffix=".err") as log:
        environment = {**os.environ, TOKEN_ENV: token}
        process = subprocess.Popen(target.command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        try:
            assert process.stdout is not None
            found = re.search(r"http://\S+", process.stdout.readline())
            if found is None:
                raise SystemExit(f"no server: {Path(log.name).read_text(encoding='utf-8')}")
            yield process, found[0], Path(log.name)
        finally:
            process.kill()
            process.communicate()


async def loaded(
    target: Target, process: "subprocess.Popen[str]", url: str, token: str, args: argparse.Namespace
) -> tuple[Tally, Usage, float]:
    """Run all clients, then tell the server to stop while they go on; returns how long that took, too."""
    parts, tally, usage = urlsplit(url), Tally(), Usage()
    rng = random.Random(args.seed)
    clients = [
        Client(role, parts.hostname or "", parts.port or 0, target, token, tally, random.Random(rng.random()))
        for role in roles_of(args.clients)
    ]
    began = time.monotonic()
    visits = [asyncio.ensure_future(repeated(client)) for client in clients]
    while time.monotonic() < began + 60 * args.minutes and process.poll() is None:
        usage.look(process.pid, began)
        await asyncio.sleep(1.0)
    tally.stopped = time.monotonic()
    process.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        await asyncio.to_thread(process.wait, STOP_S)
    took = time.monotonic() - tally.stopped
    _, late = await asyncio.wait(visits, timeout=10.0)
    for visit in late:
        visit.cancel()
    for done in await asyncio.gather(*visits, return_exceptions=True):
        if isinstance(done, Exception):
            raise done
    return tally, usage, took


def outcome_of(name: str, args: argparse.Namespace) -> Outcome:
    token = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory() as folder:
        target = target_of(name, Path(folder), args.model)
        with started(target, token) as (process, url, log):
            tally, usage, took = uvloop.run(loaded(target, process, url, token, args))
            wrote = log.read_text(encoding="utf-8", errors="replace")
            if "Traceback" in wrote:
                print(wrote[-6_000:], file=sys.stderr)
            return Outcome(tally, usage, process.poll(), took, wrote.count("Traceback"))


def report(name: str, outcome: Outcome) -> bool:
    """Print the tables and bars of one server."""
    tally, usage = outcome.tally, outcome.usage
    print(f"\n## {name}\n\n| clients | answers by status, and other ends |\n|---|---|")
    for role, counts in tally.statuses.items():
        print(f"| {role} | {', '.join(f'{what} × {count}' for what, count in sorted(counts.items()))} |")
    good = sorted(tally.seconds) or [0.0]
    first, last = usage.ends()
    print(
        "\n| good answers | p50 s | p99 s | MB second | MB last | MB peak | files peak | stopped in s |\n"
        + "|---" * 8
        + "|"
    )
    numbers = [good[len(good) // 2], good[len(good) * 99 // 100]]
    sizes = [median(usage.megabytes[first]), median(usage.megabytes[last]), max(usage.megabytes), max(usage.files)]
    shown = [*(f"{one:.2f}" for one in numbers), *(f"{one:.0f}" for one in sizes), f"{outcome.stop_s:.1f}"]
    print(f"| {len(good)} | {' | '.join(shown)} |\n")
    print(f"MB by minute: {', '.join(f'{size:.0f}' for size in usage.by_minute())}\n")
    for reached, sentence in outcome.bars():
        print(f"{'ok    ' if reached else 'MISSED'} {sentence}")
    for example in tally.examples:
        print(f"       {example}")
    return all(reached for reached, _ in outcome.bars())


def main() -> int:
    parser = argparse.ArgumentParser(description="Servers under clients that mean harm.")
    parser.add_argument("--server", choices=SERVERS, help="only this one")
    parser.add_argument("--model", default=MODEL, help="what the model's and the agent's server serve")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    names = [args.server] if args.server else list(SERVERS)
    reached = [report(name, outcome_of(name, args)) for name in names]
    return 0 if all(reached) else 1


if __name__ == "__main__":
    sys.exit(main())
