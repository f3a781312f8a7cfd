"""Reading and atomic writing of JSON, JSONL and YAML files and of folders."""

import gzip
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, AnyStr, TypeAlias, TypeVar, cast

import yaml

from coseek.core.errors import DataError, SettingError
from coseek.core.strict_json import InvalidJson, Json as Json, parse_lenient, parse_strict, text_fault_in
from coseek.core.strict_yaml import InvalidYaml, parse_yaml
from coseek.core.text import HIDDEN

JsonObject: TypeAlias = dict[str, "Json"]
Faults: TypeAlias = tuple[type[Exception], ...]
T = TypeVar("T")

WRONG_SHAPE: Faults = (LookupError, ValueError, TypeError, AttributeError, AssertionError, OverflowError)
"""Exceptions of a constructor whose arguments come from a file: a value is missing or has the wrong type."""

LONGEST_LINE = 1 << 27
"""Maximum number of characters of a line in a JSONL file."""
BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
_RUST_DISK_FAULT = re.compile(r"\(os error (\d+)\)")
"""A disk fault in an exception of tokenizers or safetensors, which is not an `OSError`."""
RECORDS = ("run.yaml", "recipe.yaml", "labels.yaml")
"""Records of a start. They are written first and do not count as results."""
SUMS = "SHA256SUMS"
"""Digests of the files of a closed run or label folder."""


def in_training(folder: Path, kind: str, *names: str) -> str:
    """A hint for a user who named a training's folder instead of a part of it: `; the KIND of this training is PATH`,
    with the first of `names` that exists. Empty for other folders."""
    paths = [folder / name for name in names if (folder / name).exists()]
    return f"; the {kind} of this training is {paths[0]}" if paths and (folder / "recipe.yaml").is_file() else ""


def expand_home(text: str) -> str:
    """Expand a leading `~/`, which a shell does not expand in `--out=~/runs` or in quotes. Applied to the paths of all
    settings and options."""
    return os.path.expanduser(text) if text == "~" or text.startswith(("~/", f"~{os.sep}")) else text


def real_path(path: Path) -> Path:
    """Resolve links. A link to itself, for which `Path.resolve` fails, stays as it is."""
    return Path(os.path.realpath(path))


def as_path(value: object, what: str) -> Path:
    """Convert a `str` or `Path` to a path, with `~` expanded. Raises `SettingError`, which names `what`, for anything
    else."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise SettingError(f"{what} is named by one path, a str or Path, not {value!r}")
    return Path(expand_home(os.fspath(value)))


def open_text(path: Path) -> IO[str]:
    """Open a UTF-8 file, plain or `.gz`, and skip a byte order mark. Raises `DataError` if there is no such file."""
    check_is_file(path)
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8-sig"))
    return path.open(encoding="utf-8-sig")


def check_is_file(path: Path) -> None:
    """Raise `DataError` if the path does not exist or is a folder."""
    if not path.exists():
        raise DataError(f"there is no file {path}; check the path")
    if path.is_dir():
        raise DataError(f"{path} is a folder, and a file is needed here")


def read_jsonl(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """Yield (line number from 1, object) for each non-blank line. Raises `DataError` for an invalid line."""
    for number, line in read_lines(path):
        if line.strip():
            yield number, parse_line(line, f"{path}, line {number}")


def parse_rows(path: Path, parse: Callable[[JsonObject], T]) -> Iterator[T]:
    """Parse each row of a JSONL file. Raises `DataError` with the line number."""
    return (parse_row(row, parse, f"{path}, line {line}") for line, row in read_jsonl(path))


def parse_row(row: JsonObject, parse: Callable[[JsonObject], T], where: str) -> T:
    """Apply `parse` to a row. Exceptions for missing and wrong values become a `DataError` that begins with `where`."""
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
    """Construct objects in the block from values that were read from `where`. A missing value, or one of the wrong type
    (`WRONG_SHAPE`), becomes a `DataError`."""
    try:
        yield
    except KeyError as error:
        raise DataError(f"{where}: {error} is missing; {way_out}") from None
    except WRONG_SHAPE as error:
        detail = f" ({' '.join(str(error).split())[:120]})" if str(error) else ""
        raise DataError(f"{where}: a value has the wrong type{detail}; {way_out}") from None


def parse_line(line: str | bytes, where: str) -> JsonObject:
    """Parse a line that is one JSON object. Raises `DataError`, which begins with `where`; also for NaN and lone
    surrogates."""
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
    """Yield (line number from 1, line) of a UTF-8 file, plain or `.gz`. Raises `DataError` for other encodings, for a
    line of more than `LONGEST_LINE` characters, and for a broken `.gz` file."""
    with open_text(path) as lines:
        yield from _number_lines(path, lines)


def read_byte_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Do the same without decoding."""
    check_is_file(path)
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as lines:
        yield from _number_lines(path, cast(IO[bytes], lines))


