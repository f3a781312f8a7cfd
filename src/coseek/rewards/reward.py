"""Reward: a finished trajectory turned into a number, with every part of it named for the log.

A part is a pure function of the trajectory, found by its name in `rewards/parts`. Settings compose parts:

    {"exact_match": 1.0, "searches": -0.02}                    a weighted sum
    {"format": {"weight": 1.0, "lambda_f": 0.4}}               a part with settings of its own
    {"exact_match": 1.0, "valid": {"gate": True}}              the sum, multiplied by the gate (QAgent, stage 1)
    {"preset": "s3", "searches": -0.02}                        a file of `rewards/presets`, and more beside it
    {"exact_match": 1.0, "mine/brevity.py": {"weight": 0.1}}   a part of one's own, called `brevity` in the log

A part that pays for what a frozen generator or a judge said of the run is handed that, too (`said.py`).

What no part may do is turn the fault of a retriever or a model into a score: such a run has no reward. Nor has
one that went on because only some of a turn's searches failed: what it would have found nobody knows.
"""

import inspect
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from coseek.core.errors import DataError, ErrorList, SettingError, UnknownName
from coseek.core.plugins import PluginSpec, is_plugin_path, plugin_name
from coseek.core.registry import find_plugin, find_yaml, plugin_names
from coseek.core.settings import Settings, load_settings, make_settings
from coseek.data.trajectory import Trajectory
from coseek.rewards.grades import NO_GRADES, Grades, Need, NoReward

PACKAGE = "coseek.rewards.parts"
PRESETS = Path(__file__).parent / "presets"

PartSpec: TypeAlias = dict[str, bool | float | str | None]
RewardSpec: TypeAlias = dict[str, float | PartSpec | str]
"""Part name, or the path of its `.py` file → its weight, or its weight, gate and settings; `preset` → the name of a
preset, or its file."""
Given: TypeAlias = float | Mapping[str, bool | float | str | None] | str
"""A value of such a spec."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A number, and the unweighted value of every part that made it."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """By name; what a part is itself made of is there as `part/name`."""


@dataclass(frozen=True, slots=True)
class RewardFault:
    """Why a run has no reward."""

    part: str
    """What failed: a stop reason (`retriever_error`, `model_error`), or `generator`, `baseline`, `judge`."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PartValue:
    """A part's value, and the numbers that it is made of, for the log."""

    value: float
    of: Mapping[str, float]


class PartSettings(Settings):
    """What every part can be told."""

    weight: float = 1.0
    """Factor of this part in the sum; negative for a cost. A gate has none."""
    gate: bool = False
    """Multiply the sum of the others by this part instead of adding it."""


OFFERS: PluginSpec = {"SETTINGS": PartSettings, "reward": None}
"""What a part of one's own must have."""


class _PartModule(Protocol):
    """What a file in `rewards/parts` offers."""

    SETTINGS: type[PartSettings]

    def reward(self, trajectory: Trajectory, settings: PartSettings) -> float | PartValue: ...


class _AskingModule(Protocol):
    """What it offers if it pays for what frozen parts said."""

    SETTINGS: type[PartSettings]

    def needs(self, settings: PartSettings) -> tuple[Need, ...]: ...

    def reward(self, trajectory: Trajectory, settings: PartSettings, said: Grades) -> float | PartValue: ...


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One named part with its settings."""

    name: str
    module: _PartModule | _AskingModule
    settings: PartSettings

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be known of a run before this part can look at it."""
        if not hasattr(self.module, "needs"):
            return frozenset()
        return frozenset(cast(_AskingModule, self.module).needs(self.settings))

    def __call__(self, trajectory: Trajectory, said: Grades = NO_GRADES) -> PartValue:
        if hasattr(self.module, "needs"):
            value = cast(_AskingModule, self.module).reward(trajectory, self.settings, said)
        else:
            value = self.module.reward(trajectory, self.settings)
        made = value if isinstance(value, PartValue) else PartValue(value, {})
        if not _is_number(made.value):
            raise SettingError(
                f"the reward {self.name!r} gave {made.value!r} for the question {trajectory.question.id!r}; let it "
                "return a number"
            )
        return made


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(float(value))


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """(Σ weight · part) · Π gate. Gates alone multiply 1."""

    parts: tuple[RewardPart, ...]

    @property
    def needs(self) -> frozenset[Need]:
        """What has to be known of a run besides the run itself."""
        return frozenset(need for part in self.parts for need in part.needs)

    def __call__(self, trajectory: Trajectory, said: Grades = NO_GRADES) -> Reward | None:
        """The reward of a finished run; `None` when a part of the system failed, so that it is left out, not scored."""
        found = self.pay(trajectory, said)
        return found if isinstance(found, Reward) else None

    def pay(self, trajectory: Trajectory, said: Grades = NO_GRADES) -> Reward | RewardFault:
        """The reward, or what failed."""
        if (failure := trajectory.fault) is not None:
            return RewardFault(str(failure[0]), failure[1])
        try:
            made = {part.name: part(trajectory, said) for part in self.parts}
        except NoReward as error:
            return RewardFault(error.part, error.detail)
        terms = [part.settings.weight * made[part.name].value for part in self.parts if not part.settings.gate]
        total = sum(terms) if terms else 1.0
        for part in self.parts:
            if part.settings.gate:
                total *= made[part.name].value
        logged = {name: one.value for name, one in made.items()}
        inner = {f"{name}/{inner}": value for name, one in made.items() for inner, value in one.of.items()}
        return Reward(total, logged | inner)


