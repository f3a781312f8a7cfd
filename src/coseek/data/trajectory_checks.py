"""Invariants of one trajectory, checked from itself. Decoding is handed in, since this package knows no tokenizer.

Budgets are not among them: they are checked where a run is played again (`pipelines/run_checks.py`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from coseek.data.trajectory import (
    LAST_WORD,
    MESSAGE,
    MISSING,
    PAGE,
    PROMPT,
    RETRY,
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
"""What is wrong with a trajectory, and the position of its segment where it has one."""

_ROUNDING = 1e-6
"""How far above 0 a float32 log-probability may come out; a certain token is 0."""


def check_trajectory(trajectory: Trajectory, decode: Decode | None = None) -> Iterator[Finding]:
    """What is wrong with one trajectory: sentences, each with the position of its segment where it has one."""
    for position, segment in enumerate(trajectory.segments):
        if segment.ids or trajectory.exact:  # a log may hold text alone
            for problem in _ledger(segment, decode):
                yield problem, position
    yield from _order(trajectory)
    checks = [_ending(trajectory), _searches(trajectory), _turns(trajectory), _calls(trajectory)]
    checks += [_visits(trajectory), _selection(trajectory), _evidence(trajectory)]
    for problem in (*chain(*checks), *_side_contexts(trajectory, decode)):
        yield problem, None


def _ledger(segment: Segment, decode: Decode | None) -> Iterator[str]:
    """Ids, their text, and their log-probabilities."""
    if not segment.ids:
        yield "it holds no tokens"
    for at, token in enumerate(segment.ids):
        if type(token) is not int or token < 0:
            yield f"token {at} is {token!r}, which is no token id"
            return
    for at, logprob in enumerate(segment.logprobs):
        if not math.isfinite(logprob) or logprob > _ROUNDING:
            yield f"the log-probability of token {at} is {logprob}, and must be finite and at most 0"
            break
    if decode is not None:
        try:
            text = decode(segment.ids)
        except (IndexError, KeyError, ValueError, OverflowError, TypeError) as error:
            yield f"the ids cannot be decoded ({error})"
        else:
            if text != segment.text:
                yield f"the text is not the decoding of the ids ({_parting(segment.text, text)})"


def _order(trajectory: Trajectory) -> Iterator[tuple[str, int | None]]:
    """A prompt first, and never two turns of the agent without the environment between them."""
    if not trajectory.segments:
        yield "there are no segments, not even a prompt", None
        return
    first = trajectory.segments[0]
    if (first.author, first.tag) != (Author.ENVIRONMENT, PROMPT):
        yield f"a run begins with the environment's prompt, not with {first.tag!r} by the {first.author}", 0
    for position, (before, after) in enumerate(
        zip(trajectory.segments, trajectory.segments[1:], strict=False), start=1
    ):
        if before.author is after.author is Author.AGENT:
            yield "two turns of the agent with nothing between them", position
        if after.tag == PROMPT and after.author is Author.ENVIRONMENT:
            yield "a second prompt", position


def _ending(trajectory: Trajectory) -> Iterator[str]:
    stop, last = trajectory.stop, trajectory.segments[-1].author if trajectory.segments else None
    if (trajectory.answer is not None) != (stop is StopReason.ANSWERED):
        yield f"it stopped with {stop!s}, and the answer is {trajectory.answer!r}; only answered runs have an answer"
    if stop in (StopReason.ANSWERED, StopReason.DECLINED) and last is Author.ENVIRONMENT:
        yield f"it was {stop!s}, and the environment wrote last"
    if stop is StopReason.COMPLETE and last is Author.ENVIRONMENT:
        yield "it was complete, which the agent says, and the environment wrote last"
    if trajectory.valid == bool(trajectory.format_error):
        yield f"valid is {trajectory.valid} and format_error is {trajectory.format_error!r}; exactly one holds"
    # The other way round need not hold: of several queries in one turn, some may fail and be shown as failed.
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
    """Which turn each search belongs to, and that each observation shows one that worked."""
    known = [search.turn for search in trajectory.searches if search.turn is not None]
    written = sum(segment.author is Author.AGENT for segment in trajectory.segments)
    if len(known) not in (0, len(trajectory.searches)) or known != sorted(known):
        turns = [search.turn for search in trajectory.searches]
        yield f"its searches belong to the turns {turns}, which are not rising"
    elif known and not 0 <= known[0] <= known[-1] <= written:
        yield f"a search belongs to turn {known[-1]}, and the agent has written {written}"
    # Runs that are older than `Search.turn` made one search a turn.
    turn_of = [-at if search.turn is None else search.turn for at, search in enumerate(trajectory.searches, start=1)]
    worked = {turn for turn, search in zip(turn_of, trajectory.searches, strict=True) if search.fault is None}
    native = any(segment.message is not None for segment in trajectory.segments)
    tags = {segment.tag for segment in trajectory.segments[1:] if segment.author is Author.ENVIRONMENT}
    observed = _turns_before(trajectory, *(tags - {PROMPT, RETRY, PAGE, MISSING, TOOL, MESSAGE, LAST_WORD}))
    if len(set(observed) if native else observed) > len(worked):
        yield f"{len(observed)} observations and only {len(worked)} searches that worked"


def _calls(trajectory: Trajectory) -> Iterator[str]:
    """Each tool segment shows one call that worked, made by the turn of the agent in front of it."""
    shown = _turns_before(trajectory, TOOL)
    turn = sum(segment.author is Author.AGENT for segment in trajectory.segments)
    worked = [call.turn for call in trajectory.calls if call.fault is None]
    if shown != worked:
        yield f"results of tools are shown behind the turns {shown}, and calls that worked are of the turns {worked}"
    if any(call.turn != turn for call in trajectory.calls if call.fault is not None):
        yield f"a tool call failed before the last turn ({turn}), and a failed call ends a run"


def _turns_before(trajectory: Trajectory, *tags: str) -> list[int]:
    """The number of the agent's turn in front of each segment by the environment with one of these tags."""
    turns, turn = list[int](), 0
    for segment in trajectory.segments:
        turn += segment.author is Author.AGENT
        if segment.author is Author.ENVIRONMENT and segment.tag in tags:
            turns.append(turn)
    return turns


