"""Judge text: verdicts in what judges really write, and the parts of an answer that are not the answer.

Read are one word, a sentence that begins or ends with one (`Yes, it names the town.`), a labelled line (`Verdict: no`;
`correct: yes` is BrowseComp-Plus's), `\\boxed{yes}` at the end, and a JSON object with such a label. Reasoning and code
fences are left out. Text that says both, or neither, has no verdict: it is never guessed. Nor is what a judge quotes or
reports its verdict: a response that says "the answer is yes" is not a yes.
"""

import re

from coseek.core.files import Json
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.models.written import visible, visible_after

_WORDS = {"yes": True, "true": True, "correct": True, "no": False, "false": False, "incorrect": False, "wrong": False}
_PLAIN = ("yes", "no")
"""Verdicts without a label; others are words of ordinary sentences."""
_LABELS = frozenset(
    ("correct", "is_correct", "verdict", "final_verdict", "judgement", "judgment", "decision", "answer", "final_answer")
    + ("result", "conclusion", "grade")
)
_QUOTES = "\"'“”‘’`"
_MARKS = " \t\n*_.!()[]-✅❌✓✔"
_QUOTED = re.compile(f"[{_QUOTES}][^{_QUOTES}]*[{_QUOTES}]")
_HEADING = re.compile(
    r"^((?:#++\s?)?[A-Za-z][A-Za-z_ ]{0,30}):[ \t]*+\n\s*+|^(#++\s?[A-Za-z][A-Za-z_ ]{0,30}+)\n\s*+", re.MULTILINE
)
"""A label on a line of its own."""
_LABELLED = re.compile(r"\A(?:[-#]++\s?)?([A-Za-z][A-Za-z_ ]{0,30}+):(.*)", re.DOTALL)
_BOXED = re.compile(
    r"\\boxed\s?\{((?:[^{}]|\{[^{}]{0,40}\}){1,60})\}|<(?:answer|verdict|judge?ment|result)>([^<>]{1,40})</\w{1,9}>",
    re.I,
)
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}")
_FENCE = re.compile(r"```[\w-]*+")
_WORD_END = re.compile(r"[\s,.;]")
_FIRST = re.compile(r"(yes|no)(?:[.!,;:\u2013\u2014]|[ \t]++[-\u2013\u2014]|[ \t]*+(?:\n|$))\s*+(\w*+)", re.I)
_SENTENCE = re.compile(r"(?<=[.!?\n])\s+")
_CLAUSE = re.compile(r"[,;]\s")
_ENDING = re.compile(
    r"(?:(?:so|and|thus|hence|therefore|overall)\s++)?(?:i\s++(?:think|conclude|judge)\s++(?:that\s++)?)?"
    r"(?:(?:the|my)\s++)?(?:final\s++)?(?:answer|verdict|judge?ment|decision|conclusion|response)\s++is:?\s++(\w++)"
)
"""All of the last clause, in lower case: one inside a longer clause is what somebody else says."""


def unfenced(text: str) -> str:
    """The visible text without the lines of code fences."""
    return "\n".join(line for line in visible(text).splitlines() if not _FENCE.fullmatch(line.strip())).strip()


def read_verdict(text: str, after: str = "", plain: tuple[str, ...] = _PLAIN) -> bool | None:
    """True for a yes, False for a no, `None` for anything else. With `after`, the text after the last `after` is read,
    which must occur. `plain` are the words that are verdicts by themselves."""
    shown = visible_after(text, after)
    if shown is None:
        return None
    text = unfenced(shown)
    for found in (_marked(text), _in_json(text), _labelled(text), _sentences(text, plain)):
        if found:
            return found.pop() if len(found) == 1 else None
    return None


def _marked(text: str) -> set[bool]:
    r"""The verdict in `\boxed{…}`, or between the tags of an answer or a verdict, that a text ends with."""
    bare = _QUOTED.sub("", text).rstrip(" \t\n.$*)]\\")
    last = [box for box in _BOXED.finditer(bare) if box.end() == len(bare)]
    words = (_word(_TEXT.sub(r"\1", box[1] or box[2])) for box in last)
    return {word for word in words if word is not None}


def _in_json(text: str) -> set[bool]:
    at = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        row: Json = parse_lenient(text[at:]) if text.endswith("}") else None
    except InvalidJson:
        return set()
    values = [value for name, value in row.items() if _is_label(name)] if isinstance(row, dict) else []
    words = [value if isinstance(value, bool) else _word(value) for value in values]
    return {word for word in words if word is not None}


def _labelled(text: str) -> set[bool]:
    """Verdicts of the lines `Label: verdict`, where what follows a verdict is a reason."""
    found: set[bool] = set()
    plain = text.replace("*", "").replace("`", "")
    for line in _HEADING.sub(lambda label: f"{label[1] or label[2]}: ", plain).splitlines():
        match = _LABELLED.fullmatch(line.strip())
        if match and _is_label(match[1]) and match[2].strip():
            word = _word(_WORD_END.split(match[2].strip(), maxsplit=1)[0])
            found |= set() if word is None else {word}
    return found


def _sentences(text: str, plain: tuple[str, ...]) -> set[bool]:
    """The verdict that a text begins with, and the one that it ends with."""
    bare = text.replace("*", "").strip(_MARKS)
    if _QUOTED.fullmatch(bare):
        bare = bare[1:-1].strip(_MARKS)
    found: set[bool] = set()
    first = _FIRST.match(bare)
    if first and first[2].lower() in ("but", "and", "or", "yes", "no", "however"):
        return {True, False}
    if first:
        found.add(_WORDS[first[1].lower()])
    last = _SENTENCE.split(bare)[-1].strip(_MARKS).lower()
    ending = _ENDING.fullmatch(_CLAUSE.split(last)[-1])
    word = ending[1] if ending else last if last in plain else ""
    return found | {_WORDS[word]} if word in _WORDS else found


def _is_label(name: str) -> bool:
    return "_".join(name.strip().lower().split()) in _LABELS


def _word(value: object) -> bool | None:
    return _WORDS.get(value.strip(_MARKS + _QUOTES).lower()) if isinstance(value, str) else None
