"""The doctor tries things, and what it finds is told plainly."""

import json
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Type
from tests.hardware.paces import FAST, SLOW, begun_anew, kept

from coseek.cli.commands.doctor import CHECKS, CheckStatus, check, exact_search, precision
from coseek.hardware.device import instructions
from coseek.hardware.placement import Use


@pytest.mark.slow
def test_everything_works_where_the_tests_run(coseek: Type) -> None:
    outcome = coseek("doctor", "--json")
    findings = json.loads(outcome.out)
    assert outcome.code == 0, outcome.out
    assert {finding["health"] for finding in findings} == {"works"}
    assert len(findings) == len(CHECKS)


def fails_with(error: Exception) -> str:
    raise error


def test_a_missing_library_comes_with_the_line_that_installs_it() -> None:
    found = check("torch", lambda: fails_with(ModuleNotFoundError(name="torch.nn")), "")()
    assert (found.health, found.remedy) == (CheckStatus.MISSING, "pip install 'coseek[train]'")


def test_a_part_that_fails_is_broken_and_says_why() -> None:
    found = check("files", lambda: fails_with(OSError("the disk is full")), "free some space")()
    assert (found.health, found.detail, found.remedy) == (
        CheckStatus.BROKEN,
        "OSError: the disk is full",
        "free some space",
    )


@pytest.mark.parametrize("trial", CHECKS[:4])
def test_the_core_works_without_torch(trial: object) -> None:
    assert callable(trial)
    assert trial().health is CheckStatus.WORKS


@pytest.mark.parametrize(("ratio", "taken", "way"), [(FAST, "bfloat16", "int8"), (SLOW, "float32", "exact")])
def test_the_doctor_names_what_auto_takes_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ratio: float, taken: str, way: str
) -> None:
    kept(tmp_path, monkeypatch, ratio, ratio, ratio)
    told, found = precision(), exact_search()
    for use in Use:
        assert f"{use} in {taken} (bfloat16 has {ratio:.2g} × the speed of float32)" in told
    assert f"auto is {way} for a million vectors" in found and f"{ratio:.2g} × the speed" in found
    assert told.endswith(instructions()) and found.endswith(instructions())


def test_a_probe_that_fails_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    begun_anew(monkeypatch)
    found = check("precision", precision, "use precision float32")()
    assert (found.health, found.remedy) == (CheckStatus.BROKEN, "use precision float32")
    assert "a process of its own" in found.detail
