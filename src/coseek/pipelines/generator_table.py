"""The table of agents that only search (s3): the recipe's generator answers from what each run found.

The answers are compared with naive RAG of the same generator, prompt and budget (004, table 1). Answers and verdicts
are stored beside each cell, as `coseek score` does, so that measuring again asks no model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from coseek.agents.run_questions import row_seed
from coseek.data.digests import questions_digest
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.graders.generator import Generator
from coseek.graders.grading import BATCH, answer_cache, generate_answers, judge_claims, verdict_cache
from coseek.graders.judge import Claim
from coseek.measure.component_scores import Answers, component_run
from coseek.measure.score import ScoredRun, Scores, Verdicts
from coseek.measure.searched import search_questions
from coseek.measure.table import Table, show
from coseek.pipelines.grader_settings import Graders
from coseek.retrieval.retriever import Retriever

ANSWERS = ("gen_acc", "em", "cover_em")
GIVEN = ("context_passages", "context_tokens")
MAIN = (*ANSWERS, "recall", "answer_hit", "searches", "agent_tokens", *GIVEN)
"""Columns of the tables of means."""
PAIRED = ("gen_acc", "em", "recall", "context_tokens")
"""Metrics of the paired comparisons."""
GROUPS = ("hops", "chain")
CHAIN = "2+ hops"
"""The questions that need more than one search."""


def identities_of(retriever: Retriever, questions: Sequence[Question], k: int, seed: int) -> dict[str, str]:
    """Digests of what a run of `naive_rag` depends on."""
    agent, digest = f"naive RAG, {k} passages", questions_digest(questions)
    return {"questions": digest, "agent": agent, "seed": str(seed), "retriever": retriever.identity}


def naive_rag(run: Run, retriever: Retriever, questions: Sequence[Question], k: int, seed: int) -> None:
    """Search once with each question; stores runs without tokens that serve the first `k` passages."""
    order = [question.id for question in questions]
    with run.open_for_append(identities_of(retriever, questions, k, seed), order) as file:
        done = {ident for ident, _ in run.done()}
        left = [question for question in questions if question.id not in done]
        for batch in search_questions(retriever, left, k, BATCH):
            for question, found in batch:
                hits = tuple(Hit(*pair) for pair in zip(found.passages or (), found.scores, strict=True))
                stop = StopReason.COMPLETE if found.fault is None else StopReason.RETRIEVER_ERROR
                search, own_seed = Search(question.question, hits, found.fault, turn=0), row_seed(seed, question.id, 0)
                Run.append(file, Trajectory(question, "rag", (), (search,), stop, None, valid=True, seed=own_seed))


def answers_to(graders: Graders, folder: Path, runs: Sequence[Trajectory]) -> tuple[Answers, Verdicts | None]:
    """The generator's answers from these runs' passages, and the judge's verdicts on them; stored in `folder`."""
    assert graders.generator is not None
    answers = generate_answers(graders.generator, runs, answer_cache(folder, graders.generator))
    if graders.judge is None:
        return answers, None
    questions = {run.question.id: run.question for run in runs}
    claims = [Claim(questions[reply.question_id], reply.answer) for reply in answers.values() if reply.answer]
    return answers, judge_claims(graders.judge, claims, verdict_cache(folder, graders.judge))


def scored_by_generator(graders: Graders, name: str, folder: Path, runs: Sequence[Trajectory]) -> ScoredRun:
    """A run scored by the generator's answers."""
    answers, verdicts = answers_to(graders, folder, runs)
    return component_run(name, runs, answers, verdicts)


def with_answers(graders: Graders, folder: Path, runs: Sequence[Trajectory]) -> list[Trajectory]:
    """The runs with the generator's answers, for display; runs with a fault of the generator are left out."""
    answers, _ = answers_to(graders, folder, runs)
    known = {key: reply for key, reply in answers.items() if reply.fault is None}
    asked = [(run, known.get((run.question.id, run.seed))) for run in runs]
    return [replace(run, answer=reply.answer) for run, reply in asked if reply is not None]


def selection_table(generator: Generator, runs: Mapping[str, Sequence[Trajectory]], scores: Scores) -> Table:
    """Passages and tokens of the generator's context, beside those without the agent's selection."""
    rows = []
    for name, found in runs.items():
        given = [scores.of(name).metrics.get(column) for column in GIVEN]
        worked = [run for run in found if not run.stop.is_fault]
        retrieved = [[hit.passage for search in run.searches for hit in search.hits] for run in worked]
        whole = [generator.budget.fill(passages) for passages in retrieved]
        if whole:
            cells = [fmean(len(passages) for passages, _ in whole), fmean(tokens for _, tokens in whole)]
            rows.append((name, *(show(one, 1) for one in given), *(f"{cell:.1f}" for cell in cells)))
    columns = ("run", "passages, selected", "tokens, selected", "passages, all", "tokens, all")
    return Table(columns, tuple(rows), ("Means over questions, within the generator's budget, equal passages once.",))