class Preset(Settings):
    """A whole reward under one name."""

    about: str = ""
    """One line for people."""
    reward: RewardSpec
    """The parts."""


def reward_names() -> list[str]:
    """The parts that a spec can name."""
    return [name.replace("-", "_") for name in plugin_names(PACKAGE)]


def preset_names() -> list[str]:
    """The presets that a spec can name."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def load_preset(name: str) -> Preset:
    """One of ours by name, or a YAML file."""
    preset = load_settings(Preset, find_yaml("reward preset", PRESETS, name))
    if "preset" in preset.reward:
        raise SettingError(f"the reward preset {name!r} names another preset; write its parts down instead")
    return preset


def make_reward(spec: Mapping[str, Given]) -> RewardFunction:
    """Compose a reward from settings; a misspelt part or option is refused with the nearest name."""
    trees: dict[str, PartSpec] = {}
    for name, given in _parts_of(spec):
        if name in trees:
            raise SettingError(f"the reward names a part twice: {', '.join(spec)}; give each part one weight")
        trees[name] = _tree(given)
    if "preset" in spec:
        if not isinstance(spec["preset"], str):
            raise SettingError(f"reward.preset is a name, not {spec['preset']!r} (known: {', '.join(preset_names())})")
        preset = {name: _tree(given) for name, given in _parts_of(load_preset(spec["preset"]).reward)}
        trees = {name: preset.get(name, {}) | trees.get(name, {}) for name in (*preset, *trees)}
    if not trees:
        raise SettingError(
            f"the reward names no part; write for example exact_match: 1.0 (known: {', '.join(reward_names())}), "
            f"or preset: search-r1 (known: {', '.join(preset_names())})"
        )
    wrong = ErrorList()
    made = [wrong.of(_make_part, name, tree) for name, tree in trees.items()]
    wrong.refuse()
    parts = tuple(part for part in made if part is not None)
    called, times = Counter(part.name for part in parts).most_common(1)[0]
    if times > 1:
        raise SettingError(f"two parts of the reward would be called {called!r} in the log; rename the file of one")
    return RewardFunction(parts)


def _parts_of(spec: Mapping[str, Given]) -> list[tuple[str, Given]]:
    named = [(name, given) for name, given in spec.items() if name != "preset"]
    return [(name if is_plugin_path(name) else name.replace("-", "_"), given) for name, given in named]


def _tree(given: Given) -> PartSpec:
    """Options with the weight among them; what stands in a preset is overlaid option by option."""
    return dict(given) if isinstance(given, Mapping) else {"weight": given}


def _make_part(name: str, tree: PartSpec) -> RewardPart:
    if not is_plugin_path(name) and name not in reward_names():
        raise UnknownName("reward", name, reward_names())
    spelt = name if is_plugin_path(name) else name.replace("_", "-")
    module = cast("_PartModule | _AskingModule", find_plugin("reward", PACKAGE, spelt, OFFERS))
    _check_signature(name, module)
    try:
        settings = make_settings(module.SETTINGS, tree)
    except SettingError as error:
        raise SettingError(*(f"reward {name!r}: {sentence}" for sentence in error.sentences)) from None
    if settings.gate and "weight" in settings.model_fields_set:
        raise SettingError(f"reward {name!r} is a gate, which multiplies the others; leave out its weight")
    return RewardPart(plugin_name(name), module, settings)


def _check_signature(name: str, module: _PartModule | _AskingModule) -> None:
    """Refuse now what would fail at the first finished run, hours later."""
    taken = ["trajectory", "settings", *(["said"] if hasattr(module, "needs") else [])]
    try:
        inspect.signature(module.reward).bind(*taken)
    except TypeError:
        raise SettingError(f"`reward` of {name} must take ({', '.join(taken)}), in this order") from None


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
