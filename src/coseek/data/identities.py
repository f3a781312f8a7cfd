"""Identities: digests of the parts that stored rows were made with, since files at a path can be replaced."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json
from coseek.data.question import Question

Identities: TypeAlias = Mapping[str, str]
"""A part's name (`questions`, `agent`, `policy.folder`) → its digest, or a full description in words."""
KEY = "identities"
"""Their key in `run.yaml` and `recipe.yaml`."""


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def value_digest(value: Json) -> str:
    """SHA-256 of a JSON value in one spelling, in hexadecimal digits. Equal numbers (1 and 1.0) are spelt alike."""
    # `default`: a YAML file may hold a date, of which its text counts.
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def questions_digest(questions: Iterable[Question]) -> str:
    """Digest of the questions in order."""
    sha = hashlib.sha256()
    for question in questions:
        # Escaped, since a lone surrogate cannot be encoded.
        sha.update(json.dumps(question.to_json(), sort_keys=True).encode() + b"\n")
    return sha.hexdigest()


def changed_parts(recorded: Json, now: Identities) -> list[str]:
    """The parts whose identity differs now; parts without a recorded identity are not compared."""
    known = recorded if isinstance(recorded, dict) else {}
    return [name for name, identity in now.items() if known.get(name, identity) != identity]


def check_identities(file: Path, recorded: Json, now: Identities) -> None:
    """Refuse to continue in the folder of `file` when parts differ from its `recorded` identities.

    Raises `DataError` without a record (`None`) and `SettingError` for changed parts.
    """
    if recorded is None and now:
        raise DataError(
            f"{file} does not say which {', '.join(now)} {file.parent} was begun with, since its version of coseek did "
            f"not write that down; if nothing has been replaced since, add the line `{KEY}: {{}}` to it, or choose "
            "another --out"
        )
    if changed := changed_parts(recorded, now):
        raise SettingError(
            f"{file.parent} was begun with other parts than there are now (what differs: {', '.join(changed)}); put "
            "back what it was begun with, or choose another --out"
        )


def _plain(value: Json) -> Json:
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
