"""A leaderboard of runs: systems by data sets, in Markdown, HTML and JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coseek.cli.commands.score import split_names
from coseek.cli.grader_options import (
    AnswerWith,
    BootstrapSeed,
    BudgetTokens,
    CacheFile,
    GraderSet,
    JudgePromptFile,
    OneJudge,
    PromptFile,
    ask,
    check_judged,
    open_parts,
)
from coseek.cli.terminal import AsJson, new_app, print_json, stdout_console
from coseek.core.errors import UserError
from coseek.core.files import atomic_write, check_output_folder, write_json
from coseek.core.lock import lock_if_named
from coseek.data.run import Run
from coseek.measure.leaderboard import leaderboard as make_leaderboard
from coseek.measure.score import METRICS, QuestionScores, ScoredRun, check_metrics, dataset_of

app = new_app()
BOARD = "leaderboard.json"
"""The file by which the folder of a leaderboard is known."""


@app.command()
def leaderboard(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]RUN", help="Run folders; a NAME says whose they are, else the run's settings do."
        ),
    ],
    metric: Annotated[str, typer.Option(help=f"One of: {', '.join(METRICS)}.")] = "em",
    in_domain: Annotated[
        str, typer.Option(help="Data sets that the systems were trained on, comma-separated; they are marked.")
    ] = "",
    answer_with: AnswerWith = None,
    budget: BudgetTokens = 2048,
    prompt: PromptFile = None,
    judge: OneJudge = None,
    judge_prompt: JudgePromptFile = "judge",
    cache: CacheFile = None,
    out: Annotated[
        Path | None, typer.Option(help="A folder for leaderboard.md, leaderboard.html and leaderboard.json.")
    ] = None,
    seed: BootstrapSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Put runs into one table: a line for each system, a column for each data set, means with 95 % intervals.

    Which data set a run is of, its questions say, else the folder that it was asked from. Data sets in domain are
    marked and averaged apart. Questions that failed or are missing are counted below the table.
    """
    if out is not None:
        check_output_folder(out, BOARD)
    check_metrics([metric])
    judges = [judge] if judge else []
    check_judged([metric], judges)
    parts = open_parts(answer_with, budget, prompt, judges, judge_prompt, cache)
    with lock_if_named(out):
        board = make_leaderboard(scored_by(runs, parts), metric, split_names(in_domain), parts.notes(), seed)
        if out is not None:
            write_json(out / BOARD, {**board.to_json(), **parts.to_json()})
            for name, text in (("leaderboard.md", board.table().markdown()), ("leaderboard.html", board.html())):
                with atomic_write(out / name) as file:
                    file.write(text)
    if as_json:
        print_json({**board.to_json(), **parts.to_json()})
    else:
        stdout_console().print(board.table().rich())


def scored_by(runs: Sequence[str], parts: GraderSet) -> dict[tuple[str, str], ScoredRun]:
    """(system, data set) → its run, scored."""
    found: dict[tuple[str, str], ScoredRun] = {}
    for text in runs:
        given, equals, path = text.rpartition("=")
        run = Run(Path(path))
        asked = ask(run, path, parts)
        scored = asked.component if asked.component is not None else asked.own
        system = given if equals else system_of(run)
        for dataset, part in by_dataset(scored, run).items():
            if (system, dataset) in found:
                raise UserError(f"{system} was run on {dataset} twice; name one of the runs: NAME={path}")
            found[system, dataset] = part
    if not found:
        raise UserError("the runs hold no trajectories; see that `coseek run` has ended")
    return found


def system_of(run: Run) -> str:
    """Agent, protocol and retriever, as the run's settings name them; the folder's name where they do not."""
    agent, retriever = run.settings.get("agent"), run.settings.get("retriever")
    if not isinstance(agent, dict):
        return run.folder.name
    where = f" on {Path(str(retriever)).name}" if isinstance(retriever, str) else ""
    return f"{Path(str(agent.get('name'))).name} ({agent.get('protocol')}){where}"


def by_dataset(scored: ScoredRun, run: Run) -> dict[str, ScoredRun]:
    """A run that holds questions of several data sets, one by one."""
    otherwise = Path(str(run.settings.get("questions", run.folder.name))).name
    parts: dict[str, dict[str, QuestionScores]] = {}
    for ident, row in scored.questions.items():
        parts.setdefault(dataset_of(row.question) or otherwise, {})[ident] = row
    return {name: ScoredRun(scored.name, rows, scored.stops) for name, rows in parts.items()}
