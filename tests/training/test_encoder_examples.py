"""Which rows a retriever learns from, and when; and the labels that a data set alone gives."""

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from hypothesis import given, strategies as st
from sentence_transformers import SentenceTransformer
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.tiny_labels import label, write_labels
from torch import Tensor

from coseek.core.errors import DataError, SettingError
from coseek.core.files import JsonObject
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus, Passage
from coseek.data.question import Question
from coseek.lab.parts.synthesis import SynthesisSettings
from coseek.lab.parts.synthetic import KINDS, SyntheticSettings, synthetic_labels, texts_of
from coseek.lab.synthesis.synthesis import synthesize
from coseek.lab.world.oracle import SUPPORT
from coseek.lab.world.settings import WorldSettings
from coseek.lab.world.world import make_world
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, QueryEncoder
from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.batch import FeatureBuilder, Side
from coseek.training.encoder.evaluation import HeldOut
from coseek.training.encoder.examples import (
    ExampleOrder,
    TrainingExample,
    is_held_out,
    passage_labels,
    question_labels,
    read_labels,
    split_by_question,
)
from coseek.training.encoder.laptop_encoder import learn_tokenizer
from coseek.training.encoder.loop import arguments
from coseek.training.encoder.recipe import HeldOutSettings, RetrieverRecipe


def text_of(query: Query) -> str:
    return query.text


def test_a_folder_without_labels_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="coseek label"):
        read_labels([str(tmp_path)])
    with pytest.raises(DataError, match=r"no label sets.*dropped\.jsonl.*faults.*--resume"):
        read_labels([str(write_labels(tmp_path / "none", 0))])


def test_turns_of_one_question_are_never_split() -> None:
    labels = [label(number, search=search, question=number // 2) for number in range(200) for search in range(3)]
    train, held = split_by_question(labels, 0.3, seed=1)
    questions = [{label.question.question for label in side} for side in (train, held)]
    assert not questions[0] & questions[1] and len(train) + len(held) == len(labels)
    assert 15 <= len(questions[1]) <= 45
    assert split_by_question(labels[::-1][:50], 0.3, seed=1)[1] == [row for row in labels[::-1][:50] if row in held]
    assert split_by_question(labels, 0.0, seed=1)[1] == []
    # With few questions, none might be held out by chance.
    assert len({label.question.question for label in split_by_question(labels[:12], 1e-9, seed=1)[1]}) == 1
    assert split_by_question(labels[:6], 1e-9, seed=1)[1] == []


def test_no_search_is_measured_twice_because_its_labels_were_named_or_made_twice(tmp_path: Path) -> None:
    folder = str(write_labels(tmp_path / "one", 3))
    with pytest.raises(DataError, match="named twice"):
        read_labels([folder, f"{folder}/../one"])
    made = read_labels([folder])
    others = [label.passage(label.positive) for label in made]
    assert len(HeldOut.of({"held out": made + made}, others, HeldOutSettings(), 0).labels) == len(made)
    renamed = [replace(label, query=Query(f"another {label.query.text}")) for label in made]  # of a second import
    assert len(HeldOut.of({"held out": made + renamed}, others, HeldOutSettings(), 0).labels) == 2 * len(made)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"loss": {"negatives": 0, "in_batch": False}}, r"loss\.negatives=0 leaves no passage"),
        ({"loss": {"negatives": 0}, "kind": "reranker"}, r"loss\.negatives=0 leaves no passage"),
        ({"token_dimension": 8}, "token_dimension does nothing with kind=dense"),
        ({"loss": {"flops": [0.1, 0.1]}}, r"loss\.flops does nothing with kind=dense"),
        ({"query_prompt": "", "kind": "reranker"}, "query_prompt does nothing with kind=reranker"),
        (
            {"labels": [], "data": {"folder": "d"}, "held_out": {"corpus": "c.jsonl"}},
            r"held_out.corpus=c.jsonl is searched for turns of label folders",
        ),
        ({"held_out": {"keep": "best"}}, r"every=0 makes none before the last update"),
        (
            {"held_out": {"keep": "best", "every": 100}, "training": {"checkpoint_every": 30}},
            r"checkpoint_every=30 does not divide held_out.every=100",
        ),
    ],
)
def test_a_training_that_learns_nothing_or_a_setting_that_does_nothing_is_refused(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SettingError, match=sentence):
        make_settings(RetrieverRecipe, {"labels": ["x"], **settings})


