"""Import sources: rows of the files of a data set, and the passages and questions read from them.

At the end: checks for questions and gold answers that can teach and measure nothing, and the data sets and splits of
published files, with the deal of their questions to train, dev and test.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import date, time
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import TypeAlias, cast

from coseek.core.errors import DataError, SettingError, nearest
from coseek.core.files import LONGEST_LINE, Json, JsonObject, open_text, read_json, read_jsonl, read_lines
from coseek.core.strict_json import InvalidJson, fault_in, parse_strict
from coseek.data.answers import read_answers, read_text
from coseek.data.dataset import draw
from coseek.data.passage import Passage
from coseek.data.question import Question, has_text, unmatched

KINDS = (".json", ".jsonl", ".jsonlines", ".csv", ".tsv", ".parquet")
_PYTHON_LIST = re.compile(r"\A\s*+\[\s*+['\"].*['\"]\s*+\]\s*+\Z", re.DOTALL)
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One object of a source file, with its place for error messages. A value `null` counts as missing.

    Lists and objects may also be JSON in a text, as in CSV cells and some parquet columns.
    """

    where: str
    value: JsonObject

    def has(self, name: str) -> bool:
        return self.value.get(name) is not None

    def text(self, name: str) -> str:
        """The string under `name`; a number as JSON writes it."""
        value = self._get(name)
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise self.wrong(name, "text")
        return read_text(value, name, "it")

    def text_or_empty(self, name: str) -> str:
        """The string under `name`; empty where it is missing."""
        return self.text(name) if self.has(name) else ""

    def items(self, name: str) -> list[Json]:
        """The list under `name`."""
        value = self.parsed(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def row(self, name: str) -> "SourceRow":
        """The object under `name`."""
        value = self.parsed(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return SourceRow(f"{self.where}, {name}", value)

    def rows(self, name: str) -> "list[SourceRow]":
        """The objects of the list under `name`, or of an object of equally long lists (Hugging Face's sequences)."""
        value = self.parsed(name)
        rows: list[SourceRow] = []
        for number, item in enumerate(self._records(name, value) if isinstance(value, dict) else self.items(name), 1):
            if not isinstance(item, dict):
                raise self.wrong(name, "a list of objects")
            rows.append(SourceRow(f"{self.where}, {name} {number}", item))
        return rows

    def answers(self, name: str) -> tuple[str, ...]:
        """Gold answers under `name` (`read_answers`), also a list that is JSON in a text; none where it is missing."""
        value = self.value.get(name)
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = parse_strict(value)
            except InvalidJson:  # an answer may begin with a bracket
                if _PYTHON_LIST.fullmatch(self.text(name)):
                    raise DataError(f"{self.where}: {name!r} is a list as Python prints it; write it as JSON") from None
        with self.placed():
            return read_answers(value, name)

    def meta(self, *names: str) -> JsonObject:
        """The named fields that the row has."""
        return {name: self.value[name] for name in names if self.has(name)}

    def parsed(self, name: str) -> Json:
        """The value under `name`, parsed where it is a list or an object in a text."""
        value = self._get(name)
        if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
            return value
        try:
            return parse_strict(value)
        except InvalidJson as error:
            raise DataError(f"{self.where}: {name!r} begins like JSON: {error}; mend that value") from None

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Put the row's place in front of a `DataError`."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from None

    def wrong(self, name: str, wanted: str) -> DataError:
        return DataError(f"{self.where}: {name!r} must be {wanted}")

    def _records(self, name: str, columns: JsonObject) -> Iterator[Json]:
        lists = [value for value in columns.values() if isinstance(value, list)]
        if len(lists) < len(columns) or len({len(column) for column in lists}) > 1:
            raise self.wrong(name, "a list of objects, or an object of equally long lists")
        return (dict(zip(columns, cells, strict=True)) for cells in zip(*lists, strict=True))

    def _get(self, name: str) -> Json:
        value = self.value.get(name)
        if value is None:
            has = ", ".join(self.value) or "none"
            raise DataError(f"{self.where}: there is no {name!r}; is this file of another format? Its fields: {has}")
        return value


def expand(sources: Sequence[Path], format_name: str) -> list[Path]:
    """Replace each folder by its data files: those named `FORMAT_…`, or all without any. Raises `DataError`."""
    files: list[Path] = []
    for group in files_of(sources, KINDS):
        files += [path for path in group if path.name.startswith(f"{format_name}_")] or group
    if not files:
        raise DataError(f"nothing to import as {format_name}; name at least one file")
    return files


def files_of(sources: Sequence[Path], kinds: Sequence[str], below: bool = False) -> Iterator[list[Path]]:
    """For each source: the file itself, or a folder's files of these kinds, sorted; `below`: of its subfolders too."""
    for source in sources:
        if not source.is_dir():
            open_text(source).close()  # a missing file is refused before anything is read
            yield [source]
            continue
        files = sorted(p for p in source.glob("**/*" if below else "*") if p.is_file() and kind_of(p) in kinds)
        if not files:
            raise DataError(f"{source} holds no {', '.join(kinds)} file (plain or .gz); name the files to import")
        yield files


def kind_of(path: Path) -> str:
    """The suffix, under a `.gz`, in small letters."""
    return (Path(path.stem).suffix if path.suffix == ".gz" else path.suffix).lower()


def read_rows(path: Path) -> Iterator[SourceRow]:
    """The objects of a JSON list, of JSON lines, of a CSV or TSV file with a header, or of parquet."""
    if kind_of(path) in (".jsonl", ".jsonlines"):
        for line, value in read_jsonl(path):
            yield SourceRow(f"{path}, line {line}", value)
    elif kind_of(path) in (".csv", ".tsv"):
        for number, cells in enumerate(_csv(path), start=1):
            yield SourceRow(f"{path}, row {number}", cells)
    elif kind_of(path) == ".parquet":
        for number, value in enumerate(_parquet(path), start=1):
            if fault := fault_in(value):
                raise DataError(f"{path}, row {number}: {fault}; mend or leave out that row")
            yield SourceRow(f"{path}, row {number}", value)
    else:
        document = read_json(path)
        if not isinstance(document, list):
            raise DataError(f"{path}: a list of objects is needed, not {type(document).__name__}")
        for number, item in enumerate(document, start=1):
            if not isinstance(item, dict):
                raise DataError(f"{path}, item {number}: an object is needed, not {type(item).__name__}")
            yield SourceRow(f"{path}, item {number}", item)


def _csv(path: Path) -> Iterator[JsonObject]:
    """The rows of a CSV or TSV file with a header. An empty cell is missing."""
    csv.field_size_limit(LONGEST_LINE)
    header = next((line for _, line in read_lines(path)), "")
    delimiter = "\t" if kind_of(path) == ".tsv" else ";" if ";" in header and "," not in header else ","
    # Strict: an unclosed quote would swallow all later rows.
    rows = csv.DictReader((line for _, line in read_lines(path)), delimiter=delimiter, strict=True)
    try:
        if twice := [name for name, count in Counter(rows.fieldnames or ()).items() if count > 1 and name]:
            raise DataError(f"{path}: the header has {twice[0]!r} twice; rename one of them")
        for cells in rows:
            if None in cells:
                raise DataError(f"{path}, line {rows.line_num}: more cells than the header has; mend that line")
            yield {name: cell or None for name, cell in cells.items()}
    except csv.Error as error:
        raise DataError(f"{path}, line {rows.line_num}: not valid CSV ({error}); mend that line") from None


def _parquet(path: Path) -> Iterator[JsonObject]:
    """The rows of a parquet file. pyarrow is optional, since few formats need it."""
    try:
        import pyarrow  # type: ignore[import-untyped]
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped]
    except ImportError:
        raise DataError(
            f"{path} is parquet, which pyarrow reads: pip install pyarrow; or turn it into JSON lines where pandas is: "
            f"pandas.read_parquet('{path.name}').to_json('{path.stem}.jsonl', orient='records', lines=True)"
        ) from None
    try:
        with ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE):
                yield from (cast(JsonObject, _as_json(row)) for row in batch.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a whole parquet file ({str(error).splitlines()[0]}); fetch it again") from None


def _as_json(value: object) -> object:
    """A value of a table as JSON has it: dates in ISO 8601, a day without its midnight; NaN is missing, as are bytes
    that are no text."""
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, date | time):
        return value.isoformat().removesuffix("T00:00:00")
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
        return None
    return None if value != value else value


