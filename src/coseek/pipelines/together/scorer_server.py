"""Scorer server: one command that serves the labels' scorer to all workers, started before the labels of a round and
stopped after them, so that no worker loads the scorer itself and training has the devices to itself."""

import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coseek.core.errors import RunError, SettingError
from coseek.core.http import HttpClient, HttpFailure, HttpSettings
from coseek.models.server import ServerPaths, split_settings

PATIENCE_S = 3600.0
"""Seconds for the start: 145 GB of weights from a network disk take half an hour."""
ENDS_S = 30.0
"""Seconds for the end before it is killed."""
LOG = "serve.log"


@contextmanager
def serving(command: str | None, url: str, folder: Path) -> Iterator[None]:
    """Run `labels.serve` around the block; its output goes to `serve.log` in `folder`. Without a command do nothing.

    Raises `SettingError` if something answers at the URL already, and `RunError` if the server ends early.
    """
    if command is None:
        yield
        return
    if _answers(url):
        raise SettingError(f"a server answers at {url} already; set labels.serve=null to ask it, or stop it first")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOG).open("ab") as log:
        # In this process's group, which `torchrun` and Ctrl-C end as a whole.
        process = subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        _wait(process, command, url, folder / LOG)
        try:
            yield
        except RunError as error:  # faults that left turns without a label
            if process.poll() is None:
                raise
            raise RunError(f"{_ended(process, command, folder / LOG)}; {error}") from None
    finally:
        _stop(process)


def _wait(process: "subprocess.Popen[bytes]", command: str, url: str, log: Path) -> None:
    """Wait until the server lists its models."""
    late = time.monotonic() + PATIENCE_S
    while not _answers(url):
        if process.poll() is not None:
            raise RunError(_ended(process, command, log))
        if time.monotonic() > late:
            raise RunError(f"labels.serve answered nothing at {url} for {PATIENCE_S:g} s; its output is in {log}")
        time.sleep(0.5)


def _answers(url: str) -> bool:
    paths = ServerPaths.of(split_settings(url)[0])
    client = HttpClient(paths.base, HttpSettings(attempts=1, connect_s=2.0, timeout_s=5.0))
    try:
        client.fetch("GET", paths.path("/v1/models"))
    except HttpFailure as error:
        return error.status not in (None, 502, 503)  # those say that it is loading
    finally:
        client.close()
    return True


def _ended(process: "subprocess.Popen[bytes]", command: str, log: Path) -> str:
    lines = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")
    return f"labels.serve ({command}) ended with exit status {process.returncode}: {last[:200]} (more in {log})"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    """End the server, which ends the processes that it started."""
    process.terminate()
    try:
        process.wait(ENDS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
