"""Gold: a scripted agent that returns the gold answer, for protocols that only answer (`direct`, `rag`)."""

import random

from coseek.agents.scripted_agent import Move
from coseek.agents.tag import NOT_FOUND
from coseek.core.errors import DataError
from coseek.models.model import EpisodeState

PROMPT_TEMPLATE = "laptop"
NEEDS = "gold answers"


class GoldAnswerAgent:
    """Answers in the first turn with the first gold answer, and declines questions marked as unanswerable."""

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return the answer with a leading space, so that its first word has the same token as inside a sentence."""
        if not so_far.question.answerable:
            return Move("", answer=f" {NOT_FOUND}")
        if not so_far.question.answers:
            raise DataError(
                f"question {so_far.question.id!r} has no gold answers, and the scripted agent `gold` needs one"
            )
        return Move("", answer=f" {so_far.question.answers[0].strip()}")


def make() -> GoldAnswerAgent:
    return GoldAnswerAgent()
