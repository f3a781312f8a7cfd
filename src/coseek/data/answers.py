"""Answers: gold answers as JSON writes them, and strict EM, cover-EM, span checks and F1 of a prediction against them.

All compare normalised text. One difference from SQuAD and HotpotQA: text that is empty after normalisation (an empty
prediction, a gold answer such as "The" or "!") matches nothing. Questions with such gold answers alone are in no mean
of a metric that matches.
"""

import json
import re
import reprlib
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import cast

from coseek.core.errors import DataError, SettingError
from coseek.core.files import Json
from coseek.core.text import without_invisible

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_EXACT = 2**53
"""Whole floats below it are exact."""
_SHOWN = 60
"""Characters of a refused value in a message."""


def read_answers(value: Json, name: str) -> tuple[str, ...]:
    """Read gold answers from the value of the field `name`.

    Accepts a text, or a list of texts; a list inside the list holds aliases. A number is an answer as JSON writes it.
    A missing value (`None`) has no answers. Raises `DataError` for anything else: `null` in a list, a boolean, an
    object, deeper lists.
    """
    if value is None:
        return ()
    items = value if isinstance(value, list) else [value]
    return tuple(
        read_text(alias, name, "a gold answer")
        for item in items
        for alias in (item if isinstance(item, list) else [item])
    )


def read_text(value: Json, name: str, noun: str) -> str:
    """Read a text, or a number as JSON writes it, a whole one without `.0` (tables with a missing cell store floats).
    Raises `DataError` for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    written = json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return written
    shown = written if len(written) <= _SHOWN else written[: _SHOWN - 1] + "…"
    raise DataError(f"{name!r} holds {shown}; {noun} is a text or a number")


def normalise(text: str) -> str:
    """Lower case → no ASCII punctuation → no a/an/the → single spaces, in this order (SQuAD).

    The order matters: "the-end" becomes "theend" before articles are removed. Unicode punctuation, accents and number
    formats are unchanged, without NFKC, so that values are comparable with the papers'. Characters that are displayed
    as nothing (soft hyphens, zero-width blanks) are removed first, and decomposed accents composed (NFC), which the
    papers' scripts do not do.
    """
    plain = unicodedata.normalize("NFC", without_invisible(text).lower().translate(_PUNCTUATION))
    return " ".join(_ARTICLES.sub(" ", plain).split())


def can_match(golds: Iterable[str]) -> bool:
    """Whether normalisation leaves something of a gold answer, as it does not of "The", "A", "!!!" and ""."""
    return any(map(normalise, golds))


_CLOSED = frozenset({"yes", "no", "noanswer"})
"""Answers without partial credit (as in HotpotQA's metric)."""


def texts_of(value: object, name: str = "golds") -> tuple[str, ...]:
    """One text or several, as a tuple. Raises `SettingError` for anything else."""
    several = not isinstance(value, str | Mapping) and isinstance(value, Iterable)
    texts = tuple(cast("Iterable[object]", value)) if several else (value,)
    for text in texts:
        if not isinstance(text, str):
            raise SettingError(f"{name} are a text or several texts, not {reprlib.repr(text)}; write it as a text")
    return cast("tuple[str, ...]", texts)


def exact_match(prediction: str | None, golds: Iterable[str]) -> bool:
    """Strict EM: the whole prediction equals a gold answer after normalisation."""
    written = normalise(prediction or "")
    return bool(written) and any(written == normalise(gold) for gold in texts_of(golds))


def cover_match(text: str | None, golds: Iterable[str]) -> bool:
    """Cover-EM: the text contains a gold answer as a run of whole words ("party" does not contain "art")."""
    # Normalised words contain no spaces, so a padded substring search finds runs of words.
    padded = f" {normalise(text or '')} "
    return any(f" {gold} " in padded for gold in map(normalise, texts_of(golds)) if gold)


def span_match(text: str | None, golds: Iterable[str]) -> bool:
    """The span check of s3's program: the tokens of a gold answer follow each other in the text, both normalised.

    A token is a run of letters, digits and accents, or any other sign by itself, after NFD. So Unicode punctuation does
    not stick to a word as it does in `cover_match`.
    """
    tokens = _tokens(normalise(text or ""))
    padded = f"\0{tokens}\0"
    return any(f"\0{gold}\0" in padded for gold in map(_tokens, map(normalise, golds)) if gold)


def _tokens(text: str) -> str:
    """The tokens of a text, with a zero byte between any two."""
    tokens: list[str] = []
    inside = False
    for letter in unicodedata.normalize("NFD", text).lower():
        kind = unicodedata.category(letter)[0]
        if kind in "LNM":
            if inside:
                tokens[-1] += letter
            else:
                tokens.append(letter)
        elif kind not in "ZC":
            tokens.append(letter)
        inside = kind in "LNM"
    return "\0".join(tokens)


def substring_match(text: str | None, golds: Iterable[str]) -> bool:
    """The normalised text contains a normalised gold answer, also inside a word ("party" contains "art")."""
    normalised = normalise(text or "")
    return any(gold in normalised for gold in map(normalise, golds) if gold)


def f1(prediction: str | None, golds: Iterable[str], *, guard: bool = True) -> float:
    """Maximum word F1 over the gold answers, in [0, 1]: 2 · shared words / (predicted words + gold words).

    HotpotQA's definition: yes, no and "noanswer" on either side give 1 for equality, else 0 ("no" would score .67
    against "no one"). `guard=False` is SQuAD's, without this rule.
    """
    written = normalise(prediction or "")
    return max((_f1(written, normalise(gold), guard) for gold in texts_of(golds)), default=0.0)


def _f1(written: str, gold: str, guard: bool) -> float:
    if not written or not gold:
        return 0.0
    if guard and written != gold and not _CLOSED.isdisjoint((written, gold)):
        return 0.0
    ours, theirs = Counter(written.split()), Counter(gold.split())
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total())
