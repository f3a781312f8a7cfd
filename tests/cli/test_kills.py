"""Fears about ends that nobody wanted: a result that a kill changes, hidden files that stay, a stop that says nothing.

A few trials of the campaign `python -m bench.kills`, and what a stopped command says.
"""

import signal
from pathlib import Path

import pytest
from bench.kill_faults import FAULTS
from bench.kills import campaign, chosen, differing, table
from tests.cli.test_resume import stop_midway

SMALL = "index-bm25,run,label-gold,export-atif,score"


def test_a_missing_file_counts_as_a_difference() -> None:
    assert differing({"a": "1", "b": "2"}, {"a": "1", "c": "2"}) == ["b", "c"]


@pytest.mark.slow
def test_a_disturbed_command_ends_as_if_it_had_not_been_and_leaves_nothing(tmp_path: Path) -> None:
    rows = campaign(chosen(SMALL), FAULTS, 14, 0, tmp_path)
    assert len(rows) == 14 and not [row for row in rows if row.faults], table(rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train-grpo", "train-ppo", "train-s3", "train-together", "index-dense"])
def test_a_killed_training_ends_with_the_same_weights_and_table(name: str, tmp_path: Path) -> None:
    rows = campaign(chosen(name), ["SIGKILL"], 2, 3, tmp_path, undisturbed_runs=1)
    assert len(rows) == 2 and not [row for row in rows if row.faults], table(rows)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_in_one_sentence_how_to_go_on(
    how: signal.Signals, code: int, world: Path, index: Path, tmp_path: Path
) -> None:
    words = ["run", str(world), "--split", "dev", "--agent", "expert", "--retriever", str(index), "--samples", "64"]
    done = stop_midway([*words, "--out", str(tmp_path / "run")], how, tmp_path / "run")
    assert done.returncode == code
    assert done.stderr.splitlines()[-1].endswith("Resume with: the same command with --resume")
    assert "Traceback" not in done.stderr and not list((tmp_path / "run").glob(".*"))
