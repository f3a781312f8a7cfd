"""Device: where tensors are, and what `auto` stands for on this machine; and the processor and instructions on which
the speed of arithmetic depends."""

import hashlib
import os
from platform import machine, processor
from typing import TYPE_CHECKING

from coseek.core.errors import SettingError

if TYPE_CHECKING:
    import torch

AUTO = "auto"
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""How many compiled kernels oneDNN and torch keep, one for each shape. Theirs are 1,024 each, with which training on
texts of many lengths held a gigabyte more every few minutes. Read at the first product; the user's own values win."""
UNFIT = ("mps",)
"""Accelerators that `auto` does not take: samplers compute in float64, which these lack."""


def device_of(name: str = AUTO) -> "torch.device":
    """The device of a setting: `cpu`, an accelerator such as `cuda` or `cuda:1`, or `auto`, which is an accelerator
    where there is one. An accelerator without a number is the worker's own (`LOCAL_RANK` of `torchrun`), else the
    current one. Raises `SettingError` for a device that is not here. The first call that takes a processor limits its
    kernels (`KERNELS`)."""
    import torch

    kind, count = accelerators()
    try:
        wished = torch.device(("cpu" if kind is None or kind in UNFIT else kind) if name == AUTO else name)
    except RuntimeError:
        raise SettingError(f"torch has no device {name!r}; take cpu, cuda, cuda:1 …, or auto") from None
    if wished.type == "cpu":
        for name, value in KERNELS.items():
            os.environ.setdefault(name, value)
        return torch.device("cpu")
    if wished.type != kind:
        raise SettingError(f"device {name!r}: torch sees {_seen(kind, count)} here; take device=cpu, or auto")
    rank = os.environ.get("LOCAL_RANK")
    own = torch.accelerator.current_device_index() if rank is None else int(rank)
    number = own if wished.index is None else wished.index
    if number >= count:
        what = f"device {name!r}" if wished.index is not None else f"worker {number} of this machine"
        raise SettingError(f"{what}: torch sees {_seen(kind, count)} here; start fewer workers, or take device=cpu")
    return torch.device(wished.type, number)


def accelerators() -> tuple[str | None, int]:
    """The kind of accelerator that torch sees, and how many there are; (`None`, 0) without one."""
    import torch

    found = torch.accelerator.current_accelerator(check_available=True)
    return (None, 0) if found is None else (found.type, torch.accelerator.device_count())


def all_devices() -> list[str]:
    """Every accelerator of this machine by name, or `cpu` for each process that `torchrun` started on it; empty where
    that is a single one."""
    kind, count = accelerators()
    names = [f"{kind}:{number}" for number in range(count)]
    if kind is None or kind in UNFIT:
        names = ["cpu"] * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return names if len(names) > 1 else []


def processes_here() -> int:
    """Number of processes that `torchrun` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62


def memory_gib(device: "torch.device") -> float:
    """Memory that one process may fill, in GiB: that of its accelerator, or its share of the host's."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory) / 2**30
    return memory_bytes() / 2**30 / processes_here()


def idle_devices(used: "torch.device") -> str:
    """One sentence, where one process sees several accelerators and trains on one of them; else empty."""
    kind, count = accelerators()
    if used.type != kind or count < 2:
        return ""
    return (
        f"training on {used}, one of {count} devices; start it with `torchrun --nproc-per-node {count} -m coseek …` "
        "to use them all"
    )


def multiplies_bfloat16(device: "torch.device") -> bool:
    """Whether an accelerator multiplies bfloat16 natively."""
    import torch

    supported = getattr(torch.get_device_module(device), "is_bf16_supported", None)
    return supported is not None and bool(supported(including_emulation=False))


def _seen(kind: str | None, count: int) -> str:
    return "no accelerator" if kind is None else f"{count} of {kind}"


SWITCHES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that disable newer instructions."""
TOLD = ("avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
"""Instructions for bfloat16 or int8."""


def instructions() -> str:
    """The instruction set of torch's kernels, to be given with timings, with the processor's own for bfloat16 and int8
    or, where some are set, the switches that override them."""
    import torch

    switches = [f"{name}={value}" for name in SWITCHES if (value := os.environ.get(name))]
    found = torch.cpu.get_capabilities()
    told = [] if switches else [name for name in TOLD if found.get(name) is True]
    return ", ".join((torch.backends.cpu.get_cpu_capability(), *told, *switches))


def host_digest() -> str:
    """Digest of what the speed of arithmetic depends on: the processor, its instructions and torch. Threads do not
    count: trials use one."""
    import torch

    cpu = torch.cpu.get_capabilities().get("cpu_name") or processor() or machine()
    return hashlib.sha256(f"{cpu}, {instructions()}, torch {torch.__version__}".encode()).hexdigest()[:16]
