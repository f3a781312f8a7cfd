"""Derivation: work a stored trajectory out again from what only its parts could say.

The agent's ids, what its searches found and the faults of parts are given. The environment plays them again, so that
everything else follows: prompt, tags, queries, selections, observations, answer, stop reason, validity. Nothing is
sampled or searched.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import cast

from coseek.agents.environment import End, Environment, Next, PendingCall
from coseek.agents.episode import Episode
from coseek.agents.limits import Limits
from coseek.agents.protocol import Protocol
from coseek.agents.tool import DocumentPage, Result, TurnSearches
from coseek.core.errors import UserError
from coseek.data.passage import Hit
from coseek.data.trajectory import Author, Search, Segment, StopReason, Trajectory
from coseek.data.trajectory_checks import Finding
from coseek.models.model import Request, Tokenizer, Turn, TurnEnd
from coseek.retrieval.query import QueryLike

_NO_ROOM = re.compile(r"(?:no room for an observation|a prompt for notes) of (\d{1,9}) tokens")
"""Why a search was made and not recorded."""
_WHOLE_TURN = "a turn of "
"""How the detail of a turn begins that its length ended."""
FIELDS = ("stop", "stop_detail", "answer", "valid", "format_error", "selected_ids", "calls", "visits")


class _Parted(Exception):
    """The stored trajectory cannot be played on."""


class _Stored:
    """Stands for the retriever, which is not asked: its results are stored."""

    corpus = None
    identity = ""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def seen(self, query: QueryLike) -> str:
        raise AssertionError("a derivation searches nothing")

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        raise AssertionError("a derivation searches nothing")


class Derivation:
    """Compares trajectories of one protocol, tokenizer and budget with what is worked out again."""

    def __init__(self, protocol: Protocol, tokenizer: Tokenizer, limits: Limits, own_ranking: bool) -> None:
        """`own_ranking`: the agent may rank its evidence, so its order does not follow."""
        kind = next(iter(protocol.retrievers), "stored")
        self.environment = Environment(protocol, tokenizer, _Stored(kind), limits)
        self.own_ranking = own_ranking

    def differences(self, stored: Trajectory) -> Iterator[Finding]:
        """What a trajectory without faults of its own has other than it should."""
        if stored.protocol != self.environment.protocol.name:
            own = self.environment.protocol.name
            yield f"it is of the protocol {stored.protocol!r}, and the run is of {own!r}", None
            return
        try:
            yield from self._compared(stored, _Play(self.environment, stored).derived())
        except (_Parted, UserError) as error:
            yield str(error), None

    def _compared(self, stored: Trajectory, derived: Trajectory) -> Iterator[Finding]:
        yield from _of_segments(derived.segments, stored.segments)
        for what in _of_searches(derived.searches, stored.searches):
            yield what, None
        for name in FIELDS:
            ours, theirs = getattr(derived, name), getattr(stored, name)
            if ours != theirs:
                yield f"{name} is {_short(theirs)}, and what the agent wrote makes it {_short(ours)}", None
        for number, (ours, theirs) in enumerate(zip_longest(derived.side_contexts, stored.side_contexts), start=1):
            if ours is None or theirs is None:
                yield f"it has {len(stored.side_contexts)} side contexts, and {len(derived.side_contexts)} follow", None
                break
            for what, _ in _of_segments(ours, theirs):
                yield f"side context {number}: {what}", None
        if stored.evidence is not None and not self.own_ranking and derived.evidence != stored.evidence:
            yield "the evidence is not in the order of selection and retrieval", None
        if stored.messages or stored.logged_protocol is not None:
            yield "it holds messages or the protocol of an imported log, which this agent does not write", None


class _Play:
    """One stored trajectory under way again."""

    def __init__(self, environment: Environment, stored: Trajectory) -> None:
        self.environment, self.stored = environment, stored
        self.row = Episode(0, stored.question, stored.seed, 0.0)

    def derived(self) -> Trajectory:
        """The trajectory that follows. Raises `_Parted` where the stored one has no more to play."""
        step: Next | PendingCall = self.environment.begin(self.row)
        while not isinstance(step, End):
            if isinstance(step, PendingCall):
                step = self._result(step)
            else:
                step = self.environment.take(self.row, self._turn(step))
        return self.environment.finish(self.row, step, None)

    def _turn(self, request: Request) -> Turn:
        """The turn that the agent wrote next; an empty one left no segment."""
        stored, at = self.stored, len(self.row.segments)
        if request.key < 0:
            return self._notes(request)
        mine = [segment for segment in stored.segments[at : at + 1] if segment.author is Author.AGENT]
        last = at + len(mine) >= len(stored.segments)
        end = TurnEnd.STOP
        noted = len(stored.side_contexts) > len(self.row.side_contexts)  # then it is the notes that failed
        if last and stored.stop is StopReason.MODEL_ERROR and not noted:
            end = TurnEnd.FAULT
        elif last and stored.stop is StopReason.TOKEN_LIMIT and stored.stop_detail.startswith(_WHOLE_TURN):
            end = TurnEnd.LENGTH
        return self._as_turn(request, mine, end)

    def _notes(self, request: Request) -> Turn:
        """The notes that the model wrote in the side context that was opened last. They were shown: the searches that
        they are on would not be stored otherwise."""
        stored, number = self.stored, len(self.row.side_contexts)
        if len(stored.side_contexts) < number:
            raise _Parted(f"it has {len(stored.side_contexts)} side contexts, and a further one follows")
        return self._as_turn(request, stored.side_contexts[number - 1][1:2], TurnEnd.STOP)

    def _as_turn(self, request: Request, written: Sequence[Segment], end: TurnEnd) -> Turn:
        stored, fault = self.stored, self.stored.stop_detail if end is TurnEnd.FAULT else ""
        if not written:
            return Turn(request.key, (), (), end, fault, stored.exact)
        ids, logprobs, version = written[0].ids, written[0].logprobs, written[0].version
        if len(ids) > request.max_tokens:
            raise _Parted(f"a turn holds {len(ids)} tokens, and {request.max_tokens} were left")
        return Turn(request.key, ids, logprobs, end, fault, stored.exact, version=version)

    def _result(self, call: PendingCall) -> Next | PendingCall:
        """The next searches that are stored, or the result of another tool of ours."""
        if call.tool is not self.environment.protocol.grammar.search:
            result, took_s = self.environment.run_tool([call])[0]
            return self.environment.answer(call, self._opened(call, result), took_s)
        texts = cast(list[str], call.request.arguments["queries"])
        done = len(self.row.searches) + len(self.row.turn_searches)
        found = self.stored.searches[done : done + len(texts)]
        if not found and (end := self._unrecorded()) is not None:
            return end
        if len(found) < len(texts):
            raise _Parted(f"turn {call.request.turn} asks {len(texts)} queries, and {len(found)} more are stored")
        return self.environment.answer(
            call,
            TurnSearches(
                tuple(replace(call.request.query, text=text) for text in texts),
                tuple(
                    Search(text, one.hits if one.fault is None else (), one.fault, call.request.turn)
                    for text, one in zip(texts, found, strict=True)
                ),
            ),
            0.0,
        )

    def _opened(self, call: PendingCall, result: Result) -> Result:
        """The result of a visit with the document that it showed, which is stored; any other result as it is."""
        if not isinstance(result, DocumentPage):
            return result
        mine = (one for one in self.stored.visits if (one.turn, one.id) == (call.request.turn, result.ident))
        stored = next(mine, None)
        if stored is None or result.passage not in stored.passages:
            return result
        return replace(result, document=stored.passages)

    def _unrecorded(self) -> End | None:
        """How a run ended whose last search is not stored, since its results were not shown."""
        stored, row = self.stored, self.row
        if len(row.segments) < len(stored.segments):
            return None
        noting = self.environment.protocol.reason_in_documents
        if noting:  # what it was asked about the results, and what it wrote
            row.side_contexts += stored.side_contexts[len(row.side_contexts) :][:1]
        wanted, room = _NO_ROOM.fullmatch(stored.stop_detail), self.environment.limits.max_tokens
        if stored.stop is StopReason.TOKEN_LIMIT and wanted is not None:
            before = 0 if wanted[0].startswith("a prompt") else row.tokens
            follows = before + int(wanted[1]) >= room
        else:
            follows = noting and stored.stop is StopReason.MODEL_ERROR
        return End(stored.stop, detail=stored.stop_detail) if follows else None


def _of_segments(derived: Sequence[Segment], stored: Sequence[Segment]) -> Iterator[Finding]:
    """The first segment that differs: those behind it follow from it."""
    for at, (ours, theirs) in enumerate(zip_longest(derived, stored)):
        if ours is None or theirs is None:
            yield f"it has {len(stored)} segments, and {len(derived)} follow from what the agent wrote", None
            return
        if (ours.author, ours.tag) != (theirs.author, theirs.tag):
            follows = f"{ours.tag!r} by the {ours.author} follows"
            yield f"it is {theirs.tag!r} by the {theirs.author}, and {follows} from what the agent wrote", at
            return
        if ours.ids != theirs.ids:
            parts = enumerate(zip_longest(ours.ids, theirs.ids))
            place = next(place for place, (one, other) in parts if one != other)
            yield f"it is not what the environment writes here, from token {place} on", at
            return
        if ours.message != theirs.message:
            yield f"its message is {_short(theirs.message)}, and the ids say {_short(ours.message)}", at
            return


def _of_searches(derived: Sequence[Search], stored: Sequence[Search]) -> Iterator[str]:
    for number, (ours, theirs) in enumerate(zip_longest(derived, stored), start=1):
        if ours is None or theirs is None:
            yield f"it has {len(stored)} searches, and {len(derived)} follow from what the agent wrote"
            return
        if ours.query != theirs.query:
            yield f"search {number} asks {_short(theirs.query)}, and the agent wrote {_short(ours.query)}"
        if theirs.turn is not None and ours.turn != theirs.turn:
            yield f"search {number} belongs to turn {theirs.turn}, and turn {ours.turn} asked it"
        if ours.selected != theirs.selected:
            chose = f"and the agent chose {_short(ours.selected)}"
            yield f"from search {number} {_short(theirs.selected)} was selected, {chose}"


def _short(value: object) -> str:
    text = str(value) if isinstance(value, StopReason) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
