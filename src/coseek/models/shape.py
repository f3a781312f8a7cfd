"""Shape: what a model folder says of its model's size. No torch in here."""

from pathlib import Path

from coseek.core.files import read_json


def hidden_size(folder: Path) -> int:
    """Width of the residual stream, as `config.json` says; 0 where it says nothing."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else None
    whole = config if isinstance(config, dict) else {}
    for row in (whole.get("text_config"), whole):
        found = row.get("hidden_size") if isinstance(row, dict) else None
        if isinstance(found, int):
            return found
    return 0
