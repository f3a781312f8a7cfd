"""The table and report of an agent's training: {direct, naive RAG, before, after} × {dev, test, unseen}.

If the agent does not answer and the recipe has a generator, the generator answers from each row's passages
(`table_rows.py`). Every cell is a run folder, so it can be audited and scored again.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from coseek.agents.protocol import load_protocol, tool_files
from coseek.agents.tag import Action
from coseek.core.files import JsonObject, read_jsonl
from coseek.core.progress import Progress
from coseek.core.settings import dump_settings
from coseek.core.text import counted
from coseek.data.dataset import draw
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import ORACLE, Graders
from coseek.measure.abstention import ended_right
from coseek.measure.plots import BarSeries, Series, Svg, bar_plot, line_plot, series_of, smoothed
from coseek.measure.question_groups import ALL
from coseek.measure.report import (
    ReportSection,
    files_section,
    plot_section,
    settings_section,
    table_section,
    text_section,
    trajectory_section,
    write_report,
)
from coseek.measure.score import METRICS, ScoredRun, Scores, score_run, summaries_of
from coseek.measure.table import (
    MAIN,
    PAIRED,
    Outcome,
    Table,
    abstention_tables,
    claims_between,
    comparison_table,
    grouped_tables,
    main_table,
    overall,
    scores_json,
    show,
    verdict,
)
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import AgentRecipe
from coseek.pipelines.data_folder import QuestionSet
from coseek.pipelines.run_record import R, TrainingRun, write_policy_card, write_tables
from coseek.pipelines.stages import Stage
from coseek.pipelines.table_rows import (
    CHAIN,
    CHAIN_GROUPS,
    GENERATOR_COLUMNS,
    GENERATOR_PAIRED,
    TableRow,
    answer_cells,
    by_generator,
    cell_folder,
    graders_with,
    metric_of,
    pairs_of,
    rows_of,
    scored_by_generator,
    selection_table,
    with_answers,
)
from coseek.rewards.reward import make_reward
from coseek.training.rl.monitor import alarm_steps

EXAMPLES = 6
"""Trajectories in the report."""
LOOK = "eval/reward"
"""Metric of the evaluations on dev questions; those of one data set end in `/NAME`."""
RESULT_FILES = {"report.html": "the report", "table.md": "all tables", "table.json": "the same for programs"}


def train_and_measure(
    recipe: AgentRecipe, folder: Path, resume: bool, progress: Progress
) -> tuple[AgentTraining, Table | None]:
    """Train by the recipe, and write tables and report. Returns the headline, in the first worker only."""
    training = AgentTraining(recipe, folder, progress)
    training.begin(resume)
    training.train()
    answer_cells(training)
    return training, write_results(training, scores_of(training)) if training.workers.is_main else None


def scores_of(training: AgentTraining) -> dict[str, Scores]:
    """The scores of all cells: set → scores."""
    rows = rows_of(training)
    return {column.name: _scores(training, rows, column) for column in training.sets}


def _trajectories(training: AgentTraining, row: TableRow, column: QuestionSet) -> list[Trajectory]:
    return list(Run(cell_folder(training, row, column)).trajectories())


def _scores(
    training: AgentTraining, rows: Sequence[TableRow], column: QuestionSet, graders: Graders | None = None
) -> Scores:
    """Means of every row, and the paired differences of `pairs_of`; with `graders`, of their generator's answers."""
    seed, component = training.recipe.table.seed, graders is not None or by_generator(training)
    if component:
        training.progress.stage(f"answers on {column.name}", len(rows))
    runs: dict[str, ScoredRun] = {}
    for number, row in enumerate(rows, start=1):
        runs[row.label] = scored(training, row.label, cell_folder(training, row, column), graders)
        if component:
            training.progress.advance(number, row.label)
    by, pairs = CHAIN_GROUPS if component else ("hops",), [(runs[name], runs[other]) for name, other in pairs_of(rows)]
    trained_on = {question.dataset or "" for question in training.questions(training.recipe.data.train)}
    in_domain = trained_on if {question.dataset or "" for question in column.questions} - trained_on else set()
    return summaries_of(list(runs.values()), column.questions, by, tuple(METRICS), seed, in_domain, pairs)


def scored(training: AgentTraining, name: str, folder: Path, graders: Graders | None = None) -> ScoredRun:
    """Score a run folder: the answers of the generator of `graders`; without `graders` the run's own answers, or those
    of the recipe's generator if it answers for the agent."""
    trajectories = Run(folder).trajectories()
    if graders is None and not by_generator(training):
        return score_run(name, trajectories)
    return scored_by_generator(graders or training.graders, name, folder, list(trajectories))


