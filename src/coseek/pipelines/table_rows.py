"""The rows and cells of an agent's table: the measured agents with their models, protocols and limits, and their runs;
and the generator's answers from the passages of agents that only search."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from coseek.agents.agent_card import CARD
from coseek.agents.drivers import Agent
from coseek.agents.limits import Limits
from coseek.agents.run_questions import identities_of, row_seed
from coseek.agents.scripted.rules import RuleAgent
from coseek.agents.scripted_agent import ScriptedAgentModel
from coseek.core.files import JsonObject
from coseek.core.fingerprint import TOKENIZER, fingerprint
from coseek.core.settings import dump_settings, make_settings
from coseek.data.digests import questions_digest
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.factory import CACHE, Graders, open_generator
from coseek.graders.generator import Generator, GeneratorSettings
from coseek.graders.grading import BATCH, answers_to
from coseek.measure.component_scores import GIVEN, component_run
from coseek.measure.score import ScoredRun, Scores, answers_itself
from coseek.measure.searched import search_questions
from coseek.measure.table import Table, show
from coseek.models.model_folder import model_path
from coseek.models.pretrained import load_model
from coseek.models.text_model import TextModelSettings
from coseek.models.tokenizer import HfTokenizer
from coseek.pipelines.agent import AgentTraining
from coseek.pipelines.agent_recipe import RULES
from coseek.pipelines.agent_run import share_run, unfinished_run
from coseek.pipelines.data_folder import QuestionSet
from coseek.pipelines.run_record import policy_identities
from coseek.retrieval.retriever import Retriever
from coseek.rewards.reward import make_reward

BASELINE = "baseline"
"""In place of a policy's name: the model of `table.baselines`."""
PAIRS = (("after", "before"), ("after, T=1", "before, T=1"))
"""Labels of rows that are compared question by question."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """One agent of the table."""

    name: str
    policy: str
    """Name of the policy folder; `BASELINE`; or empty for the rule-based agent."""
    protocol: str
    temperature: float
    passages: int = 0
    """Passages of naive RAG with the generator, which needs no policy; 0 for agents."""

    @property
    def label(self) -> str:
        return self.name if self.temperature == 0.0 else f"{self.name}, T=1"


def rows_of(training: AgentTraining) -> list[TableRow]:
    """The rows of the table. `before` comes first, since the others are paired with it."""
    protocol = training.recipe.protocol
    pair = tuple(zip(("before", "after"), training.compared_policies, strict=True))
    temperatures = (0.0, 1.0) if training.recipe.table.sampled else (0.0,)
    agents = [TableRow(name, policy, protocol, t) for t in temperatures for name, policy in pair]
    agents += [TableRow(f"after {stage.name}", stage.trained_policy, protocol, 0.0) for stage in training.stages[:-1]]
    warm = training.recipe.warm_start
    shown_on_data = warm is not None and warm.demonstrator in ("rules", "evidence", "expert") and not warm.uses_worlds
    baselines = training.recipe.table.baselines
    rules = [TableRow(RULES, "", protocol, 0.0)] if shown_on_data or RULES in baselines else []
    is_taught = (folder_of(training, TableRow("", BASELINE, protocol, 0.0)) / CARD).is_file()
    prefix = "start" if is_taught else "untrained"
    untrained = [
        TableRow(f"{prefix} {name}", BASELINE, name, 0.0) for name in dict.fromkeys(baselines) if name != RULES
    ]
    if by_generator(training):
        depths = dict.fromkeys((training.recipe.graders.baseline.passages, training.recipe.table.wide_rag))
        agents += [TableRow(f"RAG k={k}", "", "rag", 0.0, k) for k in depths if k is not None]
    elif warm is not None and warm.demonstrator != "gold":
        for name, baseline in (("direct", "direct"), ("naive RAG", "rag")):
            is_taught = warm.demonstrator != "runs" and (warm.one_shot > 0 or baseline in warm.also)
            agents.append(TableRow(name if is_taught else f"untaught {name}", "warm", baseline, 0.0))
    return [*agents, *untrained, *rules]


def by_generator(training: AgentTraining) -> bool:
    """Whether the generator answers for the agent."""
    return training.recipe.graders.generator is not None and not answers_itself(training.recipe.protocol)


def pairs_of(rows: Sequence[TableRow]) -> list[tuple[str, str]]:
    """The paired comparisons: those of `PAIRS` whose rows exist, and `after` with every row of naive RAG and of the
    baseline model."""
    labels = {row.label for row in rows}
    return [
        *(pair for pair in PAIRS if labels.issuperset(pair)),
        *(("after", row.label) for row in rows if row.passages or row.policy == BASELINE),
    ]


def folder_of(training: AgentTraining, row: TableRow) -> Path:
    """The model folder of a row that has a policy."""
    if row.policy != BASELINE:
        return training.policy_folder(row.policy)
    name = training.recipe.table.baseline_model
    return training.policy_folder("start") if name is None else model_path(name)


def tokenizer_folder(training: AgentTraining, row: TableRow) -> Path:
    """The folder of the row's tokenizer: the policy's, except for rows of `table.baseline_model`."""
    has_own = row.policy == BASELINE and training.recipe.table.baseline_model is not None
    return folder_of(training, row) if has_own else training.policy_folder("start")


def identities_of_row(training: AgentTraining, row: TableRow) -> dict[str, str]:
    """Digests of what the row's turns depend on: see `Agent.identities`."""
    tokenizer, precision = tokenizer_folder(training, row), training.recipe.precision
    if row.policy:
        return policy_identities(folder_of(training, row), tokenizer, row.temperature, precision)
    return {"agent": row.name, "tokenizer": fingerprint(tokenizer, TOKENIZER)}


