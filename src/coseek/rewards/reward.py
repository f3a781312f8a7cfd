"""Reward: a number for a finished trajectory, with the value of every part for the log.

A part is a pure function of the trajectory, found by name in `rewards/parts`. Settings combine parts:

    {"exact_match": 1.0, "searches": -0.02}                    a weighted sum
    {"format": {"weight": 1.0, "lambda_f": 0.4}}               a part with its settings
    {"exact_match": 1.0, "valid": {"gate": True}}              the sum, multiplied by the gate (QAgent, stage 1)
    {"preset": "s3", "searches": -0.02}                        a file of `rewards/presets` and one more part
    {"exact_match": 1.0, "mine/brevity.py": {"weight": 0.1}}   a user's part, called `brevity` in the log

In a program a part may also be a function of a finished trajectory (`reward_spec`).

A part that rewards outputs of a frozen generator or a judge gets them as `Grades` (`grades.py`).

A run with a fault of a retriever or a model has no reward, even if only some searches of a turn failed and the run
continued, because its result without the fault is unknown.
"""

import math
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Protocol, TypeAlias, cast

from coseek.core.errors import DataError, ErrorList, SettingError, UnknownName
from coseek.core.plugins import (
    PluginSpec,
    called,
    check_function,
    check_takes,
    find_plugin,
    find_yaml,
    is_plugin_path,
    offer,
    plugin_name,
    plugin_names,
    running,
    yaml_names,
)
from coseek.core.settings import Settings, load_settings, make_settings, scalar
from coseek.data.answers import can_match
from coseek.data.question import Question
from coseek.data.trajectory import StopReason, Trajectory
from coseek.rewards.grades import NO_GRADES, NO_MATCH, UNMATCHED, Grades, Need, NoReward

PACKAGE = "coseek.rewards.parts"
PRESETS = Path(__file__).parent / "presets"
LARGEST = 1e12
"""The largest absolute value of a reward; float32 can still hold the squares of its spread."""

PartSpec: TypeAlias = dict[str, bool | float | str | None]
RewardSpec: TypeAlias = dict[str, float | PartSpec | str]
"""Part name, or the path of its `.py` file → its weight, or its weight, gate and settings; `preset` → the name of a
preset, or its file."""
RewardValue: TypeAlias = float | Mapping[str, bool | float | str | None] | str
"""A value of a reward spec."""
OwnReward: TypeAlias = Callable[[Trajectory], float | list[float] | tuple[float, ...]]
"""A function of a finished trajectory that returns its reward, or the rewards of its turns, whose sum counts."""
RewardLike: TypeAlias = str | Path | OwnReward | Sequence[str | Path | OwnReward] | Mapping[str, RewardValue]
"""A reward in a program: a part or preset by name, a file, a function, several of these that are summed, or the mapping
of a recipe."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward and the unweighted value of every part."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """By name; components of a part as `part/name`."""
    turns: tuple[float, ...] = ()
    """The reward of each turn of the agent, for algorithms with credit by turn; empty if no part returns it."""


@dataclass(frozen=True, slots=True)
class RewardFault:
    """Why a run has no reward."""

    part: str
    """The part that failed: a stop reason (`retriever_error`, `model_error`), or `generator`, `baseline`, `judge`,
    `gold answers`."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PartValue:
    """A part's value, and its components for the log."""

    value: float
    components: Mapping[str, float]
    turns: tuple[float, ...] = ()
    """The reward of each turn of the agent. The value need not be their sum."""


class PartSettings(Settings):
    """Settings of every part."""

    weight: float = 1.0
    """Weight in the sum; negative for a cost. A gate has no weight."""
    gate: bool = False
    """Multiply the sum of the other parts by this part instead of adding it."""


CONTRACT: PluginSpec = {"SETTINGS": PartSettings, "reward": None}
"""What a user's part must define."""


class _PartModule(Protocol):
    """Contents of a file in `rewards/parts`. A part with grades also defines `needs` and `to_judge`, and its `reward`
    takes the grades."""

    SETTINGS: type[PartSettings]
    reward: Callable[..., float | PartValue]
    needs: Callable[[PartSettings], tuple[Need, ...]]
    to_judge: Callable[[Trajectory, PartSettings, Grades], Sequence[str]]


