"""Analyzer: splits queries and passages into words for lexical search."""

import re
import threading
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Annotated, TypeAlias, cast

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from coseek.core.errors import MissingExtra, UnknownName
from coseek.core.marks import marks, undotted

# Han, kana and Hangul have no reliable spaces; overlapping character pairs replace words.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_ANY_CJK = re.compile(f"[{_CJK}]")
_CJK_OR_NOT = re.compile(f"([{_CJK}]+)|([^{_CJK}]+)")

_PLAIN = "".join(chr(code).lower() if chr(code).isalnum() else " " for code in range(128))
"""Maps each ASCII character to its lower case, or to a blank. Twice as fast as a regular expression on ASCII text."""
AUTO = "auto"
_OURS = ("none", "plural", AUTO)
_LOCAL = threading.local()
"""Snowball stemmers by language, per thread: a stemmer has a buffer and is not thread-safe."""


def check_stem(name: str) -> str:
    """Validate the name of a stemmer. A Snowball language needs PyStemmer."""
    if name not in _OURS:
        try:
            _snowball(name)
        except UnknownName as error:
            raise PydanticCustomError("unknown_stemmer", "{sentence}", {"sentence": str(error)}) from None
    return name


Stem: TypeAlias = Annotated[str, AfterValidator(check_stem)]
"""`none`; `plural` removes English plural endings (`cities` → `city`, `films` → `film`); a language (`english`,
`german`, …) selects its Snowball stemmer; `auto`, in settings, that of the corpus's language."""


def words(text: str, stem: str = "none") -> list[str]:
    """Split text into lower-case words, in order, repetitions included. A word is a run of Unicode letters and digits,
    with the marks behind them, after NFKC normalisation; accents are kept. A run of n > 1 CJK characters gives n − 1
    overlapping pairs."""
    if text.isascii():
        found = text.translate(_PLAIN).split()
    else:
        unified = undotted(unicodedata.normalize("NFKC", text).lower())
        found = _runs().findall(unified)
        if _ANY_CJK.search(unified):  # NFKC turns radicals and half-width kana into CJK characters
            found = [word for run in found for word in _split(run)]
    return found if stem == "none" else list(map(stemmer(stem), found))


@cache
def _runs() -> re.Pattern[str]:
    """Letters and digits, and the marks between and behind them. Most words end at a sign that is looked up faster in
    a range than among all marks."""
    return re.compile(rf"[^\W_]+(?:(?=[\u0300-\u1fff\u20d0-\U0001efff])[{''.join(sorted(marks()))}]+[^\W_]*)*")


def stemmer(stem: str) -> Callable[[str], str]:
    """The function that stems a word."""
    if stem == "none":
        return str
    return singular if stem == "plural" else _snowball(stem)


def _snowball(language: str) -> Callable[[str], str]:
    """The Snowball stemmer of a language, for this thread."""
    made = cast(dict[str, Callable[[str], str]], _LOCAL.__dict__)
    if language not in made:
        try:
            import Stemmer  # type: ignore[import-not-found]
        except ModuleNotFoundError:
            raise MissingExtra("PyStemmer", f"the stemmer {language!r} of BM25", "stem") from None
        known = Stemmer.algorithms()
        if language not in known:
            raise UnknownName("stemmer", language, [*_OURS, *known])
        made[language] = Stemmer.Stemmer(language).stemWord
    return made[language]


def singular(word: str) -> str:
    """Remove an English plural ending (Harman's S-stemmer, JASIS 1991)."""
    if word.endswith("ies") and len(word) > 4 and word[-4] not in "ea":
        return word[:-3] + "y"
    if word.endswith("es") and len(word) > 3 and word[-3] not in "aeo":
        return word[:-1]
    if word.endswith("s") and len(word) > 3 and word[-2] not in "us":
        return word[:-1]
    return word


def _split(run: str) -> list[str]:
    if run.isascii():
        return [run]
    found: list[str] = []
    for cjk, other in _CJK_OR_NOT.findall(run):
        if other:
            found.extend(_runs().findall(other))  # a mark behind a CJK character continues no word
        elif len(cjk) == 1:
            found.append(cjk)
        else:
            found.extend(cjk[start : start + 2] for start in range(len(cjk) - 1))
    return found
