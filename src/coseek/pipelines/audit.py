"""Audit: derive again what a stored run or label folder says, and name what differs.

`run_checks.py` derives what a trajectory says; labels follow from the runs, the retriever and the stored scores. The
digest file binds the rest. A file that has changed or gone since is no fault of the run: the audit names what it could
not compare, and why.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar

from coseek.agents.protocol import tool_files
from coseek.core.connections import is_url
from coseek.core.errors import DataError, UserError
from coseek.core.files import SUMS, Json, JsonObject, parse_line, parse_row, read_byte_lines
from coseek.core.plugins import is_plugin_path
from coseek.core.settings import make_settings
from coseek.data.digests import changed_files
from coseek.data.question import Question
from coseek.data.run import RowKey, Run
from coseek.data.token_data import FILE, TokenData, read_token_data
from coseek.data.trajectory import Trajectory
from coseek.data.trajectory_checks import Finding, check_trajectory
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import DroppedTurn, LabelSet
from coseek.labels.maker import maker_module
from coseek.models.model import Tokenizer
from coseek.pipelines.labelling import LabelSettings, label_runs
from coseek.pipelines.run_checks import AGAIN, HITS, PLAYED, Check, RunChecks, near, wrong_reward
from coseek.retrieval.factory import open_retriever
from coseek.rewards.reward import RewardFunction

SHOWN = 100
"""Violations that an audit keeps; all are counted."""
TEXT, QUESTIONS, REWARDS = "ids against text", "questions and rows", "rewards"
LABELS = "labels made again"
"""What may not be compared, besides the checks of a run."""

LabelKey: TypeAlias = tuple[str, ...]
"""Question, seed and search of a label row; then the copy of a label set, or an empty text for a dropped turn."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Violation:
    """One difference and where it is."""

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


@dataclass
class Audit:
    """Result of an audit. The folder is sound if there is no violation."""

    folder: Path
    of: str = "trajectories"
    """What `rows` counts."""
    rows: int = 0
    """Rows that could be read."""
    derived: int = 0
    """Rows that were derived again."""
    bound: bool = False
    """Whether there is a digest file."""
    violations: tuple[Violation, ...] = ()
    """The first `SHOWN`."""
    count: int = 0
    """All violations."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What was not compared → why."""

    def add(
        self, file: Path, what: str, line: int | None = None, question: str | None = None, at: int | None = None
    ) -> None:
        """Count a violation, and keep it if it is one of the first."""
        self.count += 1
        if self.count <= SHOWN:
            self.violations += (Violation(file, what, line, question, at),)

    def try_opening(self, what: str, open_it: Callable[[], T]) -> T | None:
        """What `open_it` returns; `None` where it fails, which is noted."""
        try:
            return open_it()
        except (UserError, OSError, ValueError) as error:  # a name that is no path is a ValueError
            self.left_out[what] = str(error)
            return None

    def rows_of(self, path: Path) -> Iterator[tuple[int, JsonObject]]:
        """The rows of a JSONL file with their lines. Broken lines are violations."""
        for number, line in read_byte_lines(path):
            if line.strip():
                try:
                    row = parse_line(line, "the line")
                except DataError as error:
                    self.add(path, str(error), number)
                else:
                    yield number, row

    def check_digests(self) -> None:
        """Compare the files with their digests."""
        path = self.folder / SUMS
        self.bound = path.exists()
        if self.bound:
            try:
                for file, what in changed_files(self.folder):
                    self.add(file, what)
            except DataError as error:
                self.add(path, str(error))
        else:
            self.add(path, "there is no digest file: the command was stopped before its end; --resume writes it")


def audits_of(folder: Path, retriever: str | None = None) -> Iterator[Audit]:
    """Audit every run and label folder below a folder. `retriever` is that of the runs, to search with again. Raises
    `UserError` if there is none, or if it cannot be opened."""
    runs = sorted(path.parent for path in folder.rglob("run.yaml"))
    labels = sorted(path.parent for path in folder.rglob("labels.yaml"))
    for inner in runs or ([] if labels else [folder]):  # what is not a run folder is refused
        yield audit_run(inner, retriever)
    for inner in labels:
        yield audit_labels(inner, retriever)


# --- runs


