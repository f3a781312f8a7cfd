"""Fears about models that reason first, in front of every part that asks one: what they weighed is taken for what they
say."""

import json
from collections.abc import Callable

import pytest
from tests.scripted import Scripted

from coseek.graders.generator import Generator, GeneratorPrompt, GeneratorSettings
from coseek.graders.ranker import read_order
from coseek.graders.structured_output import Unreadable, read_lines, read_scores
from coseek.lab.synthesis.proposals import read_proposals
from coseek.retrieval.llm import parse_ranking
from coseek.retrieval.retrievers.simulated import parse_documents

MARKS = [("<think>", "</think>"), ("", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>")]


def _proposed(question: str) -> str:
    return json.dumps({"questions": [{"question": question, "answer": "Ada"}]})


def written_question(text: str) -> object:
    found = read_proposals(text, 3)
    return found if isinstance(found, Unreadable) else [one.question for one in found]


def answer(text: str) -> object:
    prompt = GeneratorPrompt(prompt="{question}{passages}", passage="{text}", answer="first_line")
    return Generator(Scripted(str), prompt, GeneratorSettings(model="-")).read(text).answer


@pytest.mark.parametrize("marks", MARKS, ids=str)
@pytest.mark.parametrize(
    ("read", "thought", "said", "wanted"),
    [
        (lambda text: read_order(text, 2), "[2] > [1] > [2]", "[1] > [2]", (0, 1)),
        (lambda text: parse_ranking(text, 2).order, "[2] > [1] > [2]", "[1] > [2]", (0, 1)),
        (lambda text: read_scores(text, 2), "[1] 3 [2] 9", "[1] 70 [2] 5", (70, 5)),
        (lambda text: read_lines(text, 1), "[1] Veld", "[1] Karst", ("Karst",)),
        (lambda text: [one.text for one in parse_documents(text, 2)], "Document 1: Veld\nno", "Document 1: Karst\nyes",
         ["yes"]),
        (written_question, _proposed("Who was Veld?"), _proposed("Who was Karst?"), ["Who was Karst?"]),
        (answer, "Veld, perhaps", "Karst", "Karst"),
    ],
)  # fmt: skip
def test_what_a_model_weighed_is_not_what_it_says(
    read: Callable[[str], object], thought: str, said: str, wanted: object, marks: tuple[str, str]
) -> None:
    opening, closing = marks
    assert read(f"{opening}{thought}{closing}\n\n{said}") == wanted
    assert read(said) == wanted