def _number_lines(path: Path, lines: IO[AnyStr]) -> Iterator[tuple[int, AnyStr]]:
    number = 0
    try:
        while line := lines.readline(LONGEST_LINE):
            number += 1
            if len(line) == LONGEST_LINE:
                raise DataError(f"{path}, line {number}: a line of more than {LONGEST_LINE:,} characters; split it")
            yield number, line
    except UnicodeDecodeError:
        # Text is decoded in blocks, so the broken line is this one or one soon after it.
        raise DataError(f"{path}, after line {number}: not UTF-8 text; save the file as UTF-8") from None
    except BROKEN_GZIP as error:
        raise DataError(f"{path}, after line {number}: a broken .gz file ({error}); fetch it again") from None


def read_text(path: Path) -> str:
    """Read a UTF-8 file, plain or `.gz`. Raises `DataError`."""
    with open_text(path) as text:
        try:
            return text.read()
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8 text; save the file as UTF-8") from None
        except BROKEN_GZIP as error:
            raise DataError(f"{path} is a broken .gz file ({error}); fetch it again") from None


def read_json(path: Path, foreign: bool = False) -> Json:
    """Read a JSON document. `foreign` ones, such as those of model folders, are parsed leniently. Raises `DataError`
    with the line or the field."""
    text = read_text(path)
    try:
        return parse_lenient(text) if foreign else parse_strict(text)
    except InvalidJson as error:
        raise DataError(f"{path}{f', line {error.line}' if error.line else ''}: {error}") from None


def read_json_object(path: Path, foreign: bool = False) -> JsonObject:
    """Read a JSON document that is an object. Parameters as in `read_json`."""
    value = read_json(path, foreign)
    if not isinstance(value, dict):
        raise DataError(f"{path}: a JSON object is needed, not {type(value).__name__}")
    return value


def read_yaml(path: Path, kind: str, holds: str = "`name: value` lines") -> JsonObject:
    """Read a YAML mapping. An empty file is an empty mapping. `kind` and `holds` describe the file in errors."""
    if not path.exists():
        raise DataError(f"there is no {kind} {path}; check the path")
    text = read_text(path)
    try:
        tree = cast(Json, parse_yaml(text))
    except InvalidYaml as error:
        raise DataError(f"{path}{f', line {error.line}' if error.line else ''}: {error}; mend it") from None
    if fault := text_fault_in(tree):
        raise DataError(f"{path}: {fault}; mend it")
    if tree is not None and not isinstance(tree, dict):
        raise DataError(f"{path} must hold {holds}")
    return cast(JsonObject, tree or {})


def yaml_text(tree: Json) -> str:
    """Serialise to YAML; to ASCII if a character would be invisible or a terminal would obey it."""
    text: str = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    return yaml.safe_dump(tree, sort_keys=False) if HIDDEN.search(text) else text


def write_yaml(path: Path, tree: Json) -> None:
    """Write a YAML document atomically."""
    with atomic_write(path) as file:
        file.write(yaml_text(tree))


def json_line(value: JsonObject) -> str:
    """Serialise an object to one line of JSON, in UTF-8 without escapes."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    for separator in ("\u2028", "\u2029", "\x85"):  # legal in a JSON string, but str.splitlines splits at them
        text = text.replace(separator, f"\\u{ord(separator):04x}")
    return text + "\n"


def write_jsonl(path: Path, rows: Iterable[JsonObject]) -> int:
    """Write all rows atomically. Returns their number."""
    count = 0
    with atomic_write(path) as file:
        for row in rows:
            file.write(json_line(row))
            count += 1
    return count


def write_json(path: Path, value: Json) -> None:
    """Write an indented JSON document atomically."""
    with atomic_write(path) as file:
        file.write(json.dumps(value, ensure_ascii=False, indent=2, allow_nan=False) + "\n")


def check_link(path: Path) -> None:
    """Raise `DataError` for a symbolic link to a file that does not exist."""
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path} is a link to nothing; remove it, or put the file in its place")


def check_not_file(folder: Path) -> None:
    """Raise `DataError` if the path is a file."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; choose a folder")


