"""Labels from a data set alone: the steps of gold paths, and the words of passages."""

from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.core.files import JsonObject
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.lab.synthesis.settings import SynthesisSettings
from coseek.lab.synthesis.synthesis import synthesize
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.training.encoder.examples import is_held_out, passage_labels, question_labels


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Questions made from the passages of a world."""
    folder = tmp_path_factory.mktemp("labels")
    make_world(WorldSettings(size="tiny", train=0, dev=0, test=0)).corpus.save(folder / "in" / "corpus.jsonl")
    synthesize(folder / "in", folder / "out", SynthesisSettings(count=40))
    return Dataset(folder / "out")


def test_every_step_of_a_path_finds_its_passage_and_no_negative_holds_what_it_asks_for(data: Dataset) -> None:
    corpus, questions = data.corpus, data.questions("train")
    labels = question_labels(questions, corpus, Bm25.over(corpus), 12)
    assert len(labels) > 2 * len(questions)
    for question in questions:
        own = {one.query.text: one for one in labels if one.turn.question_id == question.id}
        assert own[question.question].positive == question.gold_ids[0]
        for step in cast(list[JsonObject], question.meta["path"]):
            label = own[str(step["question"])]
            assert label.positive == step["passage"]
            sought = " ".join(words(str(step["to"])))
            for ident in label.negatives:
                one = corpus.by_id(ident)
                assert ident not in question.gold_ids
                assert f" {sought} " not in f" {' '.join(words(f'{one.title} {one.text}'))} "


def test_a_question_of_people_has_each_gold_passage_as_a_positive_and_one_without_any_gives_none() -> None:
    corpus = Corpus(Passage(str(row), "", f"herons number {row} wait in shallow water") for row in range(6))
    asked = [Question("a", "where do herons wait?", ("water",), ("1", "4")), Question("b", "who?", ("x",))]
    labels = question_labels(asked, corpus, Bm25.over(corpus), 4)
    assert [(one.turn.question_id, one.positive) for one in labels] == [("a", "1"), ("a", "4")]
    assert not labels[0].negatives, "every other passage holds the answer, too"


def test_the_words_of_a_query_are_taken_out_of_its_passage_and_only_there() -> None:
    corpus = Corpus(
        Passage(
            f"p{row}", f"Birds › How herons of kind {row} fish",
            f"The heron of kind {row} waits in shallow water. Its nest number {row} is built in a tall old tree.",
        )
        for row in range(12)
    )  # fmt: skip
    labels = passage_labels(list(corpus), Bm25.over(corpus), 5, seed=0)
    assert len(labels) == 12
    kinds = set()
    for label in labels:
        whole, less = corpus.by_id(label.positive), label.passage(label.positive)
        assert label.query.text in f"{whole.title} {whole.text}"
        assert label.query.text not in f"{less.title} {less.text}"
        kinds.add(less.title == whole.title)
        assert all(label.passage(ident) == corpus.by_id(ident) for ident in label.negatives)
    assert kinds == {True, False}, "headings and sentences"


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=200)), min_size=1, max_size=8), st.integers(0, 9))
def test_any_text_gives_a_label_or_none_and_never_one_without_words(rows: list[tuple[str, str]], seed: int) -> None:
    corpus = Corpus(Passage(str(row), title, text) for row, (title, text) in enumerate(rows))
    for label in passage_labels(list(corpus), Bm25.over(corpus), 3, seed):
        less = label.passage(label.positive)
        assert words(label.query.text) and words(less.text)
        assert (less.title, less.text) != (corpus.by_id(less.id).title, corpus.by_id(less.id).text)


def test_passages_of_one_document_are_held_out_together() -> None:
    parts = [Passage(str(row), "", "x", meta={"path": f"{row // 3}.md"}) for row in range(300)]
    held = [is_held_out(one, 0.3, 0) for one in parts]
    assert all(held[row] == held[row - row % 3] for row in range(300))
    assert 15 <= sum(held[::3]) <= 45


def test_labels_do_not_depend_on_the_run(data: Dataset, tmp_path: Path) -> None:
    bm25 = Bm25.over(data.corpus)
    first, second = (passage_labels(list(data.corpus), bm25, 4, seed=3) for _ in range(2))
    assert first == second
