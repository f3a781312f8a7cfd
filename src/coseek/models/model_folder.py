"""Model folders: whatever a library raises while it reads one becomes a `DataError` that names the folder.

Four libraries read weights, configuration, architecture and tokenizer, and each passes on what a broken file makes its
own code raise: any `Exception`, and for panics of Rust code one that is none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coseek.core.errors import CoseekError, DataError
from coseek.core.files import read_json_object

_PANIC = "PanicException"
"""What tokenizers raises for a panic; it lies in a module that cannot be imported."""


@contextmanager
def library_reads(folder: Path, what: str) -> Iterator[None]:
    """Open a folder with a library inside the block. `what` it should hold is named in errors."""
    _check_config(folder)
    try:
        yield
    except CoseekError:
        raise
    except Exception as error:  # noqa: BLE001 (see above)
        raise DataError(f"{folder} holds no {what} that can be opened: {first_line(error)}") from None
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise DataError(f"{folder} holds no {what} that can be opened: {first_line(error)}") from None


def _check_config(folder: Path) -> None:
    """Read the configuration before the library does, which would take NaN and any depth."""
    if (folder / "config.json").is_file():
        read_json_object(folder / "config.json", foreign=True)


def first_line(error: BaseException) -> str:
    """The first line of a message, which libraries make long, without its full stop."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')[:300]}" if lines else type(error).__name__
