"""Algorithm: computes per-token advantages from the rewards of a step.

An algorithm is one file: `rl/algorithms/NAME.py`, or a user's file whose path the recipe gives
(`rl.algorithm: opo.py`). It defines

    SETTINGS                       a subclass of `AlgorithmSettings` (`rl.algorithm_settings`)
    advantages(step, settings)     `StepRewards` → a Tensor of shape BT (or B: the same at every token of a run), or
                                   `Advantages` if a critic is trained

In a program it may also be a function of the `StepRewards` alone (`algorithm_name`).

A subclass of `GroupSettings` declares that the algorithm compares the runs of one question, a subclass of
`CriticSettings` that it trains a value model. An unknown name is an error. Neither this module nor the top level of an
algorithm's file imports torch: a recipe is checked before torch is loaded.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.plugins import PluginSpec, check_takes, find_plugin, offer, plugin_name
from coseek.core.settings import Settings, make_settings
from coseek.data.trajectory import Segment, Trajectory
from coseek.training.rl.settings import RlSettings

if TYPE_CHECKING:
    from torch import Tensor

PACKAGE = "coseek.training.rl.algorithms"
GoldContext: TypeAlias = tuple[Trajectory, Sequence[Segment]]
"""A run, and segments of it that an agent reads: after them it would answer."""
GoldProbe: TypeAlias = Callable[[Sequence[GoldContext]], list[float]]
"""Contexts → the mean log-probability, in nats, of the tokens of the gold answer of each one's question."""


class AlgorithmSettings(Settings):
    """Settings of an algorithm; the base class has none."""


class GroupSettings(AlgorithmSettings):
    """Settings of an algorithm that compares the runs of one question."""

    zero_spread: Literal["count", "drop"] = "count"
    """How to treat groups whose rewards are all equal. `count`: their tokens stay in the divisor of the loss, and the
    KL and entropy terms of the loss, if any, apply to them. `drop`: they are left out of the update."""


class CriticSettings(AlgorithmSettings):
    """Settings of an algorithm that trains a value model (`rl.critic`)."""

    value_clip: float | None = Field(default=0.2, gt=0.0)
    """Largest change of a value from its value at rollout time, within a step; none does not clip."""


CONTRACT: PluginSpec = {"SETTINGS": AlgorithmSettings, "advantages": None}