def answered_by_others(training: AgentTraining) -> dict[str, dict[str, Scores]]:
    """Generator of `table.answer_with` → set → scores of its answers from the passages of every row. One generator is
    open at a time. Answers are stored in the folder of each cell."""
    rows, scores = rows_of(training), dict[str, dict[str, Scores]]()
    for name in training.recipe.table.answer_with:
        graders = graders_with(training, name)
        scores[name] = {column.name: _scores(training, rows, column, graders) for column in training.sets}
    return scores


def _metric_table(
    training: AgentTraining, columns: Mapping[str, tuple[Scores, str]], corner: str, notes: Sequence[str]
) -> Table:
    """Agents by columns, in the headline metrics. Each column is a group of questions in some scores."""
    metrics = training.recipe.table.metrics or (metric_of(training),)
    rows = []
    for label in (row.label for row in rows_of(training)):
        means = [scores.of(label, group).metrics for scores, group in columns.values()]
        rows.append((label, *(show(of_column.get(metric)) for of_column in means for metric in metrics)))
    names = (corner, *(f"{name}, {metric}" for name in columns for metric in metrics))
    return Table(names, tuple(rows), tuple(filter(None, notes)))


def means_and_differences(training: AgentTraining, scores: Scores) -> dict[str, Table]:
    """Heading → table of the means and of the paired differences."""
    means, paired = (GENERATOR_COLUMNS, GENERATOR_PAIRED) if by_generator(training) else (MAIN, PAIRED)
    return {"Means": main_table(scores, means), "Differences": comparison_table(scores, paired)}


def notes_of(training: AgentTraining, scores: dict[str, Scores]) -> list[str]:
    """The notes below the headline: the verdict, whose answers are scored, and the monitor's alarms."""
    pair, metric = ("after", "before"), metric_of(training)
    claims = [claim for name, of_set in scores.items() for claim in claims_between(of_set, [pair], metric, name)]
    notes = [verdict(claims), "Means with 95 % bootstrap intervals over questions."]
    training.worse = overall(claims) is Outcome.WORSE
    if training.worse:
        notes.insert(1, f"Keep the policy before training: {better_policy(training)}.")
    graders = training.recipe.graders
    if by_generator(training) and graders.generator is not None:
        judge_note = f", judged by {graders.judge.model}" if graders.judge is not None else ""
        notes.append(f"The answers are those of {graders.generator.model} from the passages of each row{judge_note}.")
        has_judge_reward = any("judge" in make_reward(stage.recipe.reward).needs for stage in training.stages)
        if has_judge_reward and graders.judge is not None and graders.judge.model != ORACLE:
            notes.append(
                "That judge also set the reward in training, and a policy may have learnt to please it; ask another: "
                f"coseek score {training.folder / 'table'}/* --answer-with {graders.generator.model} --judge OTHER"
            )
    return notes + [line for stage in training.stages for line in alarms_of(stage)]


def alarms_of(stage: Stage) -> list[str]:
    """One sentence for each alarm of a stage of reinforcement learning, or one that says that there was no alarm."""
    path = stage.folder / "metrics.jsonl"
    if stage.recipe.learn != "rl" or not path.exists():
        return []
    rows = [cast(dict[str, float], row) for _, row in read_jsonl(path)]
    return [
        f"Alarm {name} in {len(steps)} of {len(rows)} steps of reinforcement learning{_stage_suffix(stage)}, "
        f"first in step {steps[0]}, last in step {steps[-1]}."
        for name, steps in alarm_steps(rows).items()
    ] or [f"No alarm in {counted(len(rows), 'step')} of reinforcement learning{_stage_suffix(stage)}."]


def headline(training: AgentTraining, scores: dict[str, Scores]) -> Table:
    """Agents by sets, in the headline metrics. A set of several data sets has a column for each of them, and their
    macro means."""
    columns = {name: (of_set, ALL) for name, of_set in scores.items()}
    columns |= {f"{name} {group}": (of_set, group) for name, of_set in scores.items() for group in of_set.by_dataset}
    table = _metric_table(training, columns, "agent", notes_of(training, scores))
    if len(training.recipe.table.metrics or ("",)) == 1:
        table = replace(table, columns=(metric_of(training), *columns))
    return table


def tables_of(training: AgentTraining, column: QuestionSet, scores: Scores) -> dict[str, Table]:
    """Heading → table of one set."""
    tables = means_and_differences(training, scores)
    if any(comparison.group == CHAIN for comparison in scores.comparisons):
        paired = GENERATOR_PAIRED if by_generator(training) else PAIRED
        tables[f"Differences, {CHAIN}"] = comparison_table(scores, paired, CHAIN)
    tables |= grouped_tables(scores, metric_of(training), "By hops") | abstention_tables(scores)
    if by_generator(training) and training.graders.generator is not None:
        by_label = {row.label: _trajectories(training, row, column) for row in rows_of(training)}
        tables["What the generator is given"] = selection_table(training.graders.generator, by_label, scores)
    return tables