@dataclass(frozen=True, slots=True)
class RewardPart:
    """One named part with its settings."""

    name: str
    module: _PartModule
    settings: PartSettings
    spelt: str = ""
    """The name in settings: that of a built-in part, or the path of a file."""

    @property
    def needs(self) -> frozenset[Need]:
        """Grades that this part needs."""
        if not hasattr(self.module, "needs"):
            return frozenset()
        with running("reward", self.spelt):
            return frozenset(self.module.needs(self.settings))

    def to_judge(self, trajectory: Trajectory, grades: Grades) -> Sequence[str]:
        """The responses on which this part, which needs a judge, needs a verdict."""
        with running("reward", self.spelt):
            return self.module.to_judge(trajectory, self.settings, grades)

    def __call__(self, trajectory: Trajectory, grades: Grades = NO_GRADES) -> PartValue:
        with running("reward", self.spelt):
            arguments = (grades,) if hasattr(self.module, "needs") else ()
            value = self.module.reward(trajectory, self.settings, *arguments)
        result = value if isinstance(value, PartValue) else PartValue(value, {})
        number = _number(f"the reward {self.name!r}", result.value, trajectory)
        components = {
            name: _number(f"the reward {f'{self.name}/{name}'!r}", amount, trajectory)
            for name, amount in result.components.items()
        }
        if result.turns and len(result.turns) != (turns := len(trajectory.turn_spans)):
            raise SettingError(
                f"the reward {self.name!r} gave {len(result.turns)} numbers for the {turns} turns of the question "
                f"{trajectory.question.id!r}; return one for each turn"
            )
        return PartValue(number, components, _turn_numbers(self.name, result.turns, trajectory))


def _turn_numbers(name: str, turns: Iterable[object], trajectory: Trajectory) -> tuple[float, ...]:
    return tuple(_number(f"the reward {name!r} of a turn", turn, trajectory) for turn in turns)


def _number(subject: str, value: object, trajectory: Trajectory) -> float:
    """The value as a float; it may be a scalar of numpy or torch. Raises `SettingError` for a value that is not a
    number or is too large for means and spreads."""
    value = scalar(value)
    # Compared before the conversion, which fails for an integer that no float can hold.
    if not isinstance(value, Real) or not -LARGEST <= cast(float, value) <= LARGEST:
        raise SettingError(
            f"{subject} gave {reprlib.repr(value)} for the question {trajectory.question.id!r}; let it return a number "
            f"between {-LARGEST:g} and {LARGEST:g}"
        )
    return float(value)


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """(Σ weight · part) · Π gate. Gates alone multiply 1."""

    parts: tuple[RewardPart, ...]

    def __repr__(self) -> str:
        return f"RewardFunction({', '.join(part.name for part in self.parts)})"

    def __str__(self) -> str:
        """The formula: `(1 exact_match + -0.02 searches) × valid`."""
        terms = [f"{part.settings.weight:g} {part.name}" for part in self.parts if not part.settings.gate]
        gates = [part.name for part in self.parts if part.settings.gate]
        return " × ".join([*([f"({' + '.join(terms)})"] if terms else []), *gates])

    @property
    def needs(self) -> frozenset[Need]:
        """Grades that the parts need."""
        return frozenset(need for part in self.parts for need in part.needs)

    def check_golds(self, questions: Iterable[Question]) -> None:
        """Raise `DataError` if a built-in part needs gold answers or passages that a question lacks, which would
        otherwise end a training in the step that draws the question."""
        questions = [question for question in questions if question.answerable]
        without_answers = [question for question in questions if not question.answers][:1]
        without_passages = [question for question in questions if not question.gold_ids][:1]
        for question in without_answers + without_passages:
            empty = Trajectory(question, "", (), (), StopReason.COMPLETE)
            for part in self.parts:
                if not is_plugin_path(part.spelt):
                    with suppress(NoReward, SettingError):  # there are no grades yet
                        part(empty)

    def to_judge(self, trajectory: Trajectory, grades: Grades) -> list[str]:
        """The responses on which the parts need a verdict that is not in `grades`."""
        judged = [part for part in self.parts if "judge" in part.needs]
        responses = dict.fromkeys(response for part in judged for response in part.to_judge(trajectory, grades))
        return [response for response in responses if response not in (grades.verdicts or {})]

    def __call__(self, trajectory: Trajectory, grades: Grades = NO_GRADES) -> Reward | None:
        """The reward of a finished run; `None` for a fault."""
        result = self.compute(trajectory, grades)
        return result if isinstance(result, Reward) else None

    def compute(self, trajectory: Trajectory, grades: Grades = NO_GRADES) -> Reward | RewardFault:
        """The reward, or the fault."""
        if (failure := trajectory.fault) is not None:
            return RewardFault(str(failure[0]), failure[1])
        try:
            values = {part.name: part(trajectory, grades) for part in self.parts}
        except NoReward as error:
            return RewardFault(error.part, error.detail)
        terms = [part.settings.weight * values[part.name].value for part in self.parts if not part.settings.gate]
        total = sum(terms) if terms else 1.0
        for part in self.parts:
            if part.settings.gate:
                total *= values[part.name].value
        total = _number("the sum of the rewards", total, trajectory)
        logged = {name: value.value for name, value in values.items()}
        inner = {
            f"{name}/{part}": number for name, value in values.items() for part, number in value.components.items()
        }
        return Reward(total, logged | inner, self._turn_rewards(values))

    def _turn_rewards(self, values: Mapping[str, PartValue]) -> tuple[float, ...]:
        """(Σ weight · the part's reward of the turn) · Π gate, over the parts that return rewards of turns."""
        gate = math.prod(values[part.name].value for part in self.parts if part.settings.gate)
        parts = [part for part in self.parts if values[part.name].turns and not part.settings.gate]
        weighted = [[part.settings.weight * turn for turn in values[part.name].turns] for part in parts]
        return tuple(sum(turn) * gate for turn in zip(*weighted, strict=True))


