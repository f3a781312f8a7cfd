"""The host: processor, instructions and torch version, on which the speed of arithmetic depends."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from platform import machine, processor

SWITCHES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables that disable newer instructions."""
TOLD = ("avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
"""Instructions for bfloat16 or int8."""


@dataclass(frozen=True, slots=True)
class Host:
    """A processor, the instructions that libraries use, and torch. Threads do not count: trials use one."""

    cpu: str
    torch: str
    capability: str
    """The instruction set of torch's kernels, such as AVX512."""
    features: tuple[str, ...]
    """The processor's instructions that torch knows."""
    switches: tuple[str, ...]
    """The set `SWITCHES`, as NAME=VALUE."""

    @classmethod
    def here(cls) -> "Host":
        import torch

        cpu, features = _processor()
        set_ones = tuple(f"{name}={value}" for name in SWITCHES if (value := os.environ.get(name)))
        return cls(cpu, torch.__version__, torch.backends.cpu.get_cpu_capability(), features, set_ones)

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]

    @property
    def instructions(self) -> str:
        """The instruction set in words, to be given with timings. Set switches override the processor's features."""
        told = [] if self.switches else [name for name in TOLD if name in self.features]
        return ", ".join((self.capability, *told, *self.switches))


@cache
def _processor() -> tuple[str, tuple[str, ...]]:
    """The processor's name and features."""
    import torch

    found = torch.cpu.get_capabilities()
    name = str(found.get("cpu_name") or processor() or machine())
    return name, tuple(sorted(feature for feature, there in found.items() if there is True))
