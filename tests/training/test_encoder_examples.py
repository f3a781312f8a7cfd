"""Which rows a retriever learns from, and when."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.tiny_labels import label, write_labels

from coseek.core.errors import DataError, SettingError
from coseek.core.settings import make_settings
from coseek.lab.labels.synthetic import KINDS, SyntheticSettings, synthetic_labels, texts_of, throw_away_worlds
from coseek.lab.world.oracle import SUPPORT
from coseek.lab.world.world import WorldSettings, make_world
from coseek.retrieval.query import Query
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, QueryEncoder
from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.batch import FeatureBuilder
from coseek.training.encoder.examples import ExampleOrder, TrainingExample, read_labels, split_by_question
from coseek.training.encoder.laptop_encoder import learn_tokenizer
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.encoder.trainer import arguments


def seen(query: Query) -> str:
    return query.text


def test_labels_are_read_back_whole(tmp_path: Path) -> None:
    assert read_labels([str(write_labels(tmp_path / "a", 3)), str(write_labels(tmp_path / "b", 2))]) == [
        label(number, search=search) for count in (3, 2) for number in range(count) for search in range(2)
    ]


def test_a_folder_without_labels_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="coseek label"):
        read_labels([str(tmp_path)])
    with pytest.raises(DataError, match=r"no label sets.*dropped\.jsonl.*faults.*--resume"):
        read_labels([str(write_labels(tmp_path / "none", 0))])


def test_turns_of_one_question_are_never_split() -> None:
    labels = [label(number, search=search, question=number // 2) for number in range(200) for search in range(3)]
    train, held = split_by_question(labels, 0.3, seed=1)
    questions = [{one.question.question for one in part} for part in (train, held)]
    assert not questions[0] & questions[1] and len(train) + len(held) == len(labels)
    assert 15 <= len(questions[1]) <= 45
    assert split_by_question(labels[::-1][:50], 0.3, seed=1)[1] == [one for one in labels[::-1][:50] if one in held]
    assert split_by_question(labels, 0.0, seed=1)[1] == []


@given(st.integers(1, 30), st.integers(2, 12), st.integers(0, 5))
def test_every_epoch_is_every_row_once(count: int, batch: int, seed: int) -> None:
    rows = [TrainingExample.of(label(number), seen) for number in range(count)]
    order = ExampleOrder(rows, batch, 15, seed)
    drawn = [row.turn for step in range(-(-3 * count // batch)) for row in order.batch(step)]
    if count >= batch:
        # An update that reaches over an epoch's end holds a row that comes twice only once.
        assert all(2 <= drawn.count(row.turn) <= 4 for row in rows)
    assert all(len({row.turn for row in order.batch(step)}) == len(order.batch(step)) for step in range(5))


def test_an_update_follows_from_the_seed_and_its_number_alone() -> None:
    rows = [TrainingExample.of(label(number), seen) for number in range(40)]
    one, other = ExampleOrder(rows, 8, 2, 7), ExampleOrder(rows, 8, 2, 7)
    straight = [one.batch(step) for step in range(12)]
    assert other.batch(9) == straight[9] and other.batch(2) == straight[2]
    assert ExampleOrder(rows, 8, 2, 8).batch(0) != straight[0]


def test_of_many_negatives_others_are_drawn_in_every_epoch() -> None:
    rows = [TrainingExample.of(label(number), seen) for number in range(10)]
    order = ExampleOrder(rows, 10, 2, 0)
    drawn = [[given.id for row in order.batch(epoch) if row.turn == rows[0].turn for given in row.negatives]
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
    for side, tokens, prompt in (("query", 5, "q: "), ("passage", 9, "p: ")):
        assert side in ("query", "passage")
        fed = feeder.features("query" if side == "query" else "passage", [long, "ba"])
        model.max_seq_length = tokens
        wanted = model.preprocess([long, "ba"], prompt=prompt)
        assert fed["input_ids"].tolist() == wanted["input_ids"].tolist()  # type: ignore[union-attr]
        assert fed["attention_mask"].tolist() == wanted["attention_mask"].tolist()  # type: ignore[union-attr]


def test_a_lessons_negatives_never_tell_the_fact() -> None:
    world = make_world(WorldSettings(size="tiny", train=60, dev=0, test=0))
    found = synthetic_labels(world, "train", SyntheticSettings(), seed=3)
    assert set(found) == set(KINDS)
    for labels in found.values():
        for one in labels:
            hop = one.turn.search
            assert world.oracle.relevance(one.question, one.passage(one.positive), hop) >= SUPPORT
            for ident in one.negatives:
                assert world.oracle.relevance(one.question, one.passage(ident), hop) < SUPPORT
    assert synthetic_labels(world, "train", SyntheticSettings(), seed=3) == found


def test_worlds_take_their_lexicons_in_turn() -> None:
    settings = SyntheticSettings(worlds=3, world=WorldSettings(size="tiny", train=5, dev=0, test=0))
    mixed = settings.model_copy(update={"lexicons": ("drawn", "laptop")})
    assert [world.settings.lexicon for world in throw_away_worlds(settings, 0)] == ["laptop"] * 3
    made = list(throw_away_worlds(mixed, 0))
    assert [world.settings.lexicon for world in made] == ["drawn", "laptop", "drawn"]
    assert len({world.settings.seed for world in made}) == 3


def test_the_laptop_encoders_tokenizer_knows_every_letter_and_the_separator() -> None:
    world = make_world(WorldSettings(size="tiny", train=20, dev=0, test=0))
    tokenizer = learn_tokenizer(texts_of(world), 1000)
    again = learn_tokenizer(texts_of(world), 1000)
    assert tokenizer.get_vocab() == again.get_vocab()
    ids = tokenizer("Zyqxwv-Jk'7 [SEP] vovobrazilik ~ {|} 東")["input_ids"]
    assert None not in ids and ids.count(tokenizer.sep_token_id) == 2
    assert str(tokenizer.decode(ids, skip_special_tokens=True)).split() == [
        "zyqxwv-jk'7",
        "vovobrazilik",
        "~",
        "{|}",
        "東",
    ]


def test_muon_is_muon_or_refused_for_encoders() -> None:
    with pytest.raises(SettingError, match=r"algorithm=muon: encoders are trained by AdamW"):
        make_settings(RetrieverRecipe, {"labels": ["x"], "training": {"optimizer": {"algorithm": "muon"}}})


def test_best_needs_evaluations_and_keeps_the_checkpoints_asked_for(tmp_path: Path) -> None:
    def recipe(every: int, saved: int) -> RetrieverRecipe:
        held_out = {"keep": "best", "every": every}
        tree = {"labels": ["x"], "device": "cpu", "held_out": held_out, "training": {"checkpoint_every": saved}}
        return make_settings(RetrieverRecipe, tree)

    with pytest.raises(SettingError, match=r"every=0 makes none before the last update"):
        recipe(0, 100)
    with pytest.raises(SettingError, match=r"checkpoint_every=30 does not divide held_out.every=100"):
        recipe(100, 30)
    for every, saved, least in ((1000, 100, 100), (100, 100, 100), (40, 100, 40)):
        made = arguments(tmp_path, recipe(every, saved), 6000, evaluates=True)
        assert (made.save_steps, made.eval_steps, made.load_best_model_at_end) == (least, every, True)
