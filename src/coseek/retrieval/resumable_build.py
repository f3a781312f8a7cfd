"""Building: an index that takes hours, made so that a kill at any moment costs minutes.

The unfinished index lives beside its final name, as `.NAME.building`, and holds the card of what it is going to be.
Who builds goes on with what is there if the card is the same, and begins anew if it is another. When all is written,
one rename makes it the index.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DiskFault, UserError
from coseek.core.files import JsonObject, make_folder, read_json, recover_folder, write_json

INDEX_CARD = "index.json"
"""The file that says what an index is, or is going to be."""

Report: TypeAlias = Callable[[str, int, int], None]
"""Hears how far a build is: what is counted (`passages encoded`), how many are done, how many there are."""


def silent(what: str, done: int, total: int) -> None:
    """The report of one who does not care to hear."""


def build_resumably(out: Path, card: JsonObject, fill: Callable[[Path], None]) -> None:
    """Fill `.NAME.building` from where it stands, then put it in place of `out` in one rename.

    The card is written first, as `index.json`. `fill` finds what an earlier build of the same card left, and
    must give the same bytes wherever that one was stopped. A user's mistake leaves nothing of a build that had just
    begun; any other end leaves what is finished. Who calls it holds the lock of `out`.
    """
    make_folder(out.parent)
    recover_folder(out)
    part = out.with_name(f".{out.name}.building")
    part.mkdir(exist_ok=True)
    fresh = not (part / INDEX_CARD).is_file() or read_json(part / INDEX_CARD) != card
    if fresh:
        empty(part)
        write_json(part / INDEX_CARD, card)
    try:
        fill(part)
    except UserError as mistake:
        if fresh and not isinstance(mistake, DiskFault):
            shutil.rmtree(part)
        raise
    for left in sorted(part.rglob(".*.part")):  # of files and folders that a kill cut short before their rename
        if left.is_dir():
            shutil.rmtree(left)
        elif left.exists():  # not in a folder that has just gone
            left.unlink()
    sync(part)
    _replace(part, out)


def empty(folder: Path, keep: str | None = None) -> None:
    """Remove all that is in a folder but the file called `keep`."""
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child.name != keep:
            child.unlink()


def sync(path: Path) -> None:
    """Have the disk keep a file, or all files of a folder, for good."""
    for file in path.rglob("*") if path.is_dir() else [path]:
        if file.is_file():
            with file.open("rb") as written:
                os.fsync(written.fileno())


def _replace(part: Path, out: Path) -> None:
    old = out.with_name(f".{out.name}.old")
    if out.exists():
        os.replace(out, old)
    try:
        os.replace(part, out)
    except BaseException:
        recover_folder(out)
        raise
    if old.exists():
        shutil.rmtree(old)