@dataclass(frozen=True, slots=True)
class StepRewards:
    """Rewards of a step, the input of an algorithm. Shapes: B rows (runs) · T tokens · G runs of one question."""

    rewards_B: "Tensor"
    """Reward of each run, less its truncation penalty; float64."""
    penalty_BT: "Tensor"
    """KL charged to the reward, per token; 0 if it is charged to the loss."""
    mask_BT: "Tensor"
    """True at the policy's tokens in the loss."""
    groups: tuple[tuple[int, ...], ...]
    """Rows of each group: the runs of one occurrence of a question."""
    group_size: int
    """Requested runs per question; faults may leave fewer."""
    flat_B: "Tensor"
    """Rows of groups without spread: all runs have the same reward, not counting the KL."""
    values_BT: "Tensor | None" = None
    """The critic's values, if the algorithm trains one."""
    trajectories: tuple[Trajectory, ...] = ()
    """The runs, one a row."""
    rewards_of_turns: tuple[tuple[float, ...], ...] = ()
    """What the reward gave each turn of a run; empty for a run where it names none. Row by row."""
    gold_probe: "GoldProbe | None" = None
    """Reads the gold answer with the policy: see `gold_logprobs`."""

    @property
    def turn_spans(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Start and end along T of every turn of every run. Raises `SettingError` where the engine hands over no
        trajectories."""
        return tuple(run.turn_spans for run in self._runs())

    @property
    def charged_B(self) -> "Tensor":
        """The rewards less the KL charged to them; shape B."""
        return self.rewards_B - self.penalty_BT.sum(dim=1)

    @property
    def compared(self) -> tuple[tuple[int, ...], ...]:
        """The groups that can be compared: a run that faults left alone has no baseline."""
        return tuple(group for group in self.groups if len(group) > 1 or self.group_size == 1)

    def turn_rewards(self) -> list[list[float]]:
        """Return what each turn of every run earned: what the reward gave it, and at the last turn also the rest, less
        the KL charged to the turn's tokens."""
        turns = self.rewards_of_turns or ((),) * len(self.rewards_B)
        earned = [[*given] or [0.0] * len(spans) for given, spans in zip(turns, self.turn_spans, strict=True)]
        for row, rewards in enumerate(earned):
            if rewards:
                rewards[-1] += float(self.rewards_B[row]) - sum(rewards)
                for turn, (start, end) in enumerate(self.turn_spans[row]):
                    rewards[turn] -= float(self.penalty_BT[row, start:end].sum())
        return earned

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
        """The turns of all groups as trees: runs of a group whose tokens are the same up to a turn's end share it.

        Parents stand before their children. A turn's `rows` index the rewards, its siblings have the same `parent`.
        """
        return turn_tree(self._runs(), self.groups)

    def every_turn(self, values: Sequence[Sequence[float]]) -> "Tensor":
        """Copy one number for each turn of each run to the turn's policy tokens; shape BT."""
        import torch

        advantages_BT = torch.zeros(self.mask_BT.shape)
        for row, (spans, numbers) in enumerate(zip(self.turn_spans, values, strict=True)):
            for (start, end), number in zip(spans, numbers, strict=True):
                advantages_BT[row, start:end] = number
        return torch.where(self.mask_BT, advantages_BT, 0.0)

    def _runs(self) -> tuple[Trajectory, ...]:
        if len(self.trajectories) != len(self.mask_BT):
            raise SettingError(
                "no trajectories are handed to an algorithm here, which reads turns; take rl.backend=local"
            )
        return self.trajectories

    @property
    def is_finite(self) -> bool:
        """Whether all rewards, penalties and values are finite numbers."""
        given = (self.rewards_B, self.penalty_BT, self.values_BT)
        return all(bool(values.isfinite().all()) for values in given if values is not None)

    def token_rewards(self) -> "Tensor":
        """Return each run's reward at its last policy token, less the KL of every token; shape BT."""
        from coseek.training.rl.losses import last_token_rewards

        return last_token_rewards(self.rewards_B, self.mask_BT) - self.penalty_BT

    def compare_groups(self, advantages: "Callable[[Tensor], Tensor]") -> "Tensor":
        """Apply `advantages` (rewards of a group, shape G → advantages, shape G) to every group; shape B.

        The KL charged to a run is subtracted from its reward first. A run that faults left alone in its group gets 0:
        its raw reward is on another scale.
        """
        import torch

        rewards_B = self.charged_B
        advantages_B = torch.zeros(len(rewards_B), dtype=torch.float32)
        for group in self.compared:
            rows = list(group)
            advantages_B[rows] = advantages(rewards_B[rows])
        return advantages_B

    def every_token(self, advantages_B: "Tensor") -> "Tensor":
        """Copy each run's advantage to all of its policy tokens; shape BT."""
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
    _advantages: "Callable[[StepRewards, AlgorithmSettings], Tensor | Advantages]" = field(repr=False)

    @property
    def needs_critic(self) -> bool:
        return isinstance(self.settings, CriticSettings)

    @property
    def drops_zero_spread(self) -> bool:
        """Whether groups without spread are left out of the update (`zero_spread: drop`)."""
        return isinstance(self.settings, GroupSettings) and self.settings.zero_spread == "drop"

    @property
    def value_clip(self) -> float | None:
        return self.settings.value_clip if isinstance(self.settings, CriticSettings) else None

    def advantages(self, step: StepRewards) -> Advantages:
        """Compute the advantages. Raises `SettingError` if the algorithm returns no tensor of the mask's shape, or
        numbers that are not finite."""
        result = self._advantages(step, self.settings)
        if not isinstance(result, Advantages) and getattr(result, "shape", None) == step.rewards_B.shape:
            result = step.every_token(result.float())
        advantages = result if isinstance(result, Advantages) else Advantages(result)
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
        for what, values_BT in (("advantages", advantages.advantages_BT), ("returns", advantages.returns_BT)):
            self._check_finite(what, values_BT, step)
        return advantages

    def _check_finite(self, what: str, values_BT: "Tensor | None", step: StepRewards) -> None:
        """Blame the algorithm for NaN and infinity, unless it was given some."""
        if values_BT is None or not step.is_finite:
            return
        wrong_B = (~values_BT.isfinite() & step.mask_BT).any(dim=1)
        if wrong_B.any():
            row = int(wrong_B.nonzero()[0])
            raise SettingError(
                f"the algorithm {self.name} returned {what} that are not finite (row {row}); guard its divisions and "
                "logarithms"
            )


def algorithm_name(given: "str | Path | Callable[[StepRewards], Tensor]") -> str:
    """An algorithm as settings name it: a name, a file, or a function of a step's rewards, which becomes a part."""
    if not callable(given):
        return str(given)
    check_takes("algorithm", given, "step")

    def advantages(step: StepRewards, settings: AlgorithmSettings) -> "Tensor":
        return given(step)

    return offer("algorithm", given, {"SETTINGS": AlgorithmSettings, "advantages": advantages})


def open_algorithm(settings: RlSettings) -> Algorithm:
    """Open the algorithm that `rl.algorithm` names, with its settings. A user's file is executed.

    Raises `UnknownName` with the nearest name, and `SettingError` for unknown settings.
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
    """Return the name of a setting whose schedule depends on the number of steps; empty if there is none.

    Only if it is empty may a run be resumed with more steps.
    """
    trains_critic = open_algorithm(settings).needs_critic
    groups = {"policy": settings.policy, **({"critic": settings.critic} if trains_critic else {})}
    for name, group in groups.items():
        if group.optimizer.decay != "constant":
            return f"rl.{name}.optimizer.decay"
        if group.optimizer.warmup_share:
            return f"rl.{name}.optimizer.warmup_share"
    return ""


# Turns of a step's runs: the tree that runs of one question with a common beginning form.


@dataclass(frozen=True, slots=True)
class TurnNode:
    """A turn that one run made, or several of one group whose tokens are the same up to its end."""

    turn: int
    """From 1."""
    rows: tuple[int, ...]
    """The runs that went through it, in order."""
    parent: int | None
    """Index of the turn before it among the nodes; `None` for a first turn."""


def turn_tree(trajectories: Sequence[Trajectory], groups: Iterable[Sequence[int]]) -> tuple[TurnNode, ...]:
    """The nodes of every group's tree, parents first. A group has a fork wherever runs differ from one turn on, whether
    a sampler forked them there or they were sampled apart."""
    nodes: list[TurnNode] = []
    for group in groups:
        level: list[tuple[tuple[int, ...], int | None]] = [(tuple(group), None)]
        turn = 0
        while level:
            turn += 1
            level = [child for rows, parent in level for child in _split(nodes, trajectories, rows, parent, turn)]
    return tuple(nodes)


def _split(
    nodes: list[TurnNode], trajectories: Sequence[Trajectory], rows: Sequence[int], parent: int | None, turn: int
) -> list[tuple[tuple[int, ...], int | None]]:
    """Add a node for each different turn of these runs; returns the runs of each, with its index."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for row in rows:
        spans = trajectories[row].turn_spans
        if len(spans) >= turn:
            alike.setdefault(trajectories[row].ids[: spans[turn - 1][1]], []).append(row)
    found: list[tuple[tuple[int, ...], int | None]] = []
    for same in alike.values():
        found.append((tuple(same), len(nodes)))
        nodes.append(TurnNode(turn, tuple(same), parent))
    return found
