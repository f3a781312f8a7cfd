"""Machines of given speed: a cache as an earlier process may have left it."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from coseek.hardware import placement
from coseek.hardware.device import host_digest

FAST, SLOW = 2.5, 0.02
"""How many times as fast bfloat16 is on a processor that multiplies it, and on one that does not."""


def kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, many_rows: float, few_rows: float = SLOW, int8_search: float = SLOW
) -> Path:
    """A user's cache folder with these speed-ups of this machine. The process knows of none yet."""
    stored = {"many_rows": many_rows, "few_rows": few_rows, "int8_search": int8_search}
    path = folder / "coseek" / placement.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schema": 2, "hosts": {host_digest(): stored}}))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    begun_anew(monkeypatch)
    return path


def processor(folder: Path, monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """A machine with this speed-up of bfloat16, whatever the rows."""
    kept(folder, monkeypatch, ratio, ratio)


def begun_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process of a machine without an accelerator: nothing is known or said."""
    placement._speedups.cache_clear()
    placement._warned.clear()
    if find_spec("torch"):
        monkeypatch.setattr("torch.accelerator.current_accelerator", lambda check_available=False: None)