def check_output_folder(folder: Path, mark: str, own: Collection[str] = ()) -> None:
    """Raise `DataError` for an output folder that has files but not the file `mark`.

    Ignores files named in `own`, hidden files, and logs, which a shell may open first.
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
    """Raise `DataError` for a folder with a foreign file, which would be lost when the folder is replaced. `is_ours`
    takes a path relative to the folder."""
    check_not_file(folder)
    for path in folder.rglob("*"):  # not sorted, since a folder that was named by mistake may be a whole disk
        name = path.relative_to(folder).as_posix()
        if not is_ours(name) and (path.is_symlink() or not path.is_dir()):
            raise DataError(f"{folder} holds {name}, which is no part of {what}; choose a new or an empty folder")


def is_failed_start(folder: Path, record: str, own: Collection[str] = ()) -> bool:
    """Whether a folder has the `record` of a start but no result, so that it can be restarted.

    Records (`RECORDS`), `SUMS`, folders named in `own`, empty files, hidden files and logs do not count as results. A
    record has the key `created`.
    """
    if not (folder / record).exists() or "created" not in read_yaml(folder / record, "record"):
        return False
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        is_hidden = parts[0] in own or any(part.startswith(".") for part in parts)
        is_ignored = is_hidden or path.suffix == ".log" or path.name in (*RECORDS, SUMS)
        if not is_ignored and path.is_file() and path.stat().st_size:
            return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder and its parents. Raises `DataError` if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, FileNotFoundError):
        file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
        reason = f"{file} is a file" if file else "this place takes none"
        raise DataError(f"the folder {folder} cannot be made: {reason}; choose another place") from None


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield an empty temporary file, which replaces `path` if the block ends without an error."""
    make_folder(path.parent)
    with temp_file(path) as part:
        yield part
        sync(part)
        os.chmod(part, 0o644)
        os.replace(part, path)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """Open a temporary text file for writing, which replaces `path` if the block ends without an error."""
    with atomic_path(path) as part, part.open("w", encoding="utf-8") as file:
        yield file


def atomic_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a temporary folder, then rename it to `path`. Raises `DataError` if `path` is a file.

    An error in `fill` leaves `path` unchanged. If the process dies while a folder is being replaced, `recover_folder`
    restores it.
    """
    check_not_file(path)
    make_folder(path.parent)
    recover_folder(path)
    with temp_folder(path) as part:
        try:
            fill(part)
        except Exception as error:
            if (fault := _RUST_DISK_FAULT.search(str(error))) is None:
                raise
            number = int(fault[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        sync(part)
        os.chmod(part, 0o755)
        replace_folder(part, path)


def let_all_read(folder: Path) -> None:
    """Make everything below a folder readable by all users, and writable by its owner."""
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def sync(path: Path) -> None:
    """Flush a file, or all files of a folder, to disk (fsync)."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as handle:
                os.fsync(handle.fileno())


def link_files(source: Path, target: Path) -> None:
    """Hard-link the files of a folder into another one; copy them if the file system has no links."""
    for file in filter(Path.is_file, source.iterdir()):
        link_file(file, target / file.name)


def link_file(source: Path, target: Path) -> None:
    """Hard-link a file; copy it if the file system has no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


# Temporary files and folders of unfinished writes, hidden and named `.NAME.RANDOM.part`. The next process that locks a
# folder removes those that a killed process left in it.

_TEMPORARY = re.compile(r"\..+\.[a-z0-9_]{8}\.part")
"""`tempfile` draws eight random characters."""


@contextmanager
def temp_file(path: Path) -> Iterator[Path]:
    """An empty temporary file in the folder of `path`, for the block to rename. Removed if the block does not."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        _remove(Path(name))


@contextmanager
def temp_folder(path: Path) -> Iterator[Path]:
    """An empty temporary folder in the folder of `path`, for the block to rename. Removed if the block does not."""
    folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    try:
        yield folder
    finally:
        _remove(folder)


def replace_folder(new: Path, path: Path) -> None:
    """Rename `new` to `path`. An existing folder is renamed to `.NAME.old` meanwhile, and restored after an error."""
    old_path = _old_path_of(path)
    try:
        if path.exists():
            _remove(old_path)
            os.replace(path, old_path)
        os.replace(new, path)
    except BaseException:
        recover_folder(path)
        raise
    _remove(old_path)


def recover_folder(path: Path) -> None:
    """Finish a replacement that a crash interrupted: restore the old folder, or remove it if the new one is there."""
    old_path = _old_path_of(path)
    if not old_path.is_dir():  # a file of that name is not ours
        return
    if not path.exists():
        os.replace(old_path, path)
    else:
        _remove(old_path)


def _old_path_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.old")


def sweep(folder: Path) -> None:
    """Remove what killed processes left in an output folder: temporary files and interrupted replacements. The caller
    must hold the folder's lock; subfolders that have their own lock file are skipped."""
    for parent, folders, files in os.walk(folder):
        parent_folder = Path(parent)
        for name in [*folders, *files]:
            if _TEMPORARY.fullmatch(name):
                _remove(parent_folder / name)
            elif name in folders and name.startswith(".") and name.endswith(".old"):
                recover_folder(parent_folder / name[1 : -len(".old")])
        folders[:] = [name for name in folders if not (parent_folder / name / ".lock").exists()]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()
