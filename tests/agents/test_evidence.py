"""The demonstrator for real questions: it quotes what it was shown, and never answers from what it has not seen."""

import random

import pytest

from coseek.agents.actions import NOT_FOUND
from coseek.agents.scripted.evidence import LONGEST, EvidenceAgent, quotation
from coseek.agents.scripted_agent import Move
from coseek.core.files import Json
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.data.trajectory import Search
from coseek.models.model import EpisodeState
from coseek.retrieval.retrievers.bm25 import Bm25

CORPUS = Corpus([
    Passage("kiss", "Kiss and Tell (film)", "Kiss and Tell is a film. It stars Shirley Temple as Corliss Archer."),
    Passage("temple", "Shirley Temple (actress)", "Shirley Temple was an actress. She was Chief of Protocol."),
    Passage("other", "Corliss", "Corliss is a film that nobody saw."),
    Passage("rome", "Rome", "Rome was made by Romulus."),
    Passage("romulus", "Romulus", "Romulus was born in Alba Longa."),
])  # fmt: skip


def moves_of(question: Question, agent: EvidenceAgent | None = None, k: int = 1) -> list[Move]:
    agent, index = agent or EvidenceAgent(CORPUS), Bm25.over(CORPUS)
    moves: list[Move] = []
    searches: tuple[Search, ...] = ()
    while not moves or moves[-1].answer is None:
        moves.append(agent.write(EpisodeState(question, searches), random.Random(0)))
        found = index.search(moves[-1].queries, k)
        asked = zip(moves[-1].queries, found, strict=True)
        searches += tuple(Search(query, tuple(hits), turn=len(moves)) for query, hits in asked)
    return moves


def test_it_reaches_the_second_passage_by_a_title_that_the_first_one_names() -> None:
    asked = Question("q", "Who is the star of Kiss and Tell?", ("Chief of Protocol",), ("kiss", "temple"))
    first, second, last = moves_of(asked)
    assert first.queries == (" Who is the star of Kiss and Tell?",)
    assert "It stars Shirley Temple as Corliss Archer." in second.thought
    assert second.queries == (" Shirley Temple",)
    assert "She was Chief of Protocol." in last.thought
    assert last.answer == " Chief of Protocol"
    assert last.selected == ("kiss", "temple")


@pytest.mark.parametrize(
    "meta",
    [
        {"decomposition": [
            {"question": "Rome >> made by", "answer": "Romulus", "gold_id": "rome"},
            {"question": "Where was #1 born?", "answer": "Alba Longa", "gold_id": "romulus"},
        ]},
        {"path": [
            {"passage": "rome", "from": "Rome", "to": "Romulus", "written": "Romulus", "phrase": "made by",
             "back": False, "question": "What is the made by of Rome?"},
            {"passage": "romulus", "from": "Romulus", "to": "Alba Longa", "written": "Alba Longa", "phrase": "born",
             "back": False, "question": "What is the born of Romulus?"},
        ]},
    ],
)  # fmt: skip
def test_known_steps_are_searched_in_order_with_what_was_found(meta: dict[str, Json]) -> None:
    asked = Question("q", "Where was the maker of the town born?", ("Alba Longa",), ("rome", "romulus"), meta=meta)
    first, second, last = moves_of(asked)
    assert "made by" in first.queries[0]
    assert "Romulus" in second.queries[0]
    assert "born" in second.queries[0]
    assert "Rome was made by Romulus." in second.thought
    assert last.answer == " Alba Longa"


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("Where is Corliss shown?", ("temple",)),  # nothing that was read names it
        ("Who is the star of Kiss and Tell?", ("kiss", "rome")),
        ("Who is the star of Kiss and Tell?", ()),
    ],
)
def test_what_it_was_not_shown_it_does_not_answer(text: str, gold: tuple[str, ...]) -> None:
    assert moves_of(Question("q", text, ("Chief of Protocol",), gold))[-1].answer == f" {NOT_FOUND}"


def test_a_long_sentence_is_cut_around_what_it_should_say() -> None:
    long = Passage("p", "Long", f"{'word ' * 100}Romulus made it {'again ' * 100}.")
    cut = quotation(long, ["Romulus"])
    assert "Romulus made it" in cut
    assert len(cut) <= LONGEST
    assert cut in " ".join(long.text.split())


def test_a_quotation_keeps_the_end_of_its_sentence() -> None:
    at_end = Passage("p", "End", f"{'word ' * 80}directed by Harold Young.")
    assert quotation(at_end, ["Harold Young"]).endswith("directed by Harold Young.")


def test_the_answer_is_one_that_the_passage_holds() -> None:
    asked = Question("q", "Who made Rome?", ("Romulus the king", "Romulus"), ("rome",))
    assert moves_of(asked)[-1].answer == " Romulus"
