"""Role marks: what chat formats write around a turn (`[INST]`, `</s>`, `<start_of_turn>`, `<|…|>`), made harmless in
text from outside. A server that is asked for text cannot tell a mark in a passage from one in its own template."""

import re

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