def write_results(training: AgentTraining, scores: dict[str, Scores]) -> Table:
    """`table.md`, `table.json` and `report.html`; returns the headline."""
    table = headline(training, scores)
    tables = {column.name: tables_of(training, column, scores[column.name]) for column in training.sets}
    others = answered_by_others(training)
    note = "Generators answer from the passages of each row."
    for name, set_tables in tables.items() if others else ():
        by_author = {"the agent": scores[name], **{model: by_set[name] for model, by_set in others.items()}}
        columns = {author: (set_scores, ALL) for author, set_scores in by_author.items()}
        set_tables["Answers of generators"] = _metric_table(training, columns, "answers of", [note])
    parts = [f"# {training.recipe.about or training.folder.name}\n", table.markdown()]
    for name, set_tables in tables.items():
        parts += [f"\n## {name}\n", "\n\n".join(block.markdown() for block in set_tables.values())]
    write_cards(training, table)
    values: JsonObject = {name: scores_json(set_scores) for name, set_scores in scores.items()}
    for model, by_set in others.items():
        values |= {f"{name}, answers of {model}": scores_json(set_scores) for name, set_scores in by_set.items()}
    write_tables(training.folder, "\n".join(parts), values)
    title = training.recipe.about or "A search agent, trained"
    write_report(training.folder / "report.html", title, sections_of(training, scores, tables, table))
    return table


def write_cards(training: AgentTraining, table: Table) -> None:
    """Write the figures into the model cards of all policies."""
    before, after = training.compared_policies
    between = {stage.trained_policy: f"after {stage.name}" for stage in training.stages[:-1]}
    rows = {before: "before", after: "after", **between}
    for name in dict.fromkeys(("start", "warm", *rows)):
        folder = training.policy_folder(name)
        if folder.is_dir():
            write_policy_card(training, name, folder, training.data_folder, table, rows.get(name, ""))


def sections_of(
    training: AgentTraining, scores: dict[str, Scores], tables: dict[str, dict[str, Table]], table: Table
) -> list[ReportSection]:
    """The report: headline, curves, bars and tables of each set, example runs, settings and files."""
    metric = metric_of(training)
    sections = [table_section("What was learnt", table)]
    for path in sorted((training.folder / "warm-start").glob("round-*/metrics.jsonl")):
        loss = series_of([row for _, row in read_jsonl(path)], "loss", "loss")
        sections.append(plot_section("Warm start", line_plot([loss], "step", "loss"), "Supervised loss a token."))
    for stage in training.stages:
        sections += _curve(stage)
    for name, set_scores in scores.items():
        all_groups = dict.fromkeys(summary.group for summary in set_scores.summaries)
        by_hops = [group for group in all_groups if group not in set_scores.by_dataset]
        for heading, groups in (("by hops", by_hops), ("by data set", set_scores.by_dataset)):
            if groups:
                bars = _bars(training, set_scores, groups, metric)
                sections.append(plot_section(f"Before and after, {heading}: {name}", bars, f"{metric}, greedy"))
        sections += calibration_sections(name, set_scores)
        other_tables = {heading: block for heading, block in tables[name].items() if heading != "Means"}
        sections += [table_section(f"{heading}: {name}", block) for heading, block in other_tables.items()]
    return [*sections, _examples(training), *closing_sections("agent", training, files_of(training))]


def closing_sections(kind: str, training: TrainingRun[R], files: dict[str, str]) -> list[ReportSection]:
    """The last sections of a report: settings, files, and the command that repeats the run."""
    settings = settings_section("Settings", dump_settings(training.recipe))
    command = f"coseek train {kind} {training.folder}/recipe.yaml --out ANOTHER"
    return [settings, files_section("Files", files), text_section("Again", command)]


