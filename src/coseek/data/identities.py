"""Identities: digests of the parts that stored rows were made with. A folder goes on with the same parts only.

Settings name parts by their paths, and what lies at a path can be replaced. A digest tells one content from another.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json
from coseek.data.question import Question

Identities: TypeAlias = Mapping[str, str]
"""A part's name (`questions`, `agent`, `policy.folder`) → its digest, or a few words that say all about it."""
KEY = "identities"
"""Where `run.yaml` and `recipe.yaml` hold them."""


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def questions_digest(questions: Iterable[Question]) -> str:
    """A digest of all that questions say, in their order."""
    sha = hashlib.sha256()
    for question in questions:
        # Escaped, since a text from outside may hold half a surrogate pair, which has no bytes.
        sha.update(json.dumps(question.to_json(), sort_keys=True).encode() + b"\n")
    return sha.hexdigest()


def changed_parts(recorded: Json, now: Identities) -> list[str]:
    """The parts whose identity is another one now. A part that was not recorded is not compared."""
    known = recorded if isinstance(recorded, dict) else {}
    return [name for name, identity in now.items() if known.get(name, identity) != identity]


def check_identities(file: Path, recorded: Json, now: Identities) -> None:
    """Refuse to go on with the folder of `file`, which `recorded` these identities, when parts have changed since.

    Without any record (`None`) nobody can say what has changed, and the user has to vouch for it.
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
