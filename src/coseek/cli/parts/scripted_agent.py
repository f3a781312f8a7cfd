"""My part: search the question, then answer with the title that was found first."""

import random

from coseek.agents.scripted_agent import Move
from coseek.models.model import EpisodeState

PROMPT_TEMPLATE = "default"


class FirstTitle:
    """Implements `ScriptedAgent`."""

    def write(self, so_far: EpisodeState, rng: random.Random) -> Move:
        """Return the next move: a thought with queries, a tool call or an answer."""
        if not so_far.searches:
            return Move(thought="I search the question.", queries=(so_far.question.question,))
        titles = [hit.passage.title for search in so_far.searches for hit in search.hits]
        return Move(thought="I take the first title.", answer=titles[0] if titles else "unknown")


def make() -> FirstTitle:
    """Return the agent."""
    return FirstTitle()
