"""Fears about a model that ranks: a passage that forges a number, an answer that loses a passage, a silent failure."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scripted import Scripted

from coseek.core.errors import RetrieverError
from coseek.core.prompt_file import load_prompt
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index
from coseek.retrieval.llm import LISTWISE_FIELDS, PROMPTS, ListwisePrompt, fill_listwise_prompt, parse_ranking
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.listwise import ListwiseReranker, ListwiseSettings

PROMPT = load_prompt(ListwisePrompt, "listwise", Path(), LISTWISE_FIELDS, PROMPTS)
CORPUS = Corpus(Passage(f"p{worth:02}", f"Passage {worth}", f"It is worth {worth} points.") for worth in range(40))
IDS = [passage.id for passage in CORPUS]
CANDIDATES = FixedRetriever(CORPUS, {"q": IDS, "few": ["p03", "p07"], "one": ["p05"]})


def by_worth(prompt: str) -> str:
    """A ranker that is always right: more points first."""
    shown = re.findall(r"^\[(\d+)\] .* worth (\d+) points", prompt, flags=re.MULTILINE)
    ranked = sorted(shown, key=lambda row: -int(row[1]))
    return " > ".join(f"[{number}]" for number, _ in ranked)


def listwise(says: Callable[[str], str], fault: str = "", **given: object) -> tuple[ListwiseReranker, Scripted]:
    model = Scripted(says, fault)
    tree = {"over": "-", "model": "-", "depth": 40, **given}
    return ListwiseReranker(CANDIDATES, make_settings(ListwiseSettings, tree), model, PROMPT), model


def test_numbers_in_brackets_are_places_in_order() -> None:
    assert parse_ranking("[2] > [3] > [1]", 3).order == (1, 2, 0)
    assert parse_ranking("Here you are: [2],[1] [3].", 3).order == (1, 0, 2)


def test_passages_that_are_not_named_keep_their_order_behind_the_others() -> None:
    reading = parse_ranking("[4] > [2]", 5)
    assert reading.order == (3, 1, 0, 2, 4)
    assert (reading.missing, reading.repeated, reading.invented) == (3, 0, 0)


def test_repeated_and_invented_numbers_are_passed_over_and_counted() -> None:
    reading = parse_ranking("[2] > [2] > [9] > [0] > [1]", 2)
    assert reading.order == (1, 0)
    assert (reading.missing, reading.repeated, reading.invented) == (0, 1, 2)


@pytest.mark.parametrize("answer", ["", "2 > 1 > 3", "I cannot tell.", "[] > [x] > [-1]", "[７]", "[99999999999999]"])
def test_an_answer_that_names_nothing_keeps_the_order(answer: str) -> None:
    reading = parse_ranking(answer, 3)
    assert reading.order == (0, 1, 2)
    assert reading.unreadable


def test_thinking_aloud_is_not_the_ranking() -> None:
    assert parse_ranking("[1] is off topic, and so is [2]; but [3] helps.\n[3] > [2] > [1]", 3).order == (2, 1, 0)
    assert parse_ranking("First I wrote [1] > [2] > [3]. No: [3] > [1] > [2]", 3).order == (2, 0, 1)


@given(st.text(st.sampled_from("[]0123456789 >,\nx"), max_size=60) | st.text(max_size=40), st.integers(0, 12))
def test_any_answer_gives_every_passage_one_place(answer: str, count: int) -> None:
    reading = parse_ranking(answer, count)
    assert sorted(reading.order) == list(range(count))
    assert 0 <= reading.missing <= count


@given(st.permutations(range(8)), st.sampled_from([" > ", ">", ", ", " ", "\n"]))
def test_a_whole_ranking_is_read_as_it_was_written(order: list[int], joint: str) -> None:
    assert parse_ranking(joint.join(f"[{place + 1}]" for place in order), 8).order == tuple(order)


@given(st.lists(st.text(st.sampled_from("[]0123456789 x\n{}"), max_size=30), min_size=3, max_size=3))
def test_a_passage_or_a_query_cannot_forge_a_number_or_a_line(texts: list[str]) -> None:
    title, text, query = texts
    shown = fill_listwise_prompt(PROMPT, query, [Passage("a", title, text), Passage("b", "", "fine")], 100)
    plain = fill_listwise_prompt(PROMPT, "", [Passage("a", "", ""), Passage("b", "", "fine")], 100)
    numbers = r"\[\s*\d+\s*\]"
    assert re.findall(numbers, shown) == re.findall(numbers, plain)
    assert shown.count("\n") == plain.count("\n")


def test_a_model_that_is_always_right_brings_the_best_to_the_front() -> None:
    retriever, model = listwise(by_worth)
    found = retriever.search(["q"], 10)[0]
    assert [hit.passage.id for hit in found] == list(reversed(IDS))[:10]
    assert [hit.score for hit in found] == [1 / rank for rank in range(1, 11)]
    assert len(model.calls) == retriever.stats.windows == 3
    assert retriever.stats.unreadable == retriever.stats.missing == 0


def test_queries_together_are_ranked_as_they_are_alone_in_as_few_calls() -> None:
    retriever, model = listwise(by_worth)
    together = retriever.search(["few", "q", "one", "nothing"], 5)
    assert len(model.calls) == 3
    assert together == [retriever.search([query], 5)[0] for query in ("few", "q", "one", "nothing")]
    assert [hit.passage.id for hit in together[0]] == ["p07", "p03"]


def test_an_answer_that_is_no_ranking_keeps_the_order_and_is_counted() -> None:
    retriever, _ = listwise(lambda prompt: "No idea.")
    assert [hit.passage.id for hit in retriever.search(["q"], 40)[0]] == IDS
    assert retriever.stats.unreadable == retriever.stats.windows == 3


def test_a_model_that_fails_fails_the_search() -> None:
    retriever, _ = listwise(by_worth, fault="out of memory")
    with pytest.raises(RetrieverError, match="the model of the retriever listwise failed: out of memory"):
        retriever.search(["q"], 3)


def test_the_identity_knows_prompt_model_and_settings() -> None:
    first, model = listwise(by_worth)
    kinds = {first.identity, listwise(by_worth, window=8, step=4)[0].identity}
    other = PROMPT.model_copy(update={"prompt": "{passages} {query}"})
    kinds.add(ListwiseReranker(CANDIDATES, first.settings, model, other).identity)
    kinds.add(ListwiseReranker(CANDIDATES, first.settings, Scripted(by_worth, identity="another"), PROMPT).identity)
    assert len(kinds) == 4
    assert listwise(by_worth)[0].identity in kinds


def test_a_yaml_file_with_a_prompt_of_ones_own(tmp_path: Path) -> None:
    CORPUS.save(tmp_path / "corpus.jsonl")
    build_index(tmp_path, "bm25", tmp_path / "bm25")
    (tmp_path / "mine.yaml").write_text("prompt: '{passages} Rank for {query}:'\npassage: '<{number}> {text} '\n")
    lines = "retriever: listwise\nover: bm25\nmodel: judge\nprompt: mine.yaml\n"
    (tmp_path / "ranked.yaml").write_text(lines)
    model = Scripted(lambda prompt: "[2] > [1]")
    retriever = open_retriever(tmp_path / "ranked.yaml", model=lambda name: model)
    plain = open_retriever(tmp_path / "bm25").search(["worth 7 points"], 2)[0]
    assert [hit.passage.id for hit in retriever.search(["worth 7 points"], 2)[0]][1] == plain[0].passage.id
    assert model.calls[-1][0].endswith("Rank for worth 7 points:")
