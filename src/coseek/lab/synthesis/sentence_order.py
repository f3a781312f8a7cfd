"""Sentence order: puts a first sentence that does not begin with its subject into the usual order.

    There is a dam named Ada , built by Bea .     Ada , built by Bea , is a dam .
    A dam built by Bea is Ada .                   Ada is a dam built by Bea .
    Of Ada we read : it is a dam .                Ada is a dam .

Only a sentence that names the subject of its passage is changed: one about anything else stays as it is.
"""

from collections.abc import Sequence

from coseek.lab.synthesis.names import ENDS, Token, key_of

COPULAS = frozenset(["is", "was", "are", "were"])
ARTICLES = frozenset(["a", "an", "the"])
PRONOUNS = frozenset(["he", "she", "it", "they"])
SILENT = frozenset("\"“”'‘’«»*`") | {"also", "currently", "both", "then", "later", "subsequently"}
"""Marks and words that say nothing here."""
_NAMED = frozenset(["named", "called", "titled", "entitled", "dubbed"])
_BEFORE = (["of"], ["about"], ["on"])
_KIND = 16
"""Words before the name behind `there is`."""
_ASIDE = 12
"""Words of what stands in brackets or between commas behind a name."""
_SAYS = 4
"""Words between a name and the colon in `Of Ada we read :`."""


def usual_order(plain: Sequence[str], tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens of the first sentence of a passage, whose subject has the words `plain`."""
    for reordered in (_existential, _inverted, _reported):
        if found := reordered(plain, tokens):
            return found
    return tokens


def name_end(plain: Sequence[str], tokens: Sequence[Token], at: int) -> int:
    """Where a name that begins at `at` ends, marks between its words included; 0 where it does not begin there."""
    count, end = 0, at
    while end < len(tokens) and count < len(plain) and key_of(tokens[end].text) in (plain[count], ""):
        count += bool(key_of(tokens[end].text))
        end += 1
    return end if count == len(plain) else 0


def _existential(plain: Sequence[str], tokens: Sequence[Token]) -> list[Token]:
    """`There is a dam named Ada …`."""
    said = _words(tokens[:_KIND])
    named = next((at for at, word in enumerate(said) if word in _NAMED), 0)
    if named < 3 or said[0] != "there" or said[1] not in COPULAS:
        return []
    begin = _skipped(tokens, named + 1)
    end = _subject_end(plain, tokens, begin)
    return [*tokens[begin:end], *tokens[1:named], *tokens[end:]] if end else []


def _inverted(plain: Sequence[str], tokens: Sequence[Token]) -> list[Token]:
    """`A dam … is Ada .`; the last copula counts."""
    if _words(tokens[:1]) not in (["a"], ["an"]) or tokens[-1].text not in ENDS:
        return []
    for copula in range(len(tokens) - 2, 1, -1):
        begin = _skipped(tokens, copula + 1)
        if tokens[copula].text in COPULAS and _subject_end(plain, tokens, begin) == len(tokens) - 1:
            return [*tokens[begin:-1], tokens[copula], *tokens[:copula], tokens[-1]]
    return []


def _reported(plain: Sequence[str], tokens: Sequence[Token]) -> list[Token]:
    """`Of Ada we read : it is …`."""
    begin = _skipped(tokens, 1)
    end = _subject_end(plain, tokens, begin) if _words(tokens[:1]) in _BEFORE else 0
    colon = next((at for at in range(end, min(len(tokens), end + _SAYS + 1)) if tokens[at].text == ":"), 0)
    said = _words(tokens[colon + 1 : colon + 3])
    told = end and colon and len(said) == 2 and said[0] in PRONOUNS and said[1] in COPULAS
    return [*tokens[begin:end], *tokens[colon + 2 :]] if told else []


def _subject_end(plain: Sequence[str], tokens: Sequence[Token], at: int) -> int:
    """The end of the name that begins at `at`, with what stands in brackets and between commas behind it."""
    end = name_end(plain, tokens, at)
    if end and end < len(tokens) and tokens[end].text == "(":
        end = _closed(tokens, end, ")") or end
    if end and end < len(tokens) and tokens[end].text == ",":
        end = _closed(tokens, end, ",") or end
    return end


def _closed(tokens: Sequence[Token], at: int, mark: str) -> int:
    """Behind the next `mark` after the one at `at`; 0 without one close by."""
    near = range(at + 1, min(len(tokens), at + _ASIDE))
    return next((place + 1 for place in near if tokens[place].text == mark), 0)


def _skipped(tokens: Sequence[Token], at: int) -> int:
    """The first place from `at` on that is no `the`, which `plain` lacks, and no mark that says nothing."""
    while at < len(tokens) and (tokens[at].text in SILENT or tokens[at].text.lower() == "the"):
        at += 1
    return at


def _words(tokens: Sequence[Token]) -> list[str]:
    return [token.text.lower() for token in tokens]
