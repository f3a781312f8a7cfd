"""Sources: the passages that an answer rests on, and the answer that rests on none."""

from coseek.agents.served_context import served_context
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.retrieval.lexical.analyzer import words

NOT_FOUND = "not in these documents"
"""What an agent answers where the documents do not say."""
MOST = 5
"""Sources of an answer."""


def is_not_found(answer: str | None) -> bool:
    """Whether an answer says that the documents have none; case and marks are ignored."""
    return answer is not None and words(answer) == words(NOT_FOUND)


def sources_of(run: Trajectory) -> list[Passage]:
    """The passages that hold a run's answer word for word, up to five, best first; all that it served where none does.
    None where the answer is that the documents have none."""
    if is_not_found(run.answer):
        return []
    served = served_context(run)
    return [passage for passage in served if holds(passage, run.answer or "")][:MOST] or served


def holds(passage: Passage, answer: str) -> bool:
    """Whether a passage has the words of an answer in a row; an answer without words is held by none."""
    wanted = " ".join(words(answer))
    return bool(wanted) and f" {wanted} " in f" {' '.join(words(f'{passage.title} . {passage.text}'))} "
