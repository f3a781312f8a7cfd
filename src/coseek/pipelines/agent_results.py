"""Results: the table at the end of a run, {direct, naive RAG, before, after} × {dev, test, unseen}, and its page.

Where the agent gives no answer and the recipe has a frozen generator, every row is what that generator answers from the
row's passages, and naive RAG is the generator's own (`served.py`). Every cell is a run folder with all trajectories, so
any number of the table can be looked into, audited and scored again with the ordinary commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from coseek.agents.protocol import load_protocol
from coseek.agents.rollout import Agent, Limits
from coseek.agents.run_questions import identities_of, run_questions
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_model import ScriptedAgentModel
from coseek.core.files import JsonObject, atomic_write, read_jsonl, write_json
from coseek.core.settings import dump_settings
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.measure.answers import exact_match
from coseek.measure.plots import BarSeries, Svg, bar_plot, line_plot, series_of, smoothed
from coseek.measure.report import (
    FilesSection,
    PlotSection,
    Section,
    SettingsSection,
    TableSection,
    TextSection,
    TrajectorySection,
    write_report,
)
from coseek.measure.score import METRICS, ScoredRun, Scores, answers_itself, compare, groups_of, score_run, summarise
from coseek.measure.table import MAIN, PAIRED, Table, comparison_table, group_table, main_table, scores_json, show
from coseek.models.pretrained import load_model
from coseek.pipelines import generator_table as served
from coseek.pipelines.agent import AgentTraining, QuestionSet
from coseek.pipelines.stages import Stage
from coseek.rewards.reward import make_reward
from coseek.training.rl.monitor import alarm_steps

PAIRS = (("after", "before"), ("after, T=1", "before, T=1"))
"""What is compared question by question."""
EXAMPLES = 6
"""Trajectories shown in the report."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One agent of the table."""

    name: str
    policy: str
    """Which policy folder writes; empty for the rule-based agent, which needs none."""
    protocol: str
    temperature: float
    passages: int = 0
    """Where it is naive RAG for a generator: how many passages its one search serves. No policy writes."""

    @property
    def label(self) -> str:
        return self.name if self.temperature == 0.0 else f"{self.name}, T=1"


def rows_of(training: AgentTraining) -> list[TableRow]:
    """The agents that are compared. `before` comes first, so that every other is paired with it."""
    own = training.recipe.protocol
    pair = tuple(zip(("before", "after"), training.compared, strict=True))
    agents = [TableRow(name, policy, own, t) for t in (0.0, 1.0) for name, policy in pair]
    agents += [TableRow(f"after {stage.name}", stage.ends, own, 0.0) for stage in training.stages[:-1]]
    warm = training.recipe.warm_start
    rules = [TableRow("rules", "", own, 0.0)] if warm is not None and warm.demonstrator == "rules" else []
    if by_generator(training):
        shown = dict.fromkeys((training.recipe.graders.baseline.passages, training.recipe.table.wide_rag))
        return [*agents, *(TableRow(f"RAG k={k}", "", "rag", 0.0, k) for k in shown if k is not None), *rules]
    if warm is None or warm.demonstrator == "gold":  # nobody taught the baselines' protocols
        return agents
    once = [TableRow("direct", "warm", "direct", 0.0), TableRow("naive RAG", "warm", "rag", 0.0)]
    return [*agents, *once, *rules]


def by_generator(training: AgentTraining) -> bool:
    """Whether the frozen generator answers for the agent."""
    return training.recipe.graders.generator is not None and not answers_itself(training.recipe.protocol)


def measure(training: AgentTraining) -> dict[str, Scores]:
    """Run every agent on every set (what is there already is kept), and score: set → scores."""
    rows = rows_of(training)
    sets = training.sets
    training.progress.stage("table", sum(len(column.questions) for column in sets) * len(rows))
    done = 0
    for row in rows:
        for column in sets:
            answer_cell(training, row, column, done)
            done += len(column.questions)
    return {column.name: _scores(training, rows, column) for column in sets}


