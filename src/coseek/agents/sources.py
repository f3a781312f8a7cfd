"""Sources: the passages that an answer rests on, and the answer that rests on none."""

from coseek.agents.served_context import served_context
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.retrieval.lexical.analyzer import words

NOT_FOUND = "not in these documents"
"""What an agent answers where the documents do not say."""
MOST = 5
"""Sources of a quotation, and those that `coseek ask` shows."""
QUOTE = 5
"""Words of a quotation; what is shorter may follow from several passages, of which one holds it."""


def is_not_found(answer: str | None) -> bool:
    """Whether an answer says that the documents have none; case and marks are ignored."""
    return answer is not None and words(answer) == words(NOT_FOUND)


def sources_of(run: Trajectory) -> list[Passage]:
    """The passages that a run served, those that hold its answer word for word first. A sentence that is quoted has
    only these, up to five. None where the answer is that the documents have none."""
    if is_not_found(run.answer):
        return []
    answer, served = run.answer or "", served_context(run)
    holding = [passage for passage in served if holds(passage, answer)]
    if holding and len(words(answer)) >= QUOTE:
        return holding[:MOST]
    return [*holding, *(passage for passage in served if passage not in holding)]


def holds(passage: Passage, answer: str) -> bool:
    """Whether a passage has the words of an answer in a row; an answer without words is held by none."""
    wanted = " ".join(words(answer))
    return bool(wanted) and f" {wanted} " in f" {' '.join(words(f'{passage.title} . {passage.text}'))} "
