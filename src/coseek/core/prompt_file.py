"""Prompt files: YAML files of templates with `{fields}`. Braces in the text that fills a field have no meaning."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from coseek.core.errors import DataError, SettingError, UnknownName
from coseek.core.files import read_yaml
from coseek.core.settings import Settings, make_settings

# Role marks: what chat formats write around a turn (`[INST]`, `</s>`, `<start_of_turn>`, `<|…|>`). They are neutralised
# in untrusted text, since a server that receives text cannot tell a mark in a passage from one in its own template.

_NAMES = (
    "s|bos|eos|eod|sop|eop|unk|pad|im_start|im_end|(?:start|end|begin|beginning)_of_[a-z]{1,24}|extra_id_[0-9]{1,4}"
    "|(?:reserved_|unused|SPECIAL_)[0-9]{1,4}|_?(?:system|user|human|assistant|bot|start|end)|AI|用户"
)
_BRACKETED = (
    r"INST|SYSTEM_PROMPT|MODEL_SETTINGS|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|gMASK|sMASK"
    r"|UNUSED_TOKEN_[0-9]{1,4}"
    r"|\|[a-z_]{1,24}\|"
)
# Possessive (`*+`), since backtracking over the blanks of a hostile passage would take quadratic time.
ROLE_MARK = "|".join(
    (
        rf"<\s*+(?:/\s*+)?(?:{_NAMES})\s*+>",
        r"<[|｜][^<>|｜\s]{1,64}[|｜]?>",
        r"<[^<>|｜\s]{1,64}[|｜]>",
        r"<<\s*+(?:/\s*+)?SYS\s*+>>",
        rf"\[\s*+(?:/\s*+)?(?:{_BRACKETED})\s*+\]",
    )
)
"""Pattern of a role mark, to be compiled with `re.IGNORECASE`."""
_ROLE_MARK = re.compile(ROLE_MARK, re.I)
_HARMLESS = {"<": "‹", "[": "［", "{": "｛", "(": "（", "\\": "＼"}


def harmless(mark: re.Match[str]) -> str:
    """Replace the brackets of a mark: `<answer>` becomes `‹answer›`."""
    text = mark[0]
    text = _HARMLESS.get(text[0], "·") + text[1:]
    return text[:-1] + "›" if text[-1] == ">" else text


def without_role_marks(text: str, kept: frozenset[str] = frozenset()) -> str:
    """Neutralise all role marks in a text except those in `kept`."""
    if "<" not in text and "[" not in text:
        return text
    return _ROLE_MARK.sub(lambda mark: mark[0] if mark[0] in kept else harmless(mark), text)


_FIELD = re.compile(r"\{(\w+)\}")
_MATERIAL = {"passages", "reasonings", "response", "run"}
"""Fields that a template must use where it may: without them the model would see nothing to work on."""

P = TypeVar("P", bound="PromptFile")


class PromptFile(Settings):
    """Base of all prompt files."""

    about: str = ""
    """Description in one line."""


def load_prompt(kind: type[P], name: str, folder: Path, fields: Mapping[str, set[str]], ours: Path) -> P:
    """Read a shipped prompt by its name in the folder `ours`, or a YAML file by its path relative to `folder`.

    `fields` maps each template to the fields it may use; it must use those of `_MATERIAL`. Raises `UserError`.
    """
    path = folder / Path(name).expanduser() if name.endswith((".yaml", ".yml")) else ours / f"{name}.yaml"
    if not path.is_file():
        if path.parent == ours:
            raise UnknownName("prompt", name, [prompt.stem for prompt in ours.glob("*.yaml")])
        raise DataError(f"there is no prompt file {path}; check the path")
    prompt = make_settings(kind, read_yaml(path, "prompt file"), path)
    for template, allowed in fields.items():
        used = set(_FIELD.findall(getattr(prompt, template)))
        if unknown := used - allowed:
            raise SettingError(f"{path}: {template} names {{{min(unknown)}}}; it may hold {', '.join(sorted(allowed))}")
        if missing := allowed & _MATERIAL - used:
            raise SettingError(f"{path}: {template} lacks {{{min(missing)}}}; write it where its text belongs")
    return prompt


def fill_template(template: str, **fields: str) -> str:
    """Fill in the fields of a template in one go. Role marks in their values are neutralised."""
    return _FIELD.sub(lambda field: without_role_marks(fields[field[1]]) if field[1] in fields else field[0], template)


def count_words(text: str) -> int:
    """Number of words: the measure of prompt length where there is no tokenizer."""
    return len(text.split())


def one_line(text: str, max_words: int | None = None) -> str:
    """Join the first `max_words` words of a text on one line, so that data cannot imitate lines of a prompt."""
    words = text.split() if max_words is None else text.split(maxsplit=max_words)[:max_words]
    return " ".join(words)
