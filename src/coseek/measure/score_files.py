"""Score files: a folder with scores by question and their summary.

questions.jsonl   one line per run and question: metrics, number of trajectories, faults
scores.json       means, intervals, paired tests, generator and judge
scores.md, .html  the tables
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coseek.core.files import JsonObject, atomic_write, write_json, write_jsonl
from coseek.measure.report import TableSection, write_report
from coseek.measure.score import ScoredRun
from coseek.measure.table import Table

ROWS, SUMMARY = "questions.jsonl", "scores.json"
"""Scores by question, and the summary, which identifies a folder of scores."""


def write_scores(
    folder: Path, runs: Sequence[ScoredRun], summary: JsonObject, tables: Mapping[str, Table], title: str = "Scores"
) -> None:
    """Write the folder's four files atomically. `tables` are by heading."""
    write_jsonl(folder / ROWS, (row for run in runs for row in question_rows(run)))
    write_json(folder / SUMMARY, summary)
    with atomic_write(folder / "scores.md") as file:
        file.write("\n".join([f"# {title}\n", *(f"## {name}\n\n{table.markdown()}" for name, table in tables.items())]))
    write_report(folder / "scores.html", title, [TableSection(name, table) for name, table in tables.items()])


def question_rows(run: ScoredRun) -> Iterator[JsonObject]:
    """One row per question, in the order of the run. A question with only faults has no metrics."""
    for ident, row in run.questions.items():
        yield {
            "run": run.name,
            "id": ident,
            "dataset": row.question.dataset,
            "hops": row.question.hops,
            "trajectories": row.rows,
            "faults": row.faults,
            "metrics": dict(row.metrics),
        }
