"""Served: the table of agents that give no answer (s3). What a run found is given to the recipe's own frozen generator,
and what that answers is measured, beside naive RAG with the same generator, prompt and budget (004, table 1).

The generator's answers and the judge's verdicts stand beside each cell of the table, as `coseek score` writes and reads
them, and its texts in the run's cache: measuring twice asks nobody.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from coseek.agents.run_questions import row_seed
from coseek.data.identities import questions_digest
from coseek.data.passage import Hit, Passage
from coseek.data.question import Question
from coseek.data.run import Run
from coseek.data.trajectory import Search, StopReason, Trajectory
from coseek.graders.generator import Generator
from coseek.graders.grading import BATCH, answer_cache, generate_answers, judge_claims, verdict_cache
from coseek.graders.judge import Claim
from coseek.measure.component_scores import Answers, component_run
from coseek.measure.score import ScoredRun, Scores, Verdicts
from coseek.measure.searched import Answered, search_questions
from coseek.measure.table import Table, show
from coseek.pipelines.grader_settings import Graders
from coseek.retrieval.retriever import Retriever

ANSWERS = ("gen_acc", "em", "cover_em")
GIVEN = ("context_passages", "context_tokens")
MAIN = (*ANSWERS, "recall", "answer_hit", "searches", "agent_tokens", *GIVEN)
"""Columns of the tables of means."""
PAIRED = ("gen_acc", "em", "recall", "context_tokens")
"""What is compared, question by question."""
GROUPS = ("hops", "chain")
CHAIN = "2+ hops"
"""The questions that one search does not settle: where a gain can be."""


def identities_of(retriever: Retriever, questions: Sequence[Question], k: int, seed: int) -> dict[str, str]:
    """All that a run of `naive_rag` depends on."""
    return {
        "questions": questions_digest(questions),
        "agent": f"naive RAG, {k} passages",
        "seed": str(seed),
        "retriever": retriever.identity,
    }


def naive_rag(run: Run, retriever: Retriever, questions: Sequence[Question], k: int, seed: int) -> None:
    """One search with the question itself, as a run without tokens that serves its first `k` passages."""
    with run.open_for_append(identities_of(retriever, questions, k, seed)) as file:
        done = {ident for ident, _ in run.done()}
        left = [question for question in questions if question.id not in done]
        for batch in search_questions(retriever, left, k, BATCH):
            for found in batch:
                Run.append(file, _searched_once(found, row_seed(seed, found[0].id, 0)))


def _searched_once(answered: Answered, seed: int) -> Trajectory:
    question, found = answered
    ranked = zip(found.passages or (), found.scores, strict=True)
    hits = tuple(Hit(passage, score) for passage, score in ranked)
    stop = StopReason.COMPLETE if found.fault is None else StopReason.RETRIEVER_ERROR
    search = Search(question.question, hits, found.fault, turn=0)
    return Trajectory(question, "rag", (), (search,), stop, None, valid=True, seed=seed)


def answers_to(frozen: Graders, folder: Path, runs: Sequence[Trajectory]) -> tuple[Answers, Verdicts | None]:
    """What the generator answers from these runs' passages, and what the judge says of it; kept in `folder`."""
    assert frozen.generator is not None
    answers = generate_answers(frozen.generator, runs, answer_cache(folder, frozen.generator))
    if frozen.judge is None:
        return answers, None
    questions = {run.question.id: run.question for run in runs}
    claims = [Claim(questions[reply.question_id], reply.answer) for reply in answers.values() if reply.answer]
    return answers, judge_claims(frozen.judge, claims, verdict_cache(folder, frozen.judge))


def scored_by_generator(frozen: Graders, name: str, folder: Path, runs: Sequence[Trajectory]) -> ScoredRun:
    """A run with the generator's answers in the place of those that it does not give."""
    answers, verdicts = answers_to(frozen, folder, runs)
    return component_run(name, runs, answers, verdicts)


def with_answers(frozen: Graders, folder: Path, runs: Sequence[Trajectory]) -> list[Trajectory]:
    """The runs that the generator answered from, with its answers, to be shown to a reader."""
    answers, _ = answers_to(frozen, folder, runs)
    known = {key: reply for key, reply in answers.items() if reply.fault is None}
    asked = [(run, known.get((run.question.id, run.seed))) for run in runs]
    return [replace(run, answer=reply.answer) for run, reply in asked if reply is not None]


def selection_table(generator: Generator, runs: Mapping[str, Sequence[Trajectory]], scores: Scores) -> Table:
    """What the generator was given, and what it would have been given had the agent selected nothing."""
    rows = []
    for name, found in runs.items():
        given = [scores.of(name).metrics.get(column) for column in GIVEN]
        whole = [generator.budget.fill(_all_of(run)) for run in found if not run.stop.is_fault]
        if whole:
            cells = [fmean(len(passages) for passages, _ in whole), fmean(tokens for _, tokens in whole)]
            rows.append((name, *(show(one, 1) for one in given), *(f"{cell:.1f}" for cell in cells)))
    columns = ("run", "passages, selected", "tokens, selected", "passages, all", "tokens, all")
    return Table(columns, tuple(rows), ("Means over questions, within the generator's budget, equal passages once.",))


def _all_of(run: Trajectory) -> list[Passage]:
    return [hit.passage for search in run.searches for hit in search.hits]
