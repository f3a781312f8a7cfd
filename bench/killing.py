"""Killing: a run is stopped by SIGKILL at a random moment and gone on with; does it end as the undisturbed one?

What a bench brings: the work (what a command does, without a terminal), and what a run left behind as digests by name.
"""

import hashlib
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import TypeAlias

import torch
from bench.processes import FORKS, forked

from coseek.core.files import JsonObject
from coseek.core.progress import NoProgress


class Told(NoProgress):
    """Writes down on a pipe what the run does, so that the other process can time its kill."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._stage = pipe, ""

    def stage(self, name: str, total: int) -> None:
        self._stage = name
        self.advance(0)

    def advance(self, done: int, note: str = "") -> None:
        self._pipe.send(f"{self._stage} {done}")

    def say(self, line: str) -> None:
        self.advance(-1)


Mark: TypeAlias = tuple[float, str]
"""Seconds since the run began, and what it had just done."""
Work: TypeAlias = Callable[[Path, bool, Told], None]
"""The run in a folder, begun or gone on with. It is pickled."""


@dataclass
class Child:
    """A run in a process of its own."""

    process: ForkServerProcess
    pipe: Connection
    began: float

    @classmethod
    def start(cls, work: Work, folder: Path, resume: bool = False) -> "Child":
        reading, writing = FORKS.Pipe(duplex=False)
        process = forked(_told, work, folder, resume, writing)
        writing.close()
        reading.recv()  # it has begun: the first of all waits for the imports
        return cls(process, reading, time.perf_counter())

    def marks(self) -> Iterator[Mark]:
        """What it has done, as it does it, to its end."""
        with suppress(EOFError):
            while True:
                what = str(self.pipe.recv())
                yield time.perf_counter() - self.began, what

    def end(self) -> int:
        """Wait for it; returns its exit status, below 0 for a signal."""
        for _ in self.marks():
            pass
        self.process.join()
        self.pipe.close()
        return self.process.exitcode or 0


def _told(work: Work, folder: Path, resume: bool, pipe: Connection) -> None:
    told = Told(pipe)
    told.stage("begun", 0)
    work(folder, resume, told)


def whole_run(work: Work, folder: Path) -> list[Mark]:
    """A run that nobody disturbs; returns what it did when, its end included."""
    child = Child.start(work, folder)
    marks = list(child.marks())
    if child.end():
        raise RuntimeError("the undisturbed run failed")
    return [*marks, (time.perf_counter() - child.began, "the end")]


def killed_run(work: Work, folder: Path, marks: list[Mark], at: float) -> str | None:
    """A run that is killed where the undisturbed one was after `at` seconds, and resumed; returns what it had done by
    then, `None` if it was over. The moment is found again by what the run has done: the machine may be busier now."""
    before = [mark for mark in marks if mark[0] <= at]
    child = Child.start(work, folder)
    told = child.marks()
    for _ in before:
        next(told, None)
    time.sleep(at - (before[-1][0] if before else 0.0))
    child.process.kill()
    if child.end() != -signal.SIGKILL:
        shutil.rmtree(folder)
        return None
    if Child.start(work, folder, resume=True).end():
        raise RuntimeError(f"the run in {folder} did not go on")
    return before[-1][1] if before else "nothing"


@dataclass(frozen=True)
class Kills:
    """What is run, and how its end is told from another."""

    work: Work
    outcome: Callable[[Path], dict[str, str]]
    """What a run left behind → a digest of it, times left out."""
    check_moved: Callable[[Path, dict[str, str]], None]
    """Raises when the undisturbed run changed nothing: comparing what never moved would say nothing."""

    def same(self, base: Path, runs: int, seed: int, until: str = "") -> int:
        """Print one line a kill; returns how many runs ended as the undisturbed one. Kills fall before the stage
        `until` where one is named."""
        marks, rng = whole_run(self.work, base / "whole"), random.Random(seed)
        expected = self.outcome(base / "whole")
        print(f"torch {torch.__version__}, undisturbed {marks[-1][0]:.1f} s; {len(expected)} things compared: "
              f"{', '.join(list(expected)[:12])}{' …' if len(expected) > 12 else ''}", flush=True)  # fmt: skip
        self.check_moved(base / "whole", expected)
        last = next((time for time, what in marks if what.startswith(f"{until} ")), marks[-1][0])
        killed = same = 0
        while killed < runs:
            folder = base / f"killed-{killed}"
            reached = killed_run(self.work, folder, marks, rng.uniform(0.0, last))
            if reached is None:  # it was over before the kill
                continue
            found = self.outcome(folder)
            other = sorted(name for name in expected.keys() | found.keys() if found.get(name) != expected.get(name))
            same += not other
            killed += 1
            verdict = f"DIFFERENT: {', '.join(other)}" if other else "same"
            print(f"{killed:>3}  killed after {reached:<28} {verdict}", flush=True)
            if not other:
                shutil.rmtree(folder)
        return same


def timeless(row: JsonObject) -> JsonObject:
    return {name: value for name, value in row.items() if not name.endswith("_s")}


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
