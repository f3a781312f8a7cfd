"""Statements: what is read as said of a subject, and what is not."""

import time

import pytest

from coseek.data.passage import Corpus, Passage
from coseek.lab.synthesis.graph import HopGraph

FILMS = (
    ("Red Dawn Hour", "Ada Stone", "1951"),
    ("The Long Ferry", "Bert Moss", "1952"),
    ("Night of Glass", "Cora Hill", "1953"),
    ("Paper Lions", "Dan Frost", "1954"),
)


def stated(*more: tuple[str, str]) -> dict[tuple[str, str], str]:
    """(title, phrase) → name, of four films and some more passages."""
    films = [(title, f"{title} is a {year} British film directed by {who}.") for title, who, year in FILMS]
    people = [(who, f"{who} is an English director.") for _, who, _ in FILMS]
    corpus = Corpus([Passage(f"p{row}", *each) for row, each in enumerate((*films, *people, *more))])
    graph = HopGraph(corpus)
    return {(corpus[one.row].title, one.phrase): one.name for hops in graph.hops.values() for one in hops}


def test_a_phrase_behind_the_type_is_found_without_the_words_between() -> None:
    said = stated()
    assert said["The Long Ferry", "directed by"] == "Bert Moss"
    assert {phrase for _, phrase in said} == {"directed by"}


def test_one_of_several_names_is_not_the_only_answer() -> None:
    said = stated(
        ("A Cold Coin", "A Cold Coin is a film directed by Ada Stone and Bert Moss."),
        ("Two Coins", "Two Coins is a film directed by Ada Stone, Bert Moss and Cora Hill."),
        ("Three Coins", "Three Coins is a film directed by Ada Stone. It was later directed by Bert Moss."),
    )
    assert not {title for title, _ in said} & {"A Cold Coin", "Two Coins", "Three Coins"}


def test_an_outdated_fact_is_not_told() -> None:
    said = stated(
        ("Old Coin", "Old Coin is a film, directed by Ada Stone until 1926."),
        ("Ex Coin", "Ex Coin is a film formerly directed by Ada Stone."),
    )
    assert not {title for title, _ in said} & {"Old Coin", "Ex Coin"}


def test_of_two_values_that_follow_each_other_none_is_told() -> None:
    films = [(f"{title} II", f"{title} II is a film having {who} as editor.") for title, who, _ in FILMS]
    said = stated(*films, ("New Coin", "New Coin is a film having Ada Stone as editor up to 1926 and Bert Moss now."))
    assert "New Coin" not in {title for title, _ in said}


def test_the_words_before_a_colon_do_not_tell_what_a_subject_is() -> None:
    films = [Passage(title, title, f"{title} is a film directed by {who}.") for title, who, _ in FILMS]
    coin = Passage("c", "A Coin", "A Coin is a film director: Ada Stone.")
    people = [Passage(f"d{number}", f"Gus Lake {number}", f"Gus Lake {number} is a director.") for number in range(3)]
    types = HopGraph(Corpus([*films, *people, coin])).types
    assert types["red dawn hour"] == "film"
    assert "a coin" not in types


@pytest.mark.parametrize(
    "called", ["otherwise Ada Stone", "who lives, otherwise Ada Stone", "whom some call Ada Stone"]
)
def test_a_name_between_commas_before_the_verb_is_no_fact(called: str) -> None:
    titles = ("Gus Lake", "Hal Lake", "Ian Lake", "Joe Lake")
    said = stated(*((title, f"{title}, {called} {number}, is a director.") for number, title in enumerate(titles)))
    assert not {title for title, _ in said} & {*titles}


def test_who_made_a_thing_is_no_other_name_of_it() -> None:
    films = [Passage(title, title, f"{title} is a film directed by {who}.") for title, who, _ in FILMS]
    coin = Passage("c", "Coin", "Coin, directed by Ada Stone, is a film.")
    assert HopGraph(Corpus([*films, coin])).names_of("coin") == ["Coin"]


def test_what_is_said_of_somebody_else_is_not_told_of_the_subject() -> None:
    said = stated(
        ("Eve Stone", "Eve Stone is a film. It followed Paper Lions, directed by Bert Moss."),
        ("A Play", "A Play's sequel was directed by Cora Hill."),
    )
    assert not {title for title, phrase in said if phrase == "directed by"} & {"Eve Stone", "A Play"}


def test_a_name_that_belongs_to_a_longer_name_is_not_taken_for_a_title() -> None:
    said = stated(("Moss Film", "Moss Film is a film directed by Bert Moss Junior."))
    assert said["Moss Film", "directed by"] == "Bert Moss Junior"


def test_a_second_name_leads_to_the_same_subject() -> None:
    films = [Passage(title, title, f"{title} is a film directed by {who}.") for title, who, _ in FILMS]
    graph = HopGraph(Corpus([*films, Passage("p", "Gus Lake", "Gus Lake, also known as Ada Stone, is a director.")]))
    assert [hop.key for hop in graph.hops["red dawn hour"]] == ["gus lake"]
    assert graph.names_of("gus lake") == ["Gus Lake", "Ada Stone"]


@pytest.mark.slow
def test_a_hostile_passage_takes_linear_time() -> None:
    hostile = ("(" * 50_000, "A " * 50_000, "a X of " * 20_000, "Ab'" * 30_000, ". " * 50_000, "a b X " * 20_000)
    began = time.process_time()
    stated(*((f"Title {row}", f"Title {row} is a film {text}") for row, text in enumerate(hostile)))
    assert time.process_time() - began < 20
