"""Baselines: what the frozen generator answers from naive RAG, question by question, computed before training (s3).

A gain over RAG is only a gain over the *same* generator, prompt, number and order of passages, and retriever. All of
them are in the identity of `baselines.jsonl`; a file of another identity and a question that is not in it are errors,
never a baseline of 0. A judge's verdicts stand in a file of their own beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coseek.core.errors import DataError
from coseek.core.files import read_jsonl
from coseek.core.fingerprint import digest_of
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict
from coseek.data.question import Question
from coseek.graders.generator import Generator, ReadingInput
from coseek.graders.grading import BATCH, Tell, generated_answer, judge_claims, no_progress, verdict_cache
from coseek.graders.judge import Claim, Judge
from coseek.measure.answers import normalise
from coseek.measure.searched import Answered, search_questions
from coseek.retrieval.retriever import Retriever
from coseek.rewards.accuracy import Accuracy, is_right, left_to_judge
from coseek.rewards.grades import Grades, NoReward, VerdictNeeded

FILE = "baselines.jsonl"
ORDER = "as ranked, equal passages once"
"""Of the passages in the prompt; part of the identity."""
CLOSED = frozenset({"yes", "no", "true", "false"})
"""Answers that a span check finds in the opposite answer ("not true"): 004, §4.2 trains on no such question."""
PASSES = 2
"""How often a part that failed is asked for a question in one go."""


@dataclass(frozen=True)
class RagBaselines:
    """Naive RAG's answers by question id, and a judge's verdicts on them by question id and response."""

    replies: Mapping[str, GeneratedAnswer]
    verdicts: Mapping[tuple[str, str], Verdict] | None
    """`None` where there was no judge."""
    source: Path
    """Where they stand, for errors."""

    def of(self, question: Question) -> GeneratedAnswer:
        """The baseline of a question. One that is missing is an error."""
        reply = self.replies.get(question.id)
        if reply is None:
            raise DataError(
                f"question {question.id!r} has no baseline in {self.source}; compute the baselines of these questions"
            )
        return reply

    def verdicts_on(self, question: Question) -> dict[str, Verdict] | None:
        """What the judge said of its baseline, by response; nothing where he failed, so that he can be asked again."""
        if self.verdicts is None:
            return None
        verdict = self.verdicts.get((question.id, self.of(question).answer or ""))
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
    """Compute what is missing in `folder`, keep every answer as it comes, and return all that are there.

    Naive RAG: the question itself is searched once, and the generator answers from the first `k` passages. The judge is
    shown only what `accuracy` leaves to him. A start after a kill, and one with more questions, asks only what is
    missing or failed.
    """
    sheet = baseline_cache(folder, retriever, generator, k)
    known = _known(sheet)
    wanted = {question.id: question for question in questions}
    for _ in range(PASSES):
        left = [question for question in wanted.values() if not _holds(known.get(question.id))]
        tell(len(wanted) - len(left), len(wanted))
        if not left:
            break
        with sheet.appending() as file:
            for found in search_questions(retriever, left, k, BATCH):
                for reply in _answered(generator, found):
                    known[reply.question_id] = reply
                    GradeCache.append(file, reply)
                tell(sum(_holds(known.get(ident)) for ident in wanted), len(wanted))
    verdicts = None
    if judge is not None:
        answered = [(question, known[question.id].answer or "") for question in wanted.values()]
        claims = [Claim(*one) for one in answered if left_to_judge(accuracy, *one)]
        verdicts = judge_claims(judge, claims, verdict_cache(folder, judge))
    return RagBaselines(known, verdicts, sheet.path)


def baseline_cache(folder: Path, retriever: Retriever, generator: Generator, k: int) -> GradeCache[GeneratedAnswer]:
    """The file of a folder's baselines; one that was computed with something else is refused, and what else is said."""
    identity = digest_of("baseline", generator.identity, retriever.identity, str(k), ORDER)
    card = {
        **generator.card,
        "generator": generator.identity,
        "retriever": retriever.identity,
        "passages": k,
        "order": ORDER,
    }
    sheet = GradeCache(folder / FILE, GeneratedAnswer, identity, card)
    if sheet.path.exists():
        _, head = next(read_jsonl(sheet.path), (1, {}))
        by = head.get("by")
        if head.get("identity") != identity:
            other = sorted(name for name in card if not isinstance(by, dict) or by.get(name) != card[name])
            raise DataError(
                f"{sheet.path} was computed with another {', '.join(other) or 'version'}; take what it was computed "
                "with, or delete the file to compute it again"
            )
    return sheet


def _known(sheet: GradeCache[GeneratedAnswer]) -> dict[str, GeneratedAnswer]:
    return {entry.question_id: entry for entry in sheet.entries().values()}


def _holds(reply: GeneratedAnswer | None) -> bool:
    return reply is not None and reply.fault is None


def _answered(generator: Generator, found: Sequence[Answered]) -> list[GeneratedAnswer]:
    """The generator's answers to a batch of questions; a search that failed is a fault, and no empty context."""
    replies = [
        GeneratedAnswer(question.id, 0, "", None, fault=f"search: {one.fault}") for question, one in found if one.fault
    ]
    asked = [(question, tuple(one.passages or ())) for question, one in found if not one.fault]
    contexts = [generator.context(ReadingInput(question.question, passages)) for question, passages in asked]
    written = generator.answer(contexts)
    return replies + [
        generated_answer(question.id, 0, context, one)
        for (question, _), context, one in zip(asked, contexts, written, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class UnsolvedQuestions:
    """The questions that are worth training on, and how many were left out, by why."""

    kept: tuple[Question, ...]
    solved: int
    """Naive RAG answers them already."""
    failed: int
    """The baseline or its verdict is a fault, so nothing is known."""


def is_closed(question: Question) -> bool:
    """Whether a gold answer is yes, no, true or false."""
    return any(normalise(answer) in CLOSED for answer in question.answers)


def unsolved_by_rag(
    questions: Sequence[Question], baselines: RagBaselines, accuracy: Accuracy = "gen_acc"
) -> UnsolvedQuestions:
    """The questions that naive RAG fails (004, §3.2). The accuracy is the reward's."""
    kept: list[Question] = []
    solved = failed = 0
    for question in questions:
        said = Grades(baseline=baselines.of(question), verdicts=baselines.verdicts_on(question))
        try:
            right = is_right(accuracy, question, said.baseline_answer(), said)
        except (NoReward, VerdictNeeded):
            failed += 1
            continue
        if right:
            solved += 1
        else:
            kept.append(question)
    return UnsolvedQuestions(tuple(kept), solved, failed)
