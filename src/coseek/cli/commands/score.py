"""Score runs: means, intervals, groups, paired differences."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeAlias

from typer import Argument, Option

from coseek.agents.sources import SELECTED, SERVINGS, check_serving
from coseek.cli import options
from coseek.cli.grader_options import GraderSet, ScoredBothWays, agreements_over, ask, intended, open_parts
from coseek.cli.terminal import AsJson, new_app, output
from coseek.core.errors import SettingError, UserError
from coseek.core.files import JsonObject, check_output_folder
from coseek.core.lock import lock_if_named
from coseek.data.question import Question, questions_by_id
from coseek.data.run import Run
from coseek.measure.agreement import agreement_table
from coseek.measure.component_scores import GIVEN, SUFFIX, component_table, serving_scores
from coseek.measure.question_groups import GROUPS, check_groups
from coseek.measure.report import ROWS, SUMMARY, write_scores
from coseek.measure.score import JUDGED, METRICS, SCORED_APART, ScoredRun, Scores, questions_of, summaries_of
from coseek.measure.table import (
    MAIN,
    Table,
    abstention_tables,
    comparison_table,
    grouped_tables,
    main_table,
    scores_json,
)

GROUP = "Results"
app = new_app()


Servings: TypeAlias = Annotated[
    str, Option(help=f"What the generator reads, comma-separated, of: {', '.join(SERVINGS)}; compared with the first.")
]
SomeJudges: TypeAlias = Annotated[
    list[str] | None,
    Option(help="The judge: a model, or a laptop world's folder. Several are compared; scores use the first."),
]


@app.command(epilog="Example: `coseek score runs/rules runs/mine --metrics em,f1`")
@options.takes_servers
def score(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Folders that `coseek run` made.")],
    metrics: Annotated[
        str | None, Option(help=f"Comma-separated, of: {', '.join(METRICS)}. [default: {','.join(MAIN)}]")
    ] = None,
    by: Annotated[str, Option(help=f"How to group questions; comma-separated, of: {', '.join(GROUPS)}.")] = "hops",
    in_domain: Annotated[str, Option(help="Data sets of training, comma-separated; averaged separately.")] = "",
    answer_with: options.AnswerWith = None,
    serve: Servings = SELECTED,
    budget: options.BudgetTokens = 2048,
    prompt: options.PromptFile = None,
    judge: SomeJudges = None,
    judge_prompt: options.JudgePromptFile = "judge",
    device: options.DeviceName = None,
    cache: options.CacheFile = None,
    cluster: options.ClusterName = None,
    select: options.Select = None,
    out: Annotated[Path | None, Option(help="A folder for questions.jsonl, scores.json, .md and .html.")] = None,
    seed: options.BootstrapSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Score runs: means with 95 % intervals, by groups of questions, and every later run compared with the first.

    Trajectories with a fault are counted and excluded from means. Answers of the generator and verdicts are stored in
    the run and reused.
    """
    if len(set(runs)) < len(runs):
        raise UserError("the same run is named twice; name each once")
    if out is not None:
        check_output_folder(out, SUMMARY, own=(ROWS,))
    answer_with, *judges = options.at_servers(answer_with, *(judge or ()))
    chosen = chosen_metrics(metrics, bool(judges))
    servings = chosen_servings(serve, answer_with is not None)
    groups = options.split_names(by)
    check_groups(groups)
    question_filter = options.question_filter(select)
    with options.cluster_of(cluster) as nodes, lock_if_named(out):
        parts = open_parts(chosen, answer_with, budget, prompt, judges, judge_prompt, cache, device, nodes)
        scored_runs = [ask(Run(run), str(run), parts, question_filter, servings) for run in runs]
        questions = intended([Run(run) for run in runs], question_filter)
        report = ScoreReport(scored_runs, questions, parts, chosen, groups, options.split_names(in_domain), seed)
        if out is not None:
            write_scores(out, report.runs, report.to_json(), report.tables())
    output(as_json, report.to_json(), report.tables().values())


def chosen_metrics(names: str | None, judged: bool) -> list[str]:
    """The named metrics, or the default ones."""
    chosen = options.split_names(names) if names else [*MAIN, *(JUDGED if judged else ())]
    if not chosen:
        raise SettingError(f"no metric is named; choose some of {', '.join(METRICS)}")
    return chosen


