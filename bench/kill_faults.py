"""The faults of the kill campaign: what happens to a command, and how it is found again afterwards."""

import ctypes
import os
import platform
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from bench.kill_commands import Command
from bench.kill_place import Done, Place, on_write

DAY_S = 86_400.0
WAYS_OUT = re.compile(
    r"--resume|same command|choose |wait until|free some space|make room|starts? again|"
    r"resume with|check that|try again|start the server|is it running|work in a folder|push again",
    re.IGNORECASE,
)
"""What a message says that names a way out."""


@dataclass(frozen=True)
class Whole:
    """The undisturbed command."""

    seconds: float
    writes: int
    grown: int
    """Bytes that it adds to the folder."""
    outcome: dict[str, str]


@dataclass(frozen=True)
class Trial:
    """One command in one fault."""

    command: Command
    place: Place
    whole: Whole
    rng: random.Random
    words: list[str]
    second: list[str]
    """What its messages say to type afterwards."""

    def stop(self, how: signal.Signals) -> Done:
        """Send a signal at a random moment, or before a random change of the file system."""
        if self.rng.random() < 0.5:
            return self.place.run(self.words, partial(_signal_at, self.rng.randint(1, self.whole.writes), how))
        return self.stop_at(self.rng.uniform(0.01, self.whole.seconds), how)

    def stop_at(self, moment_s: float, how: signal.Signals) -> Done:
        started = self.place.start(self.words)
        if started.wait(moment_s):
            with suppress(ProcessLookupError):
                os.kill(started.pid, how)
        return started.end()


def _signal_at(number: int, how: signal.Signals) -> None:
    left = number

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), how)

    on_write(count)


# --- the faults: each disturbs a trial, and returns how the disturbed processes ended


def killed(trial: Trial) -> list[Done]:
    return [trial.stop(signal.SIGKILL)]


def terminated(trial: Trial) -> list[Done]:
    return [trial.stop(signal.SIGTERM)]


def interrupted(trial: Trial) -> list[Done]:
    return [trial.stop(signal.SIGINT)]


def full_disk(trial: Trial) -> list[Done]:
    """A small file system in memory where root may mount one, else a limit of the size of files."""
    if not MOUNTS:
        limit = trial.rng.randint(1, max(2, trial.whole.grown // 2))
        return [trial.place.run(trial.words, partial(_limit_files, limit))]
    used = int(subprocess.check_output(["du", "-sB1", trial.place.work]).split()[0])
    size = used + 4096 + int(trial.rng.uniform(0.0, 0.9) * max(trial.whole.grown, 8192))
    subprocess.run(["mount", "-o", f"remount,size={size}", str(trial.place.work)], check=True)
    try:
        return [trial.place.run(trial.words)]
    finally:
        subprocess.run(["mount", "-o", "remount,size=2g", str(trial.place.work)], check=True)


def read_only(trial: Trial) -> list[Done]:
    """Folders without the right to write, for a process without root's power to write everywhere. Half of the time
    the command has begun before."""
    before = [trial.stop(signal.SIGKILL)] if trial.rng.random() < 0.5 else []
    folders = [trial.place.work, *(path for path in trial.place.work.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    words = trial.second if before else trial.words
    try:
        return [*before, trial.place.run(words, _drop_powers)]
    finally:
        for folder in folders:
            if folder.exists():
                folder.chmod(0o755)


def jumping_clock(trial: Trial) -> list[Done]:
    """The clock jumps by a day, back or forth, while the command runs; it is killed, and its files are of that day."""
    jump_s = trial.rng.choice((-DAY_S, DAY_S))
    at, until = sorted(trial.rng.randint(1, trial.whole.writes) for _ in range(2))
    done = trial.place.run(trial.words, partial(_jump_and_die, at, until, jump_s))
    for path in trial.place.work.rglob("*"):
        if path.is_file() and "in" not in path.relative_to(trial.place.work).parts[:1]:
            os.utime(path, (time.time() + jump_s, time.time() + jump_s))
    return [done]


def twins(trial: Trial) -> list[Done]:
    """The same command once more while it runs."""
    first = trial.place.start(trial.words)
    first.wait(trial.rng.uniform(0.0, trial.whole.seconds))
    second = trial.place.run(trial.words)
    return [first.end(), second]


def unplugged(trial: Trial) -> list[Done]:
    """The server is killed while it is asked."""
    server = SERVERS[-1]
    started = trial.place.start(trial.words)
    started.wait(trial.rng.uniform(0.0, trial.whole.seconds))
    server.kill()
    done = started.end()
    server.begin()
    return [done]


def slow(trial: Trial) -> list[Done]:
    """The server answers nothing for two seconds."""
    server = SERVERS[-1]
    started = trial.place.start(trial.words)
    started.wait(trial.rng.uniform(0.0, trial.whole.seconds))
    server.send(signal.SIGSTOP)
    time.sleep(2.0)
    server.send(signal.SIGCONT)
    return [started.end()]


Fault = Callable[[Trial], list[Done]]
FAULTS: dict[str, Fault] = {
    "SIGKILL": killed,
    "SIGTERM": terminated,
    "SIGINT": interrupted,
    "full disk": full_disk,
    "read-only": read_only,
    "clock": jumping_clock,
    "twins": twins,
}
SERVED: dict[str, Fault] = {"unplugged": unplugged, "slow": slow}
"""For commands that ask a server."""


def _limit_files(size: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _drop_powers() -> None:
    """Give up the capabilities by which root writes everywhere."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # capabilities(7), version 3
    data = (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, data):
        raise OSError(ctypes.get_errno(), "capset")


def _jump_and_die(at: int, until: int, jump_s: float) -> None:
    real, real_ns, count = time.time, time.time_ns, 0

    def act() -> None:
        nonlocal count
        count += 1
        if count == at:
            time.time = lambda: real() + jump_s
            time.time_ns = lambda: real_ns() + int(jump_s * 1e9)
        if count == until:
            os.kill(os.getpid(), signal.SIGKILL)

    on_write(act)


# --- file systems and servers


@contextmanager
def mounted(place: Place) -> Iterator[None]:
    """`place.work` as a file system in memory, where that may be mounted."""
    if not MOUNTS:
        yield
        return
    place.work.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(place.work)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place.work)], check=True)


def _mounts() -> bool:
    """Whether this process may mount a file system."""
    if platform.system() != "Linux" or os.geteuid() != 0:
        return False
    with suppress(OSError, StopIteration):
        powers = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
        return bool(int(powers.split()[1], 16) & 1 << 21)  # CAP_SYS_ADMIN
    return False


MOUNTS = _mounts()


class Server:
    """A served retriever that can be killed and begun again at the same address."""

    def __init__(self, index: Path) -> None:
        self.index, self.port = index, 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def begin(self) -> None:
        words = ["serve", "retriever", str(self.index), "--port", str(self.port)]
        command = [sys.executable, "-u", "-m", "coseek.cli.main", *words]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        urlopen(f"{self.url}/health", timeout=30).close()

    def send(self, how: signal.Signals) -> None:
        self._process.send_signal(how)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


SERVERS: list[Server] = []


@contextmanager
def served(index: Path) -> Iterator[Server]:
    server = Server(index)
    server.begin()
    SERVERS.append(server)
    try:
        yield server
    finally:
        SERVERS.remove(server)
        server.kill()
