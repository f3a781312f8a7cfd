"""Unwritable data: replace a run that no file can hold by one that records the fault, so that other runs go on.

Files hold neither non-finite numbers nor unpaired surrogates. Only a user's own part or question can bring them: input
files with either are refused, and servers' replies are repaired.
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
    """Build a search from its hits; a retriever fault when they cannot be written to a file."""
    fault = fault_of_hits(hits)
    return Search(query, fault=fault) if fault else Search(query, tuple(hits))


def checked_turn(turn: Turn) -> Turn:
    """Return the turn; a model fault when its numbers are not finite."""
    if all(map(math.isfinite, turn.logprobs)) and math.isfinite(turn.cost_usd or 0.0):
        return turn
    return Turn(turn.key, (), (), TurnEnd.FAULT, "the model gave a log-probability or a cost that is no finite number")


def fault_of(question: Question) -> str:
    """Why no run of this question can be written to a file, or ""."""
    return fault_in(question.to_json())


def fault_trajectory(
    question: Question, protocol: str, seed: int, why: str, segments: tuple[Segment, ...] = ()
) -> Trajectory:
    """Build the trajectory that records why a question's run cannot be written to a file."""
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
    """Return the trajectory if a file can hold it, else a `fault_trajectory` with its prompt where possible."""
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
    """Return the question with U+FFFD for unpaired surrogates and without the unwritable parts of its `meta`."""
    return replace(
        question,
        id=replace_surrogates(question.id),
        question=replace_surrogates(question.question),
        answers=tuple(map(replace_surrogates, question.answers)),
        gold_ids=tuple(map(replace_surrogates, question.gold_ids)),
        meta={name: value for name, value in question.meta.items() if not fault_in({name: value})},
    )
