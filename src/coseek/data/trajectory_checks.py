"""Invariants of a single trajectory. The caller passes the decoding, since this package has no tokenizer.

Budgets are checked where a run is replayed (`pipelines/run_checks.py`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise, zip_longest
from typing import TypeAlias

from coseek.data.trajectory import (
    COMMON_TAGS,
    MESSAGE,
    PAGE,
    PROMPT,
    TOOL,
    Author,
    Segment,
    StopReason,
    Trajectory,
    met_passages,
)

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Ids → text, special tokens included: `Tokenizer.decode` of the model that made the run."""
Finding: TypeAlias = tuple[str, int | None]
"""A problem of a trajectory, and the position of the segment that it concerns, if any."""

_ROUNDING = 1e-6
"""Maximum log-probability: that of a certain token is 0, but float32 may round it up."""


def check_trajectory(trajectory: Trajectory, decode: Decode | None = None) -> Iterator[Finding]:
    """The problems of a trajectory, each a sentence with the position of its segment, if any."""
    for position, segment in enumerate(trajectory.segments):
        if segment.ids or trajectory.exact:  # a log may hold text without ids
            for problem in _ledger(segment, decode):
                yield problem, position
    yield from _order(trajectory)
    checks = (_ending, _searches, _turns, _calls, _visits, _selection, _evidence)
    for problem in chain(*(check(trajectory) for check in checks), _side_contexts(trajectory, decode)):
        yield problem, None


def _ledger(segment: Segment, decode: Decode | None) -> Iterator[str]:
    """Check ids, their text, and their log-probabilities."""
    if not segment.ids:
        yield "it holds no tokens"
    for position, token in enumerate(segment.ids):
        if type(token) is not int or token < 0:
            yield f"token {position} is {token!r}, which is not a token id"
            return
    for position, logprob in enumerate(segment.logprobs):
        if not math.isfinite(logprob) or logprob > _ROUNDING:
            yield f"the log-probability of token {position} is {logprob}, and must be finite and at most 0"
            break
    if decode is not None:
        try:
            text = decode(segment.ids)
        except (IndexError, KeyError, ValueError, OverflowError, TypeError) as error:
            yield f"the ids cannot be decoded ({error})"
        else:
            if text != segment.text:
                yield f"the text is not the decoding of the ids ({_first_difference(segment.text, text)})"


def _order(trajectory: Trajectory) -> Iterator[tuple[str, int | None]]:
    """Check that a prompt comes first, and that the environment separates the agent's turns."""
    if not trajectory.segments:
        yield "there are no segments, not even a prompt", None
        return
    first = trajectory.segments[0]
    if (first.author, first.tag) != (Author.ENVIRONMENT, PROMPT):
        yield f"a run begins with the environment's prompt, not with {first.tag!r} by the {first.author}", 0
    for position, (before, after) in enumerate(pairwise(trajectory.segments), start=1):
        if before.author is after.author is Author.AGENT:
            yield "two turns of the agent with nothing between them", position
        if after.tag == PROMPT and after.author is Author.ENVIRONMENT:
            yield "a second prompt", position


def _ending(trajectory: Trajectory) -> Iterator[str]:
    stop, last_author = trajectory.stop, trajectory.segments[-1].author if trajectory.segments else None
    if (trajectory.answer is not None) != (stop is StopReason.ANSWERED):
        yield f"it stopped with {stop!s}, and the answer is {trajectory.answer!r}; only answered runs have an answer"
    if stop in (StopReason.ANSWERED, StopReason.DECLINED) and last_author is Author.ENVIRONMENT:
        yield f"it was {stop!s}, and the environment wrote last"
    if stop is StopReason.COMPLETE and last_author is Author.ENVIRONMENT:
        yield "it was complete, which the agent says, and the environment wrote last"
    if trajectory.valid == bool(trajectory.format_error):
        yield f"valid is {trajectory.valid} and format_error is {trajectory.format_error!r}; exactly one holds"
    # The converse does not hold: if a turn has several queries, some may fail and be shown as failed.
    if stop is StopReason.RETRIEVER_ERROR and not any(search.fault is not None for search in trajectory.searches):
        yield f"it stopped with {stop!s}, and none of its searches failed"
    failed = [call for call in trajectory.calls if call.fault is not None]
    if (stop is StopReason.TOOL_ERROR) != bool(failed):
        yield f"it stopped with {stop!s}, and {len(failed)} of its tool calls failed; a failed call ends a run"


def _searches(trajectory: Trajectory) -> Iterator[str]:
    for number, search in enumerate(trajectory.searches, start=1):
        if search.fault is not None and search.hits:
            yield f"search {number} failed and has hits all the same"
        scores = [hit.score for hit in search.hits]
        if not all(map(math.isfinite, scores)) or scores != sorted(scores, reverse=True):
            yield f"the scores of search {number} are not finite and falling"
        if len({hit.passage.id for hit in search.hits}) < len(search.hits):
            yield f"search {number} has the same passage twice"


