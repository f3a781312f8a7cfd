"""Grades: outputs of frozen models for one run. A reward reads them; the caller computes them, in batches.

A reward part declares its needs with a function `needs(settings)` and gets `Grades` as third argument:

    component   the frozen generator's answer from the run's passages
    baseline    the same generator's answer from naive RAG, computed before training
    judge       verdicts on answers that matching does not decide

A fault of a frozen model leaves the run without a reward (`NoReward`). It is never a wrong answer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coseek.core.errors import PartFault, SettingError
from coseek.data.grade_cache import GeneratedAnswer, Verdict

Need: TypeAlias = Literal["component", "baseline", "judge"]

WAY_OUT: Mapping[Need, str] = {
    "component": "a frozen generator that answers from the run's passages: name one with graders.generator.model",
    "baseline": "a naive-RAG baseline: compute it with the same generator first, and set graders.baseline",
    "judge": "a judge: name one with graders.judge.model, or take accuracy: cover_match, which needs none",
}
"""What to do about an unmet need."""


class NoReward(PartFault):
    """A frozen model failed, so this run has no reward."""

    def __init__(self, part: str, detail: str) -> None:
        super().__init__(f"{part}: {detail}")
        self.part, self.detail = part, detail


class VerdictNeeded(Exception):
    """A reward needs a verdict that is not in its grades. The caller gets it from the judge and computes the reward
    again."""

    def __init__(self, response: str) -> None:
        super().__init__(response)
        self.response = response


@dataclass(frozen=True, slots=True)
class Grades:
    """Outputs of frozen models for one run, as far as a reward needs them."""

    reply: GeneratedAnswer | None = None
    """The generator's answer from the run's passages."""
    baseline: GeneratedAnswer | None = None
    """The generator's answer from naive RAG."""
    verdicts: Mapping[str, Verdict] | None = None
    """The judge's verdicts on responses to this question, by response; `None` without a judge."""

    def component_answer(self) -> str | None:
        """The generator's answer from the run's passages; `None` if its output has no answer."""
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
        """Whether the judge accepts the response. An empty one is wrong without a judge."""
        if response is None or not response.strip():
            return False
        if self.verdicts is None:
            raise SettingError(f"this reward needs {WAY_OUT['judge']}")
        verdict = self.verdicts.get(response)
        if verdict is None:
            raise VerdictNeeded(response)
        if verdict.right is None:
            raise NoReward("judge", verdict.fault or "no verdict")
        return verdict.right


NO_GRADES = Grades()
"""Grades of a reward without needs."""


def _answer(reply: GeneratedAnswer | None, need: Need, part: str) -> str | None:
    if reply is None:
        raise SettingError(f"this reward needs {WAY_OUT[need]}")
    if reply.fault is not None:
        raise NoReward(part, reply.fault)
    return reply.answer
