"""Audit: a stored run, checked against itself, its digests, and what can be worked out again.

The driver makes runs that hold every invariant; an audit says whether a file still does, after a crash, a disk, an
editor or a program that is not ours. What needs a tokenizer, a protocol, questions or a corpus is handed in
(`AuditParts`), since this package knows none of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, read_byte_lines, read_jsonl
from coseek.core.strict_json import InvalidJson, parse_strict
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.data.run_seal import DIGEST, SEAL, file_rows_digest, record_digest, row_digest, rows_digest
from coseek.data.token_data import FILE, TokenData, read_token_data
from coseek.data.trajectory import Trajectory
from coseek.data.trajectory_checks import Decode, RecordedLimits, check_trajectory

SHOWN = 100
"""Violations that an audit keeps; all are counted."""
Finding: TypeAlias = tuple[str, int | None]
"""What is wrong with a trajectory, and the position of its segment where it has one."""


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
class Share:
    """How many of some rows could be worked out again, and how many are bound by a digest."""

    of: str
    """What the rows are, in the plural."""
    rows: int
    derived: int
    bound: int


class RunCheck(Protocol):
    """A further comparison of a run, which sees its trajectories one by one."""

    def findings(self, trajectory: Trajectory) -> Iterable[Finding]:
        """What is wrong with a trajectory."""
        ...

    def rest(self) -> Iterable[Violation]:
        """What is wrong with files beside the trajectories, when all of these have been seen."""
        ...

    def shares(self) -> Iterable[Share]: ...


@dataclass(frozen=True)
class AuditParts:
    """What a run is compared with. Without a part, what it tells is not compared."""

    decode: Decode | None = None
    derive: Callable[[Trajectory], Iterable[Finding] | None] | None = None
    """What a trajectory has other than what is worked out from the agent's ids and the hits; `None` where it cannot."""
    hits: Callable[[Trajectory], Iterable[str]] | None = None
    """What is wrong with the hits of a trajectory."""
    reward: Callable[[Trajectory, TokenData], Iterable[str]] | None = None
    """What is wrong with the reward of a trajectory in its token data."""
    checks: tuple[RunCheck, ...] = ()
    questions: Mapping[str, Question] | None = None
    """The questions asked, by id."""
    rows: frozenset[RowKey] | None = None
    """The rows of the whole run."""
    seeds: Callable[[RowKey], bool] | None = None
    """Whether a seed is one of its question's."""
    record: tuple[str, ...] = ()
    """What is wrong with `run.yaml`."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What is not compared → why."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found; a run is sound when it found nothing."""

    rows: int
    """Trajectories that could be read."""
    violations: tuple[Violation, ...] = ()
    """The first `SHOWN`."""
    count: int = 0
    """All violations."""
    decoded: bool = False
    """Whether ids were compared with text: only when a `decode` was handed in."""
    derived: int = 0
    """Trajectories that were worked out again."""
    bound: int = 0
    """Trajectories with a digest, or in a sealed run."""
    sealed: bool = False
    """Whether the run has a seal."""
    of: str = "trajectories"
    """What `rows` counts."""
    shares: tuple[Share, ...] = ()
    """Of what else the folder holds."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """What was not compared → why."""

    @property
    def first(self) -> Violation | None:
        return self.violations[0] if self.violations else None


def audit_run(folder: Path, decode: Decode | None = None, most: int = SHOWN, parts: AuditParts | None = None) -> Audit:
    """Check a run folder. All violations are counted and the first `most` kept. Raises only when the folder is no run
    at all. `decode` alone is enough where nothing else is to be compared."""
    auditor = _Auditor(Run(folder), parts or AuditParts(decode))
    violations, count = counted(auditor.violations(), most)
    sealed = auditor.seal is not None
    return Audit(
        auditor.rows,
        violations,
        count,
        auditor.parts.decode is not None,
        auditor.derived,
        auditor.rows if sealed else auditor.bound,
        sealed,
        shares=tuple(share for check in auditor.parts.checks for share in check.shares()),
        left_out=auditor.parts.left_out,
    )


def counted(violations: Iterable[Violation], most: int = SHOWN) -> tuple[tuple[Violation, ...], int]:
    """The first `most` violations, and the number of all."""
    first: list[Violation] = []
    count = 0
    for violation in violations:
        count += 1
        if len(first) < most:
            first.append(violation)
    return tuple(first), count


@dataclass(frozen=True, slots=True)
class BoundRow:
    """A line of a JSONL file, without its digest."""

    line: int
    row: JsonObject | None
    """`None` for a line that is no strict JSON object."""
    wrong: str = ""
    """What is wrong with the line."""
    digest: str = ""
    """Digest of the content."""
    stored: Json = None
    """The digest that was written with it; `None` for none."""

    @property
    def changed(self) -> str:
        """Why the content is not what was written, if it is not."""
        own = self.stored in (None, self.digest)
        return "" if own else "it was changed after it was written: its digest is another one"


def bound_rows(path: Path) -> Iterator[BoundRow]:
    """The lines of a file that are not blank, broken ones, too."""
    for number, data in read_byte_lines(path):
        if data.strip():
            yield _bound_row(number, data)


def _bound_row(number: int, data: bytes) -> BoundRow:
    cut = "" if data.endswith(b"\n") else "the last line has no end: the run was cut short here; --resume mends it"
    try:
        row = _parsed(data)
    except (InvalidJson, UnicodeDecodeError) as error:
        return BoundRow(number, None, f"{cut}; not strict JSON ({error})" if cut else f"not strict JSON ({error})")
    if not isinstance(row, dict):
        return BoundRow(number, None, f"a JSON object is needed, not {type(row).__name__}")
    stored = row.pop(DIGEST, None)
    return BoundRow(number, row, cut, row_digest(row), stored)


@dataclass
class _Auditor:
    run: Run
    parts: AuditParts
    rows: int = 0
    derived: int = 0
    bound: int = 0
    seal: JsonObject | None = None
    digests: list[str] = field(default_factory=list)
    """Digests of the content of all rows."""
    unbound: int | None = None
    """The first line without a digest."""
    seen: dict[RowKey, int] = field(default_factory=dict)
    budgets: RecordedLimits = field(default_factory=RecordedLimits)
    tokens: dict[RowKey, TokenData] = field(default_factory=dict)
    """Token data whose trajectory has not been read yet."""

    def violations(self) -> Iterator[Violation]:
        path = self.run.folder / "run.yaml"
        try:
            self.budgets = RecordedLimits.of(self.run.settings)
        except DataError:
            yield Violation(path, "it is not valid YAML with a group named settings, so no budget can be checked")
        else:
            seal = self.run.record.get(SEAL)
            self.seal = seal if isinstance(seal, dict) else None
        for what in self.parts.record:
            yield Violation(path, what)
        yield from self._token_data()
        yield from self._trajectories()
        for question, seed in self.tokens:
            yield Violation(self.run.folder / FILE, f"the run holds no such question with seed {seed}", None, question)
        yield from self._whole()
        yield from self._metrics()
        for check in self.parts.checks:
            yield from check.rest()

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

    def _whole(self) -> Iterator[Violation]:
        """The rows of the run together, and its seal."""
        path = self.run.trajectories_path
        if self.parts.rows is not None and (lacking := sorted(self.parts.rows - self.seen.keys())):
            ident, seed = lacking[0]
            what = f"{len(lacking)} of the run's {len(self.parts.rows)} rows are missing; --resume makes them"
            yield Violation(path, f"{what}; the first is that of seed {seed}", None, ident)
        if self.seal is None:
            if self.bound:
                why = "it was stopped, or its seal was removed; --resume closes it"
                yield Violation(self.run.folder / "run.yaml", f"the run was not closed: {why}")
            if self.bound and self.unbound is not None:
                yield Violation(path, "it has no digest, and other rows have one", self.unbound)
            return
        if self.seal.get("record") != record_digest(self.run.record):
            what = "it was changed after the run was closed: its digest is another one than that in its seal"
            yield Violation(self.run.folder / "run.yaml", what)
        sealed = self.seal.get("trajectories")
        if sealed != rows_digest(self.digests):
            what = f"the rows were changed after the run was closed, with {self.seal.get('rows')} rows"
            yield Violation(path, f"{what}: their digest is another one than that in the seal of run.yaml")
        yield from self._sealed_tokens(self.seal.get("tokens"))

    def _sealed_tokens(self, sealed: Json) -> Iterator[Violation]:
        path = self.run.folder / FILE
        if sealed is None:
            return
        try:
            changed = not path.exists() or file_rows_digest(path) != sealed
        except DataError:  # told by `_token_data`
            return
        if changed:
            yield Violation(path, "it was changed after the run was closed: its digest is another one")

    def _trajectories(self) -> Iterator[Violation]:
        path = self.run.trajectories_path
        if not path.exists():
            yield Violation(path, "there is no such file: the run holds no trajectories")
            return
        for one in bound_rows(path):
            if one.wrong:
                yield Violation(path, one.wrong, one.line)
            if one.row is not None:
                yield from self._line(path, one, one.row)

    def _line(self, path: Path, one: BoundRow, row: JsonObject) -> Iterator[Violation]:
        ident = _ident(row)
        self.digests.append(one.digest)
        self.bound += one.stored is not None
        if one.stored is None and self.unbound is None:
            self.unbound = one.line
        for what, segment in self._row(one.line, row):
            yield Violation(path, what, one.line, ident, segment)
        if one.changed:
            yield Violation(path, one.changed, one.line, ident)

    def _row(self, number: int, row: JsonObject) -> Iterator[Finding]:
        """What is wrong with the content of a row. What is worked out again is compared in rows that have no fault of
        their own."""
        try:
            trajectory = Trajectory.from_json(row)
            again = trajectory.to_json()
        except KeyError as error:
            yield f"{error} is missing", None
            return
        except (DataError, ValueError, TypeError, AttributeError, AssertionError, OverflowError) as error:
            yield f"not a trajectory: {error}", None
            return
        self.rows += 1
        if (odd := difference(again, row)) is not None:
            yield f"{odd} is not what this schema writes", None
            return
        faults = 0
        invariants = check_trajectory(trajectory, self.budgets, self.parts.decode)
        for finding in (*self._known(number, trajectory), *invariants):
            faults += 1
            yield finding
        if not faults:
            yield from self._again(trajectory)

    def _known(self, number: int, trajectory: Trajectory) -> Iterator[Finding]:
        """Whether the run has such a row, once, and what other files tell of it."""
        key = (trajectory.question.id, trajectory.seed)
        if key in self.seen:
            yield f"seed {trajectory.seed} of this question is on line {self.seen[key]} already", None
        self.seen.setdefault(key, number)
        asked = None if self.parts.questions is None else self.parts.questions.get(key[0])
        if self.parts.questions is not None and asked is None:
            yield "the run asks no such question", None
        elif asked is not None and asked != trajectory.question:
            yield "the question is not that of the questions file", None
        elif self.parts.rows is not None and key not in self.parts.rows:
            yield f"the seed {trajectory.seed} is none of this question's in this run", None
        elif self.parts.seeds is not None and not self.parts.seeds(key):
            yield f"the seed {trajectory.seed} does not follow from the run's seed and the question's id", None
        if (values := self.tokens.pop(key, None)) is not None:
            try:
                values.check(trajectory)
            except DataError as error:
                yield f"{FILE}: {error}", None
            for what in self.parts.reward(trajectory, values) if self.parts.reward is not None else ():
                yield f"{FILE}: {what}", None

    def _again(self, trajectory: Trajectory) -> Iterator[Finding]:
        """What differs from what is worked out again."""
        found = self.parts.derive(trajectory) if self.parts.derive is not None else None
        if found is not None:
            self.derived += 1
            yield from found
        if self.parts.hits is not None:
            for what in self.parts.hits(trajectory):
                yield what, None
        for check in self.parts.checks:
            yield from check.findings(trajectory)


def _parsed(data: bytes) -> Json:
    """The value of a line. Raises `InvalidJson` and `UnicodeDecodeError`."""
    return parse_strict(data.decode("utf-8-sig"))


def _ident(row: JsonObject) -> str | None:
    question = row.get("question")
    return str(question["id"]) if isinstance(question, dict) and "id" in question else None


def difference(ours: Json, theirs: Json, where: str = "") -> str | None:
    """The path of the first place where two JSON values differ, types included; `None` when they are the same."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in {**theirs, **ours}:
            path = f"{where}.{name}" if where else name
            if name not in ours or name not in theirs:
                return path
            if (odd := difference(ours[name], theirs[name], path)) is not None:
                return odd
        return None
    if isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            return where
        pairs = enumerate(zip(ours, theirs, strict=True))
        return next((odd for at, (a, b) in pairs if (odd := difference(a, b, f"{where}[{at}]")) is not None), None)
    same = ours == theirs or (ours != ours and theirs != theirs)  # NaN is judged as a value, not as a shape
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (ours, theirs))
    return None if same and (numbers or type(ours) is type(theirs)) else where
