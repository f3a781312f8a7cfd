"""Algorithm: computes per-token advantages from the rewards of a step.

An algorithm is one file: `rl/algorithms/NAME.py`, or a user's file whose path the recipe gives
(`rl.algorithm: opo.py`). It defines

    SETTINGS                       a subclass of `AlgorithmSettings` (`rl.algorithm_settings`)
    advantages(step, settings)     `StepRewards` → a Tensor of shape BT (or B: the same at every token of a
                                   trajectory), or `Advantages` if a critic is trained

In a program it may also be a function of the `StepRewards` alone (`algorithm_name`).

A subclass of `GroupSettings` declares that the algorithm compares the trajectories of one question, `TurnSettings` that
it also reads their turns, and `CriticSettings` that it trains a value model. An unknown name is an error. Neither this
module nor the top level of an algorithm's file imports torch: a recipe is checked before torch is loaded.
"""

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.plugins import PluginSpec, check_function, check_takes, find_plugin, offer, plugin_name, running
from coseek.core.settings import Settings, make_settings
from coseek.data.trajectory import Segment, Trajectory
from coseek.training.rl.settings import RlSettings

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "coseek.training.rl.algorithms"
TokenAdvantages: TypeAlias = "Tensor"
"""Advantages of shape BT; or of shape B, each for all tokens of its trajectory."""
GoldContext: TypeAlias = tuple[Trajectory, Sequence[Segment]]
"""A trajectory, and segments of it that an agent reads: after them it would answer."""
GoldProbe: TypeAlias = Callable[[Sequence[GoldContext]], list[float]]
"""Contexts → the mean log-probability, in nats, of the tokens of the gold answer of each one's question."""


class AlgorithmSettings(Settings):
    """Settings of an algorithm; the base class has none."""


class GroupSettings(AlgorithmSettings):
    """Settings of an algorithm that compares the trajectories of one question."""

    zero_std_groups: Literal["count", "drop"] = "count"
    """How to treat groups whose rewards are all equal. `count`: their tokens stay in the divisor of the loss, and the
    KL and entropy terms of the loss, if any, apply to them. `drop`: they are left out of the update."""


class TurnSettings(GroupSettings):
    """Settings of an algorithm that reads turns: it needs trajectories, which verl does not pass on, and may credit
    turns of groups whose rewards are all equal."""


class CriticSettings(AlgorithmSettings):
    """Settings of an algorithm that trains a value model (`rl.critic`)."""

    value_clip: float | None = Field(default=0.2, gt=0.0)
    """Largest change of a value from its value at rollout time, within a step; none does not clip."""


CONTRACT: PluginSpec = {"SETTINGS": AlgorithmSettings, "advantages": None}


@dataclass(frozen=True, slots=True)
class TurnNode:
    """A turn of one trajectory, or of several of a group whose tokens are the same up to its end."""

    turn: int
    """From 1."""
    rows: tuple[int, ...]
    """The trajectories with this turn, in order."""
    parent: int | None
    """Index of the turn before it among the nodes; `None` for a first turn."""