def answer_cell(training: AgentTraining, row: TableRow, column: QuestionSet, done: int) -> None:
    """One agent on one set, in a run folder of its own. A cell that another policy made is made anew."""
    folder, limits, seed = cell_folder(training, row, column), limits_of(training, row), training.recipe.table.seed
    if row.passages:
        plain: JsonObject = {"agent": {"name": row.name, "passages": row.passages}, "set": column.name}
        run = Run.made_with(folder, plain, served.identities_of(column.retriever, column.questions, row.passages, seed))
        served.naive_rag(run, column.retriever, column.questions, row.passages, seed)
        return
    protocol, made_of = load_protocol(row.protocol, training.recipe.prompt_template), made_of_row(training, row)
    identities = identities_of(made_of, protocol, column.retriever, column.questions, limits, seed)
    run = Run.made_with(folder, settings_of(training, row, column), identities)
    if len(run.done()) == len(column.questions):
        return
    run_questions(
        run,
        agent_of(training, row),
        column.retriever,
        column.questions,
        limits,
        seed=seed,
        concurrency=training.recipe.concurrency,
        overlap=training.recipe.overlap,
        tell=lambda ended, _: training.progress.advance(done + ended, f"{row.label} on {column.name}"),
    )


def settings_of(training: AgentTraining, row: TableRow, column: QuestionSet) -> JsonObject:
    """What the `run.yaml` of a cell says."""
    return {
        "agent": {
            "name": str(training.policy_folder(row.policy)) if row.policy else row.name,
            "protocol": row.protocol,
            "prompt_template": training.recipe.prompt_template,
            "temperature": row.temperature,
            "tokenizer": None if row.policy else str(training.policy_folder("start")),
        },
        "set": column.name,
        "limits": dump_settings(limits_of(training, row)),
        "seed": training.recipe.table.seed,
    }


def made_of_row(training: AgentTraining, row: TableRow) -> dict[str, str]:
    """What the row's turns depend on: see `Agent.identities`."""
    if row.policy:
        return training.made_of(row.policy, row.temperature)
    return {"agent": row.name, "tokenizer": training.made_of("start", 0.0)["tokenizer"]}


def agent_of(training: AgentTraining, row: TableRow) -> Agent:
    """The row's agent. The rule-based one writes in the policy's own ids, so that tokens are counted alike."""
    protocol, made_of = load_protocol(row.protocol, training.recipe.prompt_template), made_of_row(training, row)
    if not row.policy:
        return Agent(protocol, ScriptedAgentModel(RuleAgent(), protocol, training.tokenizer), made_of)
    model = load_model(training.policy_folder(row.policy))
    return Agent(protocol, training.sampler(model, protocol, row.temperature), made_of)


def limits_of(training: AgentTraining, row: TableRow) -> Limits:
    """Naive RAG searches once and may be shown more passages than one search of the agent."""
    if row.protocol != "rag":
        return training.recipe.limits
    return training.recipe.limits.model_copy(update={"passages_per_search": training.recipe.table.rag_passages})


def cell_folder(training: AgentTraining, row: TableRow, column: QuestionSet) -> Path:
    return training.folder / "table" / f"{row.name.replace(' ', '-')}.{column.name}.t{row.temperature:g}"


def _trajectories(training: AgentTraining, row: TableRow, column: QuestionSet) -> list[Trajectory]:
    return list(Run(cell_folder(training, row, column)).trajectories())


def _scores(training: AgentTraining, rows: Sequence[TableRow], column: QuestionSet) -> Scores:
    """Means of every agent, and the differences that are asked about (`pairs_of`)."""
    seed = training.recipe.table.seed
    if by_generator(training):
        training.progress.stage(f"answers on {column.name}", len(rows))
    runs: dict[str, ScoredRun] = {}
    for number, row in enumerate(rows, start=1):
        runs[row.label] = _scored(training, row, column)
        if by_generator(training):
            training.progress.advance(number, row.label)
    by = served.GROUPS if by_generator(training) else ("hops",)
    groups = groups_of(column.questions, by)
    metrics = tuple(METRICS)
    return Scores(
        tuple(
            summarise(run, group, idents, metrics, seed) for run in runs.values() for group, idents in groups.items()
        ),
        tuple(
            compare(runs[against], runs[name], group, idents, metrics, seed)
            for name, against in pairs_of(rows)
            for group, idents in groups.items()
        ),
        {run.name: run.stops for run in runs.values()},
    )


def pairs_of(rows: Sequence[TableRow]) -> list[tuple[str, str]]:
    """What is compared question by question: the trained agent with itself before, and with the generator's RAG."""
    return [*PAIRS, *(("after", row.label) for row in rows if row.passages)]


def _scored(training: AgentTraining, row: TableRow, column: QuestionSet) -> ScoredRun:
    """A cell by its own answers, or by those of the generator for which it searches."""
    runs = _trajectories(training, row, column)
    if by_generator(training):
        return served.scored_by_generator(training.graders, row.label, cell_folder(training, row, column), runs)
    return score_run(row.label, runs)


