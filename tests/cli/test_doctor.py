"""The doctor tries things, and what it finds is told plainly."""

import json

import pytest
from tests.cli.conftest import Type

from coseek.cli.doctor import CHECKS, Health, check


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
    assert (found.health, found.remedy) == (Health.MISSING, "pip install 'coseek[train]'")


def test_a_part_that_fails_is_broken_and_says_why() -> None:
    found = check("files", lambda: fails_with(OSError("the disk is full")), "free some space")()
    assert (found.health, found.detail, found.remedy) == (Health.BROKEN, "OSError: the disk is full", "free some space")


def test_a_part_that_works_says_what_was_seen() -> None:
    found = check("bm25", lambda: "found it", "")()
    assert (found.health, found.detail) == (Health.WORKS, "found it")


@pytest.mark.parametrize("trial", CHECKS[:4])
def test_the_core_works_without_torch(trial: object) -> None:
    assert callable(trial)
    assert trial().health is Health.WORKS
