"""Component: an agent as a part of somebody else's system. What it found is given to a frozen generator, and what was
answered is given to a judge; both are kept in sheets beside the run, and a second start asks only what is missing."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from coseek.agents.served_context import served_context
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.trajectory import Trajectory
from coseek.graders.generator import Generator, GeneratorContext, GeneratorOutput, ReadingInput
from coseek.graders.judge import Claim, Judge

BATCH = 64
"""Prompts that a model is given at once."""

Tell: TypeAlias = Callable[[int, int], None]
"""Hears (done, in all)."""


def no_progress(done: int, total: int) -> None:
    """Tells nobody."""


def answer_cache(folder: Path, generator: Generator) -> GradeCache[GeneratedAnswer]:
    """Where a generator's answers to a run stand."""
    return GradeCache.beside(folder, GeneratedAnswer, generator.identity, generator.card)


def verdict_cache(folder: Path, judge: Judge) -> GradeCache[Verdict]:
    """Where a judge's verdicts on a run stand."""
    return GradeCache.beside(folder, Verdict, judge.identity, judge.card)


def generated_answer(
    question_id: str, seed: int, context: GeneratorContext, written: GeneratorOutput
) -> GeneratedAnswer:
    """What a generator wrote, with what it was given."""
    return GeneratedAnswer(
        question_id=question_id,
        seed=seed,
        context=context.digest,
        answer=written.answer,
        text=written.text,
        fault=written.fault,
        passage_ids=context.passage_ids,
        context_tokens=context.tokens,
    )


def generate_answers(
    generator: Generator,
    trajectories: Iterable[Trajectory],
    sheet: GradeCache[GeneratedAnswer],
    tell: Tell = no_progress,
) -> dict[tuple[str, int], GeneratedAnswer]:
    """What the generator answers from the passages that each run serves, by question id and seed.

    A run that ended by a fault serves nothing and is not asked. Faults of the generator are asked again.
    """
    wanted = [
        (run, generator.context(ReadingInput(run.question.question, tuple(served_context(run)))))
        for run in trajectories
        if not run.stop.is_fault
    ]
    known = sheet.entries()
    answers: dict[tuple[str, int], GeneratedAnswer] = {}
    left = []
    for run, context in wanted:
        entry = known.get((run.question.id, str(run.seed), context.digest))
        if entry is None or entry.fault is not None:
            left.append((run, context))
        else:
            answers[run.question.id, run.seed] = entry
    tell(len(answers), len(wanted))
    if not left and sheet.path.exists():  # nothing to write, so nothing to lock
        return answers
    with sheet.appending() as file:
        for start in range(0, len(left), BATCH):
            batch = left[start : start + BATCH]
            for (run, context), written in zip(batch, generator.answer([one for _, one in batch]), strict=True):
                entry = generated_answer(run.question.id, run.seed, context, written)
                answers[run.question.id, run.seed] = entry
                sheet.append(file, entry)
            tell(len(answers), len(wanted))
    return answers


def judge_claims(
    judge: Judge, claims: Sequence[Claim], sheet: GradeCache[Verdict], tell: Tell = no_progress
) -> dict[tuple[str, str], Verdict]:
    """A verdict for every response that is not empty, by question id and response; equal claims are judged once.

    Questions without accepted answers cannot be judged. Faults of the judge are asked again.
    """
    asked = {
        (claim.question.id, claim.response): claim
        for claim in claims
        if claim.response.strip() and claim.question.answers
    }
    known = {(entry.question_id, entry.response): entry for entry in sheet.entries().values()}
    verdicts = {key: known[key] for key in asked if key in known and known[key].fault is None}
    left = [claim for key, claim in asked.items() if key not in verdicts]
    tell(len(verdicts), len(asked))
    if not left and sheet.path.exists():
        return verdicts
    with sheet.appending() as file:
        for start in range(0, len(left), BATCH):
            for verdict in judge.judge(left[start : start + BATCH]):
                verdicts[verdict.question_id, verdict.response] = verdict
                sheet.append(file, verdict)
            tell(len(verdicts), len(asked))
    return verdicts
