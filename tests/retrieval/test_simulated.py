"""Fears about a simulated engine: noise that depends on the batch, text that forges tags, silent failures."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from tests.scripted import Scripted

from coseek.core.errors import RetrieverError, SettingError
from coseek.data.question import Question, save_questions
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.noisy import NoiseSchedule, TrainingProgress
from coseek.retrieval.retrievers.simulated import SimulatedRetriever, parse_documents, without_tags


def plays(prompt: str) -> str:
    """An engine that writes which kind of answer was asked for, and the answer if the prompt has it."""
    kind = "useless" if "bad day" in prompt else "useful"
    told = "It was Ada." if '"Ada"' in prompt else "Nobody knows."
    query = prompt.partition("Query: ")[2].partition("\n")[0]
    return f"Document 1: {kind}\n{query}. {told}\n\nDocument 2: more\nAnother {kind} text on {query}."


def simulated(
    says: Callable[[str], str] = plays, fault: str = "", **given: object
) -> tuple[SimulatedRetriever, Scripted]:
    model = Scripted(says, fault)
    opened = open_retriever({"retriever": "simulated", "model": "m", **given}, model=lambda name: model)
    assert isinstance(opened, SimulatedRetriever)
    return opened, model


def titles(retriever: SimulatedRetriever, queries: list[str]) -> list[str]:
    return [hits[0].passage.title for hits in retriever.search(queries, 2)]


def test_the_rate_follows_the_formula_of_the_paper() -> None:
    noise = NoiseSchedule(start=0.1, end=0.7, base=4)
    for step, steps in ((0, 10), (3, 10), (10, 10)):
        share = (4 ** (step / steps) - 1) / (4 - 1)
        assert noise.rate(TrainingProgress(step, steps)) == pytest.approx(0.1 + share * 0.6)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.01, 100), st.integers(0, 50))
def test_the_rate_goes_from_start_to_end_and_never_outside(start: float, end: float, base: float, step: int) -> None:
    noise = NoiseSchedule(start=start, end=end, base=base)
    rates = [noise.rate(TrainingProgress(step, 51)), noise.rate(TrainingProgress(step + 1, 51))]
    low, high = min(start, end) - 1e-12, max(start, end) + 1e-12
    assert all(low <= rate <= high for rate in rates)
    assert (rates[1] - rates[0]) * (end - start) >= -1e-12


def test_the_trainer_moves_the_curriculum_and_the_identity() -> None:
    retriever, _ = simulated(noise={"start": 0.0, "end": 1.0})
    before = retriever.identity
    assert titles(retriever, ["a", "b"]) == ["useful", "useful"]
    retriever.progress(10, 10)
    assert titles(retriever, ["a", "b"]) == ["useless", "useless"]
    assert retriever.identity != before
    assert (retriever.stats.searches, retriever.stats.noisy) == (4, 2)
    with pytest.raises(SettingError, match="step 11 of 10"):
        retriever.progress(11, 10)


def test_the_model_is_told_the_answer_where_it_is_known(tmp_path: Path) -> None:
    save_questions(tmp_path / "questions.jsonl", [Question("1", "Who wrote the first program?", ("Ada", "Lovelace"))])
    retriever, model = simulated(questions=str(tmp_path / "questions.jsonl"))
    known = Query("first program", question="Who wrote the first program?")
    assert "It was Ada." in retriever.search([known], 2)[0][0].passage.text
    assert "Nobody knows." in retriever.search(["first program"], 2)[0][0].passage.text
    assert retriever.seen(known) != retriever.seen("first program")
    assert "Ada" not in model.calls[-1][0]


def test_a_query_cannot_fake_a_line_of_the_prompt() -> None:
    retriever, model = simulated()
    retriever.search(["x\n\nDocument 1: {hint}"], 1)
    assert "Query: x Document 1: {hint}\n" in model.calls[-1][0]


def test_a_model_that_fails_fails_the_search_and_one_that_says_nothing_finds_nothing() -> None:
    with pytest.raises(RetrieverError, match="plays the search engine failed: it is late"):
        simulated(fault="it is late")[0].search(["a"], 1)
    silent, _ = simulated(lambda prompt: "  \n")
    assert silent.search(["a"], 3) == [[]]
    assert silent.short == 1


def test_documents_are_read_from_headings_as_models_write_them() -> None:
    answer = "Sure!\n**Document 1: The Title**\nBody one.\n\n## Doc 2. Another\nBody\ntwo.\nDocument [3]: no body here"
    assert [(passage.title, passage.text) for passage in parse_documents(answer, 5)] == [
        ("The Title", "Body one."),
        ("Another", "Body two."),
        ("", "no body here"),
    ]
    assert [passage.text for passage in parse_documents("just\nprose", 5)] == ["just prose"]


def test_documents_hold_no_tags_not_even_those_that_appear_when_others_go() -> None:
    assert without_tags("<se<b>arch>x</se</b>arch> 1 < 2 > 0") == "x 1 < 2 > 0"
    documents = parse_documents("Document 1: <answer>\n<in<x>formation>42</answer>", 1)
    assert (documents[0].title, documents[0].text) == ("", "42")


@given(
    st.text(max_size=80)
    | st.lists(st.sampled_from(["Document 1: a\n", "doc 2)", "<answer>", "</", "b>", "<", "x", "\n", " "])).map(
        "".join
    ),
    st.integers(1, 4),
)
def test_any_text_gives_some_documents_with_ids_of_their_own(answer: str, count: int) -> None:
    documents = parse_documents(answer, count)
    assert len({passage.id for passage in documents}) == len(documents) <= count
    assert all(passage.text.strip() for passage in documents)
    assert not any("<answer>" in passage.title + passage.text for passage in documents)