def chosen_servings(names: str, answered: bool) -> list[str]:
    """Parse `--serve`. Raises `SettingError` for an unknown name, and if there is no generator."""
    servings = list(dict.fromkeys(options.split_names(names))) or [SELECTED]
    for serving in servings:
        check_serving(serving)
    if servings != [SELECTED] and not answered:
        raise SettingError(f"--serve {names} needs a generator that reads it: name one with --answer-with")
    return servings


class ScoreReport:
    """The tables and the JSON of scored runs."""

    def __init__(
        self,
        scored: list[ScoredBothWays],
        questions: list[Question],
        parts: GraderSet,
        metrics: list[str],
        by: list[str],
        in_domain: list[str],
        seed: int,
    ) -> None:
        self.parts, self.metrics = parts, metrics
        own_runs = [run.own for run in scored]
        components = [run.component for run in scored if run.component is not None]
        questions = list(questions_by_id((*questions, *questions_of(own_runs)), SCORED_APART).values())
        if in_domain and not any(question.dataset for question in questions):
            raise SettingError(
                f"--in-domain {','.join(in_domain)}: these questions do not say which data set they are of; compare "
                "whole runs with `coseek leaderboard`, which takes the data set from the folder of the questions"
            )
        self.own = summaries_of(own_runs, questions, by, metrics_of(metrics), seed, in_domain)
        self.component: Scores | None = None
        if components:
            component_metrics = [*metrics_of(metrics), *GIVEN]
            self.component = summaries_of(components, questions, by, component_metrics, seed, in_domain)
        servings = [run.servings for run in scored if run.servings]
        self.servings = serving_scores(servings, questions, shown_of(metrics), seed) if servings else None
        self.agreements = agreements_over(scored, parts)
        self.runs: list[ScoredRun] = own_runs + [replace(run, name=run.name + SUFFIX) for run in components]
        self.runs += chain(*servings)

    def tables(self) -> dict[str, Table]:
        """Heading → table."""
        graders, answer_metrics = self.parts.notes(), shown_of(self.metrics)
        main = main_table(self.own, self.metrics)
        notes = [*main.notes]
        if "budgeted_recall" in main.columns:
            notes.append(f"budgeted_recall: {self.parts.budget:,} tokens of passages (--budget).")
        columns = [*main.columns, *(GIVEN if self.component is not None else ())]
        if self.metrics != [*MAIN] and (undefined_names := [name for name in self.metrics if name not in columns]):
            reason = "gold answers, gold passages or a judge are missing"
            notes.append(f"{', '.join(undefined_names)}: undefined for every question; {reason}.")
        tables = {"Runs": replace(main, notes=(*notes, *graders))}
        if self.component is not None:
            table = component_table(self.own, self.component, answer_metrics)
            tables["As a component"] = replace(table, notes=(*table.notes, *graders))
        if self.agreements:
            tables["Judges"] = agreement_table(self.agreements)
        tables |= grouped_tables(self.own, self.metrics[0]) | abstention_tables(self.own)
        if self.component is not None:
            group_tables = grouped_tables(self.component, answer_metrics[0])
            tables |= {f"{heading}, as a component": table for heading, table in group_tables.items()}
        if self.own.comparisons:
            tables["Run against run"] = comparison_table(self.own, self.metrics)
        if self.component is not None and self.component.comparisons:
            tables["Run against run, as a component"] = comparison_table(self.component, answer_metrics)
        if self.servings is not None:
            columns = [*answer_metrics, *GIVEN]
            tables["By what is served"] = main_table(self.servings, columns)
            by_set = grouped_tables(self.servings, columns[0])
            tables |= {f"{heading}, by what is served": table for heading, table in by_set.items()}
            if self.servings.comparisons:
                tables["Served against served"] = comparison_table(self.servings, columns)
        return tables

    def to_json(self) -> JsonObject:
        tree = {**scores_json(self.own), **self.parts.to_json()}
        if self.component is not None:
            tree["component"] = scores_json(self.component)
        if self.servings is not None:
            tree["servings"] = scores_json(self.servings)
        if self.agreements:
            pairs = self.agreements.items()
            tree["agreement"] = [{"judges": list(pair), **agreement.to_json()} for pair, agreement in pairs]
        return tree


ANSWERED = ("em", "cover_em", "f1", *JUDGED)
"""Metrics of the answer. Only these differ between an agent and a generator that answers from its passages."""


def shown_of(metrics: list[str]) -> list[str]:
    """The chosen metrics that the tables of components show."""
    return [name for name in metrics if name in ANSWERED] or ["em"]


def metrics_of(metrics: list[str]) -> list[str]:
    """The chosen metrics and those that every table needs."""
    return list(dict.fromkeys((*metrics, "em", "answered")))
