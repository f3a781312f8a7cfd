"""Fears about the ceiling: a gold passage not first, a passage twice, an unknown question that is not reported."""

from pathlib import Path

import pytest

from coseek.core.errors import SettingError
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, save_questions
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.index import build_index
from coseek.retrieval.query import Query
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.gold import GoldRetriever

CORPUS = Corpus(Passage(str(row), "", f"text {row}") for row in range(9))


def over(tmp_path: Path, *questions: Question, within: int | None = None) -> GoldRetriever:
    CORPUS.save(tmp_path / "corpus.jsonl")
    save_questions(tmp_path / "questions.test.jsonl", questions)
    fixed = FixedRetriever(CORPUS, {"q": ["5", "2", "6"], "later": ["7", "1"]})
    return GoldRetriever(fixed, Dataset(tmp_path), within)


def ids(retriever: GoldRetriever, query: str | Query, k: int) -> list[str]:
    return [hit.passage.id for hit in retriever.search([query], k)[0]]


def test_gold_passages_come_first_and_once(tmp_path: Path) -> None:
    gold = over(tmp_path, Question("1", "q", ("a",), ("1", "2")))
    assert ids(gold, "q", 1) == ["1"]
    assert ids(gold, "q", 3) == ["1", "2", "5"]
    assert ids(gold, Query("later", question="q"), 3) == ["1", "2", "7"]
    assert gold.seen(Query("later", question="q")) != gold.seen("later")
    assert gold.shortfalls[0].count == 0


def test_a_perfect_ranker_shows_no_passage_that_the_first_stage_missed(tmp_path: Path) -> None:
    gold = over(tmp_path, Question("1", "q", ("a",), ("1", "2", "6")), within=2)
    assert ids(gold, "q", 1) == ["2"]
    assert ids(gold, "q", 3) == ["2", "5", "6"]
    assert gold.identity != over(tmp_path, Question("1", "q", ("a",), ("1", "2", "6"))).identity


def test_settings_in_braces_open_it_over_an_index(tmp_path: Path) -> None:
    over(tmp_path, Question("1", "q", ("a",), ("1",)))
    build_index(tmp_path, "bm25", tmp_path / "bm25")
    typed = f"{{retriever: gold, over: {tmp_path / 'bm25'}, data: {tmp_path}, within: 9}}"
    assert open_retriever(typed).search([Query("text 4", question="q")], 1)[0][0].passage.id == "1"


def test_a_question_that_is_not_known_is_counted(tmp_path: Path) -> None:
    gold = over(tmp_path, Question("1", "q", ("a",), ("1",)))
    assert ids(gold, "later", 2) == ["7", "1"]
    assert (gold.shortfalls[0].count, gold.shortfalls[0].total) == (1, 1)


def test_questions_without_gold_passages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no question of"):
        over(tmp_path, Question("1", "q", ("a",)))
