"""Processes of their own that start at once: forks of a server process that has imported torch and what stands on it.

An interpreter needs five seconds for these imports, more than most runs that are killed or shared take. The server has
computed nothing, so a fork of it inherits no thread and no lock. Its environment is that of its first caller.
"""

import multiprocessing
import os
import uuid
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from typing import ParamSpec

import torch
import torch.distributed as dist
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
