"""Host: what the speed of a processor's arithmetic depends on, as torch sees it."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from platform import machine, processor

SWITCHES = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS")
"""Environment variables with which a processor can be told to do without its newer instructions."""
TOLD = ("avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
"""Instructions that are made for bfloat16 or int8."""


@dataclass(frozen=True, slots=True)
class Host:
    """A processor, the libraries' choice of its instructions, and torch.

    The number of threads is not in it: what is kept of a host was timed on one.
    """

    cpu: str
    torch: str
    capability: str
    """The instructions that torch's own kernels are chosen for, such as AVX512."""
    features: tuple[str, ...]
    """All instructions that torch knows of and the processor has."""
    switches: tuple[str, ...]
    """Those that are set, as NAME=VALUE."""

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
        """The instruction set in words: what a figure about speed is to be read with. Where switches are set, what else
        the processor has does not count."""
        told = [] if self.switches else [name for name in TOLD if name in self.features]
        return ", ".join((self.capability, *told, *self.switches))


@cache
def _processor() -> tuple[str, tuple[str, ...]]:
    """Its name and its features."""
    import torch

    found = torch.cpu.get_capabilities()
    name = str(found.get("cpu_name") or processor() or machine())
    return name, tuple(sorted(feature for feature, there in found.items() if there is True))
