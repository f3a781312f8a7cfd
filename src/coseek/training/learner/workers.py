"""Workers: several processes that train one policy, started by `torchrun`. With one process these are no-ops.

Contract: W workers make the same update as one worker on the same batch, up to floating-point summation order. Loss
weights are computed over the whole batch before it is split, each worker takes every W-th micro-batch, and gradients
are *summed*. (An average of per-worker means would weight a token by the size of its worker's share.)
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from coseek.hardware.device import processes_here

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(days=1)
"""Long, since in some stages one worker works while the others wait. (`torchrun` ends all workers if one fails.)"""

MIN_OWN_MESSAGE, BUCKET_SIZE = 100_000, 100
"""Gradients with fewer numbers than the first are summed in buckets of at most `BUCKET_SIZE`, one message each, since
workers wait for each message. Larger gradients are summed in place, without a copy."""


class Workers:
    """This process and its rank among the processes that train together."""

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size

    @property
    def is_main(self) -> bool:
        """Whether this is the first worker, which writes files and reports progress."""
        return self.rank == 0

    def strided_share(self, items: Sequence[T]) -> Sequence[T]:
        """Return every W-th item. Micro-batches come longest first, so shares are about equal."""
        return items[self.rank :: self.world_size]

    def contiguous_share(self, items: Sequence[T], unit: int = 1) -> Sequence[T]:
        """Return this worker's contiguous share of the items. The workers' shares, concatenated, are all items; every
        `unit` items stay together."""
        units = len(items) // unit
        start, end = (units * rank // self.world_size * unit for rank in (self.rank, self.rank + 1))
        return items[start:end]

    def gather(self, local: T) -> list[T]:
        """Return the objects of all workers, in order of rank."""
        if self.world_size == 1:
            return [local]
        gathered: list[T | None] = [None] * self.world_size
        dist.all_gather_object(gathered, local)
        return cast(list[T], gathered)

    def broadcast(self, compute: Callable[[], T]) -> T:
        """Return the first worker's result of `compute` on all workers."""
        if self.world_size == 1:
            return compute()
        objects: list[T | None] = [compute() if self.is_main else None]
        dist.broadcast_object_list(objects, src=0)
        return cast(T, objects[0])

    def barrier(self) -> None:
        """Wait until all workers call this."""
        if self.world_size > 1:
            dist.barrier()

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum the tensors of all workers, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of all workers, in place. A parameter without a gradient on any worker keeps none."""
        if self.world_size == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        users = self.all_reduce(torch.tensor([parameter.grad is not None for parameter in trained], dtype=torch.int32))
        small: list[Tensor] = []
        for parameter, count in zip(trained, users.tolist(), strict=True):
            if not count:
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            if parameter.numel() < MIN_OWN_MESSAGE:
                small.append(parameter.grad)
            else:
                self.all_reduce(parameter.grad)
        for start in range(0, len(small), BUCKET_SIZE):
            bucket = small[start : start + BUCKET_SIZE]  # of one type and one device
            sums = self.all_reduce(torch.cat([gradient.flatten() for gradient in bucket]))
            for gradient, total in zip(bucket, sums.split([gradient.numel() for gradient in bucket]), strict=True):
                gradient.copy_(total.view_as(gradient))


ALONE = Workers()


def workers_here() -> Workers:
    """Return the workers that `torchrun` started, from its environment variables; `ALONE` without it."""
    if processes_here() == 1:
        return ALONE
    if not dist.is_initialized():
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        if rank < torch.cuda.device_count():  # `device_of` refuses a worker without a device in a sentence
            torch.cuda.set_device(rank)
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)
    return Workers(dist.get_rank(), dist.get_world_size())


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a Hugging Face model, the units of recomputation and sharding."""
    return [layer for layer in module.modules() if isinstance(layer, GradientCheckpointingLayer)]


def shard(entry: nn.Module, workers: Workers, *, offload: bool = False) -> None:
    """Shard a module's weights in place over the workers (FSDP2), layer by layer. Its forward pass gathers them.

    Shards are on the workers' devices, wherever the module was; with `offload` in the host's memory. Then each layer is
    copied to the devices for its pass, and its gradients are copied back.
    """
    cuda = torch.cuda.is_available()
    mesh = init_device_mesh("cuda" if cuda else "cpu", (workers.world_size,))
    policy = CPUOffloadPolicy(pin_memory=cuda) if offload else OffloadPolicy()
    for module in (*layers_of(entry), entry):
        sharded = fully_shard(module, mesh=mesh, offload_policy=policy)
        assert isinstance(sharded, FSDPModule)
        # Gradients are summed, not averaged. Gloo has no scaled sum, hence the plain one.
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be sharded, on the workers' devices. All workers must call it."""
    if not isinstance(tensor, DTensor):
        return tensor
    # An offloaded shard is sent to the device first: workers exchange there faster than through the host.
    return cast(DTensor, tensor.to(pass_device(tensor))).full_tensor()


def pass_device(weight: Tensor) -> torch.device:
    """Return the device of a weight's module during passes: that of the weight, unless it is an offloaded shard."""
    if isinstance(weight, DTensor) and weight.device_mesh.device_type != weight.device.type:
        return torch.device(weight.device_mesh.device_type, torch.cuda.current_device())
    return weight.device
