"""Prompt files: YAML files of templates with `{fields}`. Braces in the text that fills a field have no meaning."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import read_yaml
from coseek.core.settings import Settings, make_settings

# Role marks: what chat formats write around a turn (`[INST]`, `</s>`, `<start_of_turn>`, `<|…|>`), made harmless in
# text from outside. A server that is asked for text cannot tell a mark in a passage from one in its own template.

_NAMES = (
    "s|bos|eos|eod|sop|eop|unk|pad|im_start|im_end|(?:start|end|begin|beginning)_of_[a-z]{1,24}|extra_id_[0-9]{1,4}"
    "|(?:reserved_|unused|SPECIAL_)[0-9]{1,4}|_?(?:system|user|human|assistant|bot|start|end)|AI|用户"
)
_BRACKETED = (
    r"INST|SYSTEM_PROMPT|MODEL_SETTINGS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|gMASK|sMASK"
    r"|UNUSED_TOKEN_[0-9]{1,4}"
    r"|\|[a-z_]{1,24}\|"
)
# Possessive (`*+`) to prevent backtracking: a passage decides how many blanks there are.
ROLE_MARK = "|".join(
    (
        rf"<\s*+(?:/\s*+)?(?:{_NAMES})\s*+>",
        r"<[|｜][^<>|｜\s]{1,64}[|｜]?>",
        r"<[^<>|｜\s]{1,64}[|｜]>",
        r"<<\s*+(?:/\s*+)?SYS\s*+>>",
        rf"\[\s*+(?:/\s*+)?(?:{_BRACKETED})\s*+\]",
    )
)
"""Pattern of a role mark, for `re.IGNORECASE`."""
_ROLE_MARK = re.compile(ROLE_MARK, re.I)
_HARMLESS = {"<": "‹", "[": "［", "{": "｛", "(": "（", "\\": "＼"}


def harmless(mark: re.Match[str]) -> str:
    """Write a mark with other brackets: `<answer>` as `‹answer›`."""
    text = mark[0]
    text = _HARMLESS.get(text[0], "·") + text[1:]
    return text[:-1] + "›" if text[-1] == ">" else text


def without_role_marks(text: str, kept: frozenset[str] = frozenset()) -> str:
    """Make all role marks in a text harmless, but those in `kept`."""
    if "<" not in text and "[" not in text:
        return text
    return _ROLE_MARK.sub(lambda mark: mark[0] if mark[0] in kept else harmless(mark), text)


_FIELD = re.compile(r"\{(\w+)\}")

P = TypeVar("P", bound="PromptFile")


class PromptFile(Settings):
    """Base of all prompt files."""

    about: str = ""
    """One line for people."""


def load_prompt(kind: type[P], name: str, folder: Path, fields: Mapping[str, set[str]], ours: Path) -> P:
    """Read a prompt by the name of a file in `ours`, or by the path of a YAML file relative to `folder`.

    `fields` maps each template to the fields it may hold. Raises `UnknownName`, `DataError` or `SettingError`.
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
    """Fill in the fields of a template, once. Role marks in the fields are made harmless."""
    return _FIELD.sub(
        lambda found: without_role_marks(fields[found.group(1)]) if found.group(1) in fields else found.group(0),
        template,
    )


def count_words(text: str) -> int:
    """Number of words, the measure of prompts without a tokenizer."""
    return len(text.split())


def one_line(text: str, max_words: int | None = None) -> str:
    """The first `max_words` words of a text on one line, so that data cannot imitate lines of a prompt."""
    words = text.split() if max_words is None else text.split(maxsplit=max_words)[:max_words]
    return " ".join(words)
