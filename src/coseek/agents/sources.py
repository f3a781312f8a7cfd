"""Sources: the passages that an answer rests on, the sentences in them, and what is shown where it rests on none."""

from collections.abc import Sequence

from coseek.agents.actions import NOT_FOUND
from coseek.agents.served_context import served_context
from coseek.core.plain_text import sentence_spans
from coseek.data.passage import Passage
from coseek.data.trajectory import Trajectory
from coseek.retrieval.lexical.analyzer import words

MOST = 5
"""Sources of an answer."""
MOST_SENTENCES = 4
"""Sentences in a row that an answer may span."""


def reply_of(run: Trajectory) -> str:
    """What to show as a run's answer: `NOT_FOUND` where the agent declined, nothing where the run has no answer."""
    return NOT_FOUND if run.declined else run.answer or ""


def sources_of(run: Trajectory) -> list[Passage]:
    """The passages that hold a run's answer word for word, best first; where none does, those that it served. At most
    `MOST`; none where the agent declined."""
    if run.declined:
        return []
    served = served_context(run)
    return ([passage for passage in served if holds(passage, run.answer or "")] or served)[:MOST]


def holds(passage: Passage, answer: str) -> bool:
    """Whether a passage has the words of an answer in a row; an answer without words is held by none."""
    return _has(f"{passage.title} . {passage.text}", answer)


def used_sentences(run: Trajectory, passages: Sequence[Passage]) -> list[str]:
    """For each passage the sentence that the answer rests on: one with the answer, else one that names a passage with
    the answer, which is a step towards it. "" where a passage has neither."""
    answer = run.answer or ""
    titles = [passage.title for passage in passages if holds(passage, answer)]
    return [
        _first_with(passage, [answer, *(title for title in titles if title != passage.title)]) for passage in passages
    ]


def _first_with(passage: Passage, wanted: Sequence[str]) -> str:
    """The fewest sentences in a row that hold one of the texts, the first of them first."""
    spans = sentence_spans(passage.text)
    for text in wanted:
        for count in range(1, MOST_SENTENCES + 1):
            for (start, _), (_, end) in zip(spans, spans[count - 1 :], strict=False):
                if _has(passage.text[start:end], text):
                    return passage.text[start:end].strip()
    return ""


def _has(text: str, wanted: str) -> bool:
    asked = " ".join(words(wanted))
    return bool(asked) and f" {asked} " in f" {' '.join(words(text))} "
