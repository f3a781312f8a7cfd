"""verl backend: verl trains in a loop and processes of its own, whose workers play coseek's episodes."""

from typing import Literal

from pydantic import Field

from coseek.core.settings import Settings, make_settings
from coseek.training.rl.settings import RlSettings

LOOP = "coseek.pipelines.verl.config"


class VerlSettings(Settings):
    """Machines and servers, of which a recipe says nothing else."""

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


SETTINGS = VerlSettings


def verl_settings(settings: RlSettings) -> VerlSettings:
    """The settings in `rl.backend_settings`."""
    return make_settings(VerlSettings, settings.backend_settings, "rl.backend_settings")
