"""Resumable build: an index build that continues after a kill.

The unfinished index is the folder `.NAME.building` beside its final name and holds the card of the index to be. A build
with the same card continues there; a build with another card starts over. One rename at the end makes it the index.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DiskFault, UserError
from coseek.core.files import JsonObject, make_folder, read_json, sync, write_json
from coseek.core.parts import recover_folder, replace_folder, sweep

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
