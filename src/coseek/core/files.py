"""Reading and atomic writing of JSON, JSONL and YAML files and of folders."""

import gzip
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeAlias, TypeVar, cast

import yaml

from coseek.core.errors import DataError, SettingError
from coseek.core.strict_json import InvalidJson, parse_lenient, parse_strict, text_fault_in
from coseek.core.strict_json import Json as Json
from coseek.core.strict_yaml import InvalidYaml, parse_yaml
from coseek.core.temp_files import recover_folder as recover_folder
from coseek.core.temp_files import replace_folder, temp_file, temp_folder
from coseek.core.text import HIDDEN

JsonObject: TypeAlias = dict[str, "Json"]
Faults: TypeAlias = tuple[type[Exception], ...]
T = TypeVar("T")

WRONG_SHAPE: Faults = (LookupError, ValueError, TypeError, AttributeError, AssertionError, OverflowError)
"""What making an object of plain values raises where a value is missing or has another type."""

LONGEST_LINE = 1 << 27
"""Characters of a line of a JSONL file, at most."""
BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
_RUST_DISK_FAULT = re.compile(r"\(os error (\d+)\)")
"""A fault of the disk as tokenizers and safetensors tell it, whose exceptions are no `OSError`s."""
RECORDS = ("run.yaml", "recipe.yaml", "labels.yaml")
"""Records of a start. They are written first and are no result."""
SUMS = "SHA256SUMS"
"""Digests of the files of a closed run or label folder."""


def in_training(folder: Path, kind: str, *names: str) -> str:
    """The end of a message about a training's folder that was named for a part of it: `; the KIND of this training is
    PATH`, the first of `names` that is there. Empty for other folders."""
    paths = [folder / name for name in names if (folder / name).exists()] if (folder / "recipe.yaml").is_file() else []
    return f"; the {kind} of this training is {paths[0]}" if paths else ""


def expand_home(text: str) -> str:
    """Expand a leading `~/`, which a shell leaves in `--out=~/runs` and in quotes. Every path of a setting or an option
    goes through this function."""
    return os.path.expanduser(text) if text == "~" or text.startswith(("~/", f"~{os.sep}")) else text


def real_path(path: Path) -> Path:
    """The path without links. A link to itself, at which `Path.resolve` fails, stays as it is."""
    return Path(os.path.realpath(path))


def as_path(given: object, what: str) -> Path:
    """A path from a `str` or `Path`, with `~` expanded. Anything else raises a `SettingError` that names `what`."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise SettingError(f"{what} is named by one path, a str or Path, not {given!r}")
    return Path(expand_home(os.fspath(given)))


def open_text(path: Path) -> IO[str]:
    """Open UTF-8 text for reading, without the mark that some editors write before it; `.gz` files through gzip.
    Raises `DataError` without such a file."""
    check_is_file(path)
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def check_is_file(path: Path) -> None:
    """Raise `DataError` where there is no file, or a folder."""
    if not path.exists():
        raise DataError(f"there is no file {path}; check the path")
    if path.is_dir():
        raise DataError(f"{path} is a folder, and a file is needed here")


def read_jsonl(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """Yield (line number from 1, object) of each line that is not blank. Raises `DataError` for a broken line."""
    for number, line in read_lines(path):
        if line.strip():
            yield number, parse_line(line, f"{path}, line {number}")


def parse_rows(path: Path, parse: Callable[[JsonObject], T]) -> Iterator[T]:
    """Parse each row of a JSONL file. Raises `DataError` with the line, as `parse_row`."""
    return (parse_row(row, parse, f"{path}, line {line}") for line, row in read_jsonl(path))


def parse_row(row: JsonObject, parse: Callable[[JsonObject], T], where: str) -> T:
    """What `parse` makes of a row. What it raises for a missing or wrong value becomes a `DataError` with `where`."""
    try:
        return parse(row)
    except KeyError as error:
        raise DataError(f"{where}: {error} is missing; mend or delete that line") from None
    except WRONG_SHAPE as error:
        raise DataError(f"{where}: {error}; mend or delete that line") from None
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


@contextmanager
def parsing(where: Path | str, way_out: str) -> Iterator[None]:
    """Make objects of plain values that were read from `where`. A missing value or one of another type (`WRONG_SHAPE`)
    becomes a `DataError`."""
    try:
        yield
    except KeyError as error:
        raise DataError(f"{where}: {error} is missing; {way_out}") from None
    except WRONG_SHAPE as error:
        said = f" ({' '.join(str(error).split())[:120]})" if str(error) else ""
        raise DataError(f"{where}: a value is of another kind than it should be{said}; {way_out}") from None


def parse_line(line: str | bytes, where: str) -> JsonObject:
    """The JSON object of one line. Raises `DataError` with `where` for anything else, NaN and lone surrogates too."""
    try:
        value = parse_strict(line.decode("utf-8-sig") if isinstance(line, bytes) else line)
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8 text; save the file as UTF-8") from None
    except InvalidJson as error:
        raise DataError(f"{where}: {error}; mend or delete that line") from None
    if not isinstance(value, dict):
        raise DataError(f"{where}: a JSON object is needed, not {type(value).__name__}")
    return value


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line). Raises `DataError` for text that is not UTF-8, a line of more than
    `LONGEST_LINE` characters and a broken `.gz`."""
    number = 0
    with open_text(path) as lines:
        try:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), ""), start=1):
                if len(line) == LONGEST_LINE:
                    raise DataError(f"{path}, line {number}: a line of more than {LONGEST_LINE:,} characters; split it")
                yield number, line
        except UnicodeDecodeError:
            # Text is decoded in blocks, so the broken line is this one or one soon after it.
            raise DataError(f"{path}, after line {number}: not UTF-8 text; save the file as UTF-8") from None
        except BROKEN_GZIP as error:
            raise DataError(f"{path}, after line {number}: a broken .gz file ({error}); fetch it again") from None


