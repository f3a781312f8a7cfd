"""Simulated machines of a given speed, by the cache of an earlier process."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from coseek.hardware import placement
from coseek.hardware.device import host_digest

FAST, SLOW = 2.5, 0.02
"""Speed-up of bfloat16 on a processor that multiplies it natively, and on one that does not."""


def kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, many_rows: float, few_rows: float = SLOW, int8_search: float = SLOW
) -> Path:
    """Write a user's cache with these speed-ups of this machine, and clear what the process knows."""
    stored = {"many_rows": many_rows, "few_rows": few_rows, "int8_search": int8_search}
    path = folder / "coseek" / placement.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 2, "hosts": {host_digest(): stored}}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    forget_speeds(monkeypatch)
    return path


def processor(folder: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """Simulate a machine with this speed-up of bfloat16, for few and many rows."""
    kept(folder, monkeypatch, ratio, ratio)


def forget_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a new process on a machine without an accelerator."""
    placement._speedups.cache_clear()
    placement._warned.clear()
    if find_spec("torch"):
        monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available=False: None)