def _turns(trajectory: Trajectory) -> Iterator[str]:
    """Check the turns of the searches, and that each observation shows a search that worked."""
    turns = [search.turn for search in trajectory.searches]
    written_turns = sum(segment.author is Author.AGENT for segment in trajectory.segments)
    if turns != sorted(turns):
        yield f"its searches belong to the turns {turns}, which are not rising"
    elif turns and not 0 <= turns[0] <= turns[-1] <= written_turns:
        yield f"a search belongs to turn {turns[-1]}, and the agent has written {written_turns}"
    successful_turns = {search.turn for search in trajectory.searches if search.fault is None}
    is_native = any(segment.message is not None for segment in trajectory.segments)
    tags = {segment.tag for segment in trajectory.segments[1:] if segment.author is Author.ENVIRONMENT}
    observed_turns = _turns_before(trajectory, *(tags - COMMON_TAGS))
    if len(set(observed_turns) if is_native else observed_turns) > len(successful_turns):
        yield f"{len(observed_turns)} observations and only {len(successful_turns)} searches that worked"


def _calls(trajectory: Trajectory) -> Iterator[str]:
    """Check that each tool segment shows one call that worked, made by the preceding turn of the agent."""
    shown = _turns_before(trajectory, TOOL)
    turn = sum(segment.author is Author.AGENT for segment in trajectory.segments)
    successful = [call.turn for call in trajectory.calls if call.fault is None]
    if shown != successful:
        yield f"results of tools are shown after the turns {shown}, and calls that worked are of the turns {successful}"
    if any(call.turn != turn for call in trajectory.calls if call.fault is not None):
        yield f"a tool call failed before the last turn ({turn}), and a failed call ends a run"


def _turns_before(trajectory: Trajectory, *tags: str) -> list[int]:
    """The number of the agent's turn before each environment segment with one of these tags."""
    turns, turn = list[int](), 0
    for segment in trajectory.segments:
        turn += segment.author is Author.AGENT
        if segment.author is Author.ENVIRONMENT and segment.tag in tags:
            turns.append(turn)
    return turns


def _visits(trajectory: Trajectory) -> Iterator[str]:
    """Check that each visit has its page, or in an imported run its message, after the turn that made it."""
    pages, turns = _turns_before(trajectory, PAGE, MESSAGE), [visit.turn for visit in trajectory.visits]
    if Counter(turns) - Counter(pages) or turns != sorted(turns):
        yield f"documents were visited in the turns {turns}, and pages are shown after the turns {pages}"
    for visit in trajectory.visits:
        if not visit.shows(visit.id):
            yield f"a visit of {visit.id!r} in turn {visit.turn} did not show it"


def _selection(trajectory: Trajectory) -> Iterator[str]:
    served_ids = {hit.passage.id for search in trajectory.searches for hit in search.hits}
    for number, search in enumerate(trajectory.searches, start=1):
        unknown_ids = set(search.selected or ()) - {hit.passage.id for hit in search.hits}
        if unknown_ids:
            yield f"{min(unknown_ids)!r} was selected from search {number}, which did not find it"
        if not set(search.selected or ()) <= set(trajectory.selected_ids):
            yield f"what was selected from search {number} is not among the selected passages"
    for ident in trajectory.selected_ids:
        if ident not in served_ids:
            yield f"the selected passage {ident!r} was never retrieved"


def _evidence(trajectory: Trajectory) -> Iterator[str]:
    """Check that the evidence holds each retrieved passage once, in any order."""
    if trajectory.evidence is None:  # in older runs
        return
    retrieved_ids, counts = met_passages(trajectory.searches, trajectory.visits).keys(), Counter(trajectory.evidence)
    for ident, number in counts.items():
        if ident not in retrieved_ids:
            yield f"the passage {ident!r} of the evidence was never retrieved"
        if number > 1:
            yield f"the passage {ident!r} stands twice in the evidence"
    if missing_ids := sorted(retrieved_ids - counts.keys()):
        yield f"the passage {missing_ids[0]!r} was retrieved and is not in the evidence"


def _side_contexts(trajectory: Trajectory, decode: Decode | None) -> Iterator[str]:
    """Check the ledgers of separate contexts, each a prompt and at most one turn."""
    for number, context in enumerate(trajectory.side_contexts, start=1):
        authors = [segment.author for segment in context]
        if authors not in ([Author.ENVIRONMENT], [Author.ENVIRONMENT, Author.AGENT]):
            yield f"side context {number} is not a prompt followed by one turn"
        for segment in context:
            for problem in _ledger(segment, decode):
                yield f"side context {number}: {problem}"


def _first_difference(stored: str, decoded: str) -> str:
    start = next(start for start, (old, new) in enumerate(zip_longest(stored, decoded)) if old != new)
    return f"from character {start}: stored {stored[start : start + 20]!r}, decoded {decoded[start : start + 20]!r}"
