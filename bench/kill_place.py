"""The place of a command under trial: one folder, the command in a process of its own, and what it leaves behind."""

import atexit
import hashlib
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file
from tests.processes import forked

from coseek.core.files import Json
from coseek.core.strict_json import parse_strict
from coseek.hub.card import PULLED

HIDDEN_LEFT = re.compile(r"\..*|.*\.(part|tmp|old|building)")
"""Names that no finished command leaves behind, `PULLED` aside."""
TRIAL = re.compile(r"[a-z0-9_]{8}")
"""Names of the files with which Python tries the folder of temporary files."""
TIMES = re.compile(r".*_s|.*runtime|.*per_second|created|timings|seal|commit|time|seconds|modified_ns|changed_ns")
"""Fields that hold times, or digests of what holds them."""
WITH_TIMES = re.compile(
    r".*/checkpoints/.*/(run\.pt|manifest\.json|notes\.json)|.*(-wal|-shm)|.*/vectors/progress\.json"
)
"""Files of which all is a digest of times, or whose contents depend on when SQLite tidied up."""
LOGPROBS = re.compile(r'"logprobs": \[([^]]*)\]')
"""Of those of a run the number is compared: a resumed one asks its model in other batches, which changes last bits."""
CLOCK = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?|\b\d+(\.\d+)? ?(s|min|seconds)\b")
"""Times in pages for people."""
GONE_S = 10.0
"""Seconds in which the processes of a killed command must be gone."""


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    said: str
    """What it wrote to stderr."""
    seconds: float
    writes: int
    """How often it changed something in the file system."""
    orphans: int = 0
    """Processes that it left."""
    printed: str = ""
    """What it wrote to stdout."""

    @property
    def traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.said


Trouble = Callable[[], None]
"""Called in the process of the command before it begins. It is pickled."""


@dataclass
class Place:
    """`work` holds `in`, the inputs, and what the command makes. It always has the same path, as records name it."""

    base: Path
    pantry: Path
    work: Path = field(init=False)
    temporary: Path = field(init=False)

    def __post_init__(self) -> None:
        self.work, self.temporary = self.base / "work", self.base / "temporary"

    def fresh(self) -> None:
        """Empty it, and put the inputs there."""
        for folder in (self.work, self.temporary):
            folder.mkdir(exist_ok=True)
            for path in folder.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(self.pantry, self.work / "in", copy_function=shutil.copy2)

    def run(self, words: Sequence[str], trouble: Trouble | None = None) -> Done:
        """Run a command to its end."""
        return self.start(words, trouble).end()

    def start(self, words: Sequence[str], trouble: Trouble | None = None) -> "Started":
        log = Path(tempfile.mkdtemp(dir=self.base, prefix="log-"))
        process = forked(_command, list(words), self, log, trouble)
        began, ready = time.perf_counter(), log / "ready"
        while not ready.exists() and process.exitcode is None:
            time.sleep(0.001)
        return Started(process, log, time.perf_counter() if ready.exists() else began)

    def left_behind(self) -> list[str]:
        """Hidden files and halves of writes, beside the outputs and in the folder of temporary files."""
        found = [one for one in sorted(self.work.rglob("*")) if HIDDEN_LEFT.fullmatch(one.name) and one.name != PULLED]
        temporary = [path for path in sorted(self.temporary.iterdir()) if not TRIAL.fullmatch(path.name)]
        return [str(path.relative_to(self.base)) for path in [*found, *temporary]]

    def outcome(self) -> dict[str, str]:
        """File → digest of its contents without times."""
        return {name: _digest(path) for name, path in self._files() if not WITH_TIMES.fullmatch(f"/{name}")}

    def size(self) -> int:
        return sum(path.stat().st_size for _, path in self._files())

    def _files(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.work.rglob("*")):
            hidden = any(HIDDEN_LEFT.fullmatch(part) for part in path.relative_to(self.work).parts)
            if path.is_file() and not hidden:
                yield str(path.relative_to(self.work)), path


@dataclass
class Started:
    """A command that runs."""

    process: ForkServerProcess
    log: Path
    began: float

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def wait(self, seconds: float) -> bool:
        """Wait so long at most; whether it still runs."""
        self.process.join(max(0.0, seconds))
        return self.process.exitcode is None

    def end(self, most_s: float = 900.0) -> Done:
        """Wait for the end."""
        if self.wait(most_s):
            os.killpg(self.pid, signal.SIGKILL)
            self.process.join()
            raise RuntimeError(f"a command hangs: {(self.log / 'err').read_text()[-2000:]}")
        seconds, orphans = time.perf_counter() - self.began, self._orphans()
        said = (self.log / "err").read_text(errors="replace") if (self.log / "err").exists() else ""
        printed = (self.log / "out").read_text(errors="replace") if (self.log / "out").exists() else ""
        writes = (self.log / "writes").stat().st_size if (self.log / "writes").exists() else 0
        shutil.rmtree(self.log)
        return Done(self.process.exitcode or 0, said, seconds, writes, orphans, printed)

    def _orphans(self) -> int:
        """Wait for the other processes of its group; kill and count those that stay."""
        until = time.perf_counter() + GONE_S
        while living := _group(self.pid):
            if time.perf_counter() > until:
                os.killpg(self.pid, signal.SIGKILL)
                break
            time.sleep(0.02)
        return len(living)


