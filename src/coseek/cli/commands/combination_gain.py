"""Naive RAG at rising k beside an agent's passages, answered by one generator (paper 001, figure 5)."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from coseek.agents.sources import served_context
from coseek.cli import options
from coseek.cli.grader_options import GraderSet, intended, open_parts, warn_of_cuts
from coseek.cli.terminal import AsJson, new_app, note, output
from coseek.core.files import JsonObject, check_output_folder, write_json, write_jsonl
from coseek.core.lock import lock_if_named
from coseek.data.run import Run
from coseek.data.trajectory import Trajectory
from coseek.graders.grading import answers_to
from coseek.measure.component_scores import CombinationGain, component_run
from coseek.measure.question_groups import datasets_of
from coseek.measure.report import ROWS, plot_section, question_rows, table_section, write_report
from coseek.measure.score import METRICS, ScoredRun
from coseek.measure.searched import search_questions
from coseek.pipelines.agent_run import check_gold
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever

KEPT = "naive-rag"
"""Folder inside a run for a generator's answers from naive RAG."""
GROUP = "Results"
app = new_app()


@app.command(epilog="Example: `coseek combination-gain runs/mine --retriever INDEX --answer-with MODEL`")
@options.takes_servers
def combination_gain(
    run: Annotated[Path, Argument(metavar="RUN", help="The agent's run.")],
    retriever: Annotated[str, Option(help="Retriever of naive RAG: an index folder, a URL, a YAML file.")],
    answer_with: Annotated[str, Option(help="The frozen generator: `base`, a model folder, a URL, a YAML file.")],
    ks: Annotated[str, Option(help="Passages of naive RAG, comma-separated.")] = "1,2,3,5,8,13",
    metric: Annotated[str, Option(help=f"One of: {', '.join(METRICS)}.")] = "cover_em",
    budget: options.BudgetTokens = 2048,
    prompt: options.PromptFile = None,
    judge: options.OneJudge = None,
    judge_prompt: options.JudgePromptFile = "judge",
    device: options.DeviceName = None,
    cache: options.CacheFile = None,
    out: Annotated[Path | None, Option(help="A folder for questions.jsonl, combination-gain.json and .html.")] = None,
    seed: options.BootstrapSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Compare naive RAG at rising k with the agent's passages, all answered by one generator.

    The matched baseline is RAG with as many passages per question as the agent served; the last column is the agent's
    paired lead over each row. If a question has several trajectories, the first one sets the number.
    """
    if out is not None:
        check_output_folder(out, "combination-gain.json", own=(ROWS,))
    writer, *judges = options.at_servers(answer_with, *([judge] if judge else ()))
    counts = sorted(options.whole_numbers("--ks", ks, 1, "1,2,3,5,8"))
    parts = open_parts([metric], writer, budget, prompt, judges, judge_prompt, cache, device)
    with lock_if_named(out):
        gain = measured(Run(run), open_retriever(retriever), retriever, counts, parts, metric, seed)
        tree = {**gain.to_json(), **parts.to_json()}
        if out is not None:
            write_gain(out, gain, parts, tree)
    output(as_json, tree, gain.tables().values())


def write_gain(out: Path, gain: CombinationGain, parts: GraderSet, tree: JsonObject) -> None:
    """Write the scores, overall and per question, and a page with their plot."""
    write_jsonl(out / ROWS, (row for run in gain.runs for row in question_rows(run)))
    write_json(out / "combination-gain.json", tree)
    text = "\n\n".join(parts.notes())
    plot = plot_section("Curve", gain.plot(), "95 % bootstrap intervals.")
    sections = [*(table_section(name, table, text) for name, table in gain.tables().items()), plot]
    write_report(out / "combination-gain.html", "Combination gain", sections)


def measured(
    run: Run, index: Retriever, name: str, counts: Sequence[int], parts: GraderSet, metric: str, seed: int
) -> CombinationGain:
    """Search once, at the largest depth, and answer from each cut-off and from the agent's passages."""
    trajectories = list(run.trajectories())
    candidates = (*intended([run]), *(trajectory.question for trajectory in trajectories))
    questions = list({question.id: question for question in candidates}.values())
    check_gold(questions, index, name)
    passage_counts: dict[str, int] = {}
    for trajectory in trajectories:
        if trajectory.fault is None:
            passage_counts.setdefault(trajectory.question.id, len(served_context(trajectory)))
    depth = max([*counts, *passage_counts.values()])
    results = chain.from_iterable(search_questions(index, questions, depth))
    retrieved = [result.as_rag(question) for question, result in results]
    matched_runs = [cut(rag, passage_counts[rag.question.id]) for rag in retrieved if rag.question.id in passage_counts]
    folder = run.folder / KEPT  # the run's own files are for answers from its own trajectories
    return CombinationGain(
        metric=metric,
        rag={k: answered(f"naive RAG, k = {k}", [cut(rag, k) for rag in retrieved], folder, parts) for k in counts},
        matched=answered("naive RAG, as many as the agent", matched_runs, folder, parts),
        agent=answered("agent", trajectories, run.folder, parts),
        idents=[question.id for question in questions],
        seed=seed,
        datasets=datasets_of(questions),
    )


def cut(trajectory: Trajectory, k: int) -> Trajectory:
    """Keep only the first `k` passages."""
    (search,) = trajectory.searches
    return replace(trajectory, searches=(replace(search, hits=search.hits[:k]),))


def answered(name: str, trajectories: Sequence[Trajectory], folder: Path, parts: GraderSet) -> ScoredRun:
    """Score the generator's answers from the passages of these trajectories, judged if there is a judge. Stores them in
    `folder`."""
    note(f"{name}: {len(trajectories)} questions")
    assert parts.generator is not None
    answers, verdicts = answers_to(parts.generator, next(iter(parts.judges), None), folder, trajectories)
    warn_of_cuts(parts.generator)
    return component_run(name, trajectories, answers, verdicts)
