"""Processes of their own that start at once: forks of a server process that has imported torch and what stands on it.

An interpreter needs five seconds for these imports, more than most runs that are killed or shared take. The server has
computed nothing, so a fork of it inherits no thread and no lock. Its environment is that of its first caller.
"""

import contextlib
import json
import multiprocessing
import os
import runpy
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import ParamSpec

import torch
import torch.distributed as dist
import transformers
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

P = ParamSpec("P")

KILLED = "SIGKILL|Connection closed by peer|Connection reset by peer"
"""What the first failure of workers says after a kill: the end of the one, or of another that was waiting for it."""
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["coseek.pipelines.agent", "coseek.pipelines.encoder", "transformers.models.bert"])


def forked(work: Callable[P, object], *args: P.args, **named: P.kwargs) -> ForkServerProcess:
    """Start a process of one thread that does the work, which must be picklable."""
    process = FORKS.Process(target=_work, args=(work, args, named))
    process.start()
    return process


def run_workers(count: int, work: Callable[P, object], *args: P.args, **named: P.kwargs) -> None:
    """Do the work in so many processes, started and watched by the agent of `torchrun`; raises `ChildFailedError`."""
    config = LaunchConfig(
        1, 1, count, run_id=uuid.uuid4().hex, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        local_addr="127.0.0.1", start_method="forkserver", max_restarts=0,
    )  # fmt: skip
    elastic_launch(config, _work)(work, args, named)


def _work(work: Callable[..., object], args: tuple[object, ...], named: dict[str, object]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    work(*args, **named)
    if dist.is_initialized():
        dist.destroy_process_group()


CLIENT = """#!{python} -IS
import json, os, socket, sys
name = os.path.basename(sys.argv[0])
if name == "coseek" and "serve" in sys.argv or name == "python" and sys.argv[1] not in {scripts}:
    os.execv("{bin}/" + name, ["{bin}/" + name, *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect("{address}")
socket.send_fds(server, [json.dumps([name, sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
sys.exit(int(server.recv(9) or 1))
"""


@contextlib.contextmanager
def programs(folder: Path, scripts: tuple[str, ...]) -> Iterator[None]:
    """Put a `coseek` and a `python` into a folder that run commands and these scripts as forks of one process. What
    else they are asked, servers among it, the programs of this environment do."""
    address, here = folder / "programs.socket", Path(sys.executable).parent
    for name in ("coseek", "python"):
        (folder / name).write_text(CLIENT.format(python=sys.executable, scripts=scripts, bin=here, address=address))
        (folder / name).chmod(0o755)
    server = forked(_run_programs, str(address))
    try:
        while not address.exists():
            assert server.is_alive()
            time.sleep(0.01)
        yield
    finally:
        server.terminate()
        server.join()


def _run_programs(address: str) -> None:
    for name in dir(transformers):  # scripts import everything, which takes longer than what they do
        getattr(transformers, name)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(address)
    listening.listen()
    while True:
        connection, _ = listening.accept()
        if not (child := os.fork()):
            os._exit(_run_program(connection))
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())
        connection.close()


def _run_program(connection: socket.socket) -> int:
    given, files, *_ = socket.recv_fds(connection, 1 << 20, 3)
    name, words, folder, environment = json.loads(given)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    from coseek.__main__ import run

    try:
        if name == "coseek":
            sys.argv = [name, *words]
            return run()
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")
        return 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