def read_byte_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line) of a plain or `.gz` file, undecoded. Raises `DataError` as `read_lines`."""
    number = 0
    check_is_file(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        try:
            for number, line in enumerate(iter(partial(lines.readline, LONGEST_LINE), b""), start=1):
                if len(line) == LONGEST_LINE:
                    raise DataError(f"{path}, line {number}: a line of more than {LONGEST_LINE:,} bytes; split it")
                yield number, line
        except BROKEN_GZIP as error:
            raise DataError(f"{path}, after line {number}: a broken .gz file ({error}); fetch it again") from None


def read_text(path: Path) -> str:
    """The text of a file, plain or `.gz`. Raises `DataError`."""
    with open_text(path) as text:
        try:
            return text.read()
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8 text; save the file as UTF-8") from None
        except BROKEN_GZIP as error:
            raise DataError(f"{path} is a broken .gz file ({error}); fetch it again") from None


def read_json(path: Path, foreign: bool = False) -> Json:
    """One JSON document; a broken one is a `DataError` naming the line or the field. In a `foreign` one, such as
    those of model folders, what `parse_lenient` accepts is no fault."""
    text = read_text(path)
    try:
        return parse_lenient(text) if foreign else parse_strict(text)
    except InvalidJson as error:
        raise DataError(f"{path}{f', line {error.line}' if error.line else ''}: {error}") from None


def read_json_object(path: Path, foreign: bool = False) -> JsonObject:
    """One JSON document that is an object: see `read_json`."""
    value = read_json(path, foreign)
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON object is needed, not {type(value).__name__}")
    return value


def read_yaml(path: Path, kind: str, holds: str = "`name: value` lines") -> JsonObject:
    """Read one YAML mapping; an empty file is an empty one. `kind` and `holds` describe the file in errors."""
    if not path.exists():
        raise DataError(f"there is no {kind} {path}; check the path")
    text = read_text(path)
    try:
        tree = cast(Json, parse_yaml(text))
    except InvalidYaml as error:
        raise DataError(f"{path}{f', line {error.line}' if error.line else ''}: {error}; mend it") from None
    fault = text_fault_in(tree)
    if fault:
        raise DataError(f"{path}: {fault}; mend it")
    if tree is not None and not isinstance(tree, dict):
        raise DataError(f"{path} must hold {holds}")
    return cast(JsonObject, tree or {})


def yaml_text(tree: Json) -> str:
    """YAML lines, in ASCII where a character would not be seen or would be obeyed by a terminal."""
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    if HIDDEN.search(text):
        text = yaml.safe_dump(tree, sort_keys=False)
    return text


def write_yaml(path: Path, tree: Json) -> None:
    """Write one YAML document atomically."""
    with atomic_write(path) as file:
        file.write(yaml_text(tree))


def json_line(value: JsonObject) -> str:
    """Serialise one JSON object to a line (UTF-8, not escaped)."""
    # These characters are legal inside a JSON string but end a line for str.splitlines.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    for odd in ("\u2028", "\u2029", "\x85"):
        text = text.replace(odd, f"\\u{ord(odd):04x}")
    return text + "\n"


def write_jsonl(path: Path, rows: Iterable[JsonObject]) -> int:
    """Write all rows atomically; returns how many."""
    count = 0
    with atomic_write(path) as file:
        for row in rows:
            file.write(json_line(row))
            count += 1
    return count


def write_json(path: Path, value: Json) -> None:
    """Write one indented JSON document atomically."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def check_link(path: Path) -> None:
    """Raise `DataError` for a symbolic link to a file that does not exist."""
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a link to nothing; remove it, or put the file in its place")


