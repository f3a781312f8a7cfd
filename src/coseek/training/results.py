"""Results: the table at the end of a run, {direct, naive RAG, before, after} × {dev, test, unseen}, and its page.

Every cell is a run folder with all its trajectories, so any number of the table can be looked into, audited and scored
again with the ordinary commands.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coseek.agents.answering import answer_all
from coseek.agents.protocol import load_protocol
from coseek.agents.rollout import Agent, Limits
from coseek.agents.writers.rules import Rules
from coseek.agents.writing import WriterModel
from coseek.data.files import JsonObject, atomic_write, read_jsonl, write_json
from coseek.data.run import Run
from coseek.data.settings import save_settings
from coseek.data.trajectory import Trajectory
from coseek.measure.answers import exact_match
from coseek.measure.plots import Bars, Svg, bar_plot, line_plot, series_of, smoothed
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
from coseek.measure.score import Scores, answers_itself, score_runs
from coseek.measure.table import Table, comparison_table, group_table, main_table, scores_json, show
from coseek.models.loading import load_model
from coseek.rewards.reward import make_reward
from coseek.training.agent import AgentTraining, QuestionSet
from coseek.training.stages import Stage

PAIRS = (("after", "before"), ("after, T=1", "before, T=1"))
"""What is compared question by question."""
EXAMPLES = 6
"""Trajectories shown in the report."""


@dataclass(frozen=True, slots=True)
class Row:
    """One agent of the table."""

    name: str
    policy: str
    """Which policy folder writes; empty for the rule-based agent, which needs none."""
    protocol: str
    temperature: float

    @property
    def label(self) -> str:
        return self.name if self.temperature == 0.0 else f"{self.name}, T=1"


def rows_of(training: AgentTraining) -> list[Row]:
    """The agents that are compared. `before` comes first, so that every other is paired with it."""
    own = training.recipe.protocol
    pair = tuple(zip(("before", "after"), training.compared, strict=True))
    agents = [Row(name, policy, own, t) for t in (0.0, 1.0) for name, policy in pair]
    agents += [Row(f"after {stage.name}", stage.ends, own, 0.0) for stage in training.stages[:-1]]
    warm = training.recipe.warm_start
    if warm is None or warm.writer == "gold":  # nobody taught the baselines' protocols
        return agents
    once = [Row("direct", "warm", "direct", 0.0), Row("naive RAG", "warm", "rag", 0.0)]
    rules = [Row("rules", "", own, 0.0)] if warm.writer == "rules" else []
    return [*agents, *once, *rules]


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


def answer_cell(training: AgentTraining, row: Row, column: QuestionSet, done: int) -> None:
    """One agent on one set, in a run folder of its own."""
    folder = cell_folder(training, row, column)
    limits = limits_of(training, row)
    name = str(training.policy_folder(row.policy)) if row.policy else row.name
    tokenizer = None if row.policy else str(training.policy_folder("start"))
    settings: JsonObject = {
        "agent": {
            "name": name,
            "protocol": row.protocol,
            "wording": training.recipe.wording,
            "temperature": row.temperature,
            "tokenizer": tokenizer,
        },
        "set": column.name,
        "limits": save_settings(limits),
        "seed": training.recipe.table.seed,
    }
    run = Run(folder) if (folder / "run.yaml").exists() else Run.create(folder, settings)
    if len(run.done()) == len(column.questions):
        return
    answer_all(
        run,
        agent_of(training, row),
        column.retriever,
        column.questions,
        limits,
        seed=training.recipe.table.seed,
        tell=lambda ended, _: training.progress.advance(done + ended, f"{row.label} on {column.name}"),
    )


def agent_of(training: AgentTraining, row: Row) -> Agent:
    """The row's agent. The rule-based one writes in the policy's own ids, so that tokens are counted alike."""
    protocol = load_protocol(row.protocol, training.recipe.wording)
    if not row.policy:
        return Agent(protocol, WriterModel(Rules(), protocol, training.tokenizer))
    model = load_model(training.policy_folder(row.policy))
    return Agent(protocol, training.sampler(model, protocol, row.temperature))


def limits_of(training: AgentTraining, row: Row) -> Limits:
    """Naive RAG searches once and may be shown more passages than one search of the agent."""
    if row.protocol != "rag":
        return training.recipe.limits
    return training.recipe.limits.model_copy(update={"passages_per_search": training.recipe.table.rag_passages})


def cell_folder(training: AgentTraining, row: Row, column: QuestionSet) -> Path:
    return training.folder / "table" / f"{row.name.replace(' ', '-')}.{column.name}.t{row.temperature:g}"


def _trajectories(training: AgentTraining, row: Row, column: QuestionSet) -> list[Trajectory]:
    return list(Run(cell_folder(training, row, column)).trajectories())


def _scores(training: AgentTraining, rows: Sequence[Row], column: QuestionSet) -> Scores:
    """Means of every agent; differences of `after` from `before` at the same temperature alone."""
    seed = training.recipe.table.seed
    runs = {row.label: _trajectories(training, row, column) for row in rows}
    scores = score_runs(runs, questions=column.questions, seed=seed)
    sampled = {name: runs[name] for name in ("before, T=1", "after, T=1")}
    pairs = (scores, score_runs(sampled, questions=column.questions, seed=seed))
    wanted = tuple(one for found in pairs for one in found.comparisons if one.run.startswith("after"))
    return replace(scores, comparisons=tuple(one for one in wanted if (one.run, one.against) in PAIRS))


def metric_of(training: AgentTraining) -> str:
    """The metric in the headline: what the agent was paid for, as far as the agent's own runs show it."""
    recipe = training.stages[-1].recipe if training.stages else training.recipe
    paid = {part.name for part in make_reward(recipe.reward).parts}
    silent = not answers_itself(recipe.protocol)
    return "recall" if "gold_recall" in paid or silent else "em"