class Preset(Settings):
    """A named reward."""

    about: str = ""
    """One line for people."""
    reward: RewardSpec
    """The parts."""


def reward_names() -> list[str]:
    """Names of the built-in parts."""
    return [name.replace("-", "_") for name in plugin_names(PACKAGE)]


def preset_names() -> list[str]:
    """Names of the built-in presets."""
    return yaml_names(PRESETS)


def load_preset(name: str) -> Preset:
    """A built-in preset by name, or a YAML file."""
    preset = load_settings(Preset, find_yaml("reward preset", PRESETS, name))
    if "preset" in preset.reward:
        raise SettingError(f"the reward preset {name!r} names another preset; write its parts down instead")
    return preset


def reward_spec(reward: RewardLike) -> RewardSpec:
    """Convert a reward to settings. Raises `UnknownName` with the nearest part or preset, and `SettingError` for two
    parts with one name, and for a name of both a part and a preset."""
    if callable(reward):
        return {_register(reward): 1.0}
    if not isinstance(reward, str | Path):
        spec: RewardSpec = {}
        for part, value in _terms(reward):
            if part in spec:
                raise SettingError(
                    f"two parts of the reward are called {plugin_name(part)!r}; give each function a name with def, "
                    "each part one weight in a mapping, and take one preset"
                )
            spec[part] = value
        return spec
    name = str(reward)
    if name in reward_names() and name in preset_names():
        raise SettingError(f"{name!r} is a part and a preset; write {{{name!r}: 1.0}} or {{'preset': {name!r}}}")
    if is_plugin_path(name) or name.replace("-", "_") in reward_names():
        return {name: 1.0}
    if name in preset_names() or name.endswith((".yaml", ".yml")):
        return {"preset": name}
    raise UnknownName("reward", name, {*reward_names(), *preset_names()})


def _terms(reward: object) -> Iterator[tuple[str, float | PartSpec | str]]:
    """The terms of a mapping, whose keys may be functions, or of several rewards."""
    if isinstance(reward, Mapping):
        for part, value in reward.items():
            name = _register(part) if callable(part) else str(part)
            yield name, dict(value) if isinstance(value, Mapping) else value
    elif isinstance(reward, Iterable):
        for item in reward:
            yield from reward_spec(item).items()
    else:
        raise SettingError(
            f"a reward is a name, a file, a function or {{part: weight}}, as {{'exact_match': 1.0}}, not {reward!r}"
        )


