"""RAG baselines: the frozen generator's answers from naive RAG, per question, computed before training (s3).

A gain over RAG compares with the *same* generator, prompt, number and order of passages, and retriever. All of them are
part of the identity of `baselines.jsonl`. A file with another identity and a missing question are errors, never a
baseline of 0. A judge's verdicts are stored in a separate file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.core.files import read_jsonl
from coseek.core.fingerprint import digest_of
from coseek.data.answers import normalise
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.question import Question
from coseek.graders.generator import Generator
from coseek.graders.grading import BATCH, Tell, generated_answer, no_progress, verdicts_on
from coseek.graders.judge import Claim, Judge, VerdictKey
from coseek.measure.searched import Answered, search_questions
from coseek.retrieval.retriever import Retriever
from coseek.rewards.grades import Accuracy, Grades, NoReward, is_right, left_to_judge

FILE = "baselines.jsonl"
ORDER = "as ranked, equal passages once"
"""Order of the passages in the prompt; part of the identity."""
CLOSED = frozenset({"yes", "no", "true", "false"})
"""Answers that a span check also finds in the opposite answer ("not true"). s3, section 4.2 excludes such questions
from training."""
PASSES = 2
"""Maximum number of attempts per question in one start."""


Replies: TypeAlias = Mapping[tuple[str, str], GeneratedAnswer]
"""Naive RAG's answers by question id and digest of the question."""


@dataclass(frozen=True)
class RagBaselines:
    """Naive RAG's answers, and a judge's verdicts on them."""

    replies: Replies
    verdicts: Mapping[VerdictKey, Verdict] | None
    """By `Claim.key`; `None` without a judge."""
    source: Path
    """Their file, for error messages."""

    def of(self, question: Question) -> GeneratedAnswer:
        """The baseline of a question. Raises `DataError` if it is missing."""
        reply = self.replies.get((question.id, _question_digest(question)))
        if reply is None:
            raise DataError(
                f"question {question.id!r} has no baseline in {self.source}; compute the baselines of these questions"
            )
        return reply

    def verdicts_on(self, question: Question) -> dict[str, Verdict] | None:
        """The judge's verdicts on the baseline, by response, without faults."""
        if self.verdicts is None:
            return None
        verdict = self.verdicts.get(Claim(question, self.of(question).answer or "").key)
        return {verdict.response: verdict} if verdict is not None and verdict.fault is None else {}


def make_baselines(
    folder: Path,
    questions: Sequence[Question],
    retriever: Retriever,
    generator: Generator,
    k: int,
    judge: Judge | None = None,
    accuracy: Accuracy = "gen_acc",
    tell: Tell = no_progress,
) -> RagBaselines:
    """Compute the missing baselines of `folder`, append each answer at once, and return all of them.

    Naive RAG: one search with the question itself; the generator answers from the first `k` passages. The judge gets
    only the answers that `accuracy` leaves to it. A second start computes only what is missing or failed.
    """
    cache = baseline_cache(folder, retriever, generator, k)
    by_key = {(question.id, _question_digest(question)): question for question in questions}
    replies = {(reply.question_id, reply.asked): reply for reply in cache.entries().values()}

    def missing_questions() -> list[Question]:
        return [question for key, question in by_key.items() if key not in replies or replies[key].fault is not None]

    for _ in range(PASSES):
        remaining = missing_questions()
        tell(len(by_key) - len(remaining), len(by_key))
        if not remaining:
            break
        with cache.appending() as file:
            for results in search_questions(retriever, remaining, k, BATCH):
                for reply in _answer_batch(generator, results):
                    replies[reply.question_id, reply.asked] = reply
                    GradeCache.append(file, reply)
                tell(len(by_key) - len(missing_questions()), len(by_key))
    verdicts = None
    if judge is not None:
        answers = [(question, replies[key].answer or "") for key, question in by_key.items()]
        claims = [Claim(question, answer) for question, answer in answers if left_to_judge(accuracy, question, answer)]
        verdicts = verdicts_on(judge, claims, folder)
    return RagBaselines(replies, verdicts, cache.path)


def baseline_cache(folder: Path, retriever: Retriever, generator: Generator, k: int) -> GradeCache[GeneratedAnswer]:
    """The file of a folder's baselines. Raises `DataError` for a file with another identity, naming the difference."""
    identity = digest_of("baseline", generator.identity, retriever.identity, str(k), ORDER)
    card = {
        **generator.card,
        "generator": generator.identity,
        "retriever": retriever.identity,
        "passages": k,
        "order": ORDER,
    }
    cache = GradeCache(folder / FILE, GeneratedAnswer, identity, card)
    if cache.path.exists():
        _, header = next(read_jsonl(cache.path), (1, {}))
        by = header.get("by")
        if header.get("identity") != identity:
            differing = sorted(name for name in card if not isinstance(by, dict) or by.get(name) != card[name])
            raise DataError(
                f"{cache.path} was computed with another {', '.join(differing) or 'version'}; use the one that it was "
                "computed with, or delete the file to compute it again"
            )
    return cache


def _question_digest(question: Question) -> str:
    """Digest of a question's text, which distinguishes questions with equal ids."""
    return digest_of(question.question, *filter(None, [question.search_text]))


def _answer_batch(generator: Generator, results: Sequence[Answered]) -> list[GeneratedAnswer]:
    """The generator's answers to a batch of questions. A failed search is a fault, not an empty context."""
    replies = [
        GeneratedAnswer(question.id, 0, "", None, fault=f"search: {search.fault}", asked=_question_digest(question))
        for question, search in results
        if search.fault
    ]
    contexts = [
        (question, generator.context(question.question, search.passages or ()))
        for question, search in results
        if not search.fault
    ]
    outputs = generator.answer([context for _, context in contexts])
    return replies + [
        replace(generated_answer(question.id, 0, context, output), asked=_question_digest(question))
        for (question, context), output in zip(contexts, outputs, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class UnsolvedQuestions:
    """The questions that naive RAG fails, and the numbers of the other questions."""

    kept: tuple[Question, ...]
    solved: int
    """Questions that naive RAG answers."""
    failed: int
    """Questions whose baseline or verdict is a fault."""


def is_closed(question: Question) -> bool:
    """Whether a gold answer is yes, no, true or false."""
    return any(normalise(answer) in CLOSED for answer in question.answers)


def unsolved_by_rag(
    questions: Sequence[Question], baselines: RagBaselines, accuracy: Accuracy = "gen_acc"
) -> UnsolvedQuestions:
    """The questions that naive RAG fails (s3, section 3.2), by the reward's accuracy."""
    kept: list[Question] = []
    solved = failed = 0
    for question in questions:
        grades = Grades(baseline=baselines.of(question), verdicts=baselines.verdicts_on(question))
        try:
            right = is_right(accuracy, question, grades.baseline_answer(), grades)
        except NoReward:
            failed += 1
            continue
        if right:
            solved += 1
        else:
            kept.append(question)
    return UnsolvedQuestions(tuple(kept), solved, failed)