@dataclass(frozen=True, slots=True)
class ImportedData:
    """The passages and questions of the sources, in order.

    `passages` is read once, and before all else: a large corpus is a generator, which may still be filling the others.
    """

    passages: Iterable[Passage]
    questions: Sequence[Question]
    """Empty where the sources have splits."""
    notes: Mapping[str, int] = field(default_factory=dict)
    splits: Mapping[str, Sequence[Question]] = field(default_factory=dict)
    published: Mapping[tuple[str, str], Sequence[Question]] = field(default_factory=dict)
    """(data set, split of the publisher) → questions, where the sources say so; `questions` holds them, too."""
    report: JsonObject | None = None
    """What came of each file, filled while the passages are read; a format with one has no questions."""
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Note → the names of what it counts."""
    alone: bool = False
    """Whether the format reads questions without passages: the folder keeps its corpus, or has none."""


class PassageCollector:
    """Passages without ids in their sources: the id is the title, with ` #2`, ` #3` … for later namesakes."""

    def __init__(self) -> None:
        self._ids: dict[tuple[str, str], str] = {}
        self._passages: dict[str, Passage] = {}
        self._by_title: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._passages)

    @property
    def passages(self) -> tuple[Passage, ...]:
        return tuple(self._passages.values())

    def add(self, title: str, text: str) -> str:
        """Add a passage, once for a title and text; returns its id."""
        known = self._ids.get((title, text))
        if known is not None:
            return known
        namesakes = self._by_title.setdefault(title, [])
        number = len(namesakes) + 1
        ident = title if title and number == 1 else f"{title} #{number}".strip()
        while ident in self._passages:  # another title is "X #2"
            number += 1
            ident = f"{title} #{number}".strip()
        self._ids[title, text] = ident
        self._passages[ident] = Passage(ident, title, text)
        namesakes.append(ident)
        return ident

    def find(self, title: str, text: str, where: str) -> str:
        """The id of the passage with this title and text."""
        ident = self._ids.get((title, text))
        if ident is None:
            raise DataError(
                f"{where}: the gold passage {title!r} is not in the corpus; give the corpus of these questions"
            )
        return ident

    def titled(self, title: str, where: str) -> str:
        """The id of the only passage with this title."""
        idents = self._by_title.get(title, [])
        if len(idents) != 1:
            count = f"{len(idents)} passages" if idents else "no passage"
            raise DataError(f"{where}: the gold title {title!r} names {count} of the corpus; one is needed")
        return idents[0]


NO_TEXT = "questions without a text, left out"
EMPTY = "empty gold answers, left out"


def checked_splits(
    splits: Mapping[str, Sequence[Question]], notes: Mapping[str, int]
) -> tuple[dict[str, list[Question]], dict[str, int]]:
    """The splits without empty questions and empty gold answers, and `notes` with what was counted."""
    counts = Counter(notes)
    kept = {
        name: [_checked(question, counts) for question in questions if _has_text(question, counts)]
        for name, questions in splits.items()
    }
    counts.update({reason: len(idents) for reason, idents in unmatched(chain(*kept.values())).items()})
    return {name: questions for name, questions in kept.items() if questions}, {
        name: count for name, count in counts.items() if count or name in notes
    }


def _has_text(question: Question, counts: Counter[str]) -> bool:
    has = has_text(question.question)
    counts[NO_TEXT] += not has
    return has


def _checked(question: Question, counts: Counter[str]) -> Question:
    """The question without empty gold answers."""
    answers = tuple(filter(has_text, question.answers))
    counts[EMPTY] += len(question.answers) - len(answers)
    return question if len(answers) == len(question.answers) else replace(question, answers=answers)


SPLITS = ("train", "dev", "test")
Published: TypeAlias = Mapping[tuple[str, str], Sequence[Question]]
"""(data set, split of the publisher) → questions."""


def origin_of(path: Path) -> tuple[str, str] | None:
    """Data set and split of a file `SET/SPLIT.jsonl` (or another kind); `None` for a file of another name."""
    split = path.name.partition(".")[0]
    return (path.absolute().parent.name, split) if split in SPLITS and kind_of(path) in KINDS else None


def published_files(folder: Path) -> list[Path]:
    """The files `SET/SPLIT.jsonl` in a folder, by name."""
    return sorted(path for path in folder.glob("*/*") if path.is_file() and origin_of(path) is not None)


@dataclass(frozen=True)
class SplitAssignment:
    """Which published data sets become our splits."""

    train: tuple[str, ...] = ()
    """Data sets whose training questions become `train` and `dev`."""
    test: tuple[str, ...] = ()
    """Data sets whose test questions become `test`; dev questions where a set has no test questions."""
    dev_share: float = 0.01
    """Share of the training questions that becomes `dev`, drawn with every data set in its share."""

    def __post_init__(self) -> None:
        if not (self.train or self.test):
            raise SettingError("name the data sets of --train or --test, such as --train nq,hotpotqa")
        if not 0 <= self.dev_share < 1:
            raise SettingError(f"--dev-share is a share from 0 to below 1, not {self.dev_share:g}")

    def leaves_alone(self, sources: Sequence[Path]) -> set[Path]:
        """The published files in folders among `sources` that are of no set of the deal."""
        files = [path for source in sources if source.is_dir() for path in published_files(source)]
        return {path for path in files if path.parent.name not in (*self.train, *self.test)}

    def apply(self, published: Published) -> dict[str, list[Question]]:
        """Split → questions, set by set. Raises `SettingError` for a set that the sources do not hold."""
        training = [question for name in self.train for question in _questions(published, name, ("train",))]
        dev = {question.id for question in draw(training, round(self.dev_share * len(training)), 0)}
        splits = {
            "train": [question for question in training if question.id not in dev],
            "dev": [question for question in training if question.id in dev],
            "test": [question for name in self.test for question in _questions(published, name, ("test", "dev"))],
        }
        return {name: questions for name, questions in splits.items() if questions}


def _questions(published: Published, name: str, splits: Sequence[str]) -> Sequence[Question]:
    for split in splits:
        if questions := published.get((name, split)):
            return questions
    known = sorted({dataset for dataset, split in published if split in splits})
    has = ", ".join(known) or "none"
    raise SettingError(
        f"the sources hold no {splits[0]} questions of {name!r}{nearest(name, known)} They have those of: {has}"
    )
