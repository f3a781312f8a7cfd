"""Workers: several processes that train one policy, started by `torchrun`. Alone, everything in here does nothing.

The contract: W workers make the update that one makes of the same batch, but for the order in which floats are added.
Loss weights are computed over the whole batch before it is cut up; each worker takes every W-th part; gradients are
*summed*. (Averages of per-worker means would weigh a token by whose batch it fell into.)
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

T = TypeVar("T")
M = TypeVar("M", bound=nn.Module)

PATIENCE = timedelta(days=1)
"""How long workers wait for each other: some stages are one worker's. (`torchrun` ends them all when one fails.)"""


class Workers:
    """This process among those that train together."""

    def __init__(self, rank: int = 0, world: int = 1) -> None:
        self.rank, self.world = rank, world

    @property
    def first(self) -> bool:
        """Whether this worker is the one that writes files and talks."""
        return self.rank == 0

    def mine(self, parts: Sequence[T]) -> Sequence[T]:
        """Every W-th part. They come longest first, so the shares are about as long."""
        return parts[self.rank :: self.world]

    def stretch(self, items: Sequence[T]) -> Sequence[T]:
        """This worker's stretch of the items; the stretches of all, one behind the other, are all items."""
        return items[len(items) * self.rank // self.world : len(items) * (self.rank + 1) // self.world]

    def gather(self, mine: T) -> list[T]:
        """What each worker has, in their order."""
        if self.world == 1:
            return [mine]
        found: list[T | None] = [None] * self.world
        dist.all_gather_object(found, mine)
        return cast(list[T], found)

    def agree(self, decide: Callable[[], T]) -> T:
        """What the first worker finds; the others take its word for it."""
        if self.world == 1:
            return decide()
        found: list[T | None] = [decide() if self.first else None]
        dist.broadcast_object_list(found, src=0)
        return cast(T, found[0])

    def wait(self) -> None:
        """Until all are here."""
        if self.world > 1:
            dist.barrier()

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum of all workers' tensors, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def add_up_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Give every worker the sum of all gradients; a parameter that nobody used keeps none."""
        if self.world == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        used = self.add_up(torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32))
        for parameter, users in zip(trained, used.tolist(), strict=True):
            if users:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self.add_up(parameter.grad)


ALONE = Workers()


def workers_here() -> Workers:
    """The workers that `torchrun` started, as its environment variables say; `ALONE` without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return ALONE
    if not dist.is_initialized():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
    return Workers(dist.get_rank(), dist.get_world_size())


def placed(module: M) -> M:
    """The module, put where this worker computes: a GPU of its own, else the processor."""
    if torch.cuda.is_available():
        nn.Module.to(module, torch.device("cuda", torch.cuda.current_device()))
    return module


def layers_of(module: nn.Module) -> list[nn.Module]:
    """The layers of a Hugging Face model: what is recomputed, and what is sharded, one by one."""
    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def shard(entry: nn.Module, workers: Workers) -> None:
    """Spread a module's weights over the workers (FSDP2), layer by layer; its forward pass fetches them as needed."""
    device = next(entry.parameters()).device
    mesh = init_device_mesh(device.type, (workers.world,))
    for module in (*layers_of(entry), entry):
        sharded = fully_shard(module, mesh=mesh)
        assert isinstance(sharded, FSDPModule)
        # Gradients are summed, not averaged. Gloo knows no scaled sum, hence the plain one.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor that may be spread over the workers; every one of them has to ask."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def spread_like(tensor: Tensor, other: Tensor) -> Tensor:
    """This worker's share of a whole tensor, if `other` is spread over the workers."""
    if not isinstance(other, DTensor) or tensor.shape != other.shape:
        return tensor
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements)
