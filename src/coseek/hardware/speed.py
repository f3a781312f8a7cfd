"""Relative speeds of precisions on this machine, and the choice of `auto`.

A trial takes a second and is stored in `speed.json` in the user's cache folder, by `Host`. Without a writable cache
every process makes its own trials.

    {"schema": 1, "hosts": {DIGEST: {"instructions": "AVX512 …", "cpu": "…", "torch": "…",
                                     "seconds": {"linear/256/384/1536": [float32, bfloat16], "scan/384/float32": […]}}}}
"""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

from coseek.core.errors import CoseekError, DataError
from coseek.core.files import JsonObject, read_json, write_json
from coseek.core.settings import Settings, dump_settings
from coseek.hardware.device import AUTO, device_of, multiplies_bfloat16
from coseek.hardware.host import Host
from coseek.hardware.precision import (
    Place,
    Precision,
    PrecisionSetting,
    S,
    Use,
    device_at,
    named,
    resolve_precisions,
)

SCHEMA = 1
FILE = "speed.json"
CLEARLY = 1.2
"""Speed-up over float32 from which another precision is chosen; smaller ones are within the noise."""
SLOW = 0.5
"""Speed relative to float32 below which a chosen precision causes a warning."""
WIDE = 256
"""Hidden size from which sampling may use bfloat16. Narrower models (the laptop policy has 128) gained nothing."""
PATIENCE_S = 120.0
"""Timeout of a trial."""

MANY, FEW = "linear/256/384/1536", "linear/64/512/1536"
"""A layer over all tokens of many rows, and over one token of each row: rows, inner and outer width."""
TRIALS = {Use.TRAINING: MANY, Use.ENCODING: MANY, Use.SAMPLING: FEW}


class Timing(NamedTuple):
    """Seconds of the same work in float32 and in another precision."""

    float32_s: float
    other_s: float

    @property
    def ratio(self) -> float:
        """The speed-up of the other precision."""
        return self.float32_s / self.other_s

    @property
    def wins(self) -> bool:
        return self.ratio >= CLEARLY


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
    found = precision_pace(use)
    return "bfloat16" if found is not None and found.wins else "float32"


def precision_of(wish: PrecisionSetting, use: Use, width: int = WIDE, device: str = AUTO) -> Precision:
    """The setting's precision, with `auto` resolved."""
    return fastest(use, width, device) if wish == "auto" else wish


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
    slow = [
        (place, found)
        for place, use, value in named(type(settings), tree)
        if value == "bfloat16" and device_of(device_at(tree, place)).type == "cpu"
        if (found := precision_pace(use)) is not None and found.ratio < SLOW
    ]
    if not slow or _memory.warned:
        return ""
    _memory.warned = True
    place, found = slow[0]
    return (
        f"{'.'.join(place)}=bfloat16 is {1 / found.ratio:.2g} times slower than float32 on this machine "
        f"({Host.here().instructions}); take auto"
    )


def precision_pace(use: Use) -> Timing | None:
    """bfloat16 against float32 on the CPU; `None` when the trial failed."""
    return _pace(TRIALS[use], (MANY, FEW))


def search_pace(dim: int, dtype: str) -> Timing | None:
    """An int8 scan of vectors against one in their stored `dtype` (`float32` or `float16`)."""
    name = f"scan/{dim}/{dtype}"
    return _pace(name, (name,))


def described(use: Use) -> Choice:
    """The choice for a wide enough model, with the measured reason."""
    if (place := device_of()).type != "cpu":
        has = "multiplies" if multiplies_bfloat16(place) else "does not multiply"
        return Choice(fastest(use), f"{place} {has} bfloat16 natively")
    found = precision_pace(use)
    return Choice(fastest(use), f"bfloat16 has {times(found)} the speed of float32")


def times(found: Timing | None) -> str:
    """A speed-up in words. Raises `OSError` when the trial failed."""
    if found is None:
        raise OSError("the trial, a process of its own that multiplies for a second, did not end well")
    return f"{found.ratio:.2g} ×"


# --- trials, and what is kept of them


@dataclass
class ProbeCache:
    """The trials and warnings of this process."""

    paces: dict[tuple[str, ...], Timing | None] = field(default_factory=dict)
    """By file, host and name; `None` for a trial that failed."""
    warned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_memory = ProbeCache()


def cache_file() -> Path | None:
    """The file of stored trials; `None` for a user without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "coseek" / FILE
    except RuntimeError:
        return None


def _pace(name: str, together: Sequence[str]) -> Timing | None:
    """The stored trial, or a new one, made with those of `together`."""
    host, path = Host.here(), cache_file()
    place = (str(path), host.digest)
    with _memory.lock:
        if (*place, name) not in _memory.paces:
            found = {one: kept for one in together if (kept := _kept(path, host, one)) is not None}
            if name not in found:
                found = _try(together)
                if found and path is not None:
                    _keep(path, host, found)
            _memory.paces |= {(*place, one): found.get(one) for one in {name, *found}}
        return _memory.paces[*place, name]


def _try(names: Sequence[str]) -> dict[str, Timing]:
    """Make trials in a new process; empty when it fails."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("benchmark.py")), *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        seconds = json.loads(done.stdout)
        read = {name: _read_pace(seconds[name]) for name in names}
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return {}
    return {name: one for name, one in read.items() if one is not None}


def _read_pace(value: object) -> Timing | None:
    """Two finite times above 0, else `None`."""
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(one, float) for one in value)):
        return None
    found = Timing(*cast(list[float], value))
    return found if all(math.isfinite(one) and one > 0 for one in found) else None


def _read(path: Path | None) -> JsonObject:
    """The hosts of the file; empty where it is missing or broken."""
    try:
        tree = read_json(path) if path is not None else {}
    except (OSError, DataError):
        return {}
    hosts = tree.get("hosts") if isinstance(tree, dict) and tree.get("schema") == SCHEMA else None
    return hosts if isinstance(hosts, dict) else {}


def _kept(path: Path | None, host: Host, name: str) -> Timing | None:
    entry = _read(path).get(host.digest)
    seconds = entry.get("seconds") if isinstance(entry, dict) else None
    return _read_pace(seconds.get(name)) if isinstance(seconds, dict) else None


def _keep(path: Path, host: Host, found: Mapping[str, Timing]) -> None:
    hosts = _read(path)
    entry = hosts.get(host.digest)
    seconds = entry.get("seconds") if isinstance(entry, dict) else None
    hosts[host.digest] = {
        "instructions": host.instructions,
        "cpu": host.cpu,
        "torch": host.torch,
        "seconds": {**(seconds if isinstance(seconds, dict) else {}), **{name: [*one] for name, one in found.items()}},
    }
    try:
        write_json(path, {"schema": SCHEMA, "hosts": hosts})
    except (OSError, CoseekError):  # a folder that takes no files: the next process tries anew
        return
