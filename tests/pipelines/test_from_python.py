"""The page on training from Python: its blocks run in order, and each function is short."""

import re
from pathlib import Path

import pytest

import coseek

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "from-python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.slow
def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "notebook"}
    for number, block in enumerate(BLOCKS):
        cell = tmp_path / f"cell-{number}.py"  # a notebook keeps the source of its cells, too
        cell.write_text(block, encoding="utf-8")
        exec(compile(block, str(cell), "exec"), names)  # noqa: S102 (our own page)
    trained = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert trained == ["estimator", "loss", "reward", "shelf", "tool"]
    kept = coseek.Run(next((tmp_path / "runs" / "shelf" / "rl" / "rollouts").iterdir()))
    assert all(hit.passage.text.startswith("Nothing is known") for run in kept.trajectories() for hit in run.hits)


def test_each_function_takes_at_most_eight_lines_of_a_notebook() -> None:
    functions = [[line for line in block.splitlines() if line.strip()] for block in BLOCKS if "def " in block]
    assert len(functions) == 6 and max(map(len, functions)) <= 8
