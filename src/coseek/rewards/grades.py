"""Said: what frozen parts said of one run. A reward only reads it; whoever stands above asked the parts, in one batch.

A part of a reward says what it needs with a function `needs(options)`, and is then handed a `Said` as third argument:

    component   the frozen generator's answer from the passages that the run serves
    baseline    the same generator's answer from naive RAG, computed before training
    judge       verdicts on the answers that words alone do not settle

A fault of such a part leaves the run without a reward (`NoReward`). It is never a wrong answer.
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
"""What to do where a need is not met."""


class NoReward(PartFault):
    """A frozen part failed, so this run cannot be rewarded."""

    def __init__(self, part: str, detail: str) -> None:
        super().__init__(f"{part}: {detail}")
        self.part, self.detail = part, detail


class VerdictNeeded(Exception):
    """A reward asks for a verdict that it was not handed: whoever holds the judge gets it and scores again."""

    def __init__(self, response: str) -> None:
        super().__init__(response)
        self.response = response


@dataclass(frozen=True, slots=True)
class Grades:
    """What is known of one run. What no reward needs is left out."""

    reply: GeneratedAnswer | None = None
    """The generator's, from the run's passages."""
    baseline: GeneratedAnswer | None = None
    """The generator's, from naive RAG."""
    verdicts: Mapping[str, Verdict] | None = None
    """The judge's on responses to this question, by response; `None` where there is no judge."""

    def component_answer(self) -> str | None:
        """What the generator answers from the run's passages; `None` if what it wrote holds no answer."""
        return _answer(self.reply, "component", "generator")

    def baseline_answer(self) -> str | None:
        """What the generator answers from naive RAG."""
        return _answer(self.baseline, "baseline", "baseline")

    def served(self) -> dict[str, float]:
        """How much the generator was given, for the log."""
        if self.reply is None:
            return {}
        return {"passages": float(len(self.reply.passage_ids)), "tokens": float(self.reply.context_tokens)}

    def right(self, response: str | None) -> bool:
        """Whether the judge says that the response is right. An empty one is wrong and is shown to no judge."""
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
"""No part was asked."""


def _answer(reply: GeneratedAnswer | None, need: Need, part: str) -> str | None:
    if reply is None:
        raise SettingError(f"this reward needs {WAY_OUT[need]}")
    if reply.fault is not None:
        raise NoReward(part, reply.fault)
    return reply.answer