def _visits(trajectory: Trajectory) -> Iterator[str]:
    """Each visit that showed a document has its page, behind the turn that made it; in an imported run as a message."""
    pages, turns = _turns_before(trajectory, PAGE, MESSAGE), [visit.turn for visit in trajectory.visits]
    if Counter(turns) - Counter(pages) or turns != sorted(turns):
        yield f"documents were visited in the turns {turns}, and pages are shown behind the turns {pages}"
    for visit in trajectory.visits:
        if not visit.shows(visit.id):
            yield f"a visit of {visit.id!r} in turn {visit.turn} did not show it"


def _selection(trajectory: Trajectory) -> Iterator[str]:
    served = {hit.passage.id for search in trajectory.searches for hit in search.hits}
    for number, search in enumerate(trajectory.searches, start=1):
        odd = set(search.selected or ()) - {hit.passage.id for hit in search.hits}
        if odd:
            yield f"{min(odd)!r} was selected from search {number}, which did not find it"
        if not set(search.selected or ()) <= set(trajectory.selected_ids):
            yield f"what was selected from search {number} is not among the selected passages"
    for ident in trajectory.selected_ids:
        if ident not in served:
            yield f"the selected passage {ident!r} was never retrieved"


def _evidence(trajectory: Trajectory) -> Iterator[str]:
    """All that was retrieved, each passage once. Which comes first is the agent's to say."""
    if trajectory.evidence is None:  # older than this field
        return
    retrieved, counted = met_passages(trajectory.searches, trajectory.visits).keys(), set[str]()
    for ident in trajectory.evidence:
        if ident in counted:
            yield f"the passage {ident!r} stands twice in the evidence"
        elif ident not in retrieved:
            yield f"the passage {ident!r} of the evidence was never retrieved"
        counted.add(ident)
    if lacking := sorted(retrieved - counted):
        yield f"the passage {lacking[0]!r} was retrieved and is not in the evidence"


def _side_contexts(trajectory: Trajectory, decode: Decode | None) -> Iterator[str]:
    """Contexts beside the run: a prompt and at most one turn each, with ledgers of their own."""
    for number, aside in enumerate(trajectory.side_contexts, start=1):
        authors = [segment.author for segment in aside]
        if authors not in ([Author.ENVIRONMENT], [Author.ENVIRONMENT, Author.AGENT]):
            yield f"side context {number} is not a prompt followed by one turn"
        for segment in aside:
            for problem in _ledger(segment, decode):
                yield f"side context {number}: {problem}"


def _parting(stored: str, decoded: str) -> str:
    """Where two texts part, short enough for one line."""
    at = next(
        (at for at, (a, b) in enumerate(zip(stored, decoded, strict=False)) if a != b), min(len(stored), len(decoded))
    )
    return f"from character {at}: stored {stored[at : at + 20]!r}, decoded {decoded[at : at + 20]!r}"