def _examples(training: AgentTraining) -> ReportSection:
    row, column = next(row for row in rows_of(training) if row.name == "after"), training.sets[-1]
    trajectories = _trajectories(training, row, column)
    text = "Blue is what the agent wrote and is trained on; the rest was written by the environment."
    if by_generator(training):
        trajectories = with_answers(training.graders, cell_folder(training, row, column), trajectories)
        text += " The answer is the generator's."
    questions = [trajectory.question for trajectory in trajectories]
    drawn_ids = {question.id for question in draw(questions, 5 * EXAMPLES, training.recipe.table.seed)}
    chosen = [trajectory for trajectory in trajectories if trajectory.question.id in drawn_ids]
    chosen.sort(key=lambda trajectory: -len(trajectory.searches))
    right = [trajectory for trajectory in chosen if ended_right(trajectory)]
    wrong = [trajectory for trajectory in chosen if not ended_right(trajectory)]
    examples = (*right[: EXAMPLES // 2], *wrong[: EXAMPLES // 2])
    return trajectory_section("Runs of the trained agent, right and wrong", examples, text)


def _curve(stage: Stage) -> list[ReportSection]:
    """Reward by step, or the loss of rejection sampling."""
    name = f": {stage.name}" if stage.name else ""
    if stage.recipe.learn == "rejection":
        rows = [row for path in stage.folder.glob("round-*/metrics.jsonl") for _, row in read_jsonl(path)]
        loss = series_of(rows, "loss", "loss")
        return [plot_section(f"Learning from right runs{name}", line_plot([loss], "step", "loss"), "Loss a token.")]
    if not (path := stage.folder / "metrics.jsonl").exists():  # a backend with a loop of its own
        return []
    rows = [row for _, row in read_jsonl(path)]
    reward = series_of(rows, "reward", "a step's runs, temperature 1")
    lines = [reward, replace(smoothed(reward, 5), name="mean of five steps")]
    keys = sorted({key for row in rows for key in row if key == LOOK or key.startswith(f"{LOOK}/")})
    names = [": ".join(["dev questions, greedy", *key.split("/")[2:]]) for key in keys]
    evaluations = [series_of(rows, key, name, markers=True) for key, name in zip(keys, names, strict=True)]
    plot = line_plot([*lines, *evaluations], "step", "reward")
    return [plot_section(f"Learning curve{name}", plot, "Mean reward of each step, and of the dev questions.")]


def calibration_sections(name: str, scores: Scores) -> list[ReportSection]:
    """Accuracy by confidence, if there is something to decline."""
    lines = [
        Series(
            run, tuple(100 * bucket.confidence for bucket in bins), tuple(bucket.right for bucket in bins), markers=True
        )
        for run, abstention in scores.abstention.items()
        if (bins := abstention.bins) and run in ("before", "after")
    ]
    if not lines:
        return []
    plot = line_plot([Series("as right as sure", (0.0, 100.0), (0.0, 1.0)), *lines], "confidence, %", "right")
    caption = "Answers in bins of equal size, by the confidence of their turn."
    return [plot_section(f"Calibration: {name}", plot, caption)]


def _bars(training: AgentTraining, scores: Scores, groups: Sequence[str], metric: str) -> Svg:
    rag_labels = [row.label for row in rows_of(training) if row.passages] or ["naive RAG", "untaught naive RAG"]
    bars = [
        BarSeries(name, tuple(scores.of(name, group).metrics.get(metric) for group in groups))
        for name in ("before", "after", *rag_labels)
        if any(summary.run == name for summary in scores.summaries)
    ]
    return bar_plot(groups, bars, metric)


def files_of(training: AgentTraining) -> dict[str, str]:
    """Path → description of the result files."""
    folder, (before, after) = training.folder, training.compared_policies
    curves = [(stage, stage.folder / "metrics.jsonl") for stage in training.stages if stage.recipe.learn == "rl"]
    files = {
        **{folder / name: description for name, description in RESULT_FILES.items()},
        folder / "table": "a run folder for every cell of the table",
        training.policy_folder(after): "the trained policy, a Hugging Face folder",
        training.policy_folder(before): "the policy before reinforcement learning"
        + (", which is better" if training.worse else ""),
        **{path: f"a line for every step{_stage_suffix(stage)}" for stage, path in curves if path.exists()},
        training.data_folder: "corpus and questions",
        folder / "recipe.yaml": "the recipe, with versions and commit",
    }
    return {str(path): description for path, description in files.items()}


def better_policy(training: AgentTraining) -> Path:
    """The policy to continue with."""
    before, after = training.compared_policies
    return training.policy_folder(before if training.worse else after)


def next_commands(training: AgentTraining) -> dict[str, str]:
    """Command → what it does with the trained agent, or with the one before training if the verdict is that training
    made it worse."""
    data, policy = training.recipe.data, better_policy(training)
    index = data.searched or training.folder / "data.index"
    options = ["--retriever", json.dumps(index) if isinstance(index, dict) else index]
    if tool_files(training.recipe.protocol):  # the user's files run only if they are named
        options += ["--protocol", training.recipe.protocol]
    commands: dict[tuple[object, ...], str] = {
        ("view", training.folder): "a page of its episodes and curves",
        ("serve", "agent", policy, *options): "then ask it in a browser at http://127.0.0.1:8000",
    }
    if any(tag.action in (Action.SEARCH, Action.TOOL) for tag in load_protocol(training.recipe.protocol).grammar.tags):
        run = ("run", training.data_folder, "--split", data.train, "--count", "300", "--agent", policy, *options)
        commands[*run, "--out", training.folder / "searches"] = (
            "searches, for `coseek label` and a retriever's training"
        )
    return {shlex.join(("coseek", *map(str, words))): description for words, description in commands.items()}


def _stage_suffix(stage: Stage) -> str:
    return f" of stage {stage.name}" if stage.name else ""