def _group(leader: int) -> list[int]:
    """The processes of a group that run, those that only wait to be read left out."""
    told = subprocess.run(["ps", "-eo", "pid=,pgid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in told.splitlines()]
    return [int(pid) for pid, group, state in rows if int(group) == leader and not state.startswith("Z")]


def _command(words: list[str], place: Place, log: Path, trouble: Trouble | None) -> None:
    """What the process of a command does."""
    from coseek.cli.main import main

    os.setsid()
    os.chdir(place.work)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(log / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ["TMPDIR"], tempfile.tempdir = str(place.temporary), None
    torch.set_num_threads(1)
    counter = os.open(log / "writes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    on_write(lambda: os.write(counter, b"."))
    (log / "ready").touch()
    if trouble is not None:
        trouble()
    code = main(words)
    for late in (signal.SIGINT, signal.SIGTERM):  # it is over, but for what an interpreter does at its end
        signal.signal(late, signal.SIG_IGN)
    atexit._run_exitfuncs()  # which a fork leaves out
    sys.stderr.flush()
    sys.exit(code)


_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "sqlite3.connect"}


def on_write(act: Callable[[], object]) -> None:
    """Call `act` before everything by which Python changes the file system in this process."""

    def hook(event: str, given: tuple[object, ...]) -> None:
        opened = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if opened or event in _CHANGES:
            act()

    sys.addaudithook(hook)


# --- digests


def _digest(path: Path) -> str:
    return hashlib.sha256(_timeless(path)).hexdigest()[:16]


def _timeless(path: Path) -> bytes:
    """The contents of a file without times."""
    if path.suffix == ".jsonl":
        rows = [
            json.dumps(_plain(parse_strict(line))) for line in path.read_text(encoding="utf-8").splitlines() if line
        ]
        if path.parent.name == "scores":  # a cache, in the order in which a server answered
            rows.sort()
        if path.name == "trajectories.jsonl" and "rollouts" not in path.parts:
            rows = [LOGPROBS.sub(_counted, row) for row in rows]
        return "\n".join(rows).encode()
    if path.suffix == ".json":
        return json.dumps(_plain(parse_strict(path.read_text(encoding="utf-8")))).encode()
    if path.suffix == ".yaml":
        return repr(_plain(yaml.safe_load(path.read_text(encoding="utf-8")))).encode()
    if path.suffix == ".safetensors":  # the order of the tensors is that in which optimisers came to hold them
        return repr(sorted((name, *_bits(one)) for name, one in load_file(path).items())).encode()
    if path.suffix == ".pt":  # an archive, with numbers that pickle gives to what it has seen before
        return repr(_values(torch.load(path, map_location="cpu", weights_only=True))).encode()
    if path.suffix in (".html", ".md"):
        return CLOCK.sub("TIME", path.read_text(encoding="utf-8")).encode()
    if path.read_bytes()[:15] == b"SQLite format 3":
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return repr(sorted(database.execute("SELECT key, text FROM texts"))).encode()
    return path.read_bytes()


def _bits(tensor: torch.Tensor) -> tuple[str, str, str]:
    """Type, shape and a digest of the values, bit by bit: as lists, they are slow to write."""
    values = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return str(tensor.dtype), str(tuple(tensor.shape)), hashlib.sha256(values.numpy().tobytes()).hexdigest()


def _values(state: object) -> object:
    """A state with digests in place of tensors."""
    if isinstance(state, torch.Tensor):
        return _bits(state)
    if isinstance(state, dict):
        return {name: _values(one) for name, one in state.items()}
    return [_values(one) for one in state] if isinstance(state, list | tuple) else state


def _counted(found: re.Match[str]) -> str:
    return f'"logprobs": {len(found[1].split(","))}'


def _plain(value: Json) -> Json:
    if isinstance(value, dict):
        times = {name for name in value if TIMES.fullmatch(name)}
        bound = {"digest"} if "timings" in value else set()  # of a trajectory, with its timings
        return {name: _plain(one) for name, one in sorted(value.items()) if name not in times | bound}
    return [_plain(one) for one in value] if isinstance(value, list) else value