def audit_run(folder: Path, retriever: str | None = None) -> Audit:
    """Audit a run folder; see `audits_of`."""
    run, audit = Run(folder), Audit(folder)
    opened = None if retriever is None else open_retriever(retriever)
    try:
        settings, record = run.settings, run.record
    except DataError as error:
        audit.add(folder / "run.yaml", str(error))
        settings, record = {}, {}
    parts = RunChecks(settings, record, opened)
    tokenizer = audit.try_opening(TEXT, lambda: parts.tokenizer)
    questions = audit.try_opening(QUESTIONS, parts.questions)
    reward = audit.try_opening(REWARDS, parts.reward)
    openers = {PLAYED: parts.derivation, HITS: parts.passages, AGAIN: parts.searches}
    checks = {what: audit.try_opening(what, open_it) for what, open_it in openers.items()}
    if checks[AGAIN] is not None:  # an index folder is not needed then
        audit.left_out.pop(HITS, None)
    opened_checks = [check for check in checks.values() if check is not None]
    _RowAudit(audit, tokenizer, questions, reward, opened_checks, checks[PLAYED] is not None).check(run)
    audit.check_digests()
    return audit


@dataclass
class _RowAudit:
    """Checks the rows of one run."""

    audit: Audit
    tokenizer: Tokenizer | None
    questions: Mapping[RowKey, Question] | None
    """All rows of the run with their questions."""
    reward: RewardFunction | None
    checks: Sequence[Check]
    derives: bool
    seen: dict[RowKey, int] = field(default_factory=dict)
    tokens: dict[RowKey, TokenData] = field(default_factory=dict)
    """Token data whose trajectory has not been read yet."""

    def check(self, run: Run) -> None:
        path, data_path = run.trajectories_path, run.folder / FILE
        try:
            self.tokens = read_token_data(run.folder)
        except DataError as error:
            self.audit.add(data_path, str(error).removeprefix(f"{data_path}, "))
        if not path.exists():
            self.audit.add(path, "there is no such file: the run holds no trajectories")
            return
        for number, row in self.audit.rows_of(path):
            try:
                trajectory = parse_row(row, Trajectory.from_json, "not a trajectory")
            except DataError as error:
                self.audit.add(path, str(error), number)
                continue
            self.audit.rows += 1
            for what, segment in self._findings(number, row, trajectory):
                self.audit.add(path, what, number, trajectory.question.id, segment)
        for ident, seed in self.tokens:
            self.audit.add(data_path, f"the run holds no such question with seed {seed}", None, ident)
        if self.questions is not None and (missing := sorted(self.questions.keys() - self.seen.keys())):
            what = f"{len(missing)} of the run's {len(self.questions)} rows are missing; --resume makes them"
            self.audit.add(path, f"{what}; the first is that of seed {missing[0][1]}", None, missing[0][0])

    def _findings(self, number: int, row: JsonObject, trajectory: Trajectory) -> Iterator[Finding]:
        """What is wrong with a row. It is derived again only if it holds the invariants."""
        if (path := difference(trajectory.to_json(), row)) is not None:
            yield f"{path} is not what this schema writes", None
            return
        decode = None if self.tokenizer is None else self.tokenizer.decode
        wrong = [*self._contradictions(number, trajectory), *check_trajectory(trajectory, decode)]
        yield from wrong
        if not wrong:
            self.audit.derived += self.derives
            for check in self.checks:
                yield from check(trajectory)

    def _contradictions(self, number: int, trajectory: Trajectory) -> Iterator[Finding]:
        """What contradicts the other rows, the questions and the token data."""
        key = (trajectory.question.id, trajectory.seed)
        if key in self.seen:
            yield f"seed {key[1]} of this question is on line {self.seen[key]} already", None
        self.seen.setdefault(key, number)
        if self.questions is not None and key not in self.questions:
            yield f"the run asks no such question with seed {key[1]}", None
        elif self.questions is not None and self.questions[key] != trajectory.question:
            yield "the question is not that of the questions file", None
        data = self.tokens.pop(key, None)
        if data is None:
            return
        try:
            data.check(trajectory)
        except DataError as error:
            yield f"{FILE}: {error}", None
        if self.reward is not None:
            for what in wrong_reward(self.reward, trajectory, data):
                yield f"{FILE}: {what}", None


# --- labels


def audit_labels(folder: Path, retriever: str | None = None) -> Audit:
    """Audit a label folder. `retriever` names the one that found its candidates, if it is no index folder: a server is
    asked only then. Raises `DataError` for what is not a run folder."""
    labels, audit = LabelFolder(folder), Audit(folder, "label rows")
    try:
        record = labels.record
    except DataError as error:
        audit.add(folder / "labels.yaml", str(error))
        return audit
    stored = _label_rows(labels, audit)
    if audit.count:
        audit.left_out[LABELS] = "its files are broken"
    elif not (folder / SUMS).exists():
        audit.left_out[LABELS] = "the folder was not closed"
    elif (derived := audit.try_opening(LABELS, lambda: _remade_labels(labels, record, retriever))) is not None:
        for key in {**stored, **derived}:
            path, line, row = stored.get(key, (labels.sets_path if key[-1] else labels.dropped_path, None, None))
            audit.derived += row is not None
            if row is None or key not in derived:
                problem = "no such row follows" if row is not None else f"the row of search {key[2]} is missing"
            elif (difference_at := difference(derived[key][2], row, rounded=True)) is not None:
                problem = f"{difference_at} does not follow"
            else:
                continue
            audit.add(path, f"{problem} from the runs, the retriever and the scores", line, key[0])
    audit.check_digests()
    return audit


