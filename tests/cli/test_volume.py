"""Volume: `--quiet` prints no progress, `--verbose` prints every report, and the result is the same."""

import logging
from pathlib import Path

import pytest
from tests.cli.conftest import Type

from coseek.cli.main import COMMANDS
from coseek.cli.terminal import Volume, progress_bar, set_volume, training_bar
from coseek.core.plugins import plugin_names


@pytest.fixture(autouse=True)
def _normal() -> object:
    yield
    set_volume(Volume.NORMAL)


@pytest.mark.parametrize(("wanted", "lines"), [(Volume.QUIET, 0), (Volume.NORMAL, 0), (Volume.VERBOSE, 3)])
def test_short_work_is_silent_unless_every_report_is_wanted(
    wanted: Volume, lines: int, capfd: pytest.CaptureFixture[str]
) -> None:
    set_volume(wanted)
    with progress_bar() as bars:
        for done in (1, 2, 3):
            bars.report("questions", done, 3)
    assert len(capfd.readouterr().err.splitlines()) == lines


@pytest.mark.parametrize("wanted", Volume)
def test_an_alarm_is_read_at_every_volume(wanted: Volume, capfd: pytest.CaptureFixture[str]) -> None:
    set_volume(wanted)
    with training_bar() as bar:
        bar.stage("rl", 4)
        bar.warn("alarm no-search in step 3")
    assert capfd.readouterr().err.count("alarm no-search in step 3") == 1


def test_a_quiet_run_has_the_result_of_a_loud_one(coseek: Type, world: Path, index: Path, tmp_path: Path) -> None:
    run = ("run", world, "--split", "test", "--count", 4, "--agent", "rules", "--retriever", index)
    quiet = coseek(*run, "--out", tmp_path / "r1", "--quiet")
    loud = coseek(*run, "--out", tmp_path / "r2", "-v")
    assert quiet.code == loud.code == 0 and quiet.err == "" and "questions 4/4" in loud.err
    assert len(loud.err.splitlines()) >= 4
    assert quiet.out.replace("r1", "r2") == loud.out
    assert logging.getLogger("coseek").level == logging.INFO
    coseek("search", index, "mayor")
    assert logging.getLogger("coseek").level == logging.WARNING


@pytest.mark.parametrize("name", plugin_names(COMMANDS))
def test_every_command_takes_the_options(name: str, coseek: Type) -> None:
    shown = coseek(name, "--help").out
    assert ("--quiet" in shown and "--verbose" in shown) or "COMMAND" in shown
