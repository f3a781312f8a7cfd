"""Grading: a frozen generator answers from an agent's passages, and a judge grades answers. The outputs of both are
cached in files beside the run, so a second start computes only what is missing."""

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

from coseek.agents.sources import SELECTED, served_context
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.trajectory import Trajectory
from coseek.graders.generator import Generator, GeneratorContext, GeneratorOutput
from coseek.graders.judge import Claim, Judge, VerdictKey

log = logging.getLogger(__name__)

BATCH = 64
"""Prompts per batch."""

Tell: TypeAlias = Callable[[int, int], None]
"""Called with (done, total)."""


def no_progress(done: int, total: int) -> None:
    """Does nothing."""


def generated_answer(
    question_id: str, seed: int, context: GeneratorContext, output: GeneratorOutput
) -> GeneratedAnswer:
    """A cache entry from a generator's context and output."""
    return GeneratedAnswer(
        question_id=question_id,
        seed=seed,
        context=context.digest,
        answer=output.answer,
        text=output.text,
        fault=output.fault,
        passage_ids=context.passage_ids,
        context_tokens=context.tokens,
    )


def generate_answers(
    generator: Generator,
    trajectories: Iterable[Trajectory],
    folder: Path,
    tell: Tell = no_progress,
    size: int = BATCH,
    serving: str = SELECTED,
) -> dict[tuple[str, int], GeneratedAnswer]:
    """The generator's answers from the passages that each run serves (`SERVINGS`), by question id and seed.

    Runs with a fault are skipped. Faults of the generator are retried. `size` prompts are sent at once. The cache in
    `folder` finds an answer by its context, so servings with equal passages share an answer.
    """
    cache = GradeCache.beside(folder, GeneratedAnswer, generator.identity, generator.card)
    pairs = [
        (run, generator.context(run.question.question, served_context(run, serving)))
        for run in trajectories
        if run.fault is None
    ]
    if cut := sum(context.truncated for _, context in pairs):
        limit = f"max_context_tokens={generator.settings.max_context_tokens:,} (--budget)"
        log.warning("%s of %s contexts did not fit into %s; their last passages were left out", cut, len(pairs), limit)
    entries = cache.entries()
    answers: dict[tuple[str, int], GeneratedAnswer] = {}
    missing = []
    for run, context in pairs:
        entry = entries.get((run.question.id, str(run.seed), context.digest, ""))
        if entry is None or entry.fault is not None:
            missing.append((run, context))
        else:
            answers[run.question.id, run.seed] = entry
    tell(len(answers), len(pairs))
    if not missing and cache.path.exists():  # nothing to write, so nothing to lock
        return answers
    cut = 0
    with cache.appending() as file:
        for start in range(0, len(missing), size):
            batch = missing[start : start + size]
            outputs = generator.answer([context for _, context in batch])
            for (run, context), output in zip(batch, outputs, strict=True):
                entry = generated_answer(run.question.id, run.seed, context, output)
                answers[run.question.id, run.seed] = entry
                cache.append(file, entry)
                cut += output.cut
            tell(len(answers), len(pairs))
    if cut:
        log.warning("%s of %s answers were cut at max_answer_tokens=%s", cut, len(missing), generator.max_answer_tokens)
    return answers


def judge_claims(
    judge: Judge, claims: Sequence[Claim], folder: Path, tell: Tell = no_progress, size: int = BATCH
) -> dict[tuple[str, str], Verdict]:
    """The verdicts of `verdicts_on` by question id and response, for questions with unique ids."""
    return {key[:2]: verdict for key, verdict in verdicts_on(judge, claims, folder, tell, size).items()}


def verdicts_on(
    judge: Judge, claims: Sequence[Claim], folder: Path, tell: Tell = no_progress, size: int = BATCH
) -> dict[VerdictKey, Verdict]:
    """A verdict for every non-empty response, by `Claim.key`. Equal claims are judged once and cached in `folder`.

    Questions without accepted answers are skipped. Faults of the judge are retried.
    """
    cache = GradeCache.beside(folder, Verdict, judge.identity, judge.card)
    claims_by_key = {claim.key: claim for claim in claims if claim.response.strip() and claim.question.answers}
    entries = cache.entries()
    verdicts = {key: entries[key] for key in claims_by_key if key in entries and entries[key].fault is None}
    missing = [claim for key, claim in claims_by_key.items() if key not in verdicts]
    tell(len(verdicts), len(claims_by_key))
    if not missing and cache.path.exists():
        return verdicts
    with cache.appending() as file:
        for start in range(0, len(missing), size):
            batch = missing[start : start + size]
            for claim, verdict in zip(batch, judge.judge(batch), strict=True):
                verdicts[claim.key] = verdict
                cache.append(file, verdict)
            tell(len(verdicts), len(claims_by_key))
    return verdicts


def answers_to(
    generator: Generator, judge: Judge | None, folder: Path, trajectories: Sequence[Trajectory]
) -> tuple[dict[tuple[str, int], GeneratedAnswer], dict[tuple[str, str], Verdict] | None]:
    """A generator's answers from the passages of trajectories, and a judge's verdicts on them, cached in `folder`."""
    answers = generate_answers(generator, trajectories, folder)
    if judge is None:
        return answers, None
    questions = {trajectory.question.id: trajectory.question for trajectory in trajectories}
    claims = [Claim(questions[reply.question_id], reply.answer) for reply in answers.values() if reply.answer]
    return answers, judge_claims(judge, claims, folder)
