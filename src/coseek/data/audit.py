"""Audit: every invariant of a stored run, checked from the files alone.

The driver makes runs that hold all of these; an audit says whether a file still does, after a crash, a disk, an
editor or a program that is not ours. Decoding is handed in, since this room knows no tokenizer.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, read_jsonl
from coseek.data.run import RowKey, Run
from coseek.data.token_data import FILE, TokenData, read_token_data
from coseek.data.trajectory import (
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
    upgraded,
)

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""Ids → text, special tokens included: `Tokenizer.decode` of the model that made the run."""

_ROUNDING = 1e-6
"""How far above 0 a float32 log-probability may come out; a certain token is 0."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken invariant and where it is."""

    file: Path
    what: str
    line: int | None = None
    question: str | None = None
    segment: int | None = None
    """Position in `segments`, from 0."""

    def __str__(self) -> str:
        where = [str(self.file)]
        where += [f"line {self.line}"] if self.line is not None else []
        where += [f"question {self.question!r}"] if self.question is not None else []
        where += [f"segment {self.segment}"] if self.segment is not None else []
        return f"{', '.join(where)}: {self.what}"


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found; a run is sound when it found nothing."""

    rows: int
    """Trajectories that could be read."""
    violations: tuple[Violation, ...] = ()
    decoded: bool = False
    """Whether ids were compared with text: only when a `decode` was handed in."""

    @property
    def first(self) -> Violation | None:
        return self.violations[0] if self.violations else None


@dataclass(frozen=True, slots=True)
class RecordedLimits:
    """The limits that `run.yaml` records; a budget that it does not name is not checked."""

    max_turns: int | None = None
    passages_per_search: int | None = None
    max_turn_tokens: int | None = None
    max_tokens: int | None = None

    @classmethod
    def of(cls, settings: JsonObject) -> "RecordedLimits":
        """Read from the group `limits`, at whatever depth it is, or from the settings themselves."""
        limits = _group(settings, "limits") or settings
        found = {name: limits.get(name) for name in cls.__slots__}
        return cls(**{name: value for name, value in found.items() if isinstance(value, int)})


def audit_run(folder: Path, decode: Decode | None = None, most: int = 100) -> Audit:
    """Check a run folder; stops after `most` violations. Raises only when the folder is no run at all."""
    run = Run(folder)
    auditor = _Auditor(run, decode)
    violations: list[Violation] = []
    for violation in auditor.violations():
        violations.append(violation)
        if len(violations) >= most:
            break
    return Audit(auditor.rows, tuple(violations), decode is not None)


@dataclass
class _Auditor:
    run: Run
    decode: Decode | None
    rows: int = 0
    seen: dict[tuple[str, int], int] = field(default_factory=dict)
    budgets: RecordedLimits = field(default_factory=RecordedLimits)
    tokens: dict[RowKey, TokenData] = field(default_factory=dict)
    """Token data whose trajectory has not been read yet."""

    def violations(self) -> Iterator[Violation]:
        path = self.run.folder / "run.yaml"
        try:
            self.budgets = RecordedLimits.of(self.run.settings)
        except DataError:
            yield Violation(path, "it is not valid YAML with a group named settings, so no budget can be checked")
        yield from self._token_data()
        yield from self._trajectories()
        for question, seed in self.tokens:
            yield Violation(self.run.folder / FILE, f"the run holds no such question with seed {seed}", None, question)
        yield from self._metrics()

    def _token_data(self) -> Iterator[Violation]:
        try:
            self.tokens = read_token_data(self.run.folder)
        except DataError as error:
            path = self.run.folder / FILE
            yield Violation(path, str(error).removeprefix(f"{path}, "))

    def _metrics(self) -> Iterator[Violation]:
        path = self.run.metrics_path
        if path.exists():
            try:
                for _ in read_jsonl(path):
                    pass
            except (DataError, UnicodeDecodeError) as error:
                yield Violation(path, str(error).removeprefix(f"{path}, "))

    def _trajectories(self) -> Iterator[Violation]:
        path = self.run.trajectories_path
        if not path.exists():
            yield Violation(path, "there is no such file: the run holds no trajectories")
            return
        with path.open("rb") as lines:
            for number, data in enumerate(lines, start=1):
                if data.strip():
                    yield from self._line(path, number, data)

    def _line(self, path: Path, number: int, data: bytes) -> Iterator[Violation]:
        if not data.endswith(b"\n"):
            yield Violation(path, "the last line has no end: the run was cut short here; --resume mends it", number)
        try:
            row = json.loads(data)
        except ValueError as error:  # bad JSON, or bytes that are no UTF-8
            yield Violation(path, f"not valid JSON ({error})", number)
            return
        if not isinstance(row, dict):
            yield Violation(path, f"a JSON object is needed, not {type(row).__name__}", number)
            return
        ident = _ident(row)
        try:
            row = upgraded(row)
            trajectory = Trajectory.from_json(row)
            again = trajectory.to_json()
        except KeyError as error:
            yield Violation(path, f"{error} is missing", number, ident)
            return
        except (DataError, ValueError, TypeError, AttributeError, AssertionError) as error:
            yield Violation(path, f"not a trajectory: {error}", number, ident)
            return
        self.rows += 1
        if (odd := _difference(again, row)) is not None:
            yield Violation(path, f"{odd} is not what this schema writes", number, ident)
            return
        yield from self._duplicates(path, number, trajectory)
        if (values := self.tokens.pop((trajectory.question.id, trajectory.seed), None)) is not None:
            try:
                values.check(trajectory)
            except DataError as error:
                yield Violation(self.run.folder / FILE, str(error), None, ident)
        for what, segment in check_trajectory(trajectory, self.budgets, self.decode):
            yield Violation(path, what, number, ident, segment)

    def _duplicates(self, path: Path, number: int, trajectory: Trajectory) -> Iterator[Violation]:
        key = (trajectory.question.id, trajectory.seed)
        if key in self.seen:
            what = f"seed {trajectory.seed} of this question is on line {self.seen[key]} already"
            yield Violation(path, what, number, trajectory.question.id)
        self.seen.setdefault(key, number)


def check_trajectory(
    trajectory: Trajectory, budgets: RecordedLimits | None = None, decode: Decode | None = None
) -> Iterator[tuple[str, int | None]]:
    """What is wrong with one trajectory: sentences, each with the position of its segment where it has one."""
    budgets = budgets or RecordedLimits()
    for position, segment in enumerate(trajectory.segments):
        if segment.ids or trajectory.exact:  # a log may hold text alone
            for what in (*_ledger(segment, decode), *_turn(segment, budgets)):
                yield what, position
    yield from _order(trajectory)
    checks = [_ending(trajectory), _searches(trajectory, budgets), _turns(trajectory, budgets), _calls(trajectory)]
    checks += [_selection(trajectory), _evidence(trajectory)]
    for what in (*chain(*checks), *_side_contexts(trajectory, budgets, decode)):
        yield what, None
    tokens = len(trajectory.ids)
    # A prompt that alone is over the budget is kept whole, and the run ends with it.
    if budgets.max_tokens is not None and tokens > budgets.max_tokens and len(trajectory.segments) > 1:
        yield f"{tokens} tokens in all, and the budget max_tokens is {budgets.max_tokens}", None


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


def _turn(segment: Segment, budgets: RecordedLimits) -> Iterator[str]:
    most = budgets.max_turn_tokens
    if segment.author is Author.AGENT and most is not None and len(segment.ids) > most:
        yield f"a turn of {len(segment.ids)} tokens, and the budget max_turn_tokens is {most}"


def _order(trajectory: Trajectory) -> Iterator[tuple[str, int | None]]:
    """A prompt first, and never two turns of the agent without the environment between them."""
    if not trajectory.segments:
        if trajectory.stop is not StopReason.MODEL_ERROR:  # of a run that cannot be kept nothing may be left
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


def _searches(trajectory: Trajectory, budgets: RecordedLimits) -> Iterator[str]:
    k = budgets.passages_per_search
    for number, search in enumerate(trajectory.searches, start=1):
        if search.fault is not None and search.hits:
            yield f"search {number} failed and has hits all the same"
        if k is not None and len(search.hits) > k:
            yield f"search {number} has {len(search.hits)} hits, and the budget passages_per_search is {k}"
        scores = [hit.score for hit in search.hits]
        if not all(map(math.isfinite, scores)) or scores != sorted(scores, reverse=True):
            yield f"the scores of search {number} are not finite and falling"
        if len({hit.passage.id for hit in search.hits}) < len(search.hits):
            yield f"search {number} has the same passage twice"


def _turns(trajectory: Trajectory, budgets: RecordedLimits) -> Iterator[str]:
    """Which turn each search belongs to, and how many turns the environment answered."""
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
    environment = [segment.tag for segment in trajectory.segments[1:] if segment.author is Author.ENVIRONMENT]
    own = sum(tag in (RETRY, PAGE, MISSING, TOOL, MESSAGE) for tag in environment)
    if len(environment) - own > len(worked):
        yield f"{len(environment) - own} observations and only {len(worked)} searches that worked"
    failed = sum(call.fault is not None for call in trajectory.calls)
    answered, most = len(set(turn_of) - {0}) + own + failed, budgets.max_turns
    if most is not None and answered > most:
        yield f"{answered} turns that the environment answered, and the budget max_turns is {most}"


def _calls(trajectory: Trajectory) -> Iterator[str]:
    """Each tool segment shows one call that worked, made by the turn of the agent in front of it."""
    shown, turn = [], 0
    for segment in trajectory.segments:
        turn += segment.author is Author.AGENT
        if segment.author is Author.ENVIRONMENT and segment.tag == TOOL:
            shown.append(turn)
    worked = [call.turn for call in trajectory.calls if call.fault is None]
    if shown != worked:
        yield f"results of tools are shown behind the turns {shown}, and calls that worked are of the turns {worked}"
    if any(call.turn != turn for call in trajectory.calls if call.fault is not None):
        yield f"a tool call failed before the last turn ({turn}), and a failed call ends a run"


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
    found, counted = {hit.passage.id for search in trajectory.searches for hit in search.hits}, set[str]()
    for ident in trajectory.evidence:
        if ident in counted:
            yield f"the passage {ident!r} stands twice in the evidence"
        elif ident not in found:
            yield f"the passage {ident!r} of the evidence was never retrieved"
        counted.add(ident)
    if lacking := sorted(found - counted):
        yield f"the passage {lacking[0]!r} was retrieved and is not in the evidence"


def _side_contexts(trajectory: Trajectory, budgets: RecordedLimits, decode: Decode | None) -> Iterator[str]:
    """Contexts beside the run: a prompt and at most one turn each, with ledgers of their own."""
    for number, aside in enumerate(trajectory.side_contexts, start=1):
        authors = [segment.author for segment in aside]
        if authors not in ([Author.ENVIRONMENT], [Author.ENVIRONMENT, Author.AGENT]):
            yield f"side context {number} is no prompt with one turn behind it"
        for segment in aside:
            for what in (*_ledger(segment, decode), *_turn(segment, budgets)):
                yield f"side context {number}: {what}"
        tokens = sum(len(segment.ids) for segment in aside)
        if budgets.max_tokens is not None and tokens > budgets.max_tokens:
            yield f"side context {number} holds {tokens} tokens, and the budget max_tokens is {budgets.max_tokens}"


def _ident(row: JsonObject) -> str | None:
    question = row.get("question")
    return str(question["id"]) if isinstance(question, dict) and "id" in question else None


def _group(tree: JsonObject, name: str) -> JsonObject | None:
    """The group of settings called `name`, the nearest to the top."""
    level: list[JsonObject] = [tree]
    while level:
        for group in level:
            if isinstance(found := group.get(name), dict):
                return found
        level = [value for group in level for value in group.values() if isinstance(value, dict)]
    return None


def _difference(ours: Json, theirs: Json, where: str = "") -> str | None:
    """The path of the first place where two JSON values differ, types included; `None` when they are the same."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in {**theirs, **ours}:
            path = f"{where}.{name}" if where else name
            if name not in ours or name not in theirs:
                return path
            if (odd := _difference(ours[name], theirs[name], path)) is not None:
                return odd
        return None
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return where
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((odd for at, (a, b) in pairs if (odd := _difference(a, b, f"{where}[{at}]")) is not None), None)
    same = ours == theirs or (ours != ours and theirs != theirs)  # NaN is judged as a value, not as a shape
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (ours, theirs))
    return None if same and (numbers or type(ours) is type(theirs)) else where


def _parting(stored: str, decoded: str) -> str:
    """Where two texts part, short enough for one line."""
    at = next(
        (at for at, (a, b) in enumerate(zip(stored, decoded, strict=False)) if a != b), min(len(stored), len(decoded))
    )
    return f"from character {at}: stored {stored[at : at + 20]!r}, decoded {decoded[at : at + 20]!r}"
