"""Backend: holds the weights of a training and updates them: by coseek's loop, or in a loop of its own.

A backend is one file: `rl/backends/NAME.py`, or a user's file whose path the recipe gives
(`rl.backend: recorder.py`). It defines

    make(network, settings, workers)    → `TrainingBackend`, which samples and updates as coseek's loop asks
    LOOP                                or the name of a module with a loop of its own (`EpisodeLoop`), which plays
                                        coseek's episodes
    SETTINGS                            optional: a subclass of `Settings` (`rl.backend_settings`)
    check(settings)                     optional: raises `SettingError` for unsupported settings, before training
    HERE                                optional: True if this process holds weights, moments and activations
"""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from coseek.core.plugins import PluginSpec, check_function, find_plugin
from coseek.core.settings import Settings, make_settings
from coseek.training.rl.settings import RlSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from coseek.models.model import Model, Tokenizer
    from coseek.models.sampler import SamplerSettings
    from coseek.training.learner.learner import ForwardModel, Trainable
    from coseek.training.learner.workers import Workers

PACKAGE = "coseek.training.rl.backends"
CONTRACT: PluginSpec = {"make": None}


class TrainingBackend(Protocol):
    """The models of a training. `Trainable` and `ForwardModel` define their interfaces."""

    @property
    def policy(self) -> "Trainable":
        """The model that is trained. Its outputs are log-probabilities at the sampling temperature."""

    @property
    def critic(self) -> "Trainable | None":
        """The value model, if the algorithm trains one. Its outputs are values."""

    @property
    def reference(self) -> "ForwardModel | None":
        """The initial policy, if a KL to it is charged."""

    @property
    def workers(self) -> "Workers":
        """The processes that train together."""

    def sampler(
        self, tokenizer: "Tokenizer", stops: Sequence[str], settings: "SamplerSettings", *, on_policy: bool = True
    ) -> "Model":
        """Return a model that samples with the policy's weights, as they are when a row is opened.

        With `on_policy` its log-probabilities must equal those of the trainer; raises `SettingError` if they do not.
        All workers call it. Of all samplers, one has open rows at a time.
        """

    def release(self) -> None:
        """Free what only sampling needs: caches and copies of weights. Called before every update."""

    def refresh(self) -> None:
        """Give the samplers the current weights. All workers call it, when a training begins and after every update."""

    def save(self, folder: Path, extra: Callable[[Path], None] | None = None) -> None:
        """Write the policy as a Hugging Face folder, atomically; `extra` adds files to it. All workers call it; the
        first writes."""


class EpisodeLoop(Protocol):
    """A module that trains a stage of a recipe in a loop of its own (`pipelines.stages.LoopTask`)."""

    def check(self, recipe: Settings) -> None:
        """Raise `SettingError` for a recipe that the loop does not support."""

    def train(self, task: object, say: Callable[[str], None]) -> Path:
        """Train to the last step, or resume from a checkpoint. Returns the folder of the trained weights."""


def check_backend(settings: RlSettings) -> None:
    """Raise `UnknownName` with the nearest name, and `SettingError` for a file that defines no backend and for settings
    that the backend does not know or cannot fulfil."""
    module = _module(settings.backend)
    make_settings(getattr(module, "SETTINGS", Settings), settings.backend_settings, "rl.backend_settings")
    if hasattr(module, "check"):
        module.check(settings)


def open_backend(settings: RlSettings, network: "PreTrainedModel", workers: "Workers") -> TrainingBackend:
    """Open the backend that `rl.backend` names, around a network. A user's file is executed."""
    return cast(TrainingBackend, _module(settings.backend).make(network, settings, workers))


def episode_loop(settings: RlSettings) -> EpisodeLoop | None:
    """Return the loop of the backend; `None` if coseek's loop drives it."""
    name = getattr(_module(settings.backend), "LOOP", None)
    return None if name is None else cast(EpisodeLoop, importlib.import_module(name))


def trains_here(settings: RlSettings) -> bool:
    """Whether a training needs the memory of this process's device."""
    return bool(getattr(_module(settings.backend), "HERE", False))


def _module(name: str) -> ModuleType:
    module = find_plugin("training backend", PACKAGE, name, {})
    if hasattr(module, "LOOP"):
        return module
    module = find_plugin("training backend", PACKAGE, name, CONTRACT)
    check_function(module, "make", name, "network", "settings", "workers")
    return module
