"""Replies: what a person or a chat client reads of a run: its answer, or in plain words why there is none.

A run's own answer, its tokens and its grades are never changed.
"""

from coseek.agents.served_context import served_context
from coseek.agents.sources import reply_of
from coseek.core.counted import counted
from coseek.core.repetition import has_loop
from coseek.core.spelling import as_written
from coseek.data.trajectory import Author, StopReason, Trajectory

OUTSIDE = (
    "I have no answer: I began to repeat myself. The question may lie outside what I was trained on; ask it in other "
    "words, or ask another one."
)
"""The reply of a run that goes round in circles."""
_WITHOUT_ANSWER = {
    StopReason.TOKEN_LIMIT: "I have no answer: I wrote as much as I may and had not come to one.",
    StopReason.TURN_LIMIT: "I have no answer: I searched as often as I may and did not come to one.",
    StopReason.INVALID: "I have no answer: what I wrote last was neither a search nor an answer.",
    StopReason.RETRIEVER_ERROR: "I have no answer: the search failed.",
    StopReason.MODEL_ERROR: "I have no answer: the language model failed.",
    StopReason.TOOL_ERROR: "I have no answer: a tool failed.",
}


def reply_in_words(run: Trajectory) -> str:
    """The answer as people write it, or a sentence for a run without one. Never empty."""
    if has_loop(last_turn(run) if run.answer is None else run.answer):
        return OUTSIDE
    if run.stop is StopReason.COMPLETE:
        count = len(served_context(run))
        are = "is" if count == 1 else "are"
        return f"I only search and do not answer; {counted(count, 'passage')} {are} ready for a generator."
    return as_written(reply_of(run)) or _WITHOUT_ANSWER.get(run.stop, "I have no answer.")


def last_turn(run: Trajectory) -> str:
    """What the agent wrote last; "" before its first turn."""
    return next((part.text for part in reversed(run.segments) if part.author is Author.AGENT), "")
