"""Files: JSONL in, JSONL out, and writes that either happen whole or leave the old file alone."""

import gzip
import json
import os
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeAlias, cast

import yaml

from coseek.core.errors import DataError, SettingError
from coseek.core.strict_json import InvalidJson, parse_strict, text_fault_in
from coseek.core.strict_json import Json as Json

JsonObject: TypeAlias = dict[str, "Json"]

RECORDS = ("run.yaml", "recipe.yaml", "labels.yaml")
"""Files that say what a folder was begun with. They are written first, and are no result."""


def as_path(given: object, what: str) -> Path:
    """A path from a `str` or `Path`, with `~` expanded. Anything else raises a `SettingError` that names `what`."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise SettingError(f"{what} is named by one path, a str or Path, not {given!r}")
    return Path(os.fspath(given)).expanduser()


def open_text(path: Path) -> IO[str]:
    """Open UTF-8 text for reading, through gzip when the name ends in `.gz`."""
    if not path.exists():
        raise DataError(f"there is no file {path}; check the path")
    if path.is_dir():
        raise DataError(f"{path} is a folder, and a file is needed here")
    if path.suffix == ".gz":
        return cast(IO[str], gzip.open(path, "rt", encoding="utf-8"))
    return path.open(encoding="utf-8")


def read_jsonl(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """Yield `(line number from 1, object)`; blank lines are passed over, a broken line is named."""
    for number, line in read_lines(path):
        if line.strip():
            yield number, parse_line(line, f"{path}, line {number}")


def parse_line(line: str | bytes, where: str) -> JsonObject:
    """The JSON object of one line; anything else is refused with a sentence that begins with `where`.

    So is what JSON has not (NaN, Infinity) and what is no text (half of a surrogate pair): no file could hold it again.
    """
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
    """Numbered lines; text that is not UTF-8 and a broken `.gz` are refused with a sentence."""
    number = 0
    with open_text(path) as lines:
        try:
            for number, line in enumerate(lines, start=1):
                yield number, line
        except UnicodeDecodeError:
            # Text is decoded in blocks, so the broken line is this one or one soon after it.
            raise DataError(f"{path}, after line {number}: not UTF-8 text; save the file as UTF-8") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}, after line {number}: a broken .gz file ({error}); fetch it again") from None


def read_json(path: Path) -> Json:
    """One JSON document; a broken one is a `DataError` naming the line or the field."""
    with open_text(path) as text:
        try:
            return parse_strict(text.read())
        except InvalidJson as error:
            raise DataError(f"{path}{f', line {error.line}' if error.line else ''}: {error}") from None
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8 text; save the file as UTF-8") from None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} is a broken .gz file ({error}); fetch it again") from None


def read_yaml(path: Path, kind: str, holds: str = "`name: value` lines") -> JsonObject:
    """One YAML mapping; an empty file is an empty one. `kind` and `holds` say in a refusal what it should have been."""
    if not path.exists():
        raise DataError(f"there is no {kind} {path}; check the path")
    with open_text(path) as text:
        try:
            tree = yaml.safe_load(text.read())
            fault = text_fault_in(tree)
        except yaml.MarkedYAMLError as error:
            line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise DataError(f"{path}{line}: not valid YAML ({error.problem or error.context})") from None
        except yaml.YAMLError as error:
            raise DataError(f"{path}: not valid YAML ({str(error).splitlines()[0]})") from None
        except UnicodeDecodeError:
            raise DataError(f"{path} is not UTF-8 text; save the file as UTF-8") from None
        except RecursionError:
            raise DataError(f"{path}: it is nested too deeply; flatten it") from None
        except ValueError as error:  # a date that is none, a number of thousands of digits
            raise DataError(f"{path}: not valid YAML ({str(error)[:80]}); mend it, or put it in quotes") from None
    if fault:
        raise DataError(f"{path}: {fault}; mend it")
    if tree is not None and not isinstance(tree, dict):
        raise DataError(f"{path} must hold {holds}")
    return cast(JsonObject, tree or {})


def json_line(value: JsonObject) -> str:
    """One JSON object on one line, as every file of coseek writes it (UTF-8, not escaped)."""
    # U+2028 and friends are legal inside a JSON string but end a line for str.splitlines readers.
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


def check_not_file(folder: Path) -> None:
    """Refuse a file where a folder is to be written."""
    if folder.exists() and not folder.is_dir():
        raise DataError(f"{folder} is a file; choose a folder")


def check_output_folder(folder: Path, mark: str, own: Collection[str] = ()) -> None:
    """Refuse to begin anything in a folder that is something else: it is new, or empty, or holds the file `mark`.

    `own` names files that may be there before `mark` is. Hidden files are passed over, and logs, which a shell opens
    before the program begins.
    """
    check_not_file(folder)
    if not folder.is_dir() or (folder / mark).exists():
        return
    for path in sorted(folder.iterdir()):
        if not (path.name.startswith(".") or path.suffix == ".log" or path.name in own):
            raise DataError(
                f"{folder} holds something else already ({path.name}, and no {mark}); choose a new or an empty folder"
            )


def is_failed_start(folder: Path, record: str) -> bool:
    """Whether a folder holds the `record` of a start and no result, so that it may be begun anew: nothing but records
    (`RECORDS`), empty files, hidden files and logs. A file of that name which somebody else wrote is no record."""
    if not (folder / record).exists() or "created" not in read_yaml(folder / record, "record"):
        return False
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and path.stat().st_size and not (hidden or path.suffix == ".log" or path.name in RECORDS):
            return False
    return True


def make_folder(folder: Path) -> None:
    """Make a folder and all above it; where none can be made, that is said in a sentence."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, FileNotFoundError):
        file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
        why = f"{file} is a file" if file else "this place takes none"
        raise DataError(f"the folder {folder} cannot be made: {why}; choose another place") from None


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """A text file that appears under `path` only when the block ends well; the old one survives otherwise."""
    make_folder(path.parent)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def atomic_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder beside `path`, then put it in place of `path` in one rename.

    A crash in `fill` leaves what was at `path` untouched. Between the two renames of a replacement
    the old folder lives on as `.NAME.old`; `recover_folder` puts it back. A file at `path` is refused.
    """
    check_not_file(path)
    make_folder(path.parent)
    recover_folder(path)
    part = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part"))
    old = path.with_name(f".{path.name}.old")
    try:
        fill(part)
        for file in part.rglob("*"):
            if file.is_file():
                with file.open("rb") as written:
                    os.fsync(written.fileno())
        os.chmod(part, 0o755)
        if path.exists():
            os.replace(path, old)
        os.replace(part, path)
    except BaseException:
        _remove_tree(part)
        recover_folder(path)
        raise
    _remove_tree(old)


def recover_folder(path: Path) -> None:
    """Undo a replacement that a crash cut in two: the old folder comes back if the new one is not there."""
    old = path.with_name(f".{path.name}.old")
    if not old.is_dir():  # a file of that name is none of ours
        return
    if not path.exists():
        os.replace(old, path)
    else:
        _remove_tree(old)


def _remove_tree(path: Path) -> None:
    if not path.exists():
        return
    for child in path.iterdir():
        if child.is_dir() and not child.is_symlink():
            _remove_tree(child)
        else:
            child.unlink()
    path.rmdir()
