"""Compare systems over data sets on one page."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Annotated

from typer import Argument, Option

from coseek.cli import options
from coseek.cli.grader_options import GraderSet, ask, open_parts
from coseek.cli.terminal import AsJson, new_app, output
from coseek.core.errors import UserError, commonest
from coseek.core.files import JsonObject, atomic_write, check_output_folder, write_json
from coseek.core.lock import lock_if_named
from coseek.data.question import Question, questions_by_id
from coseek.data.run import Run
from coseek.measure.abstention import Faults
from coseek.measure.intervals import Interval
from coseek.measure.question_groups import MICRO, macro_groups
from coseek.measure.report import report_html, table_section
from coseek.measure.score import JUDGED, METRICS, SCORED_APART, MetricSummary, QuestionScores, ScoredRun, summarise
from coseek.measure.table import Table, interval_json, show

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


@dataclass(frozen=True)
class Leaderboard:
    """One metric of every system on every data set."""

    metric: str
    runs: Mapping[str, ScoredRun]
    """System → its questions on all of its data sets, under the ids of `asked`; a system may lack data sets."""
    asked: Mapping[str, Sequence[str]]
    """Data set → its questions that any system was asked, as `DATASET/ID`."""
    in_domain: Collection[str] = ()
    """Data sets that the systems were trained on."""
    by: tuple[str, ...] = ()
    """Notes on judge and generator."""
    seed: int = 0

    @cached_property
    def cells(self) -> dict[tuple[str, str], MetricSummary]:
        """The mean of each system on each of its data sets."""
        return {
            (system, dataset): summarise(run, system, [idents], (self.metric,), self.seed)
            for system, run in self.runs.items()
            for dataset, idents in self.asked.items()
            if any(ident in run.questions for ident in idents)
        }

    def mean(self, system: str, dataset: str) -> Interval | None:
        """`None` where the system was not run, or has no value."""
        cell = self.cells.get((system, dataset))
        return cell.metrics.get(self.metric) if cell else None

    @property
    def datasets(self) -> list[str]:
        """In-domain data sets first, then by name."""
        return sorted(self.asked, key=lambda name: (name not in self.in_domain, name))

    @property
    def systems(self) -> list[str]:
        """By mean over all data sets, descending; systems that lack a data set come last."""

        def rank(system: str) -> tuple[bool, float, str]:
            average = self.average(system, self.datasets)
            means = [mean.mean for name in self.datasets if (mean := self.mean(system, name))]
            return average is None, -(average.mean if average else fmean(means) if means else -math.inf), system

        return sorted(self.runs, key=rank)

    def average(self, system: str, datasets: Sequence[str], micro: bool = False) -> Interval | None:
        """Macro mean over data sets, or the mean over all their questions; `None` unless the system has all sets."""
        if any((system, dataset) not in self.cells for dataset in datasets):
            return None
        sets = [self.asked[dataset] for dataset in datasets]
        sets = [list(chain(*sets))] if micro else sets
        return summarise(self.runs[system], system, sets, (self.metric,), self.seed).metrics.get(self.metric)

    @property
    def averages(self) -> dict[str, list[str]]:
        """Data sets of each average: macro means (in domain and out of domain if there are both), and the micro mean.
        Empty for one data set."""
        in_domain = [name for name in self.datasets if name in self.in_domain]
        outside = [name for name in self.datasets if name not in self.in_domain]
        parts = {"macro in domain": in_domain, "macro out of domain": outside} if in_domain and outside else {}
        macro_parts = macro_groups({name: self.asked[name] for name in self.datasets})
        return {**parts, **macro_parts, MICRO: self.datasets} if macro_parts else {}

    def averages_of(self, system: str) -> dict[str, Interval | None]:
        """Every average of a system."""
        return {name: self.average(system, sets, name == MICRO) for name, sets in self.averages.items()}

    def table(self) -> Table:
        """One row per system. In-domain data sets are marked with a star."""
        names = [f"{name} *" if name in self.in_domain else name for name in self.datasets]
        rows = []
        for system in self.systems:
            means = (self.mean(system, dataset) for dataset in self.datasets)
            rows.append((system, *map(show, means), *map(show, self.averages_of(system).values())))
        return Table((self.metric, *names, *self.averages), tuple(rows), tuple(self.notes()))

    def notes(self) -> list[str]:
        """Notes below the table."""
        notes = ["Means with 95 % bootstrap intervals over questions; –: not run."]
        if len(self.datasets) > 1:
            notes.append("macro: every data set weighs the same; micro: every question.")
        if any(name in self.in_domain for name in self.datasets):
            notes.append("* in domain: trained systems were trained on this set.")
        notes += self.by
        for system, run in sorted(self.runs.items()):
            if self.metric in JUDGED and (reason := commonest(run.fault_reasons.no_reply)):
                notes.append(f"{system}: the judge did not reply, {reason}; the same command asks again.")
        for (system, dataset), cell in sorted(self.cells.items()):
            if cell.faults:
                notes.append(f"{system} on {dataset}: {cell.faults} trajectories have a fault; they are in no mean.")
            if cell.missing:
                notes.append(f"{system} on {dataset}: {cell.missing} questions are missing.")
            if (mean := self.mean(system, dataset)) and mean.unread:
                notes.append(
                    f"{system} on {dataset}: {mean.unread} of {mean.n} verdicts are missing and count as wrong, "
                    f"so {self.metric} is a lower bound."
                )
        return notes

    def to_json(self) -> JsonObject:
        """All values in full precision."""
        entries: list[JsonObject] = []
        for (system, dataset), cell in sorted(self.cells.items()):
            entry: JsonObject = {"system": system, "dataset": dataset, "in_domain": dataset in self.in_domain}
            counts: JsonObject = {"faults": cell.faults, "missing": cell.missing}
            entries.append({**entry, **counts, "value": interval_json(self.mean(system, dataset))})
        averages: JsonObject = {
            system: {name: interval_json(mean) for name, mean in self.averages_of(system).items()}
            for system in self.systems
        }
        return {"metric": self.metric, "places": [*entries], "averages": averages, "by": list(self.by)}

    def html(self) -> str:
        """A self-contained HTML page."""
        return report_html(f"Leaderboard: {self.metric}", [table_section(self.metric, self.table())])


def make_leaderboard(
    runs: Mapping[tuple[str, str], ScoredRun],
    metric: str,
    in_domain: Collection[str] = (),
    by: Sequence[str] = (),
    seed: int = 0,
) -> Leaderboard:
    """Leaderboard of runs by system and data set, over the questions of all systems. Two may not share an id."""
    questions: dict[str, list[Question]] = {}
    by_system: dict[str, dict[str, QuestionScores]] = {}
    faults: dict[str, dict[int, Faults]] = {}
    for (system, dataset), run in runs.items():
        questions.setdefault(dataset, []).extend(row.question for row in run.questions.values())
        by_system.setdefault(system, {}).update((f"{dataset}/{ident}", row) for ident, row in run.questions.items())
        faults.setdefault(system, {})[id(run.fault_reasons)] = run.fault_reasons  # once for all data sets of a run
    reasons = {system: sum(of_runs.values(), Faults()) for system, of_runs in faults.items()}
    scored_runs = {system: ScoredRun(system, rows, {}, reasons[system]) for system, rows in by_system.items()}
    by_id = {dataset: questions_by_id(of_set, SCORED_APART) for dataset, of_set in questions.items()}
    ids_of = {dataset: [f"{dataset}/{ident}" for ident in idents] for dataset, idents in by_id.items()}
    return Leaderboard(metric, scored_runs, ids_of, frozenset(in_domain), (*by,), seed)