@dataclass(frozen=True, slots=True)
class StepRewards:
    """Rewards of a step, the input of an algorithm. Shapes: B rows (trajectories) · T tokens · G trajectories of one
    question."""

    rewards_B: "Tensor"
    """Reward of each trajectory, less its truncation penalty; float64."""
    kl_penalty_BT: "Tensor"
    """KL charged to the reward, per token; 0 if it is charged to the loss."""
    mask_BT: "Tensor"
    """True at the policy's tokens in the loss."""
    groups: tuple[tuple[int, ...], ...]
    """Rows of each group: the trajectories of one occurrence of a question."""
    group_size: int
    """Requested trajectories per question; faults may leave fewer."""
    zero_std_B: "Tensor"
    """Rows of groups without spread: all have the same reward, not counting the KL."""
    values_BT: "Tensor | None" = None
    """The critic's values, if the algorithm trains one."""
    trajectories: tuple[Trajectory, ...] = ()
    """One for each row."""
    rewards_of_turns: tuple[tuple[float, ...], ...] = ()
    """Row by row, the reward of each turn; empty for a trajectory whose reward names no turns."""
    gold_probe: "GoldProbe | None" = None
    """Reads the gold answer with the policy: see `gold_logprobs`."""

    @property
    def turn_spans(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Start and end along T of every turn of every trajectory. Raises `SettingError` where the engine hands over no
        trajectories."""
        return tuple(trajectory.turn_spans for trajectory in self._require_trajectories())

    @property
    def rewards_less_kl_B(self) -> "Tensor":
        """The rewards less the KL charged to them; shape B."""
        return self.rewards_B - self.kl_penalty_BT.sum(dim=1)

    @property
    def comparable_groups(self) -> tuple[tuple[int, ...], ...]:
        """The groups that can be compared: a trajectory that faults left alone has no baseline."""
        return tuple(group for group in self.groups if len(group) > 1 or self.group_size == 1)

    def turn_rewards(self, less_kl: bool = True) -> list[list[float]]:
        """Return the reward of each turn of every trajectory: its own, and at the last turn also the rest of the
        trajectory's reward, less the KL charged to the turn's tokens (if `less_kl`)."""
        turn_spans = self.turn_spans
        by_row = zip(self.rewards_of_turns or ((),) * len(self.rewards_B), turn_spans, strict=True)
        turn_rewards = [[*rewards] or [0.0] * len(spans) for rewards, spans in by_row]
        for row, rewards in enumerate(turn_rewards):
            if rewards:
                rewards[-1] += float(self.rewards_B[row]) - sum(rewards)
            if rewards and less_kl:
                for turn, (start, end) in enumerate(turn_spans[row]):
                    rewards[turn] -= float(self.kl_penalty_BT[row, start:end].sum())
        return turn_rewards

    def gold_logprobs(self, contexts: "Sequence[GoldContext]") -> list[float]:
        """Return the policy's mean log-probability of the gold answer's tokens, in nats, if it answered after each
        context. Raises `SettingError` where the engine has no policy to ask."""
        if self.gold_probe is None:
            raise SettingError(
                "the algorithm asks how likely the policy finds the gold answer, which is not known here; take "
                "rl.backend=local"
            )
        return self.gold_probe(contexts)

    def tree(self) -> "tuple[TurnNode, ...]":
        """Return the turns of all groups as trees. Trajectories of a group whose tokens are the same up to a turn's end
        share it, whether a sampler forked them there or they were sampled apart.

        Parents come before their children. A turn's `rows` index the rewards; its siblings have the same `parent`.
        """
        trajectories, nodes = self._require_trajectories(), list[TurnNode]()

        def add(rows: Sequence[int], turn: int, parent: int | None) -> None:
            """Add the nodes of this turn of the rows, which share the turns before it, and of all later turns."""
            rows_by_prefix: dict[tuple[int, ...], list[int]] = {}
            for row in rows:
                spans = trajectories[row].turn_spans
                if len(spans) >= turn:
                    rows_by_prefix.setdefault(trajectories[row].ids[: spans[turn - 1][1]], []).append(row)
            for shared_rows in rows_by_prefix.values():
                nodes.append(TurnNode(turn, tuple(shared_rows), parent))
                add(shared_rows, turn + 1, len(nodes) - 1)

        for group in self.groups:
            add(group, 1, None)
        return tuple(nodes)

    def every_turn(self, values: Sequence[Sequence[float]]) -> "Tensor":
        """Copy one number for each turn of each trajectory to the turn's policy tokens; shape BT."""
        import torch

        values_BT = torch.zeros(self.mask_BT.shape)
        for row, (spans, turn_values) in enumerate(zip(self.turn_spans, values, strict=True)):
            for (start, end), value in zip(spans, turn_values, strict=True):
                values_BT[row, start:end] = value
        return torch.where(self.mask_BT, values_BT, 0.0)

    def _require_trajectories(self) -> tuple[Trajectory, ...]:
        if len(self.trajectories) != len(self.mask_BT):
            raise SettingError(
                "the algorithm reads turns, and this engine passes no trajectories to it; take rl.backend=local"
            )
        return self.trajectories

    def token_rewards(self) -> "Tensor":
        """Return each trajectory's reward at its last policy token, less the KL of every token; shape BT."""
        from coseek.training.rl.losses import last_token_rewards

        return last_token_rewards(self.rewards_B, self.mask_BT) - self.kl_penalty_BT

    def compare_groups(self, advantages: "Callable[[Tensor], Tensor]") -> "Tensor":
        """Apply `advantages` (rewards of a group, shape G → advantages, shape G) to every group; shape B.

        The KL charged to a trajectory is subtracted from its reward first. A trajectory that faults left alone in its
        group gets 0: its raw reward is on another scale.
        """
        import torch

        rewards_B = self.rewards_less_kl_B
        advantages_B = torch.zeros(len(rewards_B), dtype=torch.float32)
        for group in self.comparable_groups:
            rows = list(group)
            advantages_B[rows] = _as_tensor("the function of compare_groups", advantages(rewards_B[rows]))
        return advantages_B

    def standardised(self, scale: bool = True, correction: int = 0) -> "Tensor":
        """Return GRPO's (r - mean) / std of each group, or r - mean; shape B.

        Groups of equal rewards get 0: their spread is the KL's noise, which the division would scale up to 1.
        """
        from coseek.training.rl.losses import group_advantages

        advantages_B = self.compare_groups(lambda rewards_G: group_advantages(rewards_G, scale, correction=correction))
        if scale:
            advantages_B[self.zero_std_B] = 0.0
        return advantages_B

    def every_token(self, advantages_B: "Tensor") -> "Tensor":
        """Copy one number for each row to all of its policy tokens; shape BT."""
        import torch

        return torch.where(self.mask_BT, advantages_B[:, None], 0.0)


@dataclass(frozen=True, slots=True)
class Advantages:
    """Advantages and returns of a step, both of shape BT."""

    advantages_BT: "Tensor"
    returns_BT: "Tensor | None" = None
    """Targets of the critic; `None` for algorithms without one."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """An algorithm with its settings."""

    name: str
    settings: AlgorithmSettings
    _advantages: "Callable[[StepRewards, AlgorithmSettings], TokenAdvantages | Advantages]" = field(repr=False)

    @property
    def needs_critic(self) -> bool:
        return isinstance(self.settings, CriticSettings)

    @property
    def drops_zero_std(self) -> bool:
        """Whether groups without spread are left out of the update (`zero_std_groups: drop`)."""
        return isinstance(self.settings, GroupSettings) and self.settings.zero_std_groups == "drop"

    @property
    def value_clip(self) -> float | None:
        return self.settings.value_clip if isinstance(self.settings, CriticSettings) else None

    def advantages(self, step: StepRewards) -> Advantages:
        """Compute the advantages. Raises `SettingError` if the algorithm returns no tensor of the mask's shape, or
        numbers that are not finite."""
        advantages = self._advantages(step, self.settings)
        if not isinstance(advantages, Advantages):
            values = _as_tensor(f"the algorithm {self.name}", advantages)
            advantages = Advantages(step.every_token(values) if values.shape == step.rewards_B.shape else values)
        shape = getattr(advantages.advantages_BT, "shape", None)
        if shape != step.mask_BT.shape:
            raise SettingError(
                f"the algorithm {self.name} returned advantages of shape {shape}; one number per token or per run is "
                f"needed, shape {tuple(step.mask_BT.shape)} or {tuple(step.rewards_B.shape)}"
            )
        if self.needs_critic and advantages.returns_BT is None:
            raise SettingError(
                f"the algorithm {self.name} has CriticSettings and returned no returns as targets of the critic"
            )
        self._check_finite(advantages, step)
        return advantages

    def _check_finite(self, advantages: Advantages, step: StepRewards) -> None:
        """Blame the algorithm for NaN and infinity, unless its inputs had some."""
        inputs = (step.rewards_B, step.kl_penalty_BT, step.values_BT)
        if any(not bool(values.isfinite().all()) for values in inputs if values is not None):
            return
        for name, values_BT in (("advantages", advantages.advantages_BT), ("returns", advantages.returns_BT)):
            if values_BT is None or bool((values_BT.isfinite() | ~step.mask_BT).all()):
                continue
            row = int((~values_BT.isfinite() & step.mask_BT).any(dim=1).nonzero()[0])
            raise SettingError(
                f"the algorithm {self.name} returned {name} that are not finite (row {row}); guard its divisions and "
                "logarithms"
            )


def _as_tensor(subject: str, values: object) -> "Tensor":
    """Numbers as float32: a tensor, an array or a list. Raises `SettingError` for anything else."""
    import torch

    try:
        return torch.as_tensor(values, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError):
        raise SettingError(f"{subject} returned {reprlib.repr(values)}; let it return a tensor") from None


def algorithm_name(algorithm: "str | Path | Callable[[StepRewards], Tensor]") -> str:
    """The name in settings of an algorithm: a name, a file, or a function of a step's rewards, which becomes a part."""
    if not callable(algorithm):
        return str(algorithm)
    check_takes("algorithm", algorithm, "step")
    names = {"SETTINGS": AlgorithmSettings, "advantages": lambda step, settings: algorithm(step)}
    return offer("algorithm", algorithm, names)


def settings_of(name: str) -> type[AlgorithmSettings]:
    """The settings class of an algorithm. A user's file is executed. Raises `UnknownName`."""
    return cast(type[AlgorithmSettings], find_plugin("algorithm", PACKAGE, name, CONTRACT).SETTINGS)


def open_algorithm(settings: RlSettings) -> Algorithm:
    """Open the algorithm that `rl.algorithm` names, with its settings. A user's file is executed.

    Raises `UnknownName` with the nearest name, and `SettingError` for unknown settings.
    """
    name = settings.algorithm
    module = find_plugin("algorithm", PACKAGE, name, CONTRACT)
    check_function(module, "advantages", name, "step", "settings")
    kind = cast(type[AlgorithmSettings], module.SETTINGS)

    def advantages(step: StepRewards, settings: AlgorithmSettings) -> "TokenAdvantages | Advantages":
        with running("algorithm", name):
            return cast("TokenAdvantages | Advantages", module.advantages(step, settings))

    return Algorithm(plugin_name(name), make_settings(kind, settings.algorithm_settings), advantages)


def spread_over_steps(settings: RlSettings) -> str:
    """Return the name of a setting whose schedule depends on the number of steps; empty if there is none.

    Only if it is empty may a training be resumed with more steps.
    """
    trains_critic = open_algorithm(settings).needs_critic
    groups = {"policy": settings.policy, **({"critic": settings.critic} if trains_critic else {})}
    for name, group in groups.items():
        if group.optimizer.lr_scheduler_type != "constant":
            return f"rl.{name}.optimizer.lr_scheduler_type"
        if group.optimizer.warmup_ratio:
            return f"rl.{name}.optimizer.warmup_ratio"
    return ""


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return Σ_{k≥t} γ^(k-t) r_k of each turn."""
    returns, discounted = [], 0.0
    for reward in reversed(rewards):
        discounted = reward + gamma * discounted
        returns.append(discounted)
    return returns[::-1]