def test_a_divergence_over_candidates_needs_no_negatives() -> None:
    loss = {"kind": "kl", "negatives": 0, "in_batch": False}
    assert make_settings(RetrieverRecipe, {"labels": ["x"], "loss": loss}).loss.negatives == 0


@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 5))
def test_every_epoch_is_every_row_once(count: int, batch: int, seed: int) -> None:
    rows = [TrainingExample.of(label(number), text_of) for number in range(count)]
    order = ExampleOrder(rows, batch, 15, seed)
    drawn = [row.question for step in range(-(-3 * count // batch)) for row in order.batch(step)]
    if count >= batch:
        # An update that reaches over an epoch's end holds a row that comes twice only once.
        assert all(2 <= drawn.count(row.question) <= 4 for row in rows)
    assert all(len({row.question for row in order.batch(step)}) == len(order.batch(step)) for step in range(5))


def test_an_update_follows_from_the_seed_and_its_number_alone() -> None:
    rows = [TrainingExample.of(label(number), text_of) for number in range(40)]
    first, other = ExampleOrder(rows, 8, 2, 7), ExampleOrder(rows, 8, 2, 7)
    straight = [first.batch(step) for step in range(12)]
    assert other.batch(9) == straight[9] and other.batch(2) == straight[2]
    assert ExampleOrder(rows, 8, 2, 8).batch(0) != straight[0]


def test_of_many_negatives_others_are_drawn_in_every_epoch() -> None:
    rows = [TrainingExample.of(label(number), text_of) for number in range(10)]
    order = ExampleOrder(rows, 10, 2, 0)
    drawn = [[given.id for row in order.batch(epoch) if row.question == rows[0].question for given in row.negatives]
             for epoch in range(12)]  # fmt: skip
    known = {given.id for given in rows[0].negatives}
    assert all(len(ids) == 2 and set(ids) <= known for ids in drawn) and set().union(*drawn) == known


def test_a_view_ends_a_field_with_the_tokenizers_own_separator(tmp_path: Path) -> None:
    """Trap 33: as plain text `[SEP]` would be three tokens."""
    folder = make_encoder(tmp_path / "encoder")
    card = EncoderCard.of(folder).model_copy(update={"view": "question+query"})
    view = QueryEncoder(EmbeddingSettings(encoder=str(folder), view="question+query"), folder, card).seen
    row = TrainingExample.of(label(0), view)
    assert row.query == "what is ba [SEP] ba be"
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    ids = FeatureBuilder(model, card).features("query", [row.query])["input_ids"]
    assert not isinstance(ids, int)
    assert ids[0].tolist().count(model.tokenizer.sep_token_id) == 2  # between the fields, and at the end
    assert view("ba be") == view(Query("ba be", "ba be")) == "ba be [SEP] ba be"  # as `coseek measure` searches it


def test_queries_and_passages_are_cut_and_prompted_as_serving_does_it(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "encoder")
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    card = EncoderCard.of(folder).model_copy(
        update={"query_tokens": 5, "passage_tokens": 9, "query_prompt": "q: ", "passage_prompt": "p: "}
    )
    feeder, long = FeatureBuilder(model, card), "ba be bi bo bu " * 4
    sides: list[tuple[Side, int, str]] = [("query", 5, "q: "), ("passage", 9, "p: ")]
    for side, tokens, prompt in sides:
        fed = feeder.features(side, [long, "ba"])
        model.max_seq_length = tokens
        wanted = model.preprocess([long, "ba"], prompt=prompt)
        assert all(torch.equal(cast(Tensor, fed[name]), wanted[name]) for name in ("input_ids", "attention_mask"))


def test_a_lessons_negatives_never_tell_the_fact() -> None:
    world = make_world(WorldSettings(size="tiny", train=60, dev=0, test=0))
    by_kind = synthetic_labels(world, "train", SyntheticSettings(), seed=3)
    assert set(by_kind) == set(KINDS)
    for labels in by_kind.values():
        for label_set in labels:
            hop = label_set.turn.search
            assert world.oracle.relevance(label_set.question, label_set.passage(label_set.positive), hop) >= SUPPORT
            for ident in label_set.negatives:
                assert world.oracle.relevance(label_set.question, label_set.passage(ident), hop) < SUPPORT
    assert synthetic_labels(world, "train", SyntheticSettings(), seed=3) == by_kind


def test_the_laptop_encoders_tokenizer_knows_every_letter_and_the_separator() -> None:
    world = make_world(WorldSettings(size="tiny", train=20, dev=0, test=0))
    tokenizer = learn_tokenizer(texts_of(world), 1000)
    again = learn_tokenizer(texts_of(world), 1000)
    assert tokenizer.get_vocab() == again.get_vocab()
    ids = tokenizer("Zyqxwv-Jk'7 [SEP] vovobrazilik ~ {|} 東")["input_ids"]
    assert None not in ids and ids.count(tokenizer.sep_token_id) == 2
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    assert " ".join(text.split()) == "zyqxwv-jk'7 vovobrazilik ~ {|} 東"


@pytest.mark.parametrize(("every", "save_steps"), [(1000, 100), (100, 100), (40, 40)])
def test_keeping_the_best_weights_saves_as_often_as_set_and_at_every_evaluation(
    every: int, save_steps: int, tmp_path: Path
) -> None:
    tree = {"labels": ["x"], "device": "cpu", "held_out": {"keep": "best", "every": every}}
    args = arguments(tmp_path, make_settings(RetrieverRecipe, tree), 6000, evaluates=True)
    assert (args.save_steps, args.eval_steps, args.load_best_model_at_end) == (save_steps, every, True)


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
        own = {label.query.text: label for label in labels if label.turn.question_id == question.id}
        assert own[question.question].positive == question.gold_ids[0]
        for step in cast(list[JsonObject], question.meta["path"]):
            label = own[str(step["question"])]
            assert label.positive == step["passage"]
            sought = " ".join(words(str(step["to"])))
            for ident in label.negatives:
                passage = corpus.by_id(ident)
                assert ident not in question.gold_ids
                assert f" {sought} " not in f" {' '.join(words(f'{passage.title} {passage.text}'))} "


def test_a_question_of_people_has_each_gold_passage_as_a_positive_and_one_without_any_gives_none() -> None:
    corpus = Corpus(Passage(str(row), "", f"herons number {row} wait in shallow water") for row in range(6))
    questions = [Question("a", "where do herons wait?", ("water",), ("1", "4")), Question("b", "who?", ("x",))]
    labels = question_labels(questions, corpus, Bm25.over(corpus), 4)
    assert [(label.turn.question_id, label.positive) for label in labels] == [("a", "1"), ("a", "4")]
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
    for label_set in labels:
        whole, less = corpus.by_id(label_set.positive), label_set.passage(label_set.positive)
        assert label_set.query.text in f"{whole.title} {whole.text}"
        assert label_set.query.text not in f"{less.title} {less.text}"
        kinds.add(less.title == whole.title)
        assert all(label_set.passage(ident) == corpus.by_id(ident) for ident in label_set.negatives)
    assert kinds == {True, False}, "headings and sentences"


@given(st.lists(st.tuples(st.text(max_size=40), st.text(max_size=200)), min_size=1, max_size=8), st.integers(0, 9))
def test_any_text_gives_a_label_or_none_and_never_one_without_words(rows: list[tuple[str, str]], seed: int) -> None:
    corpus = Corpus(Passage(str(row), title, text) for row, (title, text) in enumerate(rows))
    for label_set in passage_labels(list(corpus), Bm25.over(corpus), 3, seed):
        less = label_set.passage(label_set.positive)
        assert words(label_set.query.text) and words(less.text)
        assert (less.title, less.text) != (corpus.by_id(less.id).title, corpus.by_id(less.id).text)


def test_passages_of_one_document_are_held_out_together() -> None:
    parts = [Passage(str(row), "", "x", meta={"path": f"{row // 3}.md"}) for row in range(300)]
    held = [is_held_out(passage, 0.3, 0) for passage in parts]
    assert all(held[row] == held[row - row % 3] for row in range(300))
    assert 15 <= sum(held[::3]) <= 45


def test_a_search_that_misses_its_positive_has_no_negative_too_many() -> None:
    corpus = Corpus(
        [*(Passage(str(row), "", f"herons wait in water {row}") for row in range(9)), Passage("p", "", "x")]
    )
    for gold in ("p", "0"):
        (label_set,) = question_labels([Question("q", "herons", (), (gold,))], corpus, Bm25.over(corpus), 4)
        assert len(label_set.negatives) == 4