def _register(function: OwnReward) -> str:
    """Register a function as a reward part. Returns its name in settings."""
    check_takes("reward", function, "trajectory")

    def reward(trajectory: Trajectory, settings: PartSettings) -> float | PartValue:
        value = function(trajectory)
        if isinstance(value, list | tuple):
            turns = _turn_numbers(called(function), value, trajectory)
            return PartValue(math.fsum(turns), {}, turns)
        return value

    return offer("reward", function, {"SETTINGS": PartSettings, "reward": reward})


def make_reward(spec: Mapping[str, RewardValue]) -> RewardFunction:
    """Build a reward from settings. Raises `UnknownName` or `SettingError` with the nearest name."""
    trees = _part_specs(spec)
    if "preset" in spec:
        if not isinstance(spec["preset"], str):
            raise SettingError(f"reward.preset is a name, not {spec['preset']!r} (known: {', '.join(preset_names())})")
        preset = _part_specs(load_preset(spec["preset"]).reward)
        trees = {name: preset.get(name, {}) | trees.get(name, {}) for name in (*preset, *trees)}
    if not trees:
        raise SettingError(
            f"the reward names no part; write for example exact_match: 1.0 (known: {', '.join(reward_names())}), "
            f"or preset: search-r1 (known: {', '.join(preset_names())})"
        )
    mistakes = ErrorList()
    built = [mistakes.collect(_make_part, name, tree) for name, tree in trees.items()]
    mistakes.raise_all()
    parts = tuple(part for part in built if part is not None)
    repeated, times = Counter(part.name for part in parts).most_common(1)[0]
    if times > 1:
        raise SettingError(f"two parts of the reward would be called {repeated!r} in the log; rename the file of one")
    return RewardFunction(parts)


def _part_specs(spec: Mapping[str, RewardValue]) -> dict[str, PartSpec]:
    """The settings of each part, including its weight."""
    specs: dict[str, PartSpec] = {}
    for name, value in spec.items():
        part = name if is_plugin_path(name) else name.replace("-", "_")
        if part in specs:
            raise SettingError(f"the reward names a part twice: {', '.join(spec)}; give each part one weight")
        if part != "preset":
            specs[part] = dict(value) if isinstance(value, Mapping) else {"weight": value}
    return specs


def _make_part(name: str, tree: PartSpec) -> RewardPart:
    if not is_plugin_path(name) and name not in reward_names():
        raise UnknownName("reward", name, reward_names())
    spelt = name if is_plugin_path(name) else name.replace("_", "-")
    module = cast(_PartModule, find_plugin("reward", PACKAGE, spelt, CONTRACT))
    arguments = ["trajectory", "settings", *(["grades"] if hasattr(module, "needs") else [])]
    check_function(module, "reward", name, *arguments)
    try:
        settings = make_settings(module.SETTINGS, tree)
    except SettingError as error:
        raise SettingError(*(f"reward {name!r}: {sentence}" for sentence in error.sentences)) from None
    if settings.gate and "weight" in settings.model_fields_set:
        raise SettingError(f"reward {name!r} is a gate, which multiplies the others; leave out its weight")
    part = RewardPart(plugin_name(name), module, settings, spelt)
    if "judge" in part.needs and not hasattr(module, "to_judge"):
        raise SettingError(
            f"reward {name!r} needs a judge and does not say for which answers; define to_judge(trajectory, settings, "
            "grades), which returns them"
        )
    return part


def needs_answers(trajectory: Trajectory, name: str, judged: bool = False) -> tuple[str, ...]:
    """The gold answers; empty for an unanswerable question. Raises `DataError` for any other question without gold
    answers, and `NoReward` if no answer can match them, unless a judge grades (`judged`)."""
    if not trajectory.question.answerable:
        return ()
    golds = _require(trajectory.question.answers, "has no gold answers", trajectory, name)
    if not judged and not can_match(golds):
        raise NoReward(UNMATCHED, NO_MATCH)
    return golds


def needs_gold_passages(trajectory: Trajectory, name: str) -> tuple[str, ...]:
    """The gold passage ids. Raises `DataError` for a question without gold passages."""
    return _require(trajectory.question.gold_ids, "names no gold_ids", trajectory, name)


def _require(values: tuple[str, ...], problem: str, trajectory: Trajectory, name: str) -> tuple[str, ...]:
    if not values:
        raise DataError(
            f"question {trajectory.question.id!r} {problem}, and the reward {name!r} needs them; give it some, or "
            "choose another reward"
        )
    return values
