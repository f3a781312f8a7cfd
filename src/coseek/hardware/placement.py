"""Placement: where a model runs, in which precision, and with which attention kernel. Every model is opened with one.

Placement()                      an accelerator if there is one, else the CPU; the fastest precision there
Placement(device="cuda:1", precision="float32")

The type of a precision setting names its use. `resolve_precisions` replaces each `auto` by the fastest precision on
this machine, so that stored settings name what was used.

The speed of bfloat16 and int8 relative to float32 comes from one probe of a second, stored per host in `speed.json` in
the user's cache folder. Without a writable cache every process probes again. If the probe fails, `auto` is float32.

    {"schema": 2, "hosts": {DIGEST: {"many_rows": 2.4, "few_rows": 1.1, "int8_search": 3.0}}}
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple, TypeAlias, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field

from coseek.core.errors import CoseekError, DataError
from coseek.core.files import Json, JsonObject, read_json, write_json
from coseek.core.settings import Replaces, Settings, dump_settings, group_of, make_settings
from coseek.hardware.device import AUTO, device_of, host_digest, instructions, multiplies_bfloat16

Precision: TypeAlias = Literal["float32", "bfloat16"]
PrecisionSetting: TypeAlias = Literal["float32", "bfloat16", "auto"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")


class Use(StrEnum):
    """Uses of arithmetic."""

    TRAINING = "training"
    SAMPLING = "sampling"
    """Token by token: few rows at once."""
    ENCODING = "encoding"
    """Many tokens at once, without a gradient."""


TrainingPrecision: TypeAlias = Annotated[PrecisionSetting, Use.TRAINING]
SamplingPrecision: TypeAlias = Annotated[PrecisionSetting, Use.SAMPLING]


ENCODER = "precision"
"""Name of the encoder's precision in a retriever's untyped settings."""

Place: TypeAlias = tuple[str, ...]
"""Path of a setting."""
Choose: TypeAlias = Callable[[Use, Place], Precision]

S = TypeVar("S", bound=Settings)


def resolve_precisions(settings: S, choose: Choose, began: JsonObject | None = None) -> S:
    """Replace every `auto`: by the precision in `began`, the stored settings of a resumed run, else by `choose`."""
    tree = dump_settings(settings)
    unresolved = [(place, use) for place, use, value in named(type(settings), tree) if value == AUTO]
    if not unresolved:
        return settings
    for place, use in unresolved:
        old_value = _value_at(began, place)
        group = _value_at(tree, place[:-1])
        assert isinstance(group, dict)
        group[place[-1]] = old_value if old_value in PRECISIONS else choose(use, place)
    unstored = {name: getattr(settings, name) for name, field in type(settings).model_fields.items() if field.exclude}
    return make_settings(type(settings), tree).model_copy(update=unstored)


def named(kind: type[BaseModel] | None, tree: JsonObject, above: Place = ()) -> Iterator[tuple[Place, Use, str]]:
    """Place, use and value of every precision in a tree of settings."""
    for name, value in tree.items():
        field = kind.model_fields.get(name) if kind is not None else None
        marks = field.metadata if field is not None else []
        default = getattr(kind, "USE", None) if name == "precision" else None  # of a `Placement`
        use = next((mark for mark in marks if isinstance(mark, Use)), default)
        if isinstance(value, str) and (use is not None or (kind is None and name == ENCODER)):
            yield (*above, name), use or Use.ENCODING, value
        elif isinstance(value, dict) and any(isinstance(mark, Replaces) for mark in marks):
            for key, settings in value.items():
                yield from named(kind, cast(JsonObject, settings), (*above, name, key))
        elif isinstance(value, dict):
            yield from named(group_of(kind, name) if kind is not None else None, value, (*above, name))


def device_at(tree: JsonObject, place: Place) -> str:
    """The device of the model whose precision is at `place`: that of the innermost group around it that names one."""
    groups = (_value_at(tree, place[:depth]) for depth in range(len(place) - 1, -1, -1))
    devices = (group.get("device") for group in groups if isinstance(group, dict))
    return next((device for device in devices if isinstance(device, str)), AUTO)


def _value_at(tree: Json, place: Place) -> Json:
    for name in place:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


# --- the speed of this machine

FILE = "speed.json"
MIN_SPEEDUP = 1.2
"""Minimum speed-up over float32 for another precision to be chosen; smaller ones are within the noise."""
SLOW = 0.5
"""Speed relative to float32 below which a requested precision causes a warning."""
WIDE = 256
"""Hidden size from which sampling may use bfloat16. Narrower models gained nothing; the laptop policy has 128."""
PROBE_TIMEOUT_S = 120.0

Ratio: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Speedups(BaseModel):
    """Speed of this machine relative to float32."""

    model_config = ConfigDict(frozen=True)

    many_rows: Ratio
    """Of a bfloat16 layer over all tokens of many rows, as in training and encoding."""
    few_rows: Ratio
    """Of a bfloat16 layer over one token per row, as in sampling."""
    int8_search: Ratio
    """Of an int8 scan of vectors."""

    def bfloat16(self, use: Use) -> float:
        return self.few_rows if use is Use.SAMPLING else self.many_rows


class _SpeedFile(BaseModel):
    """The cache file, of all hosts."""

    schema_: Literal[2] = Field(alias="schema")
    hosts: dict[str, Speedups]


class Choice(NamedTuple):
    """What `auto` resolves to, and why."""

    taken: str
    why: str


def fastest(use: Use, width: int = WIDE, device: str = AUTO) -> Precision:
    """What `auto` resolves to for a model of this hidden size on a device."""
    if use is Use.SAMPLING and width < WIDE:
        return "float32"
    if (torch_device := device_of(device)).type != "cpu":
        return "bfloat16" if multiplies_bfloat16(torch_device) else "float32"
    speed = speedups()
    return "bfloat16" if speed is not None and speed.bfloat16(use) >= MIN_SPEEDUP else "float32"


def precision_of(requested: PrecisionSetting, use: Use, width: int = WIDE, device: str = AUTO) -> Precision:
    """The requested precision, with `auto` resolved."""
    return fastest(use, width, device) if requested == "auto" else requested


def resolve_here(settings: S, began: JsonObject | None = None, width_at: Callable[[Place], int] = lambda _: WIDE) -> S:
    """Replace every `auto`: by the precision in `began`, else by the fastest one on the model's device.

    `width_at` returns the hidden size of the model whose precision is at a place.
    """
    tree = dump_settings(settings)
    return resolve_precisions(settings, lambda use, place: fastest(use, width_at(place), device_at(tree, place)), began)


def warning(settings: Settings) -> str:
    """A sentence, once per process, if the settings name a precision that is slow here; else empty."""
    tree = dump_settings(settings)
    for place, use, value in named(type(settings), tree):
        if value != "bfloat16" or device_of(device_at(tree, place)).type != "cpu" or _warned.is_set():
            continue
        if (speed := speedups()) is not None and (ratio := speed.bfloat16(use)) < SLOW:
            _warned.set()
            return (
                f"{'.'.join(place)}=bfloat16 is {1 / ratio:.2g} times slower than float32 on this machine "
                f"({instructions()}); take auto"
            )
    return ""


def described(use: Use) -> Choice:
    """What `auto` resolves to for a wide model, with the measured reason. Raises `OSError` if the probe failed."""
    if (device := device_of()).type != "cpu":
        verb = "multiplies" if multiplies_bfloat16(device) else "does not multiply"
        return Choice(fastest(use), f"{device} {verb} bfloat16 natively")
    if (speed := speedups()) is None:
        raise OSError("the probe, a separate process that multiplies matrices for a second, failed")
    return Choice(fastest(use), f"bfloat16 has {speed.bfloat16(use):.2g} × the speed of float32")


# --- the probe and its cache

_warned = threading.Event()
_probing = threading.Lock()


def speedups() -> Speedups | None:
    """The speed-ups of this machine, from the cache or a probe; `None` if the probe failed."""
    with _probing:
        return _speedups(cache_file(), host_digest())


def cache_file() -> Path | None:
    """The path of the cache; `None` for a user without a home folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "coseek" / FILE
    except RuntimeError:
        return None