def agent_of(training: AgentTraining, row: TableRow) -> Agent:
    """The row's agent. The rule-based one uses the policy's tokenizer, so that token counts are comparable."""
    protocol = training.recipe.load_protocol(row.protocol)
    turn_identities = identities_of_row(training, row)
    if not row.policy:
        return Agent(protocol, ScriptedAgentModel(RuleAgent(), protocol, training.tokenizer), turn_identities)
    model = load_model(folder_of(training, row), training.recipe)
    tokenizer = HfTokenizer.load(tokenizer_folder(training, row))
    return Agent(protocol, training.sampler(model, protocol, row.temperature, tokenizer=tokenizer), turn_identities)


def limits_of(training: AgentTraining, row: TableRow) -> Limits:
    """The recipe's limits; naive RAG has its own number of passages, a baseline the limits that suit its protocol."""
    limits, table = training.recipe.limits, training.recipe.table
    if row.protocol in ("rag", "rag-rerank"):
        return limits.with_passages(table.rag_passages)
    if row.policy != BASELINE:
        return limits
    protocol, own_limits = training.recipe.load_protocol(row.protocol), dict(table.baseline_limits)
    if protocol.file.opens_with_search and (turns := own_limits.get("max_turns")):
        own_limits["max_turns"] = max(turns - 1, 1)
    return make_settings(Limits, {**dump_settings(protocol.limits_over(limits)), **own_limits})


def metric_of(training: AgentTraining) -> str:
    """The first headline metric: by default the one nearest to the reward."""
    if training.recipe.table.metrics is not None:
        return training.recipe.table.metrics[0]
    recipe = training.stages[-1].recipe if training.stages else training.recipe
    if by_generator(training):
        return "gen_acc" if recipe.graders.judge is not None else "cover_em"
    names = {term.name for term in make_reward(recipe.reward).parts}
    if answers_itself(recipe.protocol):
        return "recall" if "gold_recall" in names else "em"
    # Rewards for found answers are for data without gold passages, where recall is undefined.
    return "answer_hit" if {"answer_hit", "rank_tiers"} & names else "recall"


# Cells: every row on every set is a run folder.


def answer_cells(training: AgentTraining) -> None:
    """Run every agent on every set, skipping finished cells. All workers call this and answer their share."""
    rows, columns, done = rows_of(training), training.sets, 0
    training.progress.stage("table", sum(len(column.questions) for column in columns) * len(rows))
    for row in rows:
        for column in columns:
            answer_cell(training, row, column, done)
            done += len(column.questions)


def answer_cell(training: AgentTraining, row: TableRow, column: QuestionSet, done: int) -> None:
    """Run one agent on one set in its run folder. Replaces a cell of another policy, and retries faults."""
    folder, seed = cell_folder(training, row, column), training.recipe.table.seed
    if row.passages:
        if training.workers.is_main:
            record: JsonObject = {"agent": {"name": row.name, "passages": row.passages}, "set": column.name}
            run = Run.made_with(folder, record, rag_identities(column.retriever, column.questions, row.passages, seed))
            run.drop_faults()
            naive_rag(run, column.retriever, column.questions, row.passages, seed)
        return
    settings = training.workers.broadcast(lambda: _unanswered_settings(training, row, column))
    if settings is None:
        return
    share_run(
        training.workers,
        folder,
        settings,
        agent_of(training, row),
        column.retriever,
        column.questions,
        limits_of(training, row),
        seed=seed,
        samples=1,
        concurrency=training.recipe.concurrency,
        overlap=training.recipe.overlap,
        tell=lambda ended, _: training.progress.advance(done + ended, f"{row.label} on {column.name}"),
    )