def headline(training: AgentTraining, scores: dict[str, Scores]) -> Table:
    """Agents by sets, in one metric."""
    metric = metric_of(training)
    rows = rows_of(training)
    cells = [(row.label, *(show(found.of(row.label).metrics.get(metric)) for found in scores.values())) for row in rows]
    return Table((metric, *scores), tuple(cells), ("Means with 95 % bootstrap intervals over questions.",))


def write_results(training: AgentTraining, scores: dict[str, Scores]) -> Table:
    """`table.md`, `table.json` and `report.html`; returns the headline."""
    table = headline(training, scores)
    parts = [f"# {training.recipe.about or training.folder.name}\n", table.markdown()]
    for name, found in scores.items():
        parts += [f"\n## {name}\n", main_table(found).markdown(), "\n", comparison_table(found).markdown()]
        parts += ["\n", group_table(found, metric_of(training)).markdown()]
    with atomic_write(training.folder / "table.md") as file:
        file.write("\n".join(parts))
    write_json(training.folder / "table.json", {name: scores_json(found) for name, found in scores.items()})
    title = training.recipe.about or "A search agent, trained"
    write_report(training.folder / "report.html", title, sections_of(training, scores, table))
    return table


def sections_of(training: AgentTraining, scores: dict[str, Scores], table: Table) -> list[Section]:
    """The report: what was learnt, how, and what the runs look like."""
    metric = metric_of(training)
    sections: list[Section] = [TableSection("What was learnt", table), *_curves(training)]
    for name, found in scores.items():
        sections.append(PlotSection(f"Before and after, by hops: {name}", _bars(found, metric), f"{metric}, greedy"))
        sections.append(TableSection(f"Differences: {name}", comparison_table(found)))
        sections.append(TableSection(f"By hops: {name}", group_table(found, metric)))
    after = next(row for row in rows_of(training) if row.name == "after")
    runs = _trajectories(training, after, training.sets[-1])[: 5 * EXAMPLES]
    shown = sorted(runs, key=lambda run: -len(run.searches))
    text = "Blue is what the agent wrote and is trained on; the rest was written by the environment."
    examples = (*_first(shown, EXAMPLES // 2, right=True), *_first(shown, EXAMPLES // 2, right=False))
    return [
        *sections,
        TrajectorySection("Runs of the trained agent, right and wrong", examples, text),
        SettingsSection("Settings", save_settings(training.recipe)),
        FilesSection("Files", files_of(training)),
        TextSection("Again", f"coseek train agent {training.folder}/recipe.yaml --out ANOTHER"),
    ]


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


def _bars(found: Scores, metric: str) -> Svg:
    groups = list(dict.fromkeys(summary.group for summary in found.summaries))
    bars = [
        Bars(name, tuple(found.of(name, group).metrics.get(metric) for group in groups))
        for name in ("before", "after", "naive RAG")
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
