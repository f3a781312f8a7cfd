"""Passages, corpora, questions, data sets: what is read comes back, and what is wrong is named."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most

from coseek.core.errors import DataError
from coseek.core.files import JsonObject
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question, load_questions

text = st.text(max_size=12)


def write(path: Path, *rows: JsonObject) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@given(text, text.filter(lambda title: "\n" not in title), text)
def test_a_passage_can_be_read_back_from_its_contents(ident: str, title: str, body: str) -> None:
    passage = Passage(ident, title, body)
    assert Passage.from_json({"id": ident, "contents": passage.contents}) == passage
    assert Passage.from_json(passage.to_json()) == passage


def test_contents_without_a_title_line_are_all_body() -> None:
    assert Passage.from_json({"id": 7, "contents": "just text"}) == Passage("7", "", "just text")
    assert Passage.from_json({"id": "a", "contents": "Bare title\nbody"}) == Passage("a", "Bare title", "body")


@pytest.mark.parametrize(("row", "says"), [({}, "needs an"), ({"id": "a"}, "neither")])
def test_a_passage_that_lacks_something_is_named(row: JsonObject, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Passage.from_json(row)


def test_a_corpus_keeps_order_and_finds_by_id(tmp_path: Path) -> None:
    corpus = Corpus([Passage("b", "B", "x"), Passage("a", "A", "y")])
    corpus.save(tmp_path / "corpus.jsonl")
    again = Corpus.load(tmp_path / "corpus.jsonl")
    assert list(again) == list(corpus)
    assert again.by_id("a").title == "A"
    assert again[0].id == "b" and not again.has("c")
    assert again.digest == corpus.digest


@given(st.lists(st.tuples(text, text, text), min_size=1, max_size=4, unique_by=lambda row: row[0]), st.randoms())
@settings(max_examples=at_most(60))
def test_a_digest_belongs_to_one_corpus(rows: list[tuple[str, str, str]], rng: random.Random) -> None:
    digest = Corpus(Passage(*row) for row in rows).digest
    at = rng.randrange(len(rows))
    changed = [*rows]
    changed[at] = (rows[at][0], rows[at][1] + rows[at][2], "")
    if changed != rows:
        assert Corpus(Passage(*row) for row in changed).digest != digest
    if len(rows) > 1:
        assert Corpus(Passage(*row) for row in reversed(rows)).digest != digest


def test_golden_answers_are_read_as_answers(tmp_path: Path) -> None:
    path = write(tmp_path / "q.jsonl", {"id": 1, "question": "?", "golden_answers": ["x"]})
    assert load_questions(path) == [Question("1", "?", ("x",))]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "no questions"),
        ([{"id": "a", "question": "?"}] * 2, "'a' twice"),
        ([{"question": "?"}], "line 1: a question needs 'id'"),
        ([{"id": "a"}], "needs 'question'"),
        ([{"id": "a", "question": "?", "gold_ids": "x"}], "is a list"),
        ([{"id": "a", "question": "?", "hops": "two"}], "whole number"),
        ([{"id": "a", "question": "?", "answer": ["x"]}], "line 1: a question has no 'answer'; did you mean 'answers'"),
        ([{"id": "a", "questions": "?"}], "did you mean 'question'"),
        ([{"id": "a", "question": "?", "gold_id": ["x"]}], "did you mean 'gold_ids'"),
        ([{"id": "a", "question": None}], "a question needs 'question'"),
        ([{"id": None, "question": "?"}], "a question needs 'id'"),
        ([{"id": "a", "question": "?", "answers": [None]}], "line 1: question 'a': 'answers' holds null"),
    ],
)
def test_a_bad_question_file_is_one_sentence(rows: list[JsonObject], says: str, tmp_path: Path) -> None:
    path = write(tmp_path / "questions.dev.jsonl", *rows)
    with pytest.raises(DataError, match=says):
        load_questions(path)


def test_other_keys_are_passed_over_beside_those_that_are_known() -> None:
    row: JsonObject = {"id": 7, "question": "?", "golden_answers": [1815], "answer": "x", "metadata": {}, "idx": 1}
    assert Question.from_json({**row, "question_id": "q"}) == Question("7", "?", ("1815",))


def test_a_data_set_offers_its_splits_and_checks_gold_passages(tmp_path: Path) -> None:
    write(tmp_path / "corpus.jsonl", {"id": "a", "text": ""})
    write(tmp_path / "questions.dev.jsonl", {"id": "q", "question": "?", "gold_ids": ["a"]})
    write(tmp_path / "questions.test.jsonl", {"id": "q", "question": "?", "gold_ids": ["zun"]})
    data = Dataset(tmp_path)
    assert data.splits == ["dev", "test"]
    assert [question.id for question in data.questions("dev")] == ["q"]
    with pytest.raises(DataError, match="gold passage 'zun'"):
        data.questions("test")
    with pytest.raises(DataError, match="did you mean 'dev'"):
        data.questions("dve")


def test_a_data_folder_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no data folder"):
        Dataset(tmp_path / "none")
