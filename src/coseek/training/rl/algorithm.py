"""Algorithm: what turns a step's scored episodes into per-token advantages.

An algorithm is one file: `rl/algorithms/NAME.py`, or a file of the user's whose path the recipe names
(`rl.algorithm: opo.py`). It offers

    SETTINGS                       a class over `AlgorithmSettings` (`rl.algorithm_settings`)
    advantages(step, settings)     `StepRewards` → a Tensor of shape BT, or `Advantages` where a critic is trained

Settings over `GroupSettings` say that it compares the runs of one question, settings over `CriticSettings` that it
trains a value model. Nothing is trained under a name that has no such file. No torch in here, nor at the top of an
algorithm's file: a recipe is checked before anything heavy is loaded.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.plugins import PluginSpec, plugin_name
from coseek.core.registry import find_plugin
from coseek.core.settings import Settings, make_settings
from coseek.training.rl.settings import RlSettings

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "coseek.training.rl.algorithms"


class AlgorithmSettings(Settings):
    """Settings of an algorithm; the base class has none."""


class GroupSettings(AlgorithmSettings):
    """Settings of an algorithm that compares the runs of one question."""

    zero_spread: Literal["count", "drop"] = "count"
    """Groups whose rewards are all alike teach nothing. `count`: their tokens stay in the normaliser (and the KL and
    entropy terms of the loss, if there are any, still pull at them); `drop`: as if never sampled."""


class CriticSettings(AlgorithmSettings):
    """Settings of an algorithm that trains a value model (`rl.critic`)."""

    value_clip: float | None = Field(default=0.2, gt=0.0)
    """How far a value may move from what it was at rollout time within a step; none turns this off."""


CONTRACT: PluginSpec = {"SETTINGS": AlgorithmSettings, "advantages": None}


@dataclass(frozen=True, slots=True)
class StepRewards:
    """A step's rewards, as an algorithm sees them. Shapes: B rows (runs) · T tokens · G runs of one question."""

    rewards_B: "Tensor"
    """Reward of each run, less what its truncation costs; float64."""
    penalty_BT: "Tensor"
    """KL charged to the reward, a token; 0 where it is charged to the loss."""
    mask_BT: "Tensor"
    """The policy's tokens that count."""
    groups: tuple[tuple[int, ...], ...]
    """Rows of each group: the runs of one occurrence of a question."""
    group_size: int
    """Runs of a question that were asked for; faults may have left fewer."""
    flat_B: "Tensor"
    """Rows of groups without spread: all runs have the same reward, the KL aside."""
    values_BT: "Tensor | None" = None
    """The critic's values, for algorithms that train one."""

    def token_rewards(self) -> "Tensor":
        """Shape BT: each run's reward at its last policy token, less the KL of every token."""
        from coseek.training.rl.losses import last_token_rewards

        return last_token_rewards(self.rewards_B, self.mask_BT) - self.penalty_BT

    def compare_groups(self, advantages: "Callable[[Tensor], Tensor]") -> "Tensor":
        """Shape B: `advantages` (rewards of a group, shape G → its advantages, shape G) of every group.

        The KL charged to a run is taken off its reward first. A run that faults left alone in its group gets 0: its
        raw reward is on another scale.
        """
        import torch

        rewards_B = self.rewards_B - self.penalty_BT.sum(dim=1)
        advantages_B = torch.zeros(len(rewards_B), dtype=torch.float32)
        for group in self.groups:
            rows = list(group)
            if len(rows) > 1 or self.group_size == 1:
                advantages_B[rows] = advantages(rewards_B[rows])
        return advantages_B

    def every_token(self, advantages_B: "Tensor") -> "Tensor":
        """Shape BT: each run's advantage at every one of its policy tokens."""
        import torch

        return torch.where(self.mask_BT, advantages_B[:, None], 0.0)


@dataclass(frozen=True, slots=True)
class Advantages:
    """What a step's updates follow. Both of shape BT."""

    advantages_BT: "Tensor"
    returns_BT: "Tensor | None" = None
    """What the critic is fitted to; algorithms without one leave it out."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm with its settings."""

    name: str
    settings: AlgorithmSettings
    _advantages: "Callable[[StepRewards, AlgorithmSettings], Tensor | Advantages]" = field(repr=False)

    @property
    def needs_critic(self) -> bool:
        return isinstance(self.settings, CriticSettings)

    @property
    def drops_zero_spread(self) -> bool:
        """Whether groups without spread are left out of the update."""
        return isinstance(self.settings, GroupSettings) and self.settings.zero_spread == "drop"

    @property
    def value_clip(self) -> float | None:
        return self.settings.value_clip if isinstance(self.settings, CriticSettings) else None

    def advantages(self, step: StepRewards) -> Advantages:
        """Raises `SettingError` where an algorithm's file returns what is no tensor of the mask's shape."""
        found = self._advantages(step, self.settings)
        made = found if isinstance(found, Advantages) else Advantages(found)
        shape = getattr(made.advantages_BT, "shape", None)
        if shape != step.mask_BT.shape:
            raise SettingError(
                f"the algorithm {self.name} returned advantages of shape {shape}; they need one number for each token, "
                f"shape {tuple(step.mask_BT.shape)} (see StepRewards.every_token)"
            )
        if self.needs_critic and made.returns_BT is None:
            raise SettingError(
                f"the algorithm {self.name} has CriticSettings and returned no returns to fit a critic to"
            )
        return made


def open_algorithm(settings: RlSettings) -> Algorithm:
    """The algorithm that `rl.algorithm` names, with its settings; a user's file is run.

    Raises `UnknownName` with the nearest name, and `SettingError` for settings that it does not have.
    """
    name = settings.algorithm
    module = find_plugin("algorithm", PACKAGE, name, CONTRACT)
    try:
        inspect.signature(module.advantages).bind("step", "settings")
    except TypeError:
        raise SettingError(f"`advantages` of {name} must take (step, settings), in this order") from None
    kind = cast(type[AlgorithmSettings], module.SETTINGS)
    return Algorithm(plugin_name(name), make_settings(kind, settings.algorithm_settings), module.advantages)


def spread_over_steps(settings: RlSettings) -> str:
    """The setting that says how something changes from the first step to the last; empty where nothing does. While it
    is empty, a run may go on for more steps than it was begun with."""
    trains_critic = open_algorithm(settings).needs_critic
    groups = {"policy": settings.policy, **({"critic": settings.critic} if trains_critic else {})}
    decaying = [name for name, group in groups.items() if group.optimiser.decay != "constant"]
    return f"rl.{decaying[0]}.optimiser.decay" if decaying else ""
