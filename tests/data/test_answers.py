import string

import pytest
from hypothesis import example, given, strategies as st

from coseek.core.errors import SettingError
from coseek.data.answers import cover_match, exact_match, f1, normalise, span_match, substring_match
from coseek.data.question import Question

words = st.text(alphabet="aetho nyx.,'-É“İ", max_size=24)
any_text = st.text(max_size=40)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles!", "beatles"),
        ("the-end of a day", "theend of day"),
        ("An apple, A pear", "apple pear"),
        ("U.S.A.", "usa"),
        ("1,000", "1000"),
        ("theatre", "theatre"),
        ("  \t\n ", ""),
        ("“Café” – 3½", "“café” – 3½"),
        ("T.H.E. end", "end"),
        ("Ko\u0308ln", "k\u00f6ln"),
    ],
)
def test_normalising_lowers_strips_drops_and_squeezes_in_this_order(text: str, normal: str) -> None:
    assert normalise(text) == normal


@given(any_text | words)
def test_normal_text_has_no_punctuation_no_articles_and_single_spaces_and_stays_normal(text: str) -> None:
    normal = normalise(text)
    assert not set(normal) & set(string.punctuation)
    assert not set(normal.split(" ")) & {"a", "an", "the"}
    assert normal == " ".join(normal.split()) == normalise(normal)


@pytest.mark.parametrize("empty", ["", "the", "...", " A an!", None])
def test_what_normalises_to_nothing_matches_nothing(empty: str | None) -> None:
    assert not exact_match(empty, [empty or ""])
    assert not cover_match("anything at all", [empty or ""])
    assert not cover_match(empty, ["gold", empty or ""])
    assert f1(empty, [empty or "", "gold"]) == f1(empty, []) == 0
    assert not exact_match(empty, []) and not cover_match(empty, [])


@given(words, words)
def test_a_strict_match_is_a_cover_match_and_has_f1_one(prediction: str, gold: str) -> None:
    if exact_match(prediction, [gold]):
        assert cover_match(prediction, [gold])
        assert f1(prediction, [gold]) == 1
    if f1(prediction, [gold]) == 0:
        assert not exact_match(prediction, [gold])


@given(words, st.lists(words, max_size=4), words)
def test_one_more_gold_answer_never_lowers_a_score(prediction: str, golds: list[str], more: str) -> None:
    assert exact_match(prediction, golds) <= exact_match(prediction, [*golds, more])
    assert cover_match(prediction, golds) <= cover_match(prediction, [*golds, more])
    assert 0 <= f1(prediction, golds) <= f1(prediction, [*golds, more]) <= 1


@given(any_text, any_text)
def test_f1_does_not_care_which_side_is_the_gold(text: str, other: str) -> None:
    assert f1(text, [other]) == pytest.approx(f1(other, [text]))


def test_a_gold_answer_is_covered_only_as_whole_words() -> None:
    assert cover_match("It was in New York, they say.", ["new york"])
    assert not cover_match("a party", ["art"])
    assert not cover_match("New Jersey and York", ["New York"])
    assert not cover_match("know", ["no"])


@pytest.mark.parametrize(
    ("text", "gold", "value"),
    [
        ("no one", "no", 0), ("yes", "yes it is", 0), ("No.", "no", 1),
        ("york york", "new york", 1 / 2), ("born in Velora city", "Velora", 2 / 5),
    ],
)  # fmt: skip
def test_f1_counts_each_word_once_and_yes_and_no_are_all_or_nothing(text: str, gold: str, value: float) -> None:
    assert f1(text, [gold]) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "gold", "words", "tokens"),
    [
        ("born in \u201cVelora\u201d", "Velora", False, True),  # Unicode punctuation sticks to a word
        ("Beyonce\u0301 sang", "Beyonc\u00e9", True, True),  # composed and decomposed accents
        ("a party", "art", False, False),
        ("1914\u20131918", "1914", False, True),
        ("the end of Barack Obama's term", "Barack Obama", False, False),
        ("It was Barack Obama.", "barack obama", True, True),
        ("anything", "The", False, False),
    ],
)
def test_the_span_check_of_s3_s_program_differs_by_tokens(text: str, gold: str, words: bool, tokens: bool) -> None:
    assert (cover_match(text, [gold]), span_match(text, [gold])) == (words, tokens)


@given(any_text | words, any_text | words)
@example("\x1b", "A\x1b")
def test_a_covered_answer_is_a_span_and_a_substring(text: str, gold: str) -> None:
    if cover_match(text, [gold]):
        # normalise drops articles, and a span is made of letters and digits: the example keeps neither.
        assert span_match(text, [gold]) or not any(letter.isalnum() for letter in normalise(gold))
        assert substring_match(text, [gold])


def test_a_bare_text_is_one_gold_answer_and_never_its_letters() -> None:
    assert Question("q", "Where?", answers="Paris", gold_ids="p1") == Question("q", "Where?", ("Paris",), ("p1",))  # type: ignore[arg-type]
    assert Question("q", "Where?", answers=iter(["Paris", "Lutetia"])).answers == ("Paris", "Lutetia")  # type: ignore[arg-type]
    assert exact_match("Paris", "Paris") and cover_match("in Paris", "Paris") and f1("Paris", "Paris") == 1.0
    assert not cover_match("a", "Paris")


@pytest.mark.parametrize("golds", [[1912], ["Paris", None], None, {"Paris": 1}])
def test_a_gold_answer_that_is_no_text_is_a_sentence(golds: object) -> None:
    for call in (lambda: exact_match("x", golds), lambda: f1("x", golds), lambda: Question("q", "Where?", golds)):  # type: ignore[arg-type]
        with pytest.raises(SettingError, match="are a text or several texts, not"):
            call()


def test_a_soft_hyphen_in_a_passage_hides_no_answer() -> None:
    text = "Der Hafen\u00admeister\u200b öffnet\ufeff um neun."
    for match in (cover_match, span_match, substring_match):
        assert match(text, ["Hafenmeister"]) and match("Hafenmeister öffnet", ["Hafen\u200bmeister"])
    assert exact_match("Hafen\u00admeister", ["Hafenmeister"]) and f1("Hafen\u00admeister", ["Hafenmeister"]) == 1
