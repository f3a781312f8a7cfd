"""Checks the model card of a folder: its front matter, its sections, and that its Python blocks run."""

import re
import warnings
from pathlib import Path

from coseek.core.files import JsonObject
from coseek.hub.card import read_card
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.retrieval.index import build_index


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
        code = re.sub("|".join(names), lambda match: names[match[0]], blocks)
        # In this process: an interpreter of its own would import torch and transformers again.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", UserWarning)
            exec(compile(code, f"{folder}/README.md", "exec"), {"__name__": "__main__"})  # noqa: S102 (our own card)
    return front, text