def metric_of(training: AgentTraining) -> str:
    """The metric in the headline: what the agent was paid for, as far as the runs show it."""
    recipe = training.stages[-1].recipe if training.stages else training.recipe
    if by_generator(training):
        return "gen_acc" if recipe.graders.judge is not None else "cover_em"
    paid = {part.name for part in make_reward(recipe.reward).parts}
    silent = not answers_itself(recipe.protocol)
    return "recall" if "gold_recall" in paid or silent else "em"


def columns_of(training: AgentTraining) -> tuple[Sequence[str], Sequence[str]]:
    """Metrics of the tables of means, and of differences."""
    return (served.MAIN, served.PAIRED) if by_generator(training) else (MAIN, PAIRED)


def notes_of(training: AgentTraining) -> list[str]:
    """What stands below the headline: whose answers they are, and what health said."""
    notes = ["Means with 95 % bootstrap intervals over questions."]
    frozen = training.recipe.graders
    if by_generator(training) and frozen.generator is not None:
        judged = f", judged by {frozen.judge.model}" if frozen.judge is not None else ""
        notes.append(f"The answers are those of {frozen.generator.model} from the passages of each row{judged}.")
    return notes + [line for stage in training.stages for line in alarms_of(stage)]


def alarms_of(stage: Stage) -> list[str]:
    """A sentence for every alarm that a stage of reinforcement learning raised, or one that there was none."""
    path = stage.folder / "metrics.jsonl"
    if stage.recipe.learn != "rl" or not path.exists():
        return []
    rows = [cast(dict[str, float], row) for _, row in read_jsonl(path)]
    raised = alarm_steps(rows)
    if not raised:
        return [f"No alarm in {len(rows)} steps of reinforcement learning{_of(stage)}."]
    return [
        f"Alarm {name} in {len(steps)} of {len(rows)} steps of reinforcement learning{_of(stage)}, "
        f"first in step {steps[0]}, last in step {steps[-1]}."
        for name, steps in raised.items()
    ]


def headline(training: AgentTraining, scores: dict[str, Scores]) -> Table:
    """Agents by sets, in one metric."""
    metric = metric_of(training)
    rows = rows_of(training)
    cells = [(row.label, *(show(found.of(row.label).metrics.get(metric)) for found in scores.values())) for row in rows]
    return Table((metric, *scores), tuple(cells), tuple(notes_of(training)))


def tables_of(training: AgentTraining, column: QuestionSet, found: Scores) -> dict[str, Table]:
    """Heading → table, of one set."""
    means, paired = columns_of(training)
    tables = {"Means": main_table(found, means), "Differences": comparison_table(found, paired)}
    if any(one.group == served.CHAIN for one in found.comparisons):
        tables[f"Differences, {served.CHAIN}"] = comparison_table(found, paired, served.CHAIN)
    tables["By hops"] = group_table(found, metric_of(training))
    if by_generator(training) and training.graders.generator is not None:
        runs = {row.label: _trajectories(training, row, column) for row in rows_of(training)}
        tables["What the generator is given"] = served.selection_table(training.graders.generator, runs, found)
    return tables


def write_results(training: AgentTraining, scores: dict[str, Scores]) -> Table:
    """`table.md`, `table.json` and `report.html`; returns the headline."""
    table = headline(training, scores)
    tables = {column.name: tables_of(training, column, scores[column.name]) for column in training.sets}
    parts = [f"# {training.recipe.about or training.folder.name}\n", table.markdown()]
    for name, found in tables.items():
        parts += [f"\n## {name}\n", "\n\n".join(one.markdown() for one in found.values())]
    with atomic_write(training.folder / "table.md") as file:
        file.write("\n".join(parts))
    write_json(training.folder / "table.json", {name: scores_json(found) for name, found in scores.items()})
    title = training.recipe.about or "A search agent, trained"
    sections = sections_of(training, scores, tables, table)
    write_report(training.folder / "report.html", title, sections)
    return table


