"""EM and F1 against the definitions of SQuAD and HotpotQA, written here a second time from their descriptions.

SQuAD (Rajpurkar and others 2016, 2018): an answer is lowered, loses ASCII punctuation, then the words a, an and the,
then surplus white space. EM is equality. F1 is the harmonic mean of precision and recall over the bags of words that
are left; the second version adds that where either bag is empty, F1 is 1 if both are and else 0. HotpotQA (Yang and
others 2018) takes the first version's F1, but for this: if one side is yes, no or noanswer, only equality counts.

What coseek does differently on purpose: characters that are displayed as nothing are removed first and accents are
composed, here as there, and text of which nothing is left is never right. Each definition below says what it does with
such text, and the tests look at these pairs apart.
"""

import random
import unicodedata
from collections.abc import Callable
from functools import cache

import pytest

from coseek.core.text import without_invisible
from coseek.data.answers import exact_match, f1

COUNT = 3_000

WORDS = (
    *("a", "an", "the", "A", "An", "THE", "yes", "no", "noanswer", "Yes.", "No!", "theatre", "another", "anthem"),
    *("the-end", "a.n", "th.e", "New", "York", "1,000", "U.S.A.", "O'Neill", "3.5", "Zürich", "“quoted”", "naïve"),
    *("東京", "Ａ", "ａｎ", "İstanbul", "straße", "ﬁ", "–", "—", "…", "'", '"', "!", ".", ",", "-", "_", "()", "", " "),
    *("the\u00a0end", "a\u2009b", "x\u200b", "\u0301", "e\u0301", "É", "\ufeff", "x\ty\n", "a–b", "the…"),
)


def any_text(rng: random.Random) -> str:
    """Mostly words of the list, now and then any characters at all."""
    if rng.random() < 0.1:
        return "".join(
            chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x250), rng.randrange(0xD7FF))))
            for _ in range(rng.randrange(8))
        )
    return rng.choice((" ", "  ", "-", "\n")).join(rng.choice(WORDS) for _ in range(rng.randrange(5)))


@cache
def pairs() -> list[tuple[str, str]]:
    """Answers beside golds: independent ones, equal ones, and ones made from each other."""
    rng = random.Random(COUNT)
    made = []
    for _ in range(COUNT):
        gold = any_text(rng)
        kind = rng.random()
        if kind < 0.3:
            written = any_text(rng)
        elif kind < 0.5:
            written = gold.upper() if rng.random() < 0.5 else f"the {gold}."
        elif kind < 0.8:
            words = gold.split() + any_text(rng).split()
            rng.shuffle(words)
            written = " ".join(words[: rng.randrange(1, 5)])
        else:
            written = unicodedata.normalize(rng.choice(("NFC", "NFD", "NFKC")), gold)
        made.append((written, gold))
    return made


@cache
def bag(answer: str) -> list[str]:
    """The words that are left of an answer."""
    kept = "".join(
        character
        for character in without_invisible(answer).lower()
        if character not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
    )
    kept = unicodedata.normalize("NFC", kept)
    words: list[str] = []
    run = ""
    for character in f"{kept} ":
        # An article is a maximal run of word characters: "a–b" holds one, and the dash stays.
        if character.isalnum() or character == "_":
            run += character
            continue
        words.append(" " if run in ("a", "an", "the") else run)
        words.append(character)
        run = ""
    return "".join(words).split()


def official_em(written: str, gold: str) -> bool:
    return bag(written) == bag(gold)


def overlap(written: str, gold: str) -> float:
    """SQuAD's first F1."""
    ours, theirs = bag(written), bag(gold)
    shared = sum(min(ours.count(word), theirs.count(word)) for word in set(ours))
    if shared == 0:
        return 0.0
    precision, recall = shared / len(ours), shared / len(theirs)
    return 2 * precision * recall / (precision + recall)


def squad2(written: str, gold: str) -> float:
    if not bag(written) or not bag(gold):
        return float(bag(written) == bag(gold))
    return overlap(written, gold)


def hotpot(written: str, gold: str) -> float:
    closed = ({"yes"}, {"no"}, {"noanswer"})
    if bag(written) != bag(gold) and any(len(side) == 1 and set(side) in closed for side in (bag(written), bag(gold))):
        return 0.0
    return overlap(written, gold)


def unguarded(written: str, gold: str) -> float:
    return f1(written, [gold], guard=False)


def guarded(written: str, gold: str) -> float:
    return f1(written, [gold])


def test_strict_em_is_the_official_one_but_for_text_of_which_nothing_is_left() -> None:
    empty = right = 0
    for written, gold in pairs():
        ours = exact_match(written, [gold])
        if bag(written) or bag(gold):
            assert ours == official_em(written, gold), (written, gold)
            right += ours
        else:
            assert official_em(written, gold) and not ours
            empty += 1
    assert right > COUNT / 10 and empty > COUNT / 50  # or nothing was compared


@pytest.mark.parametrize(
    ("ours", "official"),
    [(unguarded, overlap), (unguarded, squad2), (guarded, hotpot)],
    ids=["SQuAD", "SQuAD 2", "HotpotQA"],
)
def test_f1_is_the_official_one_but_for_no_text(
    ours: Callable[[str, str], float], official: Callable[[str, str], float]
) -> None:
    partly = 0
    for written, gold in pairs():
        if bag(written) or bag(gold):
            assert ours(written, gold) == pytest.approx(official(written, gold), abs=1e-12), (written, gold)
            partly += 0 < ours(written, gold) < 1
        else:
            assert ours(written, gold) == 0
    assert partly > COUNT / 25


def test_nothing_beside_nothing_is_where_the_definitions_differ_from_each_other_too() -> None:
    assert official_em("the", "!") and squad2("the", "!") == 1
    assert overlap("the", "!") == hotpot("the", "!") == 0
    assert not exact_match("the", ["!"]) and f1("the", ["!"]) == f1("the", ["!"], guard=False) == 0


def test_only_the_guard_parts_hotpot_from_squad() -> None:
    differ = [pair for pair in pairs() if hotpot(*pair) != overlap(*pair)]
    assert len(differ) > COUNT / 500
    for written, gold in differ:
        assert f1(written, [gold]) == 0 < f1(written, [gold], guard=False)
