"""The numbers of an arm, read from the folder that its command wrote, whatever command that was."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from coseek.agents.protocol import stored_protocol
from coseek.core.errors import DataError
from coseek.core.files import read_jsonl
from coseek.data.run import Run
from coseek.measure.report import ROWS
from coseek.measure.score import ScoredRun, score_run
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import load_recipe
from coseek.pipelines.agent_results import scored
from coseek.pipelines.table_rows import cell_folder, rows_of
from coseek.studies.study import Arm
from coseek.studies.verdict import Values

STEP_PARTS = ("rollout_s", "reward_s", "advantages_s", "update_s")
"""Parts of a training step, whose seconds are summed to `step_s`."""


def values_of(arm: Arm, folder: Path) -> Values:
    """Question → metrics. The questions of a trained agent are those of all sets of its table."""
    if arm.curve:
        return dict(steps_of(folder))
    if not arm.part and (folder / ROWS).exists():
        return dict(rows_in(folder / ROWS, arm.row))
    if not arm.part and (folder / "recipe.yaml").exists():
        return dict(of_table(folder, arm.row))
    run = Run(folder / arm.part)
    if not run.is_closed:  # questions are missing
        raise DataError(f"{run.folder} is not finished; the same command with --resume goes on")
    stored_protocol(run)
    return of_run(score_run(run.folder.name, run.trajectories()))


def of_run(run: ScoredRun) -> Values:
    return {ident: dict(row.metrics) for ident, row in run.questions.items() if row.metrics}


def rows_in(path: Path, name: str) -> Iterator[tuple[str, dict[str, float]]]:
    """The rows of one run or retriever in a file of scores. `name` is its name, or the end of `RUN → generator` or
    `RUN, SERVING`; a file with a single run needs no name."""
    rows = [
        {"run": row["retriever"], "id": row["question"], **row} if "retriever" in row else row
        for _, row in read_jsonl(path)
    ]
    runs = list(dict.fromkeys(str(row["run"]) for row in rows))
    matches = [run for run in runs if run.endswith((f" → {name}", f", {name}"))]
    run_name = next(iter([run for run in runs if run == name] or matches or (runs if len(runs) == 1 else [])), None)
    if run_name is None or len(matches) > 1:
        raise DataError(f"{path} has no single run {name!r}; it has {', '.join(runs)}")
    for row in rows:
        if row["run"] == run_name and row["metrics"]:
            yield str(row["id"]), cast(dict[str, float], row["metrics"])


def of_table(folder: Path, name: str) -> Iterator[tuple[str, Mapping[str, float]]]:
    """A row of a trained agent's table, greedily decoded, on all of its sets."""
    training = AgentTraining(load_recipe(str(folder / "recipe.yaml")), folder)
    row = next((row for row in rows_of(training) if row.name == name and row.temperature == 0), None)
    if row is None:
        names = ", ".join(dict.fromkeys(row.name for row in rows_of(training)))
        raise DataError(f"the table of {folder} has no row {name!r}; it has {names}")
    for column in training.sets:
        run = scored(training, row.label, cell_folder(training, row, column))
        yield from ((f"{column.name}/{ident}", values) for ident, values in of_run(run).items())


def steps_of(folder: Path) -> Iterator[tuple[str, dict[str, float]]]:
    """Training step → its numbers."""
    of_rl = sorted(folder.glob("rl/**/metrics.jsonl"))
    files = of_rl or sorted(folder.glob("**/metrics.jsonl"))
    if not files or len(of_rl) > 1:
        raise DataError(f"{folder} holds {len(files)} metrics.jsonl, where the curve of one training is needed")
    for number, (_, row) in enumerate(read_jsonl(files[0]), start=1):
        values = {name: value for name, value in row.items() if isinstance(value, int | float)}
        yield f"step {number}", values | {"step_s": sum(values.get(name, 0.0) for name in STEP_PARTS)}
