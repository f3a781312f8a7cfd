"""Fears about the experiment with an injected gap: that the sampler is not as wrong as the table says, or does not
report the probabilities with which it sampled; that a second call makes everything again."""

import shutil
from pathlib import Path

import pytest
from bench.injected_gap import CORRECTIONS, GapStudy, compare, numbers, warm_run
from tests.pipelines.test_agent import TINY

from coseek.training.rl.update import logprob_gap
from coseek.training.trainer.batch import make_batch
from coseek.training.trainer.policy import Policy

PAID = (
    "rl=!replace {steps: 2, questions_per_step: 3, group_size: 2, kl: 0.05, "
    "overlong: {max_tokens: 400, margin_tokens: 390}}"
)
"""An untrained policy is never right; it is paid for being short, or at least held to its start."""
SETTINGS = [*TINY, PAID, "limits.max_turns=2", "limits.max_turn_tokens=24"]


@pytest.mark.slow
def test_every_arm_is_made_once_by_a_sampler_that_is_wrong_by_the_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = warm_run(tmp_path / "run", SETTINGS)
    policy = run / "policy" / "warm" / "model.safetensors"
    made = policy.stat().st_mtime_ns
    compare(run, tmp_path / "out", [0.2], [0], 2)
    arms = {
        (path.parts[-4], path.parts[-3]): path for path in (tmp_path / "out").glob("steps-2/gap-*/*/seed-0/arm.json")
    }
    assert arms.keys() == {("gap-0", "off"), *(("gap-0.2", how) for how in CORRECTIONS)}
    found = {arm: numbers(path) for arm, path in arms.items()}
    assert found["gap-0", "off"]["logprob_gap"] < 1e-4 and found["gap-0", "off"]["noise"] == 0
    for how in CORRECTIONS:
        assert 0.1 < found["gap-0.2", how]["logprob_gap"] < 0.4
        assert (found["gap-0.2", how]["importance"] > 0.5) == (how != "off")
    table = capsys.readouterr().out

    study = GapStudy(run)
    backend = study.backend(study.settings("off", 0, 2), found["gap-0.2", "off"]["noise"])
    backend.refresh()
    batch = make_batch(study.roll_out(study.sampler(backend, 1.0), study.dev[:6], range(6)))
    reported = Policy(backend.copy, backend.policy.settings, 0)
    assert logprob_gap(reported, batch, 6)["logprob_gap_max"] < 1e-3
    assert logprob_gap(backend.policy, batch, 6)["logprob_gap"] > 0.1

    shutil.rmtree(arms["gap-0.2", "mask"].parent)
    times = {arm: path.stat().st_mtime_ns for arm, path in arms.items() if path.exists()}
    assert warm_run(run, SETTINGS) == run and (run / "policy" / "warm" / "model.safetensors").stat().st_mtime_ns == made
    compare(run, tmp_path / "out", [0.2], [0], 2)
    assert {arm: arms[arm].stat().st_mtime_ns for arm in times} == times
    assert capsys.readouterr().out == table
