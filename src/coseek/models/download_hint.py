"""Download hint: the command that fetches a missing model folder from the Hugging Face Hub. Downloads nothing."""

import re
from collections.abc import Sequence
from pathlib import Path
from shlex import quote

from coseek.core.errors import closest

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9][A-Za-z0-9_.-]{0,95}")
FAMILIES = {"Qwen": "Qwen", "e5-": "intfloat", "multilingual-e5-": "intfloat", "bge-": "BAAI"}
"""Prefix of model names in recipes and docs → publisher on the hub."""


def missing(kind: str, path: Path | str, setting: str = "", known: Sequence[str] = ()) -> str:
    """The sentence for a missing folder, with the download command for a model on the hub; `setting` names it."""
    named = f", which the recipe names as {setting}" if setting else ""
    return f"there is no {kind + ' ' if kind else ''}{path}{named}; {way_out(str(path), known)}"


def way_out(name: str, known: Sequence[str] = ()) -> str:
    """`check the path`, and the download command for a model on the hub, or the closest of the `known` models."""
    fetch = fetch_command(name)
    if not fetch:
        close = closest(name, known) if Path(name).name == name else None
        return "check the path" if close is None else f"did you mean {close!r}, which coseek ships? Else check the path"
    hub_name, folder = fetch
    line = f"hf download {hub_name} --local-dir {quote(folder)}"
    then = "" if folder == name else f", then name {folder}"
    return f"check the path, or fetch it first, if it is the model {hub_name} on the Hugging Face Hub: {line}{then}"


def fetch_command(name: str) -> tuple[str, str] | None:
    """The name on the hub and the download folder; `None` for a plain path."""
    parts = Path(name).parts
    last = parts[-1] if parts else ""
    owner = next((owner for begins, owner in FAMILIES.items() if last.startswith(begins)), None)
    if owner is not None and _NAME.fullmatch(f"{owner}/{last}"):
        return f"{owner}/{last}", name if parts[:-1] not in ((), (owner,)) else f"models/{last}"
    if _NAME.fullmatch(name) and not Path(parts[0]).is_dir():
        return name, f"models/{last}"
    return None
