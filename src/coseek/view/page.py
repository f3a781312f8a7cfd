"""Page: one HTML file with its style, script and data inside. It loads nothing, and its policy forbids every request.

All text of runs is data: it stands in one JSON block in which `<`, `>`, `&` and everything that is not ASCII are
escaped, so that no text closes the block; the script makes text nodes of it and nothing else.
"""

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import cast

from coseek.core.errors import DataError
from coseek.core.files import Json, atomic_write
from coseek.view.episode_table import EpisodeTable, compact, packed
from coseek.view.run_source import Curves, RunSource

SCHEMA = 1
"""Version of the data block, in its first field."""
SCRIPTS = ("page.js", "tokens.js", "episode.js", "curves.js", "list.js")
"""Parts of the page's script, in order."""
_PLACE = re.compile(r"\{\{(\w+)\}\}")


def write_page(path: Path, runs: Sequence[RunSource], curves: Sequence[Curves]) -> int:
    """Write the page atomically; returns the number of episodes."""
    table, page = page_of(runs, curves)
    with atomic_write(path) as file:
        file.write(page)
    return len(table)


def page_of(runs: Sequence[RunSource], curves: Sequence[Curves]) -> tuple[EpisodeTable, str]:
    """The episodes, and the page as text. Raises `DataError` where there is nothing to show yet."""
    table = EpisodeTable()
    for run in runs:
        table.add_run(run)
    if not len(table) and not curves:
        named = ", ".join(run.name for run in runs)
        raise DataError(f"{named}: no episode has ended yet; wait for the first one, or go on with --resume")
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "runs": cast(Json, [run.name for run in runs]),
        "prefix": _prefix([run.name for run in runs]),
        "starts": cast(Json, table.starts),
        "index": packed(compact(table.index())),
        "curves": packed(
            compact([{"run": one.run, "stage": one.stage, "columns": cast(Json, one.columns)} for one in curves])
        ),
        "stages": len(curves),
        "chunks": cast(Json, table.chunks),
    }
    shown = [*(run.name for run in runs), *(one.run for one in curves)]
    names = dict.fromkeys(name.partition("/")[0] for name in shown)
    return table, html_of(f"coseek view: {', '.join(names)}", data)


def _prefix(names: Sequence[str]) -> str:
    """The folder that all names begin with, which says nothing beside each of them."""
    first = {name.partition("/")[0] for name in names if "/" in name}
    return f"{first.pop()}/" if len(first) == 1 and all("/" in name for name in names) else ""


def html_of(title: str, data: Json) -> str:
    """The page around a data block."""
    style, script = part("page.css"), "\n".join(map(part, SCRIPTS))
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {"title": escape(title), "policy": policy, "style": style, "script": script, "data": inert_json(data)}
    # In one pass, so that nothing that was put in is searched for places.
    return _PLACE.sub(lambda place: parts[place[1]], part("page.html"))


def inert_json(data: Json) -> str:
    """JSON that HTML and JavaScript read as text only."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def part(name: str) -> str:
    """A file of this package."""
    return files("coseek.view").joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
