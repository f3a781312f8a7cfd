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


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "count"), [("whole", 1), ("parts", 11)])
def test_everything_that_opens_a_model_runs_on_the_accelerator_and_nowhere_else(
    tmp_path: Path, cases: str, count: int
) -> None:
    command = [sys.executable, "-m", "tests.pipelines.placement_run", str(tmp_path), cases]
    paths = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    rows = json.loads(done.stdout.splitlines()[-1])
    failures = "\n".join(f"{name}: {row['failure']}" for name, row in rows.items() if row["failure"])
    assert len(rows) >= count
    assert rows == {name: {"ran_on": ["accel"], "mixed": [], "failure": ""} for name in rows}, failures
