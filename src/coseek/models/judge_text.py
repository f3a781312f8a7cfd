"""Judge text: parses verdicts in the outputs of judges, and removes code fences.

A verdict is one word, a sentence that begins or ends with one (`Yes, it names the town.`), a labelled line (`Verdict:
no`; `correct: yes` is BrowseComp-Plus's), `\\boxed{yes}` at the end, or a JSON object with such a label. `Correct` is a
verdict as the whole text only. Reasoning and code fences are skipped. A text with both verdicts, or neither, has none:
it is never guessed. Quotations and reported answers are not verdicts: neither a response that says "the answer is yes",
nor a title after a label (`Answer: No Country for Old Men`).
"""

import re
from collections.abc import Collection

from coseek.core.files import Json
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.models.written import visible_after, without_reasoning

_WORDS = {"yes": True, "true": True, "correct": True, "no": False, "false": False, "incorrect": False, "wrong": False}
_PLAIN = ("yes", "no")
"""Verdicts without a label; others are words of ordinary sentences."""
_QUALIFIERS = ("but", "and", "or", "yes", "no", "however")
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
_FIRST = re.compile(
    rf"({'|'.join(_WORDS)})(?:[.!,;:\u2013\u2014]|[ \t]++[-(\u2013\u2014]|[ \t]*+(?:\n|$))\s*+(\w*+)", re.I
)
"""A verdict with a mark after it, and the next word."""
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s?\{([^{}]*)\}")
_FENCE = re.compile(r"```[\w-]*+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*+")
_CLAUSE = re.compile(r"[,;]\s")
_ENDING = re.compile(
    r"(?:(?:so|and|thus|hence|therefore|overall)\s++)?(?:i\s++(?:think|conclude|judge)\s++(?:that\s++)?)?"
    r"(?:(?:the|my)\s++)?(?:final\s++)?(?:answer|verdict|judge?ment|decision|conclusion|response)\s++is:?\s++(\w++)"
)
"""The whole last clause, in lower case: inside a longer clause it is a report of someone else's answer."""


def unfenced(text: str) -> str:
    """The visible text without the lines of code fences."""
    return "\n".join(
        line for line in without_reasoning(text).splitlines() if not _FENCE.fullmatch(line.strip())
    ).strip()


def read_verdict(text: str, after: str = "", plain: tuple[str, ...] = _PLAIN) -> bool | None:
    """True for a yes, False for a no, `None` for anything else. With `after`, only the text after its last occurrence
    is parsed, which must exist. `plain` are the words that are verdicts by themselves."""
    visible_text = visible_after(text, after)
    if visible_text is None:
        return None
    text = unfenced(visible_text)
    for verdicts in (_in_marks(text), _in_json(text), _in_labels(text) | _in_sentences(text, plain)):
        if verdicts:
            return verdicts.pop() if len(verdicts) == 1 else None
    return None


def _in_marks(text: str) -> set[bool]:
    r"""The verdict in `\boxed{…}`, or between the tags of an answer or a verdict, that a text ends with."""
    bare = _QUOTED.sub("", text).rstrip(" \t\n.$*)]\\")
    final_boxes = [box for box in _BOXED.finditer(bare) if box.end() == len(bare)]
    verdicts = (_verdict(_TEXT.sub(r"\1", box[1] or box[2])) for box in final_boxes)
    return {verdict for verdict in verdicts if verdict is not None}


def _in_json(text: str) -> set[bool]:
    start = 0 if text.startswith("{") else text.find("\n{") + 1
    try:
        row: Json = parse_lenient(text[start:]) if text.endswith("}") else None
    except InvalidJson:
        return set()
    values = [(name, value) for name, value in row.items() if _is_label(name)] if isinstance(row, dict) else []
    verdicts = [
        value == 1 if isinstance(value, bool) or ("correct" in name.lower() and value in (0, 1)) else _verdict(value)
        for name, value in values
    ]
    return {verdict for verdict in verdicts if verdict is not None}


def _in_labels(text: str) -> set[bool]:
    """Verdicts of the lines `Label: verdict`; the text after a verdict is its reason."""
    verdicts: set[bool] = set()
    plain = text.replace("*", "").replace("`", "")
    for line in _HEADING.sub(lambda label: f"{label[1] or label[2]}: ", plain).splitlines():
        match = _LABELLED.fullmatch(line.strip())
        if match and _is_label(match[1]):
            verdict = _verdict(match[2])
            verdicts |= _first_verdict(match[2].strip(_MARKS)) if verdict is None else {verdict}
    return verdicts


def _first_verdict(text: str, words: Collection[str] = _WORDS) -> set[bool]:
    """The verdict that a text begins with, one of `words`; both where the next word qualifies it."""
    first = _FIRST.match(text)
    if first is None or first[1].lower() not in words:
        return set()
    return {True, False} if first[2].lower() in _QUALIFIERS else {_WORDS[first[1].lower()]}


def _in_sentences(text: str, plain: tuple[str, ...]) -> set[bool]:
    """The verdict at the beginning of a text, and the one at its end."""
    bare = text.replace("*", "").strip(_MARKS)
    if _QUOTED.fullmatch(bare):
        bare = bare[1:-1].strip(_MARKS)
    verdicts = _first_verdict(bare, _PLAIN)
    last = _SENTENCE.split(bare)[-1].strip(_MARKS).lower()
    ending = _ENDING.fullmatch(_CLAUSE.split(last)[-1])
    word = ending[1] if ending else last if last in plain or bare.lower() in ("correct", "incorrect") else ""
    return verdicts | {_WORDS[word]} if word in _WORDS else verdicts


def _is_label(name: str) -> bool:
    return "_".join(name.strip().lower().split()) in _LABELS


def _verdict(value: object) -> bool | None:
    return _WORDS.get(value.strip(_MARKS + _QUOTES).lower()) if isinstance(value, str) else None
