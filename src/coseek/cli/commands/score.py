"""Tables of runs: means with intervals, by hops, and run against run."""

from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.terminal import AsJson, new_app, print_json, stdout_console
from coseek.data.errors import UserError
from coseek.data.run import Run
from coseek.measure.score import GROUPS, METRICS, Scores, score_runs
from coseek.measure.table import MAIN, comparison_table, group_table, main_table, scores_json

app = new_app()


@app.command()
def score(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders that `coseek run` made.")],
    metrics: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(METRICS)}.")] = ",".join(MAIN),
    by: Annotated[
        str, typer.Option(help=f"How to group questions; comma-separated, of: {', '.join(GROUPS)}.")
    ] = "hops",
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Tables of runs: means with 95 % intervals, by groups of questions, and every later run paired with the first.

    A run that failed on a question (a fault of the retriever or the model) is counted and is in no mean.
    """
    if len(set(runs)) < len(runs):
        raise UserError("the same run is named twice; name each once")
    chosen = split_names(metrics)
    trajectories = {str(run): Run(run).trajectories() for run in runs}
    scores = score_runs(trajectories, by=split_names(by), metrics=chosen, seed=seed)
    if as_json:
        print_json(scores_json(scores))
    else:
        print_tables(scores, chosen)


def print_tables(scores: Scores, metrics: list[str]) -> None:
    """The main table, the first metric by group, and the differences from the first run."""
    console = stdout_console()
    console.print(main_table(scores, metrics).rich())
    if len({summary.group for summary in scores.summaries}) > 1:
        console.print(group_table(scores, metrics[0]).rich())
    if scores.comparisons:
        console.print(comparison_table(scores, metrics).rich())


def split_names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
