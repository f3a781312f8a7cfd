"""Shape: the size of a model, read from its folder without torch."""

from pathlib import Path

from coseek.core.files import read_json


def hidden_size(folder: Path) -> int:
    """The hidden size in `config.json`; 0 if it is not stated."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    whole = config if isinstance(config, dict) else {}
    for row in (whole.get("text_config"), whole):
        found = row.get("hidden_size") if isinstance(row, dict) else None
        if isinstance(found, int):
            return found
    return 0
