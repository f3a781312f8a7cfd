"""Answers: strict EM, cover-EM, span checks and F1 of a predicted answer against gold answers.

All compare normalised text. One difference from SQuAD and HotpotQA: text that is empty after normalisation (an empty
prediction, a gold answer such as "The" or "!") matches nothing.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterable

from coseek.data.gold_answers import normalise

_CLOSED = frozenset({"yes", "no", "noanswer"})
"""Answers without partial credit (as in HotpotQA's metric)."""


def exact_match(prediction: str | None, golds: Iterable[str]) -> bool:
    """Strict EM: the whole prediction equals a gold answer after normalisation."""
    written = normalise(prediction or "")
    return bool(written) and any(written == normalise(gold) for gold in golds)


def cover_match(text: str | None, golds: Iterable[str]) -> bool:
    """Cover-EM: the text contains a gold answer as a run of whole words ("party" does not contain "art")."""
    # Normalised words contain no spaces, so a padded substring search finds runs of words.
    padded = f" {normalise(text or '')} "
    return any(f" {gold} " in padded for gold in map(normalise, golds) if gold)


def span_match(text: str | None, golds: Iterable[str]) -> bool:
    """The span check of s3's program: the tokens of a gold answer follow each other in the text, both normalised.

    A token is a run of letters, digits and accents, or any other sign by itself, after NFD. So Unicode punctuation does
    not stick to a word as it does in `cover_match`, and composed accents equal decomposed ones.
    """
    said = _tokens(normalise(text or ""))
    padded = f"\0{said}\0"
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
    said = normalise(text or "")
    return any(gold in said for gold in map(normalise, golds) if gold)


def f1(prediction: str | None, golds: Iterable[str], *, guard: bool = True) -> float:
    """Maximum word F1 over the gold answers, in [0, 1]: 2 · shared words / (predicted words + gold words).

    HotpotQA's definition: yes, no and "noanswer" on either side give 1 for equality, else 0 ("no" would score .67
    against "no one"). `guard=False` is SQuAD's, without this rule.
    """
    written = normalise(prediction or "")
    return max((_f1(written, normalise(gold), guard) for gold in golds), default=0.0)


def _f1(written: str, gold: str, guard: bool) -> float:
    if not written or not gold:
        return 0.0
    if guard and written != gold and not _CLOSED.isdisjoint((written, gold)):
        return 0.0
    ours, theirs = Counter(written.split()), Counter(gold.split())
    common = (ours & theirs).total()
    return 2 * common / (ours.total() + theirs.total())
