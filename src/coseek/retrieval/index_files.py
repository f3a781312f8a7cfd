"""Files of an index: a build that continues after a kill, and checksums that find a damaged file."""

import hashlib
import random
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias, cast

from coseek.core.errors import DataError, DiskFault, UserError
from coseek.core.files import WRONG_SHAPE, JsonObject, make_folder, read_json, read_json_object, sync, write_json
from coseek.core.parts import recover_folder, replace_folder, sweep
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
    part = out.with_name(f".{out.name}.building")
    part.mkdir(exist_ok=True)
    fresh = not (part / INDEX_CARD).is_file() or read_json(part / INDEX_CARD) != card
    if fresh:
        (part / INDEX_CARD).unlink(missing_ok=True)  # first: without it, nothing that is left is continued
        empty(part)
        write_json(part / INDEX_CARD, card)
    try:
        fill(part)
    except UserError as mistake:
        if fresh and not isinstance(mistake, DiskFault):
            shutil.rmtree(part)
        raise
    sweep(part)
    sync(part)
    replace_folder(part, out)


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
# `blocks` joins the first half of the SHA-256 of each block of 1 MiB, in hexadecimal digits. Hidden files are left
# out, and so is the stamp of the corpus file, which is renewed when the corpus turns out to be unchanged.

CHECKSUMS = "checksums.json"
SCHEMA = 1
BLOCK_BYTES = 1 << 20
SAMPLE = 64
"""Blocks that are read when an index is opened: all of a small one, so that a large one opens as fast."""
_DIGEST_BYTES = 16
_WAY_OUT = "rebuild the index with `coseek index`, or restore the file from a copy"


@dataclass(frozen=True, slots=True)
class FileSums:
    """The size of a file in bytes and the joined digests of its blocks."""

    size: int
    digests: bytes

    @classmethod
    def of(cls, path: Path) -> "FileSums":
        """Read a file."""
        size, digests = 0, bytearray()
        for read, digest in _blocks(path):
            size += read
            digests += digest
        return cls(size, bytes(digests))

    @classmethod
    def from_json(cls, row: JsonObject) -> "FileSums":
        """Raises `KeyError`, `TypeError` or `ValueError` for anything but the row of a file."""
        size, digests = row["bytes"], bytes.fromhex(cast(str, row["blocks"]))
        if (
            not isinstance(size, int)
            or isinstance(size, bool)
            or len(digests) != -(-size // BLOCK_BYTES) * _DIGEST_BYTES
        ):
            raise ValueError(row)
        return cls(size, digests)

    def to_json(self) -> JsonObject:
        return {"bytes": self.size, "blocks": self.digests.hex()}

    @property
    def blocks(self) -> int:
        return len(self.digests) // _DIGEST_BYTES

    def check_size(self, path: Path) -> None:
        """Raise `DataError` for a file that is missing or has another size."""
        if not path.is_file():
            raise DataError(f"{path} is missing; {_WAY_OUT}")
        if (size := path.stat().st_size) != self.size:
            raise DataError(f"{path} is damaged (it has {size:,} bytes instead of {self.size:,}); {_WAY_OUT}")

    def check_block(self, path: Path, number: int) -> None:
        """Raise `DataError` for a block that is not as it was written."""
        for _ in self.checked(path, number, 1):
            pass

    def checked(self, path: Path, first: int = 0, count: int = -1) -> Iterator[int]:
        """The numbers of so many blocks from `first` on, or of all, each when it is found to be as it was written."""
        last = self.blocks if count < 0 else first + count
        found = _blocks(path, first)
        for number in range(first, last):
            try:
                _, digest = next(found, (0, b""))
            except OSError as error:
                raise DataError(f"{path} cannot be read ({error.strerror}); {_WAY_OUT}") from None
            if digest != self.digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]:
                raise DataError(f"{path} is damaged (block {number + 1} of {self.blocks} has changed); {_WAY_OUT}")
            yield number


@dataclass(frozen=True, slots=True)
class Checksums:
    """The checksums of an index folder."""

    folder: Path
    files: dict[str, FileSums]

    @classmethod
    def write(cls, folder: Path) -> None:
        """Read every file of a complete index, and write `checksums.json`."""
        found = {}
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            name = path.relative_to(folder)
            if name.as_posix() not in (CHECKSUMS, STAMP) and not any(part.startswith(".") for part in name.parts):
                found[name.as_posix()] = FileSums.of(path).to_json()
        write_json(folder / CHECKSUMS, {"schema": SCHEMA, "files": {**found}})

    @classmethod
    def read(cls, folder: Path) -> "Checksums":
        """Raises `DataError` where there are none that this version can read."""
        path = folder / CHECKSUMS
        if not path.is_file():
            raise DataError(f"{path} is missing; {_WAY_OUT}")
        try:
            row = read_json_object(path)
            schema, files = row["schema"], cast(dict[str, JsonObject], row["files"])
            found = {name: FileSums.from_json(sums) for name, sums in files.items()}
        except DataError as error:
            raise DataError(f"{error}; {_WAY_OUT}") from None
        except WRONG_SHAPE:
            raise DataError(f"{path} is damaged; {_WAY_OUT}") from None
        if schema != SCHEMA:
            raise DataError(f"{path} is of schema {schema!r}, and this coseek reads schema {SCHEMA}; {_WAY_OUT}")
        if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in found):
            raise DataError(f"{path} names a file outside of the index; {_WAY_OUT}")
        return cls(folder, found)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(sums.size for sums in self.files.values())

    def check_sample(self, rng: random.Random, count: int = SAMPLE) -> None:
        """Check all sizes, the first block of every file, and other blocks drawn by `rng` up to `count` in total."""
        for name, sums in self.files.items():
            sums.check_size(self.folder / name)
        first = [(name, 0) for name, sums in self.files.items() if sums.blocks]
        rest = [(name, number) for name, sums in self.files.items() for number in range(1, sums.blocks)]
        drawn = rng.sample(rest, min(len(rest), max(0, count - len(first))))
        for name, number in sorted(first + drawn):
            self.files[name].check_block(self.folder / name, number)

    def check_all(self, report: Callable[[str, int, int], None], unread: Collection[str] = ()) -> None:
        """Check every block of every file, but only the sizes of those that are `unread`."""
        read = {name: sums for name, sums in self.files.items() if name not in unread}
        done, total = 0, sum(sums.blocks for sums in read.values())
        for name, sums in self.files.items():
            sums.check_size(self.folder / name)
        for name, sums in read.items():
            for _ in sums.checked(self.folder / name):
                done += 1
                report("MiB checked", done, total)


def _blocks(path: Path, first: int = 0) -> Iterator[tuple[int, bytes]]:
    """The size and the digest of every block from `first` on. All are read into the same memory, which stays in a
    processor's cache."""
    block = bytearray(BLOCK_BYTES)
    view = memoryview(block)
    with path.open("rb") as file:
        file.seek(first * BLOCK_BYTES)
        while read := file.readinto(block):
            yield read, hashlib.sha256(view[:read]).digest()[:_DIGEST_BYTES]