def sections_of(
    training: AgentTraining, scores: dict[str, Scores], tables: dict[str, dict[str, Table]], table: Table
) -> list[Section]:
    """The report: what was learnt, how, and what the runs look like."""
    metric = metric_of(training)
    sections: list[Section] = [TableSection("What was learnt", table), *_curves(training)]
    for name, found in scores.items():
        bars = _bars(training, found, metric)
        sections.append(PlotSection(f"Before and after, by hops: {name}", bars, f"{metric}, greedy"))
        shown = {heading: one for heading, one in tables[name].items() if heading != "Means"}
        sections += [TableSection(f"{heading}: {name}", one) for heading, one in shown.items()]
    return [
        *sections,
        _examples(training),
        SettingsSection("Settings", dump_settings(training.recipe)),
        FilesSection("Files", files_of(training)),
        TextSection("Again", f"coseek train agent {training.folder}/recipe.yaml --out ANOTHER"),
    ]


def _examples(training: AgentTraining) -> TrajectorySection:
    after, column = next(row for row in rows_of(training) if row.name == "after"), training.sets[-1]
    runs = _trajectories(training, after, column)
    text = "Blue is what the agent wrote and is trained on; the rest was written by the environment."
    if by_generator(training):
        runs = served.with_answers(training.graders, cell_folder(training, after, column), runs)
        text += " The answer is the generator's."
    shown = sorted(runs[: 5 * EXAMPLES], key=lambda run: -len(run.searches))
    examples = (*_first(shown, EXAMPLES // 2, right=True), *_first(shown, EXAMPLES // 2, right=False))
    return TrajectorySection("Runs of the trained agent, right and wrong", examples, text)


def _first(runs: Sequence[Trajectory], count: int, right: bool) -> tuple[Trajectory, ...]:
    return tuple(run for run in runs if exact_match(run.answer, run.question.answers) == right)[:count]


def _curves(training: AgentTraining) -> list[Section]:
    """Warm start and reinforcement learning, step by step."""
    sections: list[Section] = []
    for path in sorted((training.folder / "warm-start").glob("round-*/metrics.jsonl")):
        loss = series_of([row for _, row in read_jsonl(path)], "loss", "loss")
        sections.append(PlotSection("Warm start", line_plot([loss], "step", "loss"), "Supervised loss a token."))
    for stage in training.stages:
        sections += _curve(stage)
    return sections


def _curve(stage: Stage) -> list[Section]:
    """Reward by step; rejection sampling has a loss instead."""
    name = f": {stage.name}" if stage.name else ""
    if stage.recipe.learn == "rejection":
        found = [row for path in stage.folder.glob("round-*/metrics.jsonl") for _, row in read_jsonl(path)]
        loss = series_of(found, "loss", "loss")
        return [PlotSection(f"Learning from right runs{name}", line_plot([loss], "step", "loss"), "Loss a token.")]
    rows = [row for _, row in read_jsonl(stage.folder / "metrics.jsonl")]
    reward = series_of(rows, "reward", "a step's runs, temperature 1")
    lines = [reward, replace(smoothed(reward), name="mean of five steps")]
    looks = series_of(rows, "eval/reward", "dev questions, greedy", markers=True)
    plot = line_plot([*lines, looks] if looks.x else lines, "step", "reward")
    return [PlotSection(f"Learning curve{name}", plot, "Mean reward of each step, and of the dev questions.")]


def _bars(training: AgentTraining, found: Scores, metric: str) -> Svg:
    plain = [row.label for row in rows_of(training) if row.passages] or ["naive RAG"]
    groups = list(dict.fromkeys(summary.group for summary in found.summaries))
    bars = [
        BarSeries(name, tuple(found.of(name, group).metrics.get(metric) for group in groups))
        for name in ("before", "after", *plain)
        if any(summary.run == name for summary in found.summaries)
    ]
    return bar_plot(groups, bars, metric)


def files_of(training: AgentTraining) -> dict[str, str]:
    """Path → what it is, of every file a reader may want."""
    folder, (before, after) = training.folder, training.compared
    curves = [stage for stage in training.stages if stage.recipe.learn == "rl"]
    named = {
        folder / "report.html": "the report",
        folder / "table.md": "all tables",
        folder / "table.json": "the same for programs",
        folder / "table": "a run folder for every cell of the table",
        training.policy_folder(after): "the trained policy, a Hugging Face folder",
        training.policy_folder(before): "the policy before reinforcement learning",
        **{stage.folder / "metrics.jsonl": f"a line for every step{_of(stage)}" for stage in curves},
        training.data_folder: "corpus and questions",
        folder / "recipe.yaml": "the recipe, with versions and commit",
    }
    return {str(path): what for path, what in named.items()}


def _of(stage: Stage) -> str:
    return f" of stage {stage.name}" if stage.name else ""
