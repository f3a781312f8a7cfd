"""Answers: reads gold answers from JSON, and compares a prediction with them: strict EM, cover-EM, span check and F1.

All metrics compare normalised text. One difference from SQuAD and HotpotQA: text that is empty after normalisation (an
empty prediction, a gold answer such as "The" or "!") matches nothing. A question with only such gold answers is left
out of the means of these metrics.
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
"""Whole floats below this bound are exact."""
_SHOWN = 60
"""Maximum number of characters of a refused value in a message."""


def read_answers(value: Json, name: str) -> tuple[str, ...]:
    """Read gold answers from the value of the field `name`.

    Accepts a text, or a list of texts; a list inside the list holds aliases. Numbers are read as JSON writes them.
    `None` means no answers. Raises `DataError` for anything else: `null` in a list, a boolean, an object, deeper lists.
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
    """Read a text, or a number as JSON writes it. Whole numbers lose their `.0`, since tables with a missing cell store
    floats. Raises `DataError` for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        value = int(value)
    json_text = json.dumps(value, ensure_ascii=False)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return json_text
    excerpt = json_text if len(json_text) <= _SHOWN else json_text[: _SHOWN - 1] + "…"
    raise DataError(f"{name!r} holds {excerpt}; {noun} is a text or a number")


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
    """Whether any gold answer has text left after normalisation; "The", "!!!" and "" do not."""
    return any(map(normalise, golds))


_CLOSED = frozenset({"yes", "no", "noanswer"})
"""Answers without partial credit (as in HotpotQA's metric)."""


def texts_of(value: object, name: str = "golds") -> tuple[str, ...]:
    """A text or an iterable of texts, as a tuple. Raises `SettingError` for anything else."""
    has_several = not isinstance(value, str | Mapping) and isinstance(value, Iterable)
    texts = tuple(cast("Iterable[object]", value)) if has_several else (value,)
    for text in texts:
        if not isinstance(text, str):
            raise SettingError(f"{name} are a text or several texts, not {reprlib.repr(text)}; write it as a text")
    return cast("tuple[str, ...]", texts)


def exact_match(prediction: str | None, golds: Iterable[str]) -> bool:
    """Strict EM: the whole prediction equals a gold answer after normalisation."""
    normalised = normalise(prediction or "")
    return bool(normalised) and any(normalised == normalise(gold) for gold in texts_of(golds))


def cover_match(text: str | None, golds: Iterable[str]) -> bool:
    """Cover-EM: the text contains a gold answer as a run of whole words ("party" does not contain "art")."""
    # Normalised words contain no spaces, so a padded substring search finds runs of words.
    padded = f" {normalise(text or '')} "
    return any(f" {gold} " in padded for gold in map(normalise, texts_of(golds)) if gold)


def span_match(text: str | None, golds: Iterable[str]) -> bool:
    """The span check of s3's code: the normalised text contains the tokens of a normalised gold answer in sequence.

    After NFD, a token is a run of letters, digits and accents, or any other single character. So Unicode punctuation
    is separated from words, unlike in `cover_match`.
    """
    tokens = _tokens(normalise(text or ""))
    padded = f"\0{tokens}\0"
    return any(f"\0{gold}\0" in padded for gold in map(_tokens, map(normalise, golds)) if gold)


def _tokens(text: str) -> str:
    """The tokens of a text, joined by NUL characters."""
    marked = ""
    for letter in unicodedata.normalize("NFD", text).lower():
        kind = unicodedata.category(letter)[0]
        marked += letter if kind in "LNM" else "\0" if kind in "ZC" else f"\0{letter}\0"
    return "\0".join(filter(None, marked.split("\0")))


def substring_match(text: str | None, golds: Iterable[str]) -> bool:
    """The normalised text contains a normalised gold answer, even inside a word ("party" contains "art")."""
    normalised = normalise(text or "")
    return any(gold in normalised for gold in map(normalise, golds) if gold)


def f1(prediction: str | None, golds: Iterable[str], *, guard: bool = True) -> float:
    """Maximum word F1 over the gold answers, in [0, 1]: 2 · shared words / (predicted words + gold words).

    HotpotQA's definition: where either side is yes, no or "noanswer", F1 is 1 for equality, else 0 ("no" would score
    .67 against "no one"). `guard=False` omits this rule, as SQuAD does.
    """
    normalised = normalise(prediction or "")
    return max((_f1(normalised, normalise(gold), guard) for gold in texts_of(golds)), default=0.0)


def _f1(prediction: str, gold: str, guard: bool) -> float:
    is_closed = guard and prediction != gold and not _CLOSED.isdisjoint((prediction, gold))
    if not prediction or not gold or is_closed:
        return 0.0
    predicted, expected = Counter(prediction.split()), Counter(gold.split())
    return 2 * (predicted & expected).total() / (predicted.total() + expected.total())
