"""The notebooks run from their first cell to their last, on what is installed, and are kept without outputs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def code_of(path: Path) -> str:
    """The code cells, one after the other."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def test_there_are_notebooks() -> None:
    assert {path.stem for path in NOTEBOOKS} >= {"first_agent", "own_retriever", "reading_a_run"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_nbformat_4_without_outputs(path: Path) -> None:
    tree = json.loads(path.read_text(encoding="utf-8"))
    assert (tree["nbformat"], tree["nbformat_minor"]) == (4, 5)
    assert tree["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in tree["cells"]]
    assert len(set(ids)) == len(ids)
    for cell in tree["cells"]:
        assert cell["cell_type"] in ("code", "markdown") and cell["metadata"] == {}
        assert all(isinstance(line, str) for line in cell["source"])
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    """In one namespace, in a fresh interpreter and an empty folder."""
    (tmp_path / "cells.py").write_text(code_of(path), encoding="utf-8")
    command = [sys.executable, "-W", "error", "cells.py"]
    here = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=here)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
