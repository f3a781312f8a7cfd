"""Speed: how fast one kind of arithmetic is beside another on this machine, timed once and kept, and what is chosen.

A trial takes a second and is kept in `speed.json` in the user's cache folder, by all that its result depends on
(`Host`). Where that folder cannot be written, every process tries anew.

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

from coseek.core.errors import CoseekError
from coseek.core.files import JsonObject, write_json
from coseek.core.settings import Settings, dump_settings
from coseek.hardware.host import Host
from coseek.hardware.precision import Place, Precision, PrecisionSetting, S, Use, named, resolve_precisions

SCHEMA = 1
FILE = "speed.json"
CLEARLY = 1.2
"""The other kind is taken from so many times float32's speed on: what is nearly as fast may measure either way."""
SLOW = 0.5
"""Below so much of float32's speed, whoever named the other kind is told."""
WIDE = 256
"""Width of a model's residual stream from which sampling may take bfloat16. In narrower ones (the laptop policy has
128) little of the time is products of matrices, and bfloat16 was no faster."""
PATIENCE_S = 120.0
"""Seconds after which a trial is given up: on a machine that is busy beyond measure nothing is found out."""

MANY, FEW = "linear/256/384/1536", "linear/64/512/1536"
"""A layer over the tokens of many rows, and over one token of each row: rows, inner and outer width."""
TRIALS = {Use.TRAINING: MANY, Use.ENCODING: MANY, Use.SAMPLING: FEW}


class Timing(NamedTuple):
    """The seconds that the same work took in float32, and in another kind of numbers."""

    float32_s: float
    other_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast the other kind is."""
        return self.float32_s / self.other_s

    @property
    def wins(self) -> bool:
        return self.ratio >= CLEARLY


class Choice(NamedTuple):
    """What `auto` comes to."""

    taken: str
    why: str


def fastest(use: Use, width: int = WIDE, device: str | None = None) -> Precision:
    """The precision that `auto` stands for, in a model of this width. `device`: `cpu` or `cuda`; where models are put
    on this machine when not given."""
    if use is Use.SAMPLING and width < WIDE:
        return "float32"
    if _on_gpu(device):
        return _native()
    found = precision_pace(use)
    return "bfloat16" if found is not None and found.wins else "float32"


def precision_of(wish: PrecisionSetting, use: Use, width: int = WIDE, device: str | None = None) -> Precision:
    """What is wished for, by its name."""
    return fastest(use, width, device) if wish == "auto" else wish


def resolve_here(
    settings: S,
    began: JsonObject | None = None,
    width_at: Callable[[Place], int] = lambda _: WIDE,
    device: str | None = None,
) -> S:
    """The settings with a name in place of every `auto`: the one that `began` has there, else what is fastest here.
    `width_at` says how wide the model is that a setting is for."""
    return resolve_precisions(settings, lambda use, place: fastest(use, width_at(place), device), began)


def warning(settings: Settings) -> str:
    """One sentence, the first time in this process, when the settings name a precision that is slow here."""
    slow = [
        (place, found)
        for place, use, value in named(type(settings), dump_settings(settings))
        if value == "bfloat16" and not _on_gpu(None)
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
    """float32 beside bfloat16 on the processor; `None` where no trial could be made."""
    return _pace(TRIALS[use], (MANY, FEW))


def search_pace(dim: int, dtype: str) -> Timing | None:
    """A scan of vectors as they are kept (`float32` or `float16`), beside one of their int8 copy."""
    name = f"scan/{dim}/{dtype}"
    return _pace(name, (name,))


def described(use: Use) -> Choice:
    """What is taken for a wide enough model, with the figure that decided."""
    if _on_gpu(None):
        has = "multiplies" if _native() == "bfloat16" else "does not multiply"
        return Choice(_native(), f"the GPU {has} bfloat16 natively")
    found = precision_pace(use)
    return Choice(fastest(use), f"bfloat16 has {times(found)} the speed of float32")


def times(found: Timing | None) -> str:
    """A ratio in words; an `OSError` where no trial could be made."""
    if found is None:
        raise OSError("the trial, a process of its own that multiplies for a second, did not end well")
    return f"{found.ratio:.2g} ×"


def _on_gpu(device: str | None) -> bool:
    import torch

    return torch.cuda.is_available() if device is None else device.startswith("cuda")


def _native() -> Precision:
    import torch

    return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"


# --- trials, and what is kept of them


@dataclass
class ProbeCache:
    """What this process has found out and said."""

    paces: dict[tuple[str, ...], Timing | None] = field(default_factory=dict)
    """By file, host and name; `None` for a trial that failed."""
    warned: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


_memory = ProbeCache()


def cache_file() -> Path | None:
    """Where trials are kept; `None` for a user without a home."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "coseek" / FILE
    except RuntimeError:
        return None


def _pace(name: str, together: Sequence[str]) -> Timing | None:
    """What is known of one trial. Where nothing is, it is made, and with it those that are made together."""
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
    """Time them; nothing where no process can be started, or it ends badly."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("benchmark.py")), *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        seconds = json.loads(done.stdout)
        read = {name: _read_pace(seconds[name]) for name in names}
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return {}
    return {name: one for name, one in read.items() if one is not None}


def _read_pace(value: object) -> Timing | None:
    """Two finite times above 0; anything else is nothing."""
    if not (isinstance(value, list) and len(value) == 2 and all(isinstance(one, float) for one in value)):
        return None
    found = Timing(*cast(list[float], value))
    return found if all(math.isfinite(one) and one > 0 for one in found) else None


def _read(path: Path | None) -> JsonObject:
    """The hosts of the file; none where it is missing, broken or somebody else's."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8")) if path is not None else {}
    except (OSError, ValueError, RecursionError):
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
