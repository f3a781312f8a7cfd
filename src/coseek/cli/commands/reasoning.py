"""Measure what an agent's reasonings contain: clues, and right and wrong claims (AgentIR, figures 3b and 4b)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from typer import Argument, Option

from coseek.cli.options import at_servers, split_names, takes_servers
from coseek.cli.terminal import AsJson, new_app, output
from coseek.core.errors import DataError, ModelError, SettingError
from coseek.core.files import check_output_folder
from coseek.core.lock import lock_if_named
from coseek.core.text import counted
from coseek.data.dataset import Dataset
from coseek.data.passage import Passage
from coseek.data.question import has_plan
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.judge import is_world
from coseek.graders.reasoning import ReasonedRun, ReasoningReader
from coseek.lab.world.world import World
from coseek.measure.intervals import bootstrap_mean
from coseek.measure.reasoning import METRICS, ReasoningClaims, reasoning_values, reasonings_of
from coseek.measure.report import ROWS, table_json, write_values
from coseek.measure.table import Table, show
from coseek.models.text_model import open_text_model
from coseek.pipelines.labelling import protocol_of

GROUP = "Results"
app = new_app()
EVERY = "all"
Read: TypeAlias = Mapping[str, Sequence[Sequence[ReasoningClaims]]]
"""Question → claims in each reasoning of each of its trajectories."""


@app.command(epilog="Example: `coseek reasoning runs/mine --read-with worlds/one`")
@takes_servers
def reasoning(
    run: Annotated[Path, Argument(metavar="RUN", help="The agent's run.")],
    read_with: Annotated[str, Option(help="The reader: a model (folder, URL, YAML file) or a laptop world.")],
    latest: Annotated[str, Option(help="Numbers of latest reasonings, comma-separated.")] = "1,2,5,9,17,all",
    out: Annotated[Path | None, Option(help="A folder for questions.jsonl and reasoning.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much of what an agent has found out is still in its latest reasonings.

    Of the clues named so far, the share that the latest reasonings name; and their right and wrong claims. Runs with a
    fault, or that could not be read, are counted and excluded.
    """
    if out is not None:
        check_output_folder(out, "reasoning.json", own=(ROWS,))
    numbers = latest_of(latest)
    (reader,) = at_servers(read_with)
    assert reader is not None
    stored = Run(run)
    trajectories = list(stored.trajectories())
    faultless = [trajectory for trajectory in trajectories if trajectory.fault is None]
    claims_by_question = read_by(reader, stored, faultless)
    values = {f"k = {EVERY if k is None else k}": reasoning_values(claims_by_question, k) for k in numbers}
    table = curve(values, len(trajectories) - sum(map(len, claims_by_question.values())))
    if out is not None:
        with lock_if_named(out):
            write_values(out, values, table, "reasoning.json")
    output(as_json, table_json(table), [table])


def latest_of(text: str) -> list[int | None]:
    """Parse `1,2,all` to numbers, `None` for all."""
    names = split_names(text)
    if not names or not all(name == EVERY or (name.isdecimal() and int(name) > 0) for name in names):
        raise SettingError(f"--latest {text!r} is not a list of numbers above 0, or all; write for example 1,2,all")
    return [None if name == EVERY else int(name) for name in dict.fromkeys(names)]


def read_by(reader: str, run: Run, trajectories: Sequence[Trajectory]) -> Read:
    """Extract the claims of the reasonings by a world's oracle or a model. Skips runs that the model could not read."""
    texts = [reasonings_of(trajectory, protocol_of(run, trajectory.protocol)) for trajectory in trajectories]
    by_question: dict[str, list[Sequence[ReasoningClaims]]] = {}
    if is_world(Path(reader)):
        oracle = World.load(Path(reader)).oracle
        for trajectory, reasonings in zip(trajectories, texts, strict=True):
            by_question.setdefault(trajectory.question.id, []).append(oracle.claims(trajectory.question, reasonings))
        return by_question
    reasoned = [
        ReasonedRun(trajectory.question, tuple(reasonings), evidence)
        for trajectory, reasonings, evidence in zip(trajectories, texts, evidence_of(run, trajectories), strict=True)
    ]
    claim_lists = ReasoningReader.over(open_text_model(reader)).read(reasoned)
    for trajectory, claims in zip(trajectories, claim_lists, strict=True):
        if claims is not None:
            by_question.setdefault(trajectory.question.id, []).append(claims)
    if trajectories and not by_question:
        raise ModelError(f"{reader} read none of {counted(len(trajectories), 'run')}; it is asked for JSON")
    return by_question


def evidence_of(run: Run, trajectories: Sequence[Trajectory]) -> list[tuple[Passage, ...]]:
    """The gold passages of each trajectory's question, from the data set of the run. Empty for a question with a plan,
    which has the result of each step."""
    source = run.settings.get("questions")
    folder = Path(str(source))
    without_plan = [trajectory for trajectory in trajectories if not has_plan(trajectory.question)]
    if without_plan and source is None:
        raise DataError(f"{run.folder} does not say where its questions are from; run a data-set folder instead")
    if without_plan and not folder.is_dir():
        raise DataError(f"{run.folder} was asked {folder}, which holds no passages; run a data-set folder instead")
    corpus = Dataset(folder).corpus if without_plan else None
    return [
        () if corpus is None or has_plan(done.question) else tuple(map(corpus.by_id, done.question.gold_ids))
        for done in trajectories
    ]


def curve(values: Mapping[str, Mapping[str, Mapping[str, float]]], lost: int) -> Table:
    """Make the table, one row per number of latest reasonings."""
    rng = np.random.default_rng
    rows = []
    for name, by_question in values.items():
        means = (bootstrap_mean([row[key] for row in by_question.values() if key in row], rng(0)) for key in METRICS)
        rows.append((name, *map(show, means)))
    notes = [f"{counted(lost, 'run')} with a fault, or unread, left out."] if lost else []
    return Table(("latest", *METRICS), tuple(rows), (*(f"{name}: {text}." for name, text in METRICS.items()), *notes))
