"""Device: resolves `auto` to a device of this machine, and describes the processor that the speed of arithmetic depends
on."""

import hashlib
import os
from platform import machine, processor
from typing import TYPE_CHECKING

from coseek.core.errors import SettingError

if TYPE_CHECKING:
    import torch

AUTO = "auto"
KERNELS = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128", "LRU_CACHE_CAPACITY": "128"}
"""Maximum number of compiled kernels, one per shape, that oneDNN and torch cache. With their default of 1,024, memory
grew by a gigabyte every few minutes of training on texts of many lengths. Read at the first product; the user's values
win."""
UNFIT = ("mps",)
"""Accelerators that `auto` does not choose: they lack float64, which samplers need."""


def device_of(name: str = AUTO) -> "torch.device":
    """The device of a setting: `cpu`, an accelerator such as `cuda` or `cuda:1`, or `auto`, which is an accelerator if
    there is one. An accelerator without a number is the worker's own (`LOCAL_RANK` of `torchrun`), else the current
    one.

    Raises `SettingError` for a missing device. The first call that returns a processor limits its kernels (`KERNELS`).
    """
    import torch

    kind, count = accelerators()
    try:
        requested = torch.device(("cpu" if kind is None or kind in UNFIT else kind) if name == AUTO else name)
    except RuntimeError:
        raise SettingError(f"torch has no device {name!r}; take cpu, cuda, cuda:1 …, or auto") from None
    if requested.type == "cpu":
        for variable, value in KERNELS.items():
            os.environ.setdefault(variable, value)
        return torch.device("cpu")
    available = "no accelerator" if kind is None else f"{count} of {kind}"
    if requested.type != kind:
        raise SettingError(f"device {name!r}: torch sees {available} here; take device=cpu, or auto")
    rank = os.environ.get("LOCAL_RANK")
    default = torch.accelerator.current_device_index() if rank is None else int(rank)
    number = default if requested.index is None else requested.index
    if number >= count:
        subject = f"device {name!r}" if requested.index is not None else f"worker {number} of this machine"
        raise SettingError(f"{subject}: torch sees {available} here; start fewer workers, or take device=cpu")
    return torch.device(requested.type, number)


def accelerators() -> tuple[str | None, int]:
    """The type and number of the accelerators that torch sees; (`None`, 0) without any."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    return (None, 0) if device is None else (device.type, torch.accelerator.device_count())


def all_devices() -> list[str]:
    """The names of all accelerators of this machine, or `cpu` for each process that `torchrun` started on it. Empty if
    there is only one."""
    kind, count = accelerators()
    names = [f"{kind}:{number}" for number in range(count)]
    if kind is None or kind in UNFIT:
        names = ["cpu"] * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return names if len(names) > 1 else []


def processes_here() -> int:
    """Number of processes that `torchrun` started, on all machines; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def memory_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 1 << 62


def memory_gib(device: "torch.device") -> float:
    """Memory that one process may fill, in GiB: its accelerator's, or its share of the host's."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory) / 2**30
    return memory_bytes() / 2**30 / int(os.environ.get("LOCAL_WORLD_SIZE", processes_here()))


def idle_devices(used: "torch.device") -> str:
    """A sentence for the case that one process sees several accelerators and trains on one of them; else empty."""
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


SWITCHES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that disable newer instructions."""
LOW_PRECISION = ("avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
"""Instructions for bfloat16 or int8."""


def instructions() -> str:
    """The instruction set of torch's kernels, and the processor's instructions for bfloat16 and int8 or, if some are
    set, the switches that override them. Timings are reported with it."""
    import torch

    switches = [f"{name}={value}" for name in SWITCHES if (value := os.environ.get(name))]
    capabilities = torch.cpu.get_capabilities()
    native = [] if switches else [name for name in LOW_PRECISION if capabilities.get(name) is True]
    return ", ".join((torch.backends.cpu.get_cpu_capability(), *native, *switches))


def host_digest() -> str:
    """Digest of what the speed of arithmetic depends on: the processor, its instructions and torch. The number of
    threads does not count, since the probe uses one."""
    import torch

    cpu = torch.cpu.get_capabilities().get("cpu_name") or processor() or machine()
    return hashlib.sha256(f"{cpu}, {instructions()}, torch {torch.__version__}".encode()).hexdigest()[:16]
