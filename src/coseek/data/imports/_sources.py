"""Import sources: rows of data-set files, and the passages and questions read from them.

Last: filters for useless questions and gold answers, and the assignment of published data sets and splits to train, dev
and test.
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

KINDS = (".json", ".jsonl", ".jsonlines", ".ndjson", ".csv", ".tsv", ".parquet")
_JSON = re.compile(r"\s*+[\[{]\s*+[\[{\"'}\]]")  # unlike `[INST]`, `[2, 5)` and `{x}`
_PYTHON_LIST = re.compile(r"\A\s*+\[\s*+['\"].*['\"]\s*+\]\s*+\Z", re.DOTALL)
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One object of a source file, with its place for error messages. `null` counts as missing.

    Lists and objects may be JSON in a text, as in CSV cells and some parquet columns.
    """

    where: str
    value: JsonObject

    def has(self, name: str) -> bool:
        return self.value.get(name) is not None

    def text(self, name: str) -> str:
        """The text under `name`; numbers become text as JSON writes them."""
        value = self._required(name)
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise self.wrong(name, "text")
        return read_text(value, name, "it")

    def text_or_empty(self, name: str) -> str:
        """The text under `name`; empty if missing."""
        return self.text(name) if self.has(name) else ""

    def row_or_empty(self, name: str) -> "SourceRow":
        """The object under `name`; without fields if missing."""
        return self.row(name) if self.has(name) else SourceRow(self.where, {})

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
        items = self._records(name, value) if isinstance(value, dict) else self.items(name)
        rows = [
            SourceRow(f"{self.where}, {name} {at}", item) for at, item in enumerate(items, 1) if isinstance(item, dict)
        ]
        if len(rows) < len(items):
            raise self.wrong(name, "a list of objects")
        return rows

    def answers(self, name: str) -> tuple[str, ...]:
        """Gold answers under `name` (`read_answers`), or in a list that is JSON in a text; empty if missing."""
        value = self.value.get(name)
        if isinstance(value, str) and value.lstrip().startswith("["):
            try:
                value = parse_strict(value)
            except InvalidJson:  # an answer may begin with a bracket
                if _PYTHON_LIST.fullmatch(self.text(name)):
                    raise DataError(f"{self.where}: {name!r} is a list as Python prints it; write it as JSON") from None
            if isinstance(value, list) and value and all(isinstance(item, int | float) for item in value):
                value = self.text(name)  # an interval or a vector is one answer
        with self.placed():
            return read_answers(value, name)

    def meta(self, *names: str) -> JsonObject:
        """The named fields that the row has."""
        return {name: self.value[name] for name in names if self.has(name)}

    def parsed(self, name: str) -> Json:
        """The value under `name`. A list or an object in a text is parsed; other texts may begin with a bracket."""
        value = self._required(name)
        if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{"):
            return value
        try:
            return parse_strict(value)
        except InvalidJson as error:
            if not _JSON.match(value):
                return value
            raise DataError(f"{self.where}: {name!r} begins like JSON: {error}; mend that value") from None

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Prefix a `DataError` with the row's place."""
        try:
            yield
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from None

    def wrong(self, name: str, wanted: str) -> DataError:
        return DataError(f"{self.where}: {name!r} must be {wanted}")

    def _records(self, name: str, columns: JsonObject) -> list[Json]:
        lists = [value for value in columns.values() if isinstance(value, list)]
        if len(lists) < len(columns) or len(set(map(len, lists))) > 1:
            raise self.wrong(name, "a list of objects, or an object of equally long lists")
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*lists, strict=True)]

    def _required(self, name: str) -> Json:
        value = self.value.get(name)
        if value is None:
            names = ", ".join(self.value) or "none"
            raise DataError(f"{self.where}: there is no {name!r}; is this file of another format? Its fields: {names}")
        return value


def expand(sources: Sequence[Path], format_name: str) -> list[Path]:
    """Replace each folder by its data files: those named `FORMAT_…`, or all without any. Raises `DataError`."""
    files: list[Path] = []
    for group in files_of(sources, KINDS):
        files += [path for path in group if path.name.startswith(f"{format_name}_")] or group
    if not files:
        raise DataError(f"nothing to import as {format_name}; name at least one file")
    return files


