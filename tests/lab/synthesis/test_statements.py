"""Statements: what is read as said of a subject, what is not, and how it is asked."""

import time

import pytest

from coseek.data.passage import Corpus, Passage
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.synthesis.graph import HopGraph
from coseek.lab.synthesis.statements import StatementWriter

FILMS = (
    ("Red Dawn Hour", "Ada Stone", "1951"),
    ("The Long Ferry", "Bert Moss", "1952"),
    ("Night of Glass", "Cora Hill", "1953"),
    ("Paper Lions", "Dan Frost", "1954"),
)


def questions_from(*more: tuple[str, str], hops: int = 1) -> dict[str, str]:
    """Question → answer, of four films, their directors and some more passages."""
    films = [(title, f"{title} is a {year} British film directed by {who}.") for title, who, year in FILMS]
    people = [(who, f"{who} is an English director.") for _, who, _ in FILMS]
    graph = HopGraph(Corpus([Passage(f"p{row}", *each) for row, each in enumerate((*films, *people, *more))]))
    batches = StatementWriter(graph).propose(graph, hops, SynthesisSettings())
    return {proposal.question: proposal.answer for batch in batches for proposal in batch}


def test_a_phrase_after_the_type_is_asked_for_with_the_type_of_its_value() -> None:
    questions = questions_from()
    assert questions["Which director was The Long Ferry directed by?"] == "Bert Moss"
    assert len(questions) == len(FILMS)


def test_a_name_leads_to_its_own_passage() -> None:
    born = ("Eve Lake", "Eve Lake (born 4 May 1901) is an English director, raised in Ulm.")
    questions = questions_from(born, ("Coin", "Coin is a film directed by Eve Lake."), hops=2)
    assert questions == {
        "Coin was directed by a director. When was this director born?": "4 May 1901",
        "Coin was directed by a director. What was this director raised in?": "Ulm",
    }


@pytest.mark.parametrize(
    "text",
    [
        "A Coin is a film directed by Ada Stone and Bert Moss.",
        "A Coin is a film directed by Ada Stone, Bert Moss and Cora Hill.",
        "A Coin is a film directed by Ada Stone. It was directed by Bert Moss.",
        "A Coin is a film, directed by Ada Stone until 1926.",
        "A Coin is a film formerly directed by Ada Stone.",
        "A Coin is a film. It followed Paper Lions, directed by Bert Moss.",
        "A Coin's sequel was directed by Cora Hill.",
        "A Coin, otherwise Ada Stone, is a film.",
    ],
)
def test_what_is_outdated_of_several_or_of_another_is_not_asked(text: str) -> None:
    assert not [question for question in questions_from(("A Coin", text)) if "A Coin" in question]


def test_after_a_noun_a_clause_may_be_about_another() -> None:
    questions = questions_from(("Eve Lake", "Eve Lake was the wife of Otto Frost, born in Ulm."))
    assert questions["What was Eve Lake the wife of?"] == "Otto Frost"
    assert not [question for question in questions if "born" in question]


def test_a_name_that_begins_with_a_title_is_taken_whole() -> None:
    questions = questions_from(("Moss Film", "Moss Film is a film directed by Bert Moss Junior."))
    assert questions["What was Moss Film directed by?"] == "Bert Moss Junior"


@pytest.mark.slow
def test_a_hostile_passage_takes_linear_time() -> None:
    hostile = ("(" * 50_000, "A " * 50_000, "a X of " * 20_000, "Ab'" * 30_000, ". " * 50_000, "a b X " * 20_000)
    began = time.process_time()
    questions_from(*((f"Title {row}", f"Title {row} is a film {text}") for row, text in enumerate(hostile)))
    assert time.process_time() - began < 20
