"""Everything that opens a model puts it on the accelerator, and computes nowhere else.

There need be no accelerator: `tests/accelerator.py` is one in Python, which refuses what a GPU refuses. A process that
has it cannot be rid of it, so the openers run in a process of their own (`placement_run.py`).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.source_tree import ROOT

NAMES = (
    "an_agent_folder_runs",
    "a_generator_and_a_judge_score",
    "a_scorer_labels",
    "an_agent_and_a_likelihood_label",
    "an_encoder_indexes_and_searches",
    "a_cross_encoder_reranks",
    "an_agent_is_trained_and_measured",
    "a_retriever_is_trained_and_measured",
    "a_sampler_writes_what_it_writes_on_the_cpu",
    "an_update_is_that_of_the_cpu",
    "a_process_that_sees_eight_trains_on_one",
    "a_worker_has_the_device_of_its_rank_and_no_other",
    "a_device_that_is_named_is_taken",
    "the_doctor_says_where",
)
"""The cases of `placement_run.py`, which a process without its accelerator cannot import."""


@pytest.mark.slow
def test_everything_that_opens_a_model_runs_on_the_accelerator_and_nowhere_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.pipelines.placement_run", str(tmp_path)]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    failures = "\n".join(f"{name}: {row['failure']}" for name, row in rows.items() if row["failure"])
    assert rows == {name: {"ran_on": ["accel"], "mixed": [], "failure": ""} for name in NAMES}, failures
