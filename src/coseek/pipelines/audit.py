"""Audit: derive again what a stored run or label folder says, and report the differences.

`run_checks.py` derives trajectories; labels follow from the runs, the retriever and the stored scores. The digest file
covers everything else. A part that has changed or is missing is not a violation: the audit reports what it could not
compare, and why.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
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
from coseek.data.run import RowKey, Run
from coseek.data.token_data import FILE, TokenData, read_token_data
from coseek.data.trajectory import Trajectory
from coseek.data.trajectory_checks import Finding, check_trajectory
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import DroppedTurn, LabelSet
from coseek.labels.maker import maker_module
from coseek.pipelines.labelling import LabelSettings, label_runs
from coseek.pipelines.run_checks import RunChecks, near, wrong_reward
from coseek.retrieval.factory import open_retriever

SHOWN = 100
"""Violations that an audit keeps; all are counted."""
LABELS = "labels made again"

T = TypeVar("T")
LabelKey: TypeAlias = tuple[str, ...]
"""Question, seed and search of a label row; then the copy of a label set, or an empty text for a dropped turn."""
LabelRow: TypeAlias = tuple[Path, int, JsonObject]
"""File, line and row of a label set or a dropped turn."""


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
        location = [str(self.file)]
        location += [f"line {self.line}"] if self.line is not None else []
        location += [f"question {self.question!r}"] if self.question is not None else []
        location += [f"segment {self.segment}"] if self.segment is not None else []
        return f"{', '.join(location)}: {self.what}"


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
    violations: tuple[Violation, ...] = ()
    """The first `SHOWN`."""
    count: int = 0
    """All violations."""
    left_out: dict[str, str] = field(default_factory=dict)
    """What was not compared → why."""

    @property
    def bound(self) -> bool:
        """Whether there is a digest file."""
        return (self.folder / SUMS).exists()

    def add(
        self, file: Path, what: str, line: int | None = None, question: str | None = None, at: int | None = None
    ) -> None:
        """Count a violation, and keep it if it is one of the first."""
        self.count += 1
        if self.count <= SHOWN:
            self.violations += (Violation(file, what, line, question, at),)

    def try_opening(self, what: str, open_it: Callable[[], T]) -> T | None:
        """What `open_it` returns; `None` if it fails, with the reason in `left_out`."""
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
        if not self.bound:
            self.add(path, "there is no digest file: the command was stopped before its end; --resume writes it")
            return
        try:
            for file, problem in changed_files(self.folder):
                self.add(file, problem)
        except DataError as error:
            self.add(path, str(error))


def audits_of(folder: Path, retriever: str | None = None) -> Iterator[Audit]:
    """Audit every run and label folder below a folder. `retriever` is that of the runs, to search with again. Raises
    `UserError` if there is no such folder, or if the retriever cannot be opened."""
    runs = sorted(path.parent for path in folder.rglob("run.yaml"))
    labels = sorted(path.parent for path in folder.rglob("labels.yaml"))
    for subfolder in runs or ([] if labels else [folder]):  # what is not a run folder is refused
        yield audit_run(subfolder, retriever)
    for subfolder in labels:
        yield audit_labels(subfolder, retriever)


# --- runs


def audit_run(folder: Path, retriever: str | None = None) -> Audit:
    """Audit a run folder; see `audits_of`."""
    run, audit = Run(folder), Audit(folder)
    searcher = None if retriever is None else open_retriever(retriever)
    try:
        settings, record = run.settings, run.record
    except DataError as error:
        audit.add(folder / "run.yaml", str(error))
        settings, record = {}, {}
    _RunAudit(run, audit, RunChecks(settings, record, searcher)).check()
    audit.check_digests()
    return audit


class _RunAudit:
    """Checks the rows of one run with the parts that can be opened."""

    def __init__(self, run: Run, audit: Audit, parts: RunChecks) -> None:
        self.run, self.audit, self.data_path = run, audit, run.folder / FILE
        tokenizer = audit.try_opening("ids against text", lambda: parts.tokenizer)
        self.decode = None if tokenizer is None else tokenizer.decode
        self.questions = audit.try_opening("questions and rows", parts.questions)
        self.reward = audit.try_opening("rewards", parts.reward)
        derivation = audit.try_opening("what follows", parts.derivation)
        passages = audit.try_opening("hits", parts.passages)
        searches = audit.try_opening("searches", parts.searches)
        if searches is not None:  # an index folder is not needed then
            audit.left_out.pop("hits", None)
        self.derives = derivation is not None
        self.checks = [check for check in (derivation, passages, searches) if check is not None]
        self.lines: dict[RowKey, int] = {}
        self.token_data: dict[RowKey, TokenData] = {}
        """Token data whose trajectory has not been read yet."""

    def check(self) -> None:
        path = self.run.trajectories_path
        try:
            self.token_data = read_token_data(self.run.folder)
        except DataError as error:
            self.audit.add(self.data_path, str(error).removeprefix(f"{self.data_path}, "))
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
            for problem, segment in self._findings(number, row, trajectory):
                self.audit.add(path, problem, number, trajectory.question.id, segment)
        for ident, seed in self.token_data:
            self.audit.add(self.data_path, f"the run holds no such question with seed {seed}", None, ident)
        if self.questions is not None and (missing := sorted(self.questions.keys() - self.lines.keys())):
            problem = f"{len(missing)} of the run's {len(self.questions)} rows are missing; --resume makes them"
            self.audit.add(path, f"{problem}; the first is that of seed {missing[0][1]}", None, missing[0][0])

    def _findings(self, number: int, row: JsonObject, trajectory: Trajectory) -> Iterator[Finding]:
        """What is wrong with a row. Only a row that passes all other checks is derived again."""
        if (path := difference(trajectory.to_json(), row)) is not None:
            yield f"{path} is not what this schema writes", None
            return
        wrong = [*self._contradictions(number, trajectory), *check_trajectory(trajectory, self.decode)]
        yield from wrong
        if not wrong:
            self.audit.derived += self.derives
            for check in self.checks:
                yield from check(trajectory)

    def _contradictions(self, number: int, trajectory: Trajectory) -> Iterator[Finding]:
        """What contradicts the other rows, the questions and the token data."""
        key = (trajectory.question.id, trajectory.seed)
        if (first := self.lines.setdefault(key, number)) != number:
            yield f"seed {key[1]} of this question is on line {first} already", None
        if self.questions is not None and key not in self.questions:
            yield f"the run asks no such question with seed {key[1]}", None
        elif self.questions is not None and self.questions[key] != trajectory.question:
            yield "the question is not that of the questions file", None
        if (data := self.token_data.pop(key, None)) is None:
            return
        try:
            data.check(trajectory)
        except DataError as error:
            yield f"{FILE}: {error}", None
        if self.reward is not None:
            for problem in wrong_reward(self.reward, trajectory, data):
                yield f"{FILE}: {problem}", None


# --- labels


def audit_labels(folder: Path, retriever: str | None = None) -> Audit:
    """Audit a label folder. If its candidates came from a server, `retriever` must name it: a server is not asked
    otherwise."""
    labels, audit = LabelFolder(folder), Audit(folder, "label rows")
    try:
        record = labels.record
    except DataError as error:
        audit.add(folder / "labels.yaml", str(error))
        return audit
    stored = _label_rows(labels, audit)
    if audit.count:
        audit.left_out[LABELS] = "its files are broken"
    elif not audit.bound:
        audit.left_out[LABELS] = "the folder was not closed"
    elif (derived := audit.try_opening(LABELS, lambda: _remade_labels(labels, record, retriever))) is not None:
        audit.derived = len(stored)
        source = "from the runs, the retriever and the scores"
        for key, (path, line, row) in stored.items():
            if key not in derived:
                audit.add(path, f"no such row follows {source}", line, key[0])
            elif (field_path := difference(derived[key][2], row, rounded=True)) is not None:
                audit.add(path, f"{field_path} does not follow {source}", line, key[0])
        for key in (key for key in derived if key not in stored):
            path = labels.sets_path if key[-1] else labels.dropped_path
            audit.add(path, f"the row of search {key[2]} is missing {source}", None, key[0])
    audit.check_digests()
    return audit


def _label_rows(labels: LabelFolder, audit: Audit) -> dict[LabelKey, LabelRow]:
    """The label sets and dropped turns. Broken and repeated rows are violations."""
    rows: dict[LabelKey, LabelRow] = {}
    parsers: tuple[tuple[Path, Callable[[JsonObject], LabelSet | DroppedTurn]], ...] = (
        (labels.sets_path, LabelSet.from_json),
        (labels.dropped_path, DroppedTurn.from_json),
    )
    for path, parse in parsers:
        for number, stored in audit.rows_of(path) if path.exists() else ():
            try:
                row = labels.texts.restore(stored)
                label = parse_row(row, parse, "not a row of labels")
            except UserError as error:
                audit.add(path, str(error), number)
                continue
            audit.rows += 1
            key = (*label.turn.key, str(label.copy) if isinstance(label, LabelSet) else "")
            if (field_path := difference(label.to_json(), row)) is not None:
                audit.add(path, f"{field_path} is not what this schema writes", number, key[0])
            if key in rows:
                audit.add(path, f"the turn is on line {rows[key][1]} already", number, key[0])
            rows[key] = path, number, row
    return rows


def _remade_labels(labels: LabelFolder, record: JsonObject, retriever: str | None) -> dict[LabelKey, LabelRow]:
    """Make the labels again in a temporary folder, with copies of the stored scores. Raises `UserError` if a part is
    missing, or if a server would be asked or a file of the user's run."""
    tree = record.get("settings")
    settings_tree = dict(tree) if isinstance(tree, dict) else {}
    if "runs" not in settings_tree:
        raise DataError("labels of an import or of a co-training are not made again")
    method_settings = settings_tree.pop(str(settings_tree.get("method")), {})
    method_settings = method_settings if isinstance(method_settings, dict) else {}
    settings = make_settings(LabelSettings, settings_tree)
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
    if settings.agent is not None and (terms.answers or terms.rolls_out):
        names += [settings.agent.name, *map(str, tool_files(settings.agent.protocol))]
    for name in names:
        if is_url(name) or name.endswith((".yaml", ".yml")):
            raise DataError(f"{name} may be a server, which is not asked unnamed")
        if is_plugin_path(name):
            raise DataError(f"{name} is a file of the user's, which is not run")


# --- JSON values


def difference(derived: Json, stored: Json, where: str = "", *, rounded: bool = False) -> str | None:
    """The path of the first difference of two JSON values, types included; `None` if they are equal. With `rounded`,
    numbers that differ by a rounding error are equal."""
    children: Iterator[tuple[str, Json, Json]]
    if isinstance(derived, dict) and isinstance(stored, dict):
        prefix = f"{where}." if where else ""
        if unequal := derived.keys() ^ stored.keys():
            return f"{prefix}{min(unequal)}"
        children = ((f"{prefix}{name}", derived[name], stored[name]) for name in stored)
    elif isinstance(derived, list) and isinstance(stored, list) and len(derived) == len(stored):
        pairs = enumerate(zip(derived, stored, strict=True))
        children = ((f"{where}[{position}]", new, old) for position, (new, old) in pairs)
    elif rounded and isinstance(derived, float) and isinstance(stored, float) and near(derived, stored):
        return None
    else:
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in (derived, stored))
        return None if derived == stored and (numbers or type(derived) is type(stored)) else where
    differences = (difference(new, old, path, rounded=rounded) for path, new, old in children)
    return next((path for path in differences if path is not None), None)
