"""Checks the model card of a folder: its front matter, its sections, and that its Python blocks run."""

import re
import subprocess
import sys
from pathlib import Path

from coseek.core.files import JsonObject
from coseek.hub.card import read_card
from coseek.retrieval.index import build_index
from coseek.world.settings import WorldSettings
from coseek.world.world import make_world


def checked_card(folder: Path, scratch: Path | None = None) -> tuple[JsonObject, str]:
    """Front matter and text of the folder's card; with a `scratch` folder, its blocks run there on a tiny world."""
    card = read_card(folder)
    assert card is not None, folder
    front, text = card
    assert front["license"] == "unknown" and "coseek" in str(front["tags"])
    for heading in ("Training", "Figures", "Use", "Limits"):
        assert text.count(f"\n## {heading}\n") == 1
    assert str(folder.parent) not in text and "coseek train " in text
    if scratch is not None:
        make_world(WorldSettings(size="tiny", train=3, dev=3, test=3)).save(scratch / "world")
        build_index(scratch / "world", "bm25", scratch / "bm25")
        names = {"FOLDER": str(folder), "INDEX": str(scratch / "bm25"), "DATA": str(scratch / "world")}
        if front["library_name"] == "sentence-transformers":
            names["INDEX"] = str(scratch / "dense")
        blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
        code = re.sub("|".join(names), lambda found: names[found[0]], blocks)
        ran = subprocess.run(
            [sys.executable, "-W", "error::UserWarning", "-c", code], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    return front, text