def _unanswered_settings(training: AgentTraining, row: TableRow, column: QuestionSet) -> JsonObject | None:
    """The settings of a cell's run as they are stored, since the paths of policies differ in a folder that was moved.
    `None` if the run has all its rows."""
    recipe, limits, seed = training.recipe, limits_of(training, row), training.recipe.table.seed
    protocol, source = recipe.load_protocol(row.protocol), tokenizer_folder(training, row)
    framed = protocol.template.framed(HfTokenizer.load(source))
    turn_identities = identities_of_row(training, row)
    identities = identities_of(turn_identities, protocol, column.retriever, column.questions, limits, seed, framed)
    name = str(folder_of(training, row)) if row.policy else row.name
    agent = recipe.agent_record(name, row.temperature, protocol=row.protocol, tokenizer=str(source))
    settings: JsonObject = {"agent": agent, "set": column.name, "limits": dump_settings(limits), "seed": seed}
    run = unfinished_run(cell_folder(training, row, column), settings, identities, column.questions)
    return None if run is None else run.settings


def cell_folder(training: AgentTraining, row: TableRow, column: QuestionSet) -> Path:
    return training.folder / "table" / f"{row.name.replace(' ', '-')}.{column.name}.t{row.temperature:g}"


# Agents that only search (s3): the recipe's generator answers from the passages of each run.
#
# The answers are compared with naive RAG of the same generator, prompt and budget (004, table 1). Answers and verdicts
# are stored in each cell's folder, as `coseek score` does, so that measuring again queries no model.

ANSWERS = ("gen_acc", "em", "cover_em")
GENERATOR_COLUMNS = (*ANSWERS, "recall", "answer_hit", "searches", "agent_tokens", *GIVEN)
"""Columns of the tables of means."""
GENERATOR_PAIRED = ("gen_acc", "em", "recall", "context_tokens")
"""Metrics of the paired comparisons."""
CHAIN_GROUPS = ("hops", "chain")
CHAIN = "2+ hops"
"""The questions that need more than one search."""


def rag_identities(retriever: Retriever, questions: Sequence[Question], k: int, seed: int) -> dict[str, str]:
    """Digests of what a run of `naive_rag` depends on."""
    agent, digest = f"naive RAG, {k} passages", questions_digest(questions)
    return {"questions": digest, "agent": agent, "seed": str(seed), "retriever": retriever.identity}


def naive_rag(run: Run, retriever: Retriever, questions: Sequence[Question], k: int, seed: int) -> None:
    """Search once with each question, and store runs without tokens that serve the first `k` passages."""
    order = [question.id for question in questions]
    with run.open_for_append(rag_identities(retriever, questions, k, seed), order) as file:
        done_ids = {ident for ident, _ in run.finished_keys()}
        unsearched = [question for question in questions if question.id not in done_ids]
        for batch in search_questions(retriever, unsearched, k, BATCH):
            for question, result in batch:
                Run.append(file, result.as_rag(question, row_seed(seed, question.id, 0)))


def graders_with(training: AgentTraining, model: str) -> Graders:
    """The recipe's judge, and a generator of `table.answer_with` with the limits of the recipe's."""
    recipe, folder = training.recipe, training.folder
    settings = recipe.graders.generator or GeneratorSettings(model=model)
    writing = make_settings(TextModelSettings, recipe.graders.values())
    generator = open_generator(settings.model_copy(update={"model": model}), folder / CACHE, writing)
    return Graders(recipe.graders, folder, generator, training.graders.judge)


def scored_by_generator(graders: Graders, name: str, folder: Path, trajectories: Sequence[Trajectory]) -> ScoredRun:
    """Score a run by the generator's answers."""
    assert graders.generator is not None
    answers, verdicts = answers_to(graders.generator, graders.judge, folder, trajectories)
    return component_run(name, trajectories, answers, verdicts)


def with_answers(graders: Graders, folder: Path, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """The runs with the generator's answers, for display. Runs with a fault of the generator are left out."""
    assert graders.generator is not None
    answers, _ = answers_to(graders.generator, graders.judge, folder, trajectories)
    pairs = [(trajectory, answers.get((trajectory.question.id, trajectory.seed))) for trajectory in trajectories]
    return [replace(run, answer=reply.answer) for run, reply in pairs if reply is not None and reply.fault is None]


def selection_table(generator: Generator, by_label: Mapping[str, Sequence[Trajectory]], scores: Scores) -> Table:
    """Passages and tokens of the generator's context, with and without the agent's selection."""
    rows = []
    for name, trajectories in by_label.items():
        means = [scores.of(name).metrics.get(column) for column in GIVEN]
        worked = [trajectory for trajectory in trajectories if not trajectory.stop.is_fault]
        retrieved = [[hit.passage for search in trajectory.searches for hit in search.hits] for trajectory in worked]
        contexts = [generator.budget.fill(passages) for passages in retrieved]
        if contexts:
            cells = [fmean(len(passages) for passages, _ in contexts), fmean(tokens for _, tokens in contexts)]
            rows.append((name, *(show(mean, 1) for mean in means), *(f"{cell:.1f}" for cell in cells)))
    columns = ("run", "passages, selected", "tokens, selected", "passages, all", "tokens, all")
    return Table(columns, tuple(rows), ("Means over questions, within the generator's budget, equal passages once.",))
