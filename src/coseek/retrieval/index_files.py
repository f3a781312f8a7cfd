"""Files of an index: a build that continues after a kill, and checksums that find a damaged file."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, cast

from coseek.core.errors import DataError, DiskFault, UserError
from coseek.core.files import (
    JsonObject,
    make_folder,
    parsing,
    read_json,
    read_json_object,
    recover_folder,
    replace_folder,
    sweep,
    sync,
    write_json,
)
from coseek.data.corpus_file import STAMP

# Resumable build: an index build that continues after a kill.
#
# The unfinished index is the folder `.NAME.building` beside its final name and holds the card of the index to be. A
# build with the same card continues there; a build with another card starts over. One rename at the end makes it the
# index.

INDEX_CARD = "index.json"
"""The file with the card of an index."""

Report: TypeAlias = Callable[[str, int, int], None]
"""Called as (what is counted, count done, total), for example ("passages encoded", 64, 1000)."""


def silent(what: str, done: int, total: int) -> None:
    """Report nothing."""


def build_resumably(out: Path, card: JsonObject, fill: Callable[[Path], None]) -> None:
    """Fill `.NAME.building`, starting from its current contents, then rename it to `out`. The card is written first.
    `fill` must produce the same bytes wherever an earlier build with the same card stopped. A `UserError` removes a
    build that had just started; any other failure keeps what is finished. The caller holds the lock of `out`."""
    make_folder(out.parent)
    recover_folder(out)
    building = out.with_name(f".{out.name}.building")
    building.mkdir(exist_ok=True)
    is_new = not (building / INDEX_CARD).is_file() or read_json(building / INDEX_CARD) != card
    if is_new:
        (building / INDEX_CARD).unlink(missing_ok=True)  # first: without it, no remaining file is continued
        empty(building)
        write_json(building / INDEX_CARD, card)
    try:
        fill(building)
    except UserError as error:
        if is_new and not isinstance(error, DiskFault):
            shutil.rmtree(building)
        raise
    sweep(building)
    sync(building)
    replace_folder(building, out)


def empty(folder: Path, keep: str | None = None) -> None:
    """Remove everything in a folder except the file named `keep`."""
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child.name != keep:
            child.unlink()


# Checksums of an index: the size of every file and a digest of every block of it, in `checksums.json`.
#
#     {"schema": 1, "files": {"weights.npy": {"bytes": 4000128, "blocks": "9c1f…"}, …}}
#
# `blocks` joins the first half of the SHA-256 of each block of 1 MiB, in hexadecimal digits. Hidden files are
# excluded, and so is the stamp of the corpus file, which is renewed when the corpus turns out to be unchanged.

CHECKSUMS = "checksums.json"
SCHEMA = 1
BLOCK_BYTES = 1 << 20
_WAY_OUT = "rebuild the index with `coseek index`, or restore the file from a copy"


def write_checksums(folder: Path) -> None:
    """Read every file of a complete index, and write `checksums.json`."""
    files: JsonObject = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder)
        if name.as_posix() not in (CHECKSUMS, STAMP) and not any(part.startswith(".") for part in name.parts):
            files[name.as_posix()] = {"bytes": path.stat().st_size, "blocks": _digests(path)}
    write_json(folder / CHECKSUMS, {"schema": SCHEMA, "files": files})


def read_checksums(folder: Path) -> dict[str, tuple[int, str]]:
    """Bytes and digests of each file. Raises `DataError` if the checksums are missing or unreadable."""
    path = folder / CHECKSUMS
    if not path.is_file():
        raise DataError(f"{path} is missing; {_WAY_OUT}")
    try:
        content = read_json_object(path)
    except DataError as error:
        raise DataError(f"{error}; {_WAY_OUT}") from None
    with parsing(path, _WAY_OUT):
        schema, files = content["schema"], cast(dict[str, JsonObject], content["files"])
        sums = {name: (int(cast(int, file["bytes"])), str(file["blocks"])) for name, file in files.items()}
    if schema != SCHEMA:
        raise DataError(f"{path} is of schema {schema!r}, and this coseek reads schema {SCHEMA}; {_WAY_OUT}")
    return sums


def check_files(folder: Path, report: Report | None = None) -> int:
    """Compare the files of an index with its checksums: their sizes, and with a `report` also their contents. Returns
    their total bytes. Raises `DataError` with the damaged file."""
    sums = read_checksums(folder)
    for name, (size, _) in sums.items():
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; {_WAY_OUT}")
        if (actual := (folder / name).stat().st_size) != size:
            raise DataError(f"{folder / name} is damaged (it has {actual:,} bytes instead of {size:,}); {_WAY_OUT}")
    if report is not None:
        for number, (name, (_, digests)) in enumerate(sums.items(), start=1):
            if _digests(folder / name) != digests:
                raise DataError(f"{folder / name} is damaged (its contents have changed); {_WAY_OUT}")
            report("files checked", number, len(sums))
    return sum(size for size, _ in sums.values())


def _digests(path: Path) -> str:
    digests = ""
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            digests += hashlib.sha256(block).hexdigest()[:32]
    return digests