def check_not_file(folder: Path) -> None:
    """Refuse a file where a folder is to be written."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; choose a folder")


def check_output_folder(folder: Path, mark: str, own: Collection[str] = ()) -> None:
    """Refuse an output folder that is neither new nor empty and lacks the file `mark`.

    Files named in `own`, hidden files and logs, which a shell may open first, are ignored.
    """
    check_not_file(folder)
    if not folder.is_dir() or (folder / mark).exists():
        return
    for path in sorted(folder.iterdir()):
        if not (path.name.startswith(".") or path.suffix == ".log" or path.name in own):
            raise DataError(
                f"{folder} holds something else already ({path.name}, and no {mark}); choose a new or an empty folder"
            )


def check_replaceable(folder: Path, is_ours: Callable[[str], object], what: str) -> None:
    """Refuse a folder with a file whose path in it is not ours: it would be lost when the folder is replaced."""
    check_not_file(folder)
    for path in folder.rglob("*"):  # unsorted, since a folder named by mistake may be a whole disk
        name = path.relative_to(folder).as_posix()
        if not is_ours(name) and (path.is_symlink() or not path.is_dir()):
            raise DataError(f"{folder} holds {name}, which is no part of {what}; choose a new or an empty folder")


def is_failed_start(folder: Path, record: str) -> bool:
    """Whether a folder holds the `record` of a start and no result, so that it can be restarted.

    Records (`RECORDS`), `SUMS`, empty files, hidden files and logs are no results. A record has the key `created`.
    """
    if not (folder / record).exists() or "created" not in read_yaml(folder / record, "record"):
        return False
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if (
            path.is_file()
            and path.stat().st_size
            and not (hidden or path.suffix == ".log" or path.name in (*RECORDS, SUMS))
        ):
            return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. Raises `DataError` where that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, FileNotFoundError):
        file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
        why = f"{file} is a file" if file else "this place takes none"
        raise DataError(f"the folder {folder} cannot be made: {why}; choose another place") from None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """An empty hidden file that replaces `path` when the block ends without an error."""
    make_folder(path.parent)
    with temp_file(path) as part:
        yield part
        sync(part)
        os.chmod(part, 0o644)
        os.replace(part, path)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """Write a text file that replaces `path` when the block ends without an error."""
    with atomic_path(path) as part, part.open("w", encoding="utf-8") as file:
        yield file


def atomic_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `path`, then rename it to `path`. Refuses a file at `path`.

    An error in `fill` leaves `path` untouched. Between the two renames of a replacement the old folder is `.NAME.old`,
    which `recover_folder` restores.
    """
    check_not_file(path)
    make_folder(path.parent)
    recover_folder(path)
    with temp_folder(path) as part:
        try:
            fill(part)
        except Exception as error:
            if (found := _RUST_DISK_FAULT.search(str(error))) is None:
                raise
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        sync(part)
        os.chmod(part, 0o755)
        replace_folder(part, path)


def sync(path: Path) -> None:
    """Flush a file, or all files of a folder, to disk (fsync)."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as written:
                os.fsync(written.fileno())


def link_files(source: Path, target: Path) -> None:
    """Hard-link the files of a folder to another one; copy them if the file system has no links."""
    for file in filter(Path.is_file, source.iterdir()):
        link_file(file, target / file.name)


def link_file(source: Path, target: Path) -> None:
    """Hard-link a file; copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
