"""Placement: where a model runs, in which precision, and with which attention kernel. Every model is opened with one.

Placement()                      an accelerator where there is one, else the CPU; the fastest precision there
Placement(device="cuda:1", precision="float32")

A precision setting's type names its use. `resolve_precisions` replaces each `auto` by the fastest precision on this
machine, so that stored settings name what was used.

The speed of bfloat16 and int8 relative to float32 comes from one probe of a second, which is stored for each host in
`speed.json` in the user's cache folder. Without a writable cache every process probes again. Where the probe fails,
`auto` is float32.

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
"""The encoder's precision in a retriever's untyped settings."""

Place: TypeAlias = tuple[str, ...]
"""The names that lead to a setting."""
Choose: TypeAlias = Callable[[Use, Place], Precision]

S = TypeVar("S", bound=Settings)


def resolve_precisions(settings: S, choose: Choose, began: JsonObject | None = None) -> S:
    """Replace every `auto`: by the precision in `began`, the stored settings of a resumed run, else by `choose`."""
    tree = dump_settings(settings)
    wishes = [place for place, _, value in named(type(settings), tree) if value == AUTO]
    if not wishes:
        return settings
    uses = {place: use for place, use, _ in named(type(settings), tree)}
    for place in wishes:
        before = _at(began, place)
        group = _at(tree, place[:-1])
        assert isinstance(group, dict)
        group[place[-1]] = before if before in PRECISIONS else choose(uses[place], place)
    unstored = {name: getattr(settings, name) for name, field in type(settings).model_fields.items() if field.exclude}
    return make_settings(type(settings), tree).model_copy(update=unstored)


def named(kind: type[BaseModel] | None, tree: JsonObject, above: Place = ()) -> Iterator[tuple[Place, Use, str]]:
    """Every precision in a tree of settings: place, use and value."""
    for name, value in tree.items():
        field = kind.model_fields.get(name) if kind is not None else None
        marks = field.metadata if field is not None else []
        own = getattr(kind, "USE", None) if name == "precision" else None  # that of a `Placement`
        use = next((mark for mark in marks if isinstance(mark, Use)), own)
        if isinstance(value, str) and (use is not None or (kind is None and name == ENCODER)):
            yield (*above, name), use or Use.ENCODING, value
        elif isinstance(value, dict) and any(isinstance(mark, Replaces) for mark in marks):
            for part, settings in value.items():
                yield from named(kind, cast(JsonObject, settings), (*above, name, part))
        elif isinstance(value, dict):
            yield from named(group_of(kind, name) if kind is not None else None, value, (*above, name))


def device_at(tree: JsonObject, place: Place) -> str:
    """The device of the model whose precision is at this place: that of the nearest group around it that names one."""
    groups = (_at(tree, place[:depth]) for depth in range(len(place) - 1, -1, -1))
    found = (group.get("device") for group in groups if isinstance(group, dict))
    return next((device for device in found if isinstance(device, str)), AUTO)


def _at(tree: Json, place: Place) -> Json:
    for name in place:
        tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


# --- the speed of this machine

FILE = "speed.json"
MIN_SPEEDUP = 1.2
"""Speed-up over float32 from which another precision is chosen; smaller ones are within the noise."""
SLOW = 0.5
"""Speed relative to float32 below which a chosen precision causes a warning."""
WIDE = 256
"""Hidden size from which sampling may use bfloat16. Narrower models (the laptop policy has 128) gained nothing."""
PROBE_TIMEOUT_S = 120.0

Ratio: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Speedups(BaseModel):
    """How many times as fast as float32 this machine is."""

    model_config = ConfigDict(frozen=True)

    many_rows: Ratio
    """A layer in bfloat16 over all tokens of many rows, as in training and encoding."""
    few_rows: Ratio
    """A layer in bfloat16 over one token of each row, as in sampling."""
    int8_search: Ratio
    """A scan of vectors in int8."""

    def bfloat16(self, use: Use) -> float:
        return self.few_rows if use is Use.SAMPLING else self.many_rows


class _SpeedFile(BaseModel):
    """The file of all hosts."""

    schema_: Literal[2] = Field(alias="schema")
    hosts: dict[str, Speedups]


class Choice(NamedTuple):
    """The choice of `auto`, with its reason."""

    taken: str
    why: str


def fastest(use: Use, width: int = WIDE, device: str = AUTO) -> Precision:
    """The precision of `auto` for a model of this width on a device."""
    if use is Use.SAMPLING and width < WIDE:
        return "float32"
    if (place := device_of(device)).type != "cpu":
        return "bfloat16" if multiplies_bfloat16(place) else "float32"
    found = speedups()
    return "bfloat16" if found is not None and found.bfloat16(use) >= MIN_SPEEDUP else "float32"


def precision_of(requested: PrecisionSetting, use: Use, width: int = WIDE, device: str = AUTO) -> Precision:
    """The setting's precision, with `auto` resolved."""
    return fastest(use, width, device) if requested == "auto" else requested


