"""Grades: outputs of frozen models for one run. The caller computes them in batches; rewards read them.

A reward part declares its needs with a function `needs(settings)` and gets `Grades` as third argument:

    component   the frozen generator's answer from the run's passages
    baseline    the same generator's answer from naive RAG, computed before training
    judge       verdicts on the answers that its function `to_judge(trajectory, settings, grades)` returns, because
                matching cannot decide them; `grades` holds the other two

A fault of a frozen model leaves the run without a reward (`NoReward`). It is never a wrong answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coseek.core.errors import PartFault, SettingError
from coseek.data import answers
from coseek.data.grade_cache import GeneratedAnswer, Verdict
from coseek.data.question import Question

Need: TypeAlias = Literal["component", "baseline", "judge"]

WAY_OUT: Mapping[Need, str] = {
    "component": "a frozen generator that answers from the run's passages: name one with graders.generator.model",
    "baseline": "a naive-RAG baseline: compute it with the same generator first, and set graders.baseline",
    "judge": "a judge: name one with graders.judge.model, or take accuracy: cover_match, which needs none",
}
"""What to do about a missing grade."""


class NoReward(PartFault):
    """A frozen model failed, so this run has no reward."""

    def __init__(self, part: str, detail: str) -> None:
        super().__init__(f"{part}: {detail}")
        self.part, self.detail = part, detail


@dataclass(frozen=True, slots=True)
class Grades:
    """Outputs of frozen models for one run, if a reward needs them."""

    reply: GeneratedAnswer | None = None
    """The generator's answer from the run's passages."""
    baseline: GeneratedAnswer | None = None
    """The generator's answer from naive RAG."""
    verdicts: Mapping[str, Verdict] | None = None
    """The judge's verdicts on responses to this question, by response; `None` without a judge."""

    @property
    def written(self) -> str | None:
        """The generator's answer from the run's passages; `None` without a generator and for a fault."""
        return None if self.reply is None else self.reply.answer

    def component_answer(self) -> str | None:
        """The generator's answer from the run's passages; `None` if its output holds no answer."""
        return _answer(self.reply, "component", "generator")

    def baseline_answer(self) -> str | None:
        """The generator's answer from naive RAG."""
        return _answer(self.baseline, "baseline", "baseline")

    def served(self) -> dict[str, float]:
        """Numbers of passages and tokens in the generator's context, for the log."""
        if self.reply is None:
            return {}
        return {"passages": float(len(self.reply.passage_ids)), "tokens": float(self.reply.context_tokens)}

    def right(self, response: str | None) -> bool:
        """Whether the judge accepts the response. An empty response is wrong without a judge."""
        if response is None or not response.strip():
            return False
        if self.verdicts is None:
            raise SettingError(f"this reward needs {WAY_OUT['judge']}")
        verdict = self.verdicts.get(response)
        if verdict is None or verdict.right is None:
            raise NoReward("judge", (verdict and verdict.fault) or "no verdict")
        return verdict.right


NO_GRADES = Grades()
"""Grades of a reward without needs."""


def _answer(reply: GeneratedAnswer | None, need: Need, part: str) -> str | None:
    if reply is None:
        raise SettingError(f"this reward needs {WAY_OUT[need]}")
    if reply.fault is not None:
        raise NoReward(part, reply.fault)
    return reply.answer


# Accuracy: when a generator's answer counts as right, in rewards for an agent's passages.

Accuracy: TypeAlias = Literal["gen_acc", "gen_acc_span", "cover_match", "span_match", "exact_match", "judge"]
"""s3, table 5 compares four (GenAcc, Span, EM, LLMJudge); the values with `span` match as its program does."""
UNMATCHED, NO_MATCH = "gold answers", "normalisation leaves nothing of them, so that no answer can match; take a judge"
"""The part and the detail of the fault for a question that only a judge can grade."""
JUDGED = ("gen_acc", "gen_acc_span", "judge")
_MATCHES = {
    "gen_acc": answers.cover_match,
    "gen_acc_span": answers.span_match,
    "cover_match": answers.cover_match,
    "span_match": answers.span_match,
    "exact_match": answers.exact_match,
}


def needs_of(accuracy: Accuracy) -> tuple[Need, ...]:
    """GenAcc needs a judge too, for answers without a matching span."""
    return ("judge",) if accuracy in JUDGED else ()


def undecided(accuracy: Accuracy, question: Question, *responses: str | None) -> list[str]:
    """The responses that only a judge can decide. An empty response is wrong without a judge."""
    return [answer for answer in responses if answer and answer.strip() and left_to_judge(accuracy, question, answer)]


def left_to_judge(accuracy: Accuracy, question: Question, response: str | None) -> bool:
    """Whether the judge has to decide, because matching cannot. With GenAcc it also decides every answer to a question
    marked `judge_only` (s3, appendix A.4). No answer to an unanswerable question is right."""
    if not question.answerable or accuracy not in JUDGED:
        return False
    return accuracy == "judge" or question.judge_only or not _MATCHES[accuracy](response, question.answers)


def is_right(accuracy: Accuracy, question: Question, response: str | None, grades: Grades) -> bool:
    """Whether the response is right.

    `cover_match`, `span_match`: it contains a gold answer; `exact_match`: it equals a gold answer; `judge`: the judge
    accepts it; `gen_acc`: `cover_match`, and if that fails the judge (s3, eq. 3). A missing answer is never right, and
    no answer to an unanswerable question is.
    """
    if not question.answerable:
        return False
    if accuracy in JUDGED:
        return not left_to_judge(accuracy, question, response) or grades.right(response)
    if not answers.can_match(question.answers):
        raise NoReward(UNMATCHED, NO_MATCH)
    return _MATCHES[accuracy](response, question.answers)
