"""Prompt: a template with `{fields}`. Ours lie in `prompts/`; a user's is a YAML file.

Text from outside only ever fills a field, once: braces in it mean nothing.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import read_yaml
from coseek.core.settings import Settings, make_settings

_FIELD = re.compile(r"\{(\w+)\}")

P = TypeVar("P", bound="PromptFile")


class PromptFile(Settings):
    """What every prompt file may say."""

    about: str = ""
    """One line for people."""


def load_prompt(kind: type[P], name: str, folder: Path, fields: Mapping[str, set[str]], ours: Path) -> P:
    """Read a prompt: one of ours (a file in `ours`) by its name, or a YAML file (its path as seen from `folder`).

    `fields` says which templates there are, and which fields each may hold.
    """
    path = folder / Path(name).expanduser() if name.endswith((".yaml", ".yml")) else ours / f"{name}.yaml"
    if not path.is_file():
        if path.parent == ours:
            raise UnknownName("prompt", name, [known.stem for known in ours.glob("*.yaml")])
        raise DataError(f"there is no prompt file {path}; check the path")
    file = make_settings(kind, read_yaml(path, "prompt file"), path)
    for template, known in fields.items():
        for field in _FIELD.findall(getattr(file, template)):
            if field not in known:
                raise SettingError(f"{path}: {template} names {{{field}}}; it may hold {', '.join(sorted(known))}")
    return file


def fill_template(template: str, **fields: str) -> str:
    """The template with its fields filled in; what is filled in is not looked at again."""
    return _FIELD.sub(lambda found: fields.get(found.group(1), found.group(0)), template)


def count_words(text: str) -> int:
    """Words of a text, the measure of prompts that no tokenizer has seen yet."""
    return len(text.split())


def one_line(text: str, max_words: int | None = None) -> str:
    """The words of a text with single spaces between them, at most so many: data that cannot fake a line of ours."""
    words = text.split() if max_words is None else text.split(maxsplit=max_words)[:max_words]
    return " ".join(words)