def resolve_here(
    settings: S,
    began: JsonObject | None = None,
    width_at: Callable[[Place], int] = lambda _: WIDE,
) -> S:
    """Replace every `auto`: by the precision in `began`, else by the fastest one on the model's device.

    `width_at` gives the hidden size of a setting's model.
    """
    tree = dump_settings(settings)
    return resolve_precisions(settings, lambda use, at: fastest(use, width_at(at), device_at(tree, at)), began)


def warning(settings: Settings) -> str:
    """One sentence, once a process, when the settings name a precision that is slow here; else empty."""
    tree = dump_settings(settings)
    for place, use, value in named(type(settings), tree):
        if value != "bfloat16" or device_of(device_at(tree, place)).type != "cpu" or _warned.is_set():
            continue
        if (found := speedups()) is not None and (ratio := found.bfloat16(use)) < SLOW:
            _warned.set()
            return (
                f"{'.'.join(place)}=bfloat16 is {1 / ratio:.2g} times slower than float32 on this machine "
                f"({instructions()}); take auto"
            )
    return ""


def described(use: Use) -> Choice:
    """The choice for a wide enough model, with the measured reason. Raises `OSError` when the probe failed."""
    if (place := device_of()).type != "cpu":
        has = "multiplies" if multiplies_bfloat16(place) else "does not multiply"
        return Choice(fastest(use), f"{place} {has} bfloat16 natively")
    if (found := speedups()) is None:
        raise OSError("the probe, a process of its own that multiplies for a second, failed")
    return Choice(fastest(use), f"bfloat16 has {found.bfloat16(use):.2g} × the speed of float32")


# --- the probe, and what is stored of it

_warned = threading.Event()
_probing = threading.Lock()


def speedups() -> Speedups | None:
    """The speed-ups of this machine, stored or probed; `None` when the probe failed."""
    with _probing:
        return _speedups(cache_file(), host_digest())


def cache_file() -> Path | None:
    """The file of stored speed-ups; `None` for a user without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "coseek" / FILE
    except RuntimeError:
        return None


@cache
def _speedups(path: Path | None, host: str) -> Speedups | None:
    hosts = {} if path is None else _read(path)
    if host not in hosts:
        command = [sys.executable, "-P", str(Path(__file__).with_name("probe.py"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
            hosts[host] = Speedups.model_validate_json(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return None
        if path is not None:
            with suppress(OSError, CoseekError):  # a folder that takes no files: the next process probes again
                write_json(path, _SpeedFile(schema=2, hosts=hosts).model_dump(by_alias=True))
    return hosts[host]


def _read(path: Path) -> dict[str, Speedups]:
    """The stored hosts; empty when the file is missing or invalid."""
    try:
        return _SpeedFile.model_validate(read_json(path)).hosts
    except (OSError, DataError, ValueError):
        return {}


if TYPE_CHECKING:
    import torch

Attention: TypeAlias = Literal["sdpa", "eager"]


class DevicePlacement(Settings):
    """Where a module is, and its attention kernel."""

    device: str = AUTO
    """`cpu`, `cuda`, `cuda:1` …; `auto` is an accelerator where there is one (in a distributed worker its own)."""
    attention: Attention = "sdpa"
    """Attention kernel: `sdpa` is torch's fused one, where the architecture has it; `eager` is plain operations."""

    def torch_device(self) -> "torch.device":
        """Raises `SettingError` for a device that is not here."""
        return device_of(self.device)

    def in_float32(self) -> "Placement":
        """The same with float32 weights, which a trainer updates."""
        return Placement(device=self.device, attention=self.attention, precision="float32")


class Placement(DevicePlacement):
    """Where a model runs, in which precision, and with which attention kernel."""

    USE: ClassVar[Use] = Use.SAMPLING
    """The use for which `auto` chooses the precision."""

    precision: PrecisionSetting = "auto"
    """Precision of weights and cache; `auto` is bfloat16 where it is clearly faster: on most accelerators, and on some
    processors (`coseek doctor` tells)."""

    def precision_at(self, width: int = WIDE) -> Precision:
        """The precision for a model of this hidden size."""
        return precision_of(self.precision, self.USE, width, self.device)

    def values(self) -> JsonObject:
        """This placement alone, for other settings that hold one."""
        return {name: getattr(self, name) for name in Placement.model_fields}


FLOAT32 = Placement(precision="float32")
"""Exact weights on the default device."""
