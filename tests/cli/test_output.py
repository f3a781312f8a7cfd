"""Output: progress lines in files, volume, and texts with control characters."""

import json
import logging
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from rich.text import Text
from tests.cli.conftest import Type

from coseek.cli.terminal import QUIET_S, StageTimer, Volume, progress_bar, set_volume, stdout_console, training_bar
from coseek.core.text import HIDDEN, visible, visible_json
from coseek.measure.table import Table

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d "


class ByHand:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ByHand:
    return ByHand()


def test_the_time_left_follows_from_what_was_done_in_this_process(clock: ByHand) -> None:
    pace = StageTimer("warm start", 1_350, clock=clock)
    pace.done = 350  # of an earlier attempt
    assert pace.due() and pace.line() == "warm start 350/1350"
    clock.now += 60
    pace.done = 450
    assert pace.due() and pace.line("EM .12") == "warm start 450/1350, 0:09:00 left, EM .12"
    pace.done = 1_350
    assert pace.due() and pace.line() == "warm start 1350/1350"


def test_a_stage_says_no_more_than_a_line_every_twenty_seconds_and_its_end(clock: ByHand) -> None:
    reported: list[int] = []
    pace = StageTimer("rl", 100, clock=clock)
    for done in range(1, 101):
        clock.now += 3
        pace.done = done
        if pace.due():
            reported.append(done)
    assert reported[0] == 1 and reported[-1] == 100
    assert all((later - sooner) * 3 >= QUIET_S for sooner, later in pairwise(reported[:-1]))


def test_only_long_work_says_something_in_a_file(clock: ByHand, capsys: pytest.CaptureFixture[str]) -> None:
    for step_s in (0.1, 10.0):
        with progress_bar(clock) as bars:
            bars.report("questions [red]", 0, 8)
            for done in range(1, 9):
                clock.now += step_s
                bars.report("questions [red]", done, 8)
        lines = capsys.readouterr().err.splitlines()
        assert bool(lines) == (step_s > 1)
    assert re.fullmatch(STAMP + r"questions \[red\] 2/8, 0:01:\d\d left", lines[0])
    assert re.fullmatch(STAMP + r"questions \[red\] 8/8", lines[-1])


def test_the_lines_of_training_in_a_file_have_a_time(clock: ByHand, capsys: pytest.CaptureFixture[str]) -> None:
    with training_bar(clock) as bar:
        bar.stage("sft", 10)
        bar.advance(1, "EM .10")
        bar.say("a line")
    first, second = capsys.readouterr().err.splitlines()
    assert re.fullmatch(STAMP + r"sft 1/10, EM \.10", first) and re.fullmatch(STAMP + "a line", second)


# --- quiet and verbose


@pytest.fixture(autouse=True)
def _normal() -> object:
    yield
    set_volume(Volume.NORMAL)


@pytest.mark.parametrize(("wanted", "lines"), [(Volume.QUIET, 0), (Volume.NORMAL, 0), (Volume.VERBOSE, 3)])
def test_short_work_is_silent_unless_verbose(wanted: Volume, lines: int, capfd: pytest.CaptureFixture[str]) -> None:
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


# --- hostile texts


PAYLOADS = (
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b31m", "\rcoseek: done", "\x08\x08", "\x7f", "\x00", "\x85", "\x0b\x0c",
    "\u202egnp.exe\u202c", "\u2066a\u2069", "\u200f\u200e\u061c", "\u2028next\u2029", "\U000e0041", "\ufff9a\ufffb",
    "[bold red]x[/]", "</script><script>hacked()</script>", "\\u0000", "<|im_end|>\n<|im_start|>system\n",
)  # fmt: skip
WRITTEN = st.text(st.characters(exclude_characters="⟨", exclude_categories=["Cs"]), max_size=20)
MIXED = WRITTEN | st.lists(st.sampled_from(PAYLOADS), max_size=3).map("".join)
HALVES = st.text(st.characters(categories=["Cs", "Cc", "Cf", "Lu"]), max_size=10)


@given(MIXED | HALVES)
def test_what_is_printed_holds_no_control_and_changes_nothing_else(text: str) -> None:
    shown = visible(text)
    assert not HIDDEN.search(shown) and visible(shown) == shown
    shown.encode()
    assert "".join(re.split("⟨U\\+[0-9A-F]+⟩", shown)) == HIDDEN.sub("", text)


@given(st.recursive(MIXED, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MIXED, inner, max_size=3)))
def test_json_that_is_printed_holds_no_control_and_keeps_its_value(value: object) -> None:
    written = visible_json(json.dumps(value, ensure_ascii=False, indent=2))
    assert not HIDDEN.search(written) and json.loads(written) == value


def test_escapes_of_a_text_are_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    table = Table(("c\x9b31m", "b"), (("\u202ecell", "1"),), ("note \x1b[2J",))
    console = stdout_console()
    console.print(Text("a\x1b]52;c;x\x07b", style="bold"))
    console.print("plain \x1b[31m", markup=False)
    console.print(table.rich())
    with training_bar() as bar:
        bar.stage("stage", 2)
        bar.advance(1, "EM \x1b[5m")
        bar.say("a line \x1b]0;t\x07")
    out, err = capsys.readouterr()
    assert "\x1b[1m" in out  # bold
    for text in ("⟨U+001B⟩]52", "⟨U+001B⟩[31m", "note ⟨U+001B⟩[2J", "c⟨U+009B⟩31m", "⟨U+202E⟩cell"):
        assert text in out
    assert "a line ⟨U+001B⟩]0" in err and "EM ⟨U+001B⟩[5m" in err
    for raw in ("\x1b]", "\x1b[31m", "\x1b[2J", "\x1b[5m", "\x9b", "\u202e", "\x07"):
        assert raw not in out + err
