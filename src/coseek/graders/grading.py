"""Grading: a frozen generator answers from an agent's passages, and a judge grades answers. Both outputs are cached in
files beside the run; a second start computes only what is missing."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from coseek.agents.sources import SELECTED, served_context
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.trajectory import Trajectory
from coseek.graders.generator import Generator, GeneratorContext, GeneratorOutput, ReadingInput
from coseek.graders.judge import Claim, Judge, VerdictKey

log = logging.getLogger(__name__)

BATCH = 64
"""Prompts per batch."""

Tell: TypeAlias = Callable[[int, int], None]
"""Called with (done, total)."""


def no_progress(done: int, total: int) -> None:
    """Does nothing."""


def answer_cache(folder: Path, generator: Generator) -> GradeCache[GeneratedAnswer]:
    """The cache of a generator's answers to a run."""
    return GradeCache.beside(folder, GeneratedAnswer, generator.identity, generator.card)


def verdict_cache(folder: Path, judge: Judge) -> GradeCache[Verdict]:
    """The cache of a judge's verdicts on a run."""
    return GradeCache.beside(folder, Verdict, judge.identity, judge.card)


def generated_answer(
    question_id: str, seed: int, context: GeneratorContext, written: GeneratorOutput
) -> GeneratedAnswer:
    """A cache entry from a generator's context and output."""
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
    cache: GradeCache[GeneratedAnswer],
    tell: Tell = no_progress,
    size: int = BATCH,
    serving: str = SELECTED,
) -> dict[tuple[str, int], GeneratedAnswer]:
    """The generator's answers from what each run serves (`SERVINGS`), by question id and seed.

    Runs with a fault are left out. Faults of the generator are repeated. `size` prompts are handed over at once. The
    cache knows an answer by its context, so servings of equal passages share one.
    """
    wanted = [
        (run, generator.context(ReadingInput(run.question.question, tuple(served_context(run, serving)))))
        for run in trajectories
        if run.fault is None
    ]
    if cut := sum(context.truncated for _, context in wanted):
        most = f"max_context_tokens={generator.settings.max_context_tokens:,} (--budget)"
        log.warning("%s of %s contexts did not fit into %s; what came last was left out", cut, len(wanted), most)
    known = cache.entries()
    answers: dict[tuple[str, int], GeneratedAnswer] = {}
    left = []
    for run, context in wanted:
        entry = known.get((run.question.id, str(run.seed), context.digest, ""))
        if entry is None or entry.fault is not None:
            left.append((run, context))
        else:
            answers[run.question.id, run.seed] = entry
    tell(len(answers), len(wanted))
    if not left and cache.path.exists():  # nothing to write, so nothing to lock
        return answers
    cut = 0
    with cache.appending() as file:
        for start in range(0, len(left), size):
            batch = left[start : start + size]
            for (run, context), written in zip(batch, generator.answer([one for _, one in batch]), strict=True):
                entry = generated_answer(run.question.id, run.seed, context, written)
                answers[run.question.id, run.seed] = entry
                cache.append(file, entry)
                cut += written.cut
            tell(len(answers), len(wanted))
    if cut:
        log.warning("%s of %s answers were cut at max_answer_tokens=%s", cut, len(left), generator.max_answer_tokens)
    return answers


def judge_claims(
    judge: Judge, claims: Sequence[Claim], cache: GradeCache[Verdict], tell: Tell = no_progress, size: int = BATCH
) -> dict[tuple[str, str], Verdict]:
    """`verdicts_on` by question id and response, where no two questions share an id."""
    return {key[:2]: verdict for key, verdict in verdicts_on(judge, claims, cache, tell, size).items()}


def verdicts_on(
    judge: Judge, claims: Sequence[Claim], cache: GradeCache[Verdict], tell: Tell = no_progress, size: int = BATCH
) -> dict[VerdictKey, Verdict]:
    """A verdict for every non-empty response, by `Claim.key`; equal claims are judged once.

    Questions without accepted answers are left out. Faults of the judge are repeated.
    """
    asked = {claim.key: claim for claim in claims if claim.response.strip() and claim.question.answers}
    known = {key: entry for key, entry in cache.entries().items() if entry.fault is None}
    verdicts: dict[VerdictKey, Verdict] = {key: known[key] for key in asked if key in known}
    left = [claim for key, claim in asked.items() if key not in verdicts]
    tell(len(verdicts), len(asked))
    if not left and cache.path.exists():
        return verdicts
    with cache.appending() as file:
        for start in range(0, len(left), size):
            for claim, verdict in zip(left[start : start + size], judge.judge(left[start : start + size]), strict=True):
                verdicts[claim.key] = verdict
                cache.append(file, verdict)
            tell(len(verdicts), len(asked))
    return verdicts


def answers_to(
    generator: Generator, judge: Judge | None, folder: Path, trajectories: Sequence[Trajectory]
) -> tuple[dict[tuple[str, int], GeneratedAnswer], dict[tuple[str, str], Verdict] | None]:
    """A generator's answers from the passages of trajectories, and a judge's verdicts on them; kept in `folder`."""
    answers = generate_answers(generator, trajectories, answer_cache(folder, generator))
    if judge is None:
        return answers, None
    questions = {trajectory.question.id: trajectory.question for trajectory in trajectories}
    claims = [Claim(questions[reply.question_id], reply.answer) for reply in answers.values() if reply.answer]
    return answers, judge_claims(judge, claims, verdict_cache(folder, judge))
