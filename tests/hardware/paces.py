"""Paces that are handed in: a cache as an earlier process may have left it."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import pytest

from coseek.hardware import speed
from coseek.hardware.host import Host

FAST, SLOW = 2.5, 0.02
"""How many times as fast bfloat16 is on a processor that multiplies it, and on one that does not."""
SCAN = "scan/{dim}/{dtype}"


def kept(folder: Path, monkeypatch: pytest.MonkeyPatch, ratios: Mapping[str, float]) -> Path:
    """A user's cache folder in which these trials of this machine stand: name → how many times as fast the other kind
    was. The process knows of none yet."""
    host = Host.here()
    seconds = {name: [1.0, 1.0 / ratio] for name, ratio in ratios.items()}
    path = folder / "coseek" / speed.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {**asdict(host), "seconds": seconds}
    path.write_text(json.dumps({"schema": speed.SCHEMA, "hosts": {host.digest: row}}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    begun_anew(monkeypatch)
    return path


def processor(folder: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """The same for precisions alone: all of them as fast as this."""
    kept(folder, monkeypatch, {speed.MANY: ratio, speed.FEW: ratio})


def begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a new process of a machine without an accelerator: what this one has found out and said is forgotten."""
    monkeypatch.setattr(speed, "_memory", speed.ProbeCache())
    if find_spec("torch"):
        monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available=False: None)