def _label_rows(labels: LabelFolder, audit: Audit) -> dict[LabelKey, tuple[Path, int, JsonObject]]:
    """The label sets and dropped turns with their files and lines. Broken and repeated rows are violations."""
    rows: dict[LabelKey, tuple[Path, int, JsonObject]] = {}
    kinds: tuple[tuple[Path, Callable[[JsonObject], LabelSet | DroppedTurn]], ...] = (
        (labels.sets_path, LabelSet.from_json),
        (labels.dropped_path, DroppedTurn.from_json),
    )
    for path, parse in kinds:
        for number, stored in audit.rows_of(path) if path.exists() else ():
            try:
                row = labels.texts.restore(stored)
                label = parse_row(row, parse, "not a row of labels")
            except UserError as error:
                audit.add(path, str(error), number)
                continue
            audit.rows += 1
            key = (*label.turn.key, str(label.copy) if isinstance(label, LabelSet) else "")
            if (differing := difference(label.to_json(), row)) is not None:
                audit.add(path, f"{differing} is not what this schema writes", number, key[0])
            if key in rows:
                audit.add(path, f"the turn is on line {rows[key][1]} already", number, key[0])
            rows[key] = path, number, row
    return rows


def _remade_labels(
    labels: LabelFolder, record: JsonObject, retriever: str | None
) -> dict[LabelKey, tuple[Path, int, JsonObject]]:
    """Make the labels again in a temporary folder, with copies of the stored scores. Raises `UserError` if a part has
    gone, and for a server or a file of the user's that would be asked or run."""
    tree = record.get("settings")
    named = dict(tree) if isinstance(tree, dict) else {}
    if "runs" not in named:
        raise DataError("imported ones and those of a co-training are not")
    method_settings = named.pop(str(named.get("method")), {})
    method_settings = method_settings if isinstance(method_settings, dict) else {}
    settings = make_settings(LabelSettings, named)
    _check_local(settings, method_settings, retriever)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "labels"
        copy.mkdir()
        shutil.copyfile(labels.folder / "labels.yaml", copy / "labels.yaml")
        for name in ("scores", "run"):
            if (labels.folder / name).is_dir():
                shutil.copytree(labels.folder / name, copy / name)
        label_runs(settings, method_settings, copy, resume=True)
        return _label_rows(LabelFolder(copy), Audit(copy))


def _check_local(settings: LabelSettings, method_settings: JsonObject, retriever: str | None) -> None:
    """Raise `DataError` if making the labels would ask a server that `retriever` does not name, or run a file of the
    user's."""
    if is_plugin_path(settings.method):
        raise DataError(f"the method {settings.method} is a file of the user's, which is not run")
    module = maker_module(settings.method)
    terms = module.terms(make_settings(module.SETTINGS, method_settings))
    names = [settings.retriever] if settings.retriever != retriever else []
    names += [settings.scorer] if terms.scorer and settings.scorer else []
    names += [settings.likelihood] if terms.likelihood and settings.likelihood else []
    agent = settings.agent if terms.answers or terms.rolls_out else None
    names += [agent.name, *map(str, tool_files(agent.protocol))] if agent is not None else []
    for name in names:
        if is_url(name) or name.endswith((".yaml", ".yml")):
            raise DataError(f"{name} may be a server, which is not asked unnamed")
        if is_plugin_path(name):
            raise DataError(f"{name} is a file of the user's, which is not run")


# --- JSON values


def difference(derived: Json, stored: Json, where: str = "", *, rounded: bool = False) -> str | None:
    """The path of the first place where two JSON values differ, types included; `None` when they are the same. With
    `rounded`, numbers that differ by a rounding are the same."""
    if isinstance(derived, dict) and isinstance(stored, dict):
        for name in {**stored, **derived}:
            path = f"{where}.{name}" if where else name
            if name not in derived or name not in stored:
                return path
            if (inner := difference(derived[name], stored[name], path, rounded=rounded)) is not None:
                return inner
        return None
    if isinstance(derived, list) and isinstance(stored, list) and len(derived) == len(stored):
        pairs = enumerate(zip(derived, stored, strict=True))
        inners = (difference(new, old, f"{where}[{position}]", rounded=rounded) for position, (new, old) in pairs)
        return next((inner for inner in inners if inner is not None), None)
    if rounded and isinstance(derived, float) and isinstance(stored, float) and near(derived, stored):
        return None
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (derived, stored))
    return None if derived == stored and (numbers or type(derived) is type(stored)) else where
