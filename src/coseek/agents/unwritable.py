"""Recording: a run that no file can hold becomes one that says so, and the others go on.

A file holds neither numbers that are not finite nor halves of surrogate pairs. Ours give neither, files with either are
refused when they are read, and servers' answers are mended; a part or a question of a user's own may hold anything.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from coseek.core.files import json_line
from coseek.core.strict_json import fault_in, replace_surrogates
from coseek.data.passage import Hit
from coseek.data.question import Question
from coseek.data.trajectory import Search, Segment, StopReason, Trajectory
from coseek.models.model import Turn, TurnEnd
from coseek.retrieval.retriever import fault_of_hits

NOT_KEPT = "the run cannot be kept in a file"


def checked_search(query: str, hits: Sequence[Hit]) -> Search:
    """A search and what it found; a fault of the retriever where that cannot be kept."""
    fault = fault_of_hits(hits)
    return Search(query, fault=fault) if fault else Search(query, tuple(hits))


def checked_turn(turn: Turn) -> Turn:
    """A turn as the model wrote it; a fault of the model where its numbers cannot be kept."""
    if all(map(math.isfinite, turn.logprobs)) and math.isfinite(turn.cost_usd or 0.0):
        return turn
    return Turn(turn.key, (), (), TurnEnd.FAULT, "the model gave a log-probability or a cost that is no finite number")


def fault_of(question: Question) -> str:
    """Why no run of this question can be kept; empty where one can."""
    return fault_in(question.to_json())


def fault_trajectory(
    question: Question, protocol: str, seed: int, why: str, segments: tuple[Segment, ...] = ()
) -> Trajectory:
    """The run of a question that cannot be kept: its words as far as there are words for them, and why."""
    return Trajectory(
        question=mended(question),
        protocol=protocol,
        segments=segments,
        searches=(),
        stop=StopReason.MODEL_ERROR,
        format_error=NOT_KEPT,
        stop_detail=f"{NOT_KEPT}: {replace_surrogates(why)}",
        seed=seed,
    )


def storable(trajectory: Trajectory) -> Trajectory:
    """The trajectory, if a file can hold it; else what `unkept` makes of it, with its prompt where that can be kept."""
    try:
        json_line(trajectory.to_json()).encode()
    except (ValueError, TypeError, RecursionError) as error:  # a UnicodeEncodeError is a ValueError
        why = f"{type(error).__name__}: {str(error)[:200]}"
        prompt = tuple(
            segment for segment in trajectory.segments[:1] if replace_surrogates(segment.text) == segment.text
        )
        return fault_trajectory(trajectory.question, trajectory.protocol, trajectory.seed, why, prompt)
    return trajectory


def mended(question: Question) -> Question:
    """The question with U+FFFD for what is no text. What cannot be kept of its `meta` is left out."""
    return replace(
        question,
        id=replace_surrogates(question.id),
        question=replace_surrogates(question.question),
        answers=tuple(map(replace_surrogates, question.answers)),
        gold_ids=tuple(map(replace_surrogates, question.gold_ids)),
        meta={name: value for name, value in question.meta.items() if not fault_in({name: value})},
    )