def skipped_files(sources: Sequence[Path], files: Sequence[Path]) -> dict[str, list[str]]:
    """The data files in the source folders that are not among `files`, as named items of a report."""
    found = (path for source in sources if source.is_dir() for path in source.iterdir() if kind_of(path) in KINDS)
    names = sorted(path.name for path in found if path not in files)
    return {NOT_READ: names} if names else {}


def files_of(sources: Sequence[Path], kinds: Sequence[str], below: bool = False) -> Iterator[list[Path]]:
    """For each source: the file itself, or a folder's files of these kinds, sorted. `below` includes subfolders."""
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
    """The suffix in lower case, ignoring `.gz`."""
    return (Path(path.stem).suffix if path.suffix == ".gz" else path.suffix).lower()


def read_rows(path: Path) -> Iterator[SourceRow]:
    """The objects of a JSON list, of JSON lines, of a CSV or TSV file with a header, or of parquet."""
    kind = kind_of(path)
    if kind in (".jsonl", ".jsonlines", ".ndjson"):
        yield from (SourceRow(f"{path}, line {number}", row) for number, row in read_jsonl(path))
    elif kind in (".csv", ".tsv", ".parquet"):
        rows = _parquet(path) if kind == ".parquet" else _csv(path)
        numbered = (SourceRow(f"{path}, row {number}", row) for number, row in enumerate(rows, start=1))
        yield from (row for row in numbered if any(cell is not None for cell in row.value.values()))
    else:
        document = read_document(path)
        if not isinstance(document, list):
            raise DataError(f"{path}: a list of objects is needed, not {type(document).__name__}")
        for number, item in enumerate(document, start=1):
            if not isinstance(item, dict):
                raise DataError(f"{path}, item {number}: an object is needed, not {type(item).__name__}")
            yield SourceRow(f"{path}, item {number}", item)


def read_document(path: Path) -> Json:
    """The JSON of a file. JSON lines in it, as `datasets` writes them to any name, become a list."""
    try:
        return read_json(path)
    except DataError:
        with suppress(DataError):
            if rows := [row for _, row in read_jsonl(path)]:
                return [*rows]
        raise


def _csv(path: Path) -> Iterator[JsonObject]:
    """The rows of a CSV or TSV file with a header, which Excel's line `sep=;` may precede. An empty cell is missing."""
    csv.field_size_limit(LONGEST_LINE)
    lines = (line for _, line in read_lines(path))
    header = next(lines, "")
    delimiter = "\t" if kind_of(path) == ".tsv" else ";" if ";" in header and "," not in header else ","
    if match := re.fullmatch('"?sep=(.)"?\\s*', header):
        delimiter, header = match[1], next(lines, "")
    # Strict: an unclosed quote would swallow all later rows.
    rows = csv.DictReader(chain([header], lines), delimiter=delimiter, strict=True)
    try:
        if repeated := [name for name, count in Counter(rows.fieldnames or ()).items() if count > 1 and name]:
            raise DataError(f"{path}: the header has {repeated[0]!r} twice; rename one of them")
        for cells in rows:
            if None in cells:
                raise DataError(f"{path}, line {rows.line_num}: more cells than the header has; mend that line")
            yield {name: cell if cell and cell.strip() else None for name, cell in cells.items()}
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
            batches = (batch.to_pylist() for batch in file.iter_batches(_ROWS_AT_ONCE))
            for number, values in enumerate(chain.from_iterable(batches), start=1):
                row = cast(JsonObject, _as_json(values))
                if fault := fault_in(row):
                    raise DataError(f"{path}, row {number}: {fault}; mend or leave out that row")
                yield row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a whole parquet file ({str(error).splitlines()[0]}); fetch it again") from None


