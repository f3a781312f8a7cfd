"""Names that change places: every copy is answered by its own passages, and nothing is renamed by halves."""

import random

import pytest

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, gold_path
from coseek.data.trajectory import Search
from coseek.lab.agents.expert import PERFECT, ExpertAgent
from coseek.lab.synthesis.renaming import rename
from coseek.models.model import EpisodeState
from coseek.retrieval.retrievers.bm25 import Bm25

FILMS = (("Pale Horizon", "Ada Moss", "3 May 1911"), ("The Tin Kite", "Ben Orrery", "1 June 1904"),
         ("Nine Doors (Film)", "Cleo Voss", "9 July 1899"))  # fmt: skip

LIKE = "Ada Mossberg"
"""Begins with a name that changes places."""


def step(passage: str, source: str, target: str, phrase: str) -> JsonObject:
    question = f"What is the {phrase} of {source}?"
    return {"passage": passage, "from": source, "to": target, "phrase": phrase, "back": False, "question": question}


def films() -> tuple[Corpus, list[Question]]:
    passages, questions = [Passage("other", LIKE, f"{LIKE} is no relation of Ada Moss.")], []
    for film, person, born in FILMS:
        plain = film.removesuffix(" (Film)")
        passages.append(
            Passage(film, film.replace("(F", "(f"), f"{plain} is a film by {person}. Few saw {plain.lower()}.")
        )
        passages.append(Passage(person, person, f"{person} (born {born}) made films. {LIKE} saw them."))
        path = [step(film, film, person, "director"), step(person, person, born, "date of birth")]
        text = f"When was the director of film {film} born?"
        questions.append(Question(f"q {film}", text, (born,), (film, person), 2, {"path": [*path]}))
    return Corpus(passages), questions


def exchanged() -> tuple[Corpus, list[Question]]:
    """Copies of the first seed that leaves no name where it was."""
    corpus, questions = films()
    for seed in range(50):
        renamed, copies = rename(corpus, questions, seed)
        if all(
            gold_path(new)[0].source != gold_path(old)[0].source for new, old in zip(copies, questions, strict=True)
        ):
            return renamed, copies
    raise AssertionError("no seed moves every film")


def test_a_copy_is_answered_by_its_own_passages_and_a_name_inside_another_stays() -> None:
    corpus, copies = exchanged()
    assert corpus.by_id("other") == films()[0].by_id("other")  # of no path
    for new in copies:
        first, second = gold_path(new)
        assert first.source in new.question and first.source in first.question
        title, text = (getattr(corpus.by_id(first.passage), name) for name in ("title", "text"))
        assert title.casefold() == first.source.casefold() and first.target == second.source
        plain = first.source.removesuffix(" (Film)")
        assert text == f"{plain} is a film by {first.target}. Few saw {plain}."
        assert (
            corpus.by_id(second.passage).text == f"{second.source} (born {new.answers[0]}) made films. {LIKE} saw them."
        )


def test_the_expert_reads_the_new_names() -> None:
    corpus, copies = exchanged()
    index, expert = Bm25.over(corpus), ExpertAgent(PERFECT.model_copy(update={"question_first": 1.0}))
    for new in copies:
        searches: tuple[Search, ...] = ()
        while (move := expert.write(EpisodeState(new, searches), random.Random(0))).answer is None:
            hits = index.search(move.queries, 2)
            searches += tuple(Search(query, tuple(shown)) for query, shown in zip(move.queries, hits, strict=True))
        assert move.answer.strip() == new.answers[0] and len(searches) <= 3


def test_a_seed_gives_the_same_copies_again_with_ids_of_their_own() -> None:
    (corpus, questions), seen = films(), set[str]()
    for seed in (1, 2):
        first, again = rename(corpus, questions, seed), rename(corpus, questions, seed)
        assert [*first[0]] == [*again[0]] and first[1] == again[1]
        seen |= {copy.id for copy in first[1]}
    assert len(seen) == 2 * len(questions) and not seen & {question.id for question in questions}
    hidden = Question("hidden", "When was its director born?", ("x",), (), 2, questions[0].meta)
    assert len(rename(corpus, [*questions, hidden], 1)[1]) == len(questions)  # its name cannot be found again
    with pytest.raises(DataError, match="no training question has a gold path"):
        rename(corpus, [Question("q", "Who?", ("a",))], 1)
