"""Fear: a training that changes no weight, or compares a run with none, looks like any other."""

from pathlib import Path

from tests.watching import Heard

from coseek.training.rl.algorithm import open_algorithm
from coseek.training.rl.callbacks import QUIET_STEPS, LearnsNothing, StepReport
from coseek.training.rl.settings import RlSettings


def heard(settings: RlSettings, *rows: dict[str, float]) -> list[str]:
    progress = Heard()
    watch = LearnsNothing(open_algorithm(settings), settings, progress)
    watch.begin()
    for step, row in enumerate(rows, start=1):
        watch.after_step(StepReport(step, len(rows), row))
    return progress.warned


def test_a_group_of_one_run_is_said_where_runs_are_compared(tmp_path: Path) -> None:
    [said] = heard(RlSettings(group_size=1))
    assert said.startswith("rl.group_size=1") and "rl.algorithm=reinforce-pp" in said
    assert not heard(RlSettings(group_size=1, algorithm="ppo"))
    assert not heard(RlSettings(group_size=2))


def test_steps_without_a_gradient_are_said_once_until_something_is_learnt_again() -> None:
    flat, dropped = {"updates": 2.0, "grad_norm": 0.0, "reward": 0.0}, {"updates": 0.0, "reward": 0.0}
    moved = {"updates": 2.0, "grad_norm": 0.1}
    assert not heard(RlSettings(), *[flat] * (QUIET_STEPS - 1), moved, flat)
    assert len(heard(RlSettings(), *[dropped] * (3 * QUIET_STEPS))) == 1
    assert len(heard(RlSettings(), *[flat] * QUIET_STEPS, moved, *[dropped] * QUIET_STEPS)) == 2
