"""The name of what a passage is about, found in its text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.agents.scripted.rules import heading, opening_name, with_subject
from coseek.data.passage import Passage


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("# Opening hours\n\nWe open at nine.", "Opening hours"),
        ("Devotion (1929 film)\nDevotion is a German film.", "Devotion (1929 film)"),
        ("We open at nine.\nWe close at six.", ""),
        ("name | hours\nshop | nine", ""),
        ("The Garry Moore Show is the name of several series.", "Garry Moore Show"),
        ("In the Church of England, courts formerly decided.", "Church of England"),
        ("M. Ward (born 1973) is a singer.", "M. Ward"),
        ("Ed Wood. Ed Wood is a 1994 film.", "Ed Wood"),
        ("1998 was a year.", ""),
        ("nothing here is a name", ""),
        ("", ""),
    ],
)
def test_a_passage_without_a_title_has_the_name_that_its_text_shows(text: str, subject: str) -> None:
    assert with_subject(Passage("p", " ", text)).title == subject


def test_a_title_is_never_replaced() -> None:
    passage = Passage("p", "The title", "# Another heading\n\nText.")
    assert with_subject(passage) is passage


@given(st.text(alphabet="Ab 1.\n#|(’é黑", max_size=60))
def test_a_subject_is_made_of_words_of_its_text(text: str) -> None:
    for found in (heading(text), opening_name(text)):
        assert set(found.split()) <= {part for word in text.split() for part in _ways(word)}


def _ways(word: str) -> set[str]:
    """A word of a text, whole, and as marks around it leave it."""
    return {word[start:end] for start in range(len(word)) for end in range(start + 1, len(word) + 1)}
