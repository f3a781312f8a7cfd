"""Words: how text is cut for lexical search. Queries and passages go through the same knife."""

import re
import unicodedata
from typing import Literal

_RUN = re.compile(r"[^\W_]+")
# Han, kana and Hangul are written without (reliable) spaces: overlapping pairs stand in for words.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
_CJK_OR_NOT = re.compile(f"([{_CJK}]+)|([^{_CJK}]+)")

Stem = Literal["none", "plural"]
"""`plural` takes the English plural off (`cities` → `city`, `films` → `film`); nothing else is stemmed."""


def words(text: str, stem: Stem = "none") -> list[str]:
    """Lower-cased Unicode words in order; repeated ones are kept.

    Letters and digits make words, everything else parts them. Compatibility forms are unified (NFKC), accents are
    kept. A run of n > 1 CJK characters gives its n - 1 overlapping pairs, a lone one itself.
    """
    if text.isascii():
        found = _RUN.findall(text.lower())
    else:
        found = [word for run in _RUN.findall(unicodedata.normalize("NFKC", text).lower()) for word in _split(run)]
    return found if stem == "none" else [singular(word) for word in found]


def singular(word: str) -> str:
    """The word without its English plural ending (Harman's S-stemmer, JASIS 1991); others are left alone."""
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
        if other or len(cjk) == 1:
            found.append(other or cjk)
        else:
            found.extend(cjk[start : start + 2] for start in range(len(cjk) - 1))
    return found
