"""Sources: the passages that an answer rests on, and what is shown where it rests on none."""

from coseek.agents.actions import NOT_FOUND
from coseek.agents.served_context import served_context
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.retrieval.lexical.analyzer import words

MOST = 5
"""Sources of an answer."""


def reply_of(run: Trajectory) -> str:
    """What to show as a run's answer: `NOT_FOUND` where the agent declined, nothing where the run has no answer."""
    return NOT_FOUND if run.declined else run.answer or ""


def sources_of(run: Trajectory) -> list[Passage]:
    """The passages that hold a run's answer word for word, up to five, best first; all that it served where none does.
    None where the agent declined."""
    if run.declined:
        return []
    served = served_context(run)
    return [passage for passage in served if holds(passage, run.answer or "")][:MOST] or served


def holds(passage: Passage, answer: str) -> bool:
    """Whether a passage has the words of an answer in a row; an answer without words is held by none."""
    wanted = " ".join(words(answer))
    return bool(wanted) and f" {wanted} " in f" {' '.join(words(f'{passage.title} . {passage.text}'))} "
