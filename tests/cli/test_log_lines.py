"""What is written into files and pipes: nothing is cut, and a line says when it was written and what is left to do."""

import re
from itertools import pairwise

import pytest

from coseek.cli.terminal import (
    QUIET_S,
    StageTimer,
    progress_bar,
    stamped,
    training_bar,
)

STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d "


class ByHand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> ByHand:
    return ByHand()


def test_a_line_in_a_file_says_the_date_the_time_and_the_zone() -> None:
    assert re.fullmatch(STAMP + "done", stamped("done"))


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
    said: list[int] = []
    pace = StageTimer("rl", 100, clock=clock)
    for done in range(1, 101):
        clock.now += 3
        pace.done = done
        if pace.due():
            said.append(done)
    assert said[0] == 1 and said[-1] == 100
    assert all((later - sooner) * 3 >= QUIET_S for sooner, later in pairwise(said[:-1]))


def test_short_work_says_nothing_in_a_file_and_long_work_does(
    clock: ByHand, capsys: pytest.CaptureFixture[str]
) -> None:
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
