"""Compare systems over data sets on one page."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.cli import options
from coseek.cli.grader_options import GraderSet, ask, open_parts
from coseek.cli.terminal import AsJson, new_app, output
from coseek.core.errors import UserError
from coseek.core.files import atomic_write, check_output_folder, write_json
from coseek.core.lock import lock_if_named
from coseek.data.run import Run
from coseek.measure.leaderboard import leaderboard as make_leaderboard
from coseek.measure.score import METRICS, QuestionScores, ScoredRun

GROUP = "Results"
app = new_app()
BOARD = "leaderboard.json"
"""The file that marks a leaderboard's folder."""


@app.command(epilog="Example: `coseek leaderboard runs/a runs/b --out leaderboard`")
@options.takes_servers
def leaderboard(
    runs: Annotated[
        list[str],
        Argument(
            metavar="[NAME=]RUN", help="Run folders. NAME is the system's name; default: from the run's settings."
        ),
    ],
    metric: Annotated[str, Option(help=f"One of: {', '.join(METRICS)}.")] = "em",
    in_domain: Annotated[str, Option(help="Data sets of training, comma-separated; they are marked.")] = "",
    answer_with: options.AnswerWith = None,
    budget: options.BudgetTokens = 2048,
    prompt: options.PromptFile = None,
    judge: options.OneJudge = None,
    judge_prompt: options.JudgePromptFile = "judge",
    device: options.DeviceName = None,
    cache: options.CacheFile = None,
    out: Annotated[Path | None, Option(help="A folder for leaderboard.md, .html and .json.")] = None,
    seed: options.BootstrapSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Put runs into one table: one row per system, one column per data set, means with 95 % intervals.

    The data set of a run is the one that its questions name, else the folder of its questions. Data sets in domain are
    marked and averaged separately. Failed and missing questions are counted below the table.
    """
    if out is not None:
        check_output_folder(out, BOARD)
    answer_with, *judges = options.at_servers(answer_with, *([judge] if judge else ()))
    parts = open_parts([metric], answer_with, budget, prompt, judges, judge_prompt, cache, device)
    with lock_if_named(out):
        board = make_leaderboard(scored_by(runs, parts), metric, options.split_names(in_domain), parts.notes(), seed)
        tree = {**board.to_json(), **parts.to_json()}
        if out is not None:
            write_json(out / BOARD, tree)
            for name, text in (("leaderboard.md", board.table().markdown()), ("leaderboard.html", board.html())):
                with atomic_write(out / name) as file:
                    file.write(text)
    output(as_json, tree, [board.table()])


def scored_by(runs: Sequence[str], parts: GraderSet) -> dict[tuple[str, str], ScoredRun]:
    """(system, data set) → scored run."""
    scored_runs: dict[tuple[str, str], ScoredRun] = {}
    for text in runs:
        name, path = named_run(text)
        run = Run(Path(path))
        scores = ask(run, path, parts)
        system = system_of(run) if name is None else name
        for dataset, dataset_run in by_dataset(scores.component or scores.own, run).items():
            if (system, dataset) in scored_runs:
                raise UserError(f"{system} was run on {dataset} twice; name one of the runs: NAME={path}")
            scored_runs[system, dataset] = dataset_run
    if not scored_runs:
        raise UserError("the runs hold no trajectories; let `coseek run` finish first")
    return scored_runs


def named_run(text: str) -> tuple[str | None, str]:
    """Split `[NAME=]RUN`. Both may contain a `=`: the path is the part that exists."""
    parts = text.split("=")
    if len(parts) == 1 or Path(text).exists():
        return None, text
    splits = [("=".join(parts[:position]), "=".join(parts[position:])) for position in range(1, len(parts))]
    return next((split for split in splits if Path(split[1]).exists()), splits[0])


def system_of(run: Run) -> str:
    """Agent, protocol and retriever of the run's settings; the folder's name if the settings lack them."""
    agent, retriever = run.settings.get("agent"), run.settings.get("retriever")
    if not isinstance(agent, dict):
        return run.folder.name
    index_note = f" on {Path(str(retriever)).name}" if isinstance(retriever, str) else ""
    return f"{Path(str(agent.get('name'))).name} ({agent.get('protocol')}){index_note}"


def by_dataset(scored: ScoredRun, run: Run) -> dict[str, ScoredRun]:
    """Split a run by data set."""
    source = Path(str(run.settings.get("questions", run.folder.name)))
    default_name = (source.parent if source.name.endswith((".jsonl", ".jsonl.gz")) else source).name
    parts: dict[str, dict[str, QuestionScores]] = {}
    for ident, scores in scored.questions.items():
        parts.setdefault(scores.question.dataset or default_name, {})[ident] = scores
    return {name: replace(scored, questions=rows) for name, rows in parts.items()}