def _as_json(value: object) -> object:
    """A table's value as JSON: dates in ISO 8601, without a time at midnight; `None` for NaN and for bytes that are not
    text."""
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

    Read `passages` first, and once: a large corpus is a generator, which may fill the other fields.
    """

    passages: Iterable[Passage]
    questions: Sequence[Question]
    """Empty if the sources bring `splits`."""
    notes: Mapping[str, int] = field(default_factory=dict)
    splits: Mapping[str, Sequence[Question]] = field(default_factory=dict)
    published: Mapping[tuple[str, str], Sequence[Question]] = field(default_factory=dict)
    """(data set, publisher's split) → questions, if known. `questions` also holds them."""
    report: JsonObject | None = None
    """The outcome of each file, filled while the passages are read. A format with a report has no questions."""
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Note → the names of the counted items."""
    alone: bool = False
    """Whether the format reads questions without passages. The folder then keeps its corpus, if any."""


class PassageCollector:
    """Assigns ids to passages without one: the title, with ` #2`, ` #3` … for later passages of the same title."""

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
        """Add a passage, unless its title and text are known. Returns its id."""
        if (known_id := self._ids.get((title, text))) is not None:
            return known_id
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
        """The id of the passage with this title and text. Raises `DataError` if it is missing."""
        if (ident := self._ids.get((title, text))) is not None:
            return ident
        raise DataError(f"{where}: the gold passage {title!r} is not in the corpus; give the corpus of these questions")

    def titled(self, title: str, where: str) -> str:
        """The id of the only passage with this title. Raises `DataError` unless there is exactly one."""
        idents = self._by_title.get(title, [])
        if len(idents) != 1:
            count = f"{len(idents)} passages" if idents else "no passage"
            raise DataError(f"{where}: the gold title {title!r} names {count} of the corpus; one is needed")
        return idents[0]


NO_TEXT = "questions without a text, left out"
NOT_READ = "data files of the folder that are not read"
EMPTY = "empty gold answers, left out"


def checked_splits(
    splits: Mapping[str, Sequence[Question]], notes: Mapping[str, int]
) -> tuple[dict[str, list[Question]], dict[str, int]]:
    """Drop empty questions and empty gold answers. Returns the splits, and `notes` with the counts."""
    counts, kept = Counter(notes), dict[str, list[Question]]()
    for name, questions in splits.items():
        with_text = [question for question in questions if has_text(question.question)]
        kept[name] = [replace(question, answers=tuple(filter(has_text, question.answers))) for question in with_text]
        counts[NO_TEXT] += len(questions) - len(with_text)
        counts[EMPTY] += sum(not has_text(answer) for question in with_text for answer in question.answers)
    counts.update({reason: len(idents) for reason, idents in unmatched(chain(*kept.values())).items()})
    return {name: questions for name, questions in kept.items() if questions}, {
        name: count for name, count in counts.items() if count or name in notes
    }


SPLITS = ("train", "dev", "test")
Published: TypeAlias = Mapping[tuple[str, str], Sequence[Question]]
"""(data set, publisher's split) → questions."""


def origin_of(path: Path) -> tuple[str, str] | None:
    """Data set and split of a file `SET/SPLIT.jsonl` (or of another kind); `None` for other names."""
    split = path.name.partition(".")[0]
    return (path.absolute().parent.name, split) if split in SPLITS and kind_of(path) in KINDS else None


def published_files(folder: Path) -> list[Path]:
    """The files `SET/SPLIT.jsonl` in a folder, by name."""
    return sorted(path for path in folder.glob("*/*") if path.is_file() and origin_of(path) is not None)


@dataclass(frozen=True)
class SplitAssignment:
    """Assigns published data sets to our splits."""

    train: tuple[str, ...] = ()
    """Data sets whose training questions become `train` and `dev`."""
    test: tuple[str, ...] = ()
    """Data sets whose test questions, or else dev questions, become `test`."""
    dev_share: float = 0.01
    """Share of the training questions that becomes `dev`, drawn from every data set in proportion."""

    def __post_init__(self) -> None:
        if not (self.train or self.test):
            raise SettingError("name the data sets of --train or --test, such as --train nq,hotpotqa")
        if not 0 <= self.dev_share < 1:
            raise SettingError(f"--dev-share is a share from 0 to below 1, not {self.dev_share:g}")

    def leaves_alone(self, sources: Sequence[Path]) -> set[Path]:
        """The published files, in folders among `sources`, of data sets that are not assigned."""
        files = [path for source in sources if source.is_dir() for path in published_files(source)]
        return {path for path in files if path.parent.name not in (*self.train, *self.test)}

    def apply(self, published: Published) -> dict[str, list[Question]]:
        """Split → questions, set by set. Raises `SettingError` for a data set that is missing from the sources."""
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
    datasets = sorted({dataset for dataset, split in published if split in splits})
    listing = ", ".join(datasets) or "none"
    raise SettingError(
        f"the sources hold no {splits[0]} questions of {name!r}{nearest(name, datasets)} They have those of: {listing}"
    )
