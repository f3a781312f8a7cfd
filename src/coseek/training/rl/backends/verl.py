"""verl backend: verl trains with its own loop and processes, whose workers play coseek's episodes."""

from typing import Literal

from pydantic import Field

from coseek.core.settings import Settings, make_settings
from coseek.training.rl.settings import RlSettings

LOOP = "coseek.pipelines.verl.config"


class VerlSettings(Settings):
    """Machines and servers, which a recipe does not set elsewhere."""

    python: str | None = None
    """The Python in which verl and coseek are installed; this one if not set."""
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
    """Return the settings in `rl.backend_settings`."""
    return make_settings(VerlSettings, settings.backend_settings, "rl.backend_settings")
