"""Reward: a finished trajectory turned into a number, with every part of it named for the log.

A part is a pure function of the trajectory, found by its name in `rewards/parts`. Settings compose parts:

    {"exact_match": 1.0, "searches": -0.02}                    a weighted sum
    {"format": {"weight": 1.0, "lambda_f": 0.4}}               a part with options of its own
    {"exact_match": 1.0, "valid": {"gate": True}}              the sum, multiplied by the gate (QAgent, stage 1)

What no part may do is turn the fault of a retriever or a model into a score: such a run has no reward (trap 19).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, cast

from coseek.data.errors import DataError, SettingError, UnknownName
from coseek.data.registry import find, names
from coseek.data.settings import Settings, make_settings
from coseek.data.trajectory import Trajectory

PACKAGE = "coseek.rewards.parts"

RewardSpec: TypeAlias = dict[str, float | dict[str, bool | float | str | None]]
"""Part name → its weight, or its weight, gate and options."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A number, and the unweighted value of every part that made it."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)


class PartOptions(Settings):
    """What every part can be told."""

    weight: float = 1.0
    """Factor of this part in the sum; negative for a cost. A gate has none."""
    gate: bool = False
    """Multiply the sum of the others by this part instead of adding it."""


class _PartModule(Protocol):
    """What a file in `rewards/parts` offers."""

    Options: type[PartOptions]

    def reward(self, trajectory: Trajectory, options: PartOptions) -> float: ...


@dataclass(frozen=True, slots=True)
class Part:
    """One named part with its options."""

    name: str
    module: _PartModule
    options: PartOptions

    def __call__(self, trajectory: Trajectory) -> float:
        return self.module.reward(trajectory, self.options)


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """(Σ weight · part) · Π gate. Gates alone multiply 1."""

    parts: tuple[Part, ...]

    def __call__(self, trajectory: Trajectory) -> Reward | None:
        """The reward of a finished run; `None` when a part of the system failed, so that it is left out, not scored."""
        if trajectory.stop.is_fault:
            return None
        values = {part.name: part(trajectory) for part in self.parts}
        terms = [part.options.weight * values[part.name] for part in self.parts if not part.options.gate]
        total = sum(terms) if terms else 1.0
        for part in self.parts:
            if part.options.gate:
                total *= values[part.name]
        return Reward(total, values)


def reward_names() -> list[str]:
    """The parts that a spec can name."""
    return [name.replace("-", "_") for name in names(PACKAGE)]


def make_reward(spec: Mapping[str, float | Mapping[str, bool | float | str | None]]) -> RewardFunction:
    """Compose a reward from settings; a misspelt part or option is refused with the nearest name."""
    if not spec:
        raise SettingError(
            f"the reward names no part; write for example exact_match: 1.0 (known: {', '.join(reward_names())})"
        )
    parts = tuple(_make_part(name, given) for name, given in spec.items())
    if len({part.name for part in parts}) < len(parts):
        raise SettingError(f"the reward names a part twice: {', '.join(spec)}; give each part one weight")
    return RewardFunction(parts)


def _make_part(name: str, given: float | Mapping[str, bool | float | str | None]) -> Part:
    name = name.replace("-", "_")
    if name not in reward_names():
        raise UnknownName("reward", name, reward_names())
    module = cast(_PartModule, find("reward", PACKAGE, name.replace("_", "-")))
    tree = {"weight": given} if not isinstance(given, Mapping) else given
    try:
        options = make_settings(module.Options, tree)
    except SettingError as error:
        raise SettingError(f"reward {name!r}: {error}") from None
    if options.gate and "weight" in options.model_fields_set:
        raise SettingError(f"reward {name!r} is a gate, which multiplies the others; leave out its weight")
    return Part(name, module, options)


def needs_answers(trajectory: Trajectory, name: str) -> tuple[str, ...]:
    """The gold answers; a question without any cannot be rewarded for its answer."""
    question = trajectory.question
    if not question.answers:
        raise DataError(
            f"question {question.id!r} has no gold answers, and the reward {name!r} needs them; choose another reward"
        )
    return question.answers


def needs_gold_passages(trajectory: Trajectory, name: str) -> tuple[str, ...]:
    """The gold passages; a question without any cannot be rewarded for finding them."""
    question = trajectory.question
    if not question.gold_ids:
        raise DataError(
            f"question {question.id!r} names no gold_ids, and the reward {name!r} needs them; choose another reward"
        )
    return question.gold_ids