@cache
def _speedups(path: Path | None, host: str) -> Speedups | None:
    hosts = {} if path is None else _read_hosts(path)
    if host not in hosts:
        command = [sys.executable, "-P", str(Path(__file__).with_name("probe.py"))]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
            hosts[host] = Speedups.model_validate_json(result.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        if path is not None:
            with suppress(OSError, CoseekError):  # not writable: the next process probes again
                write_json(path, _SpeedFile(schema=2, hosts=hosts).model_dump(by_alias=True))
    return hosts[host]


def _read_hosts(path: Path) -> dict[str, Speedups]:
    """The cached hosts; empty if the file is missing or invalid."""
    try:
        return _SpeedFile.model_validate(read_json(path)).hosts
    except (OSError, DataError, ValueError):
        return {}


if TYPE_CHECKING:
    import torch

Attention: TypeAlias = Literal["sdpa", "eager"]


class DevicePlacement(Settings):
    """A module's device and attention kernel."""

    device: str = AUTO
    """`cpu`, `cuda`, `cuda:1` …; `auto` is an accelerator if there is one, in a distributed worker its own."""
    attention: Attention = "sdpa"
    """Attention kernel: `sdpa` is torch's fused one, if the architecture supports it; `eager` is plain operations."""

    def torch_device(self) -> "torch.device":
        """Raises `SettingError` for a missing device."""
        return device_of(self.device)

    def in_float32(self) -> "Placement":
        """The same with float32 weights, which a trainer updates."""
        return Placement(device=self.device, attention=self.attention, precision="float32")


class Placement(DevicePlacement):
    """Where a model runs, in which precision, and with which attention kernel."""

    USE: ClassVar[Use] = Use.SAMPLING
    """The use that `auto` resolves the precision for."""

    precision: PrecisionSetting = "auto"
    """Precision of weights and cache; `auto` is bfloat16 if it is clearly faster: on most accelerators and some
    processors (see `coseek doctor`)."""

    def precision_at(self, width: int = WIDE) -> Precision:
        """The precision for a model of this hidden size."""
        return precision_of(self.precision, self.USE, width, self.device)

    def values(self) -> JsonObject:
        """The fields of `Placement`, without those of a subclass."""
        return {name: getattr(self, name) for name in Placement.model_fields}


FLOAT32 = Placement(precision="float32")
"""Exact weights on the default device."""
