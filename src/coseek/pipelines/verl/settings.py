"""Settings of verl's machines: what a recipe does not say of a training on one machine. Does not import torch."""

from typing import Literal

from pydantic import Field

from coseek.core.settings import Settings


class VerlSettings(Settings):
    """Machines and servers of `rl.backend=verl`."""

    python: str | None = None
    """The Python that verl and coseek are installed for; this one when not set."""
    nodes: int = Field(default=1, ge=1)
    """Machines."""
    gpus: int = Field(default=8, ge=1)
    """GPUs of each machine."""
    sampler: Literal["vllm", "sglang"] = "vllm"
    """What samples."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs that hold one copy of the sampler's weights."""
    gpu_memory: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of a GPU's memory for the sampler."""
    workers: int = Field(default=8, ge=1)
    """Processes that play episodes; each opens the retriever."""
    overrides: tuple[str, ...] = ()
    """More lines `a.b=c` for verl's configuration, over what the recipe sets."""
