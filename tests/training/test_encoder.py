"""Training a retriever from end to end: labels in, an encoder out that dense search opens."""

import gzip
import json
import re
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from safetensors.torch import load_file
from tests.pipelines.trainings import trained
from tests.processes import run_workers
from tests.training.retriever_run import SETTINGS, recipe_of, train, train_every_kind, weights_of, write_given
from tests.training.tiny_labels import label
from tests.watching import Heard, Presses

from coseek.cli.main import main
from coseek.core.errors import DataError
from coseek.core.progress import NoProgress
from coseek.data.passage import Corpus, Passage
from coseek.measure.table import Table
from coseek.pipelines.encoder import RetrieverTraining
from coseek.retrieval.index import build_index
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.dense import DenseSettings
from coseek.retrieval.vectors.encoder import Encoder, EncoderCard
from coseek.retrieval.views import render_view
from coseek.training.encoder.batch import FeatureBuilder
from coseek.training.encoder.evaluation import HeldOut, ranks_of
from coseek.training.encoder.laptop_encoder import make_laptop_encoder
from coseek.training.encoder.loop import last_checkpoint
from coseek.training.encoder.recipe import (
    HeldOutSettings,
    LaptopEncoderSettings,
    load_retriever_recipe,
    retriever_recipe_names,
)


@pytest.fixture(scope="module")
def given_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_given(tmp_path_factory.mktemp("given"))


@pytest.mark.slow
def test_training_finds_more_and_dense_search_opens_the_result(given_folders: Path, tmp_path: Path) -> None:
    training = train(given_folders, tmp_path / "out", "training.steps=40", "training.optimizer.lr=0.003")
    table = training.results()
    assert isinstance(table, Table)
    read = json.loads((tmp_path / "out" / "table.json").read_text())["searchers"]
    assert set(read) == {"BM25", "before", "trained"}
    assert read["trained"]["mrr"] > read["before"]["mrr"] + 0.1
    card = EncoderCard.of(training.encoder_folder)
    assert card.view == "question+query" and card.query_tokens == 48
    check_served_as_measured(training, "dense", tmp_path / "index")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [10, 20, 30, 40, 40]
    assert lines[-2]["loss"] < lines[0]["loss"] and "held/mrr" in lines[-1]


def check_served_as_measured(training: RetrieverTraining, kind: str, index: Path) -> None:
    """The look at the end of a training and an index over the same passages rank alike."""
    evaluator = training.evaluator
    assert evaluator is not None
    corpus, labels = Corpus(evaluator.held_out.pool), evaluator.held_out.labels
    built = build_index(corpus, kind, index, {"encoder": str(training.encoder_folder)})
    ranks = []
    for label_set, hits in zip(labels, built.search([row.query for row in labels], len(corpus)), strict=True):
        ranks.append([hit.passage.text for hit in hits].index(label_set.passage(label_set.positive).text) + 1)
    # Vectors of another batch differ in the seventh digit: neighbours may swap.
    assert np.abs(evaluator.evaluate(training.open(training.encoder_folder)).ranks - np.array(ranks)).max() <= 1


class Stop(Exception):
    """Ends a training early."""


class StopsAfter(NoProgress):
    """Raises `Stop` after `updates` updates."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def advance(self, done: int, note: str = "") -> None:
        if done == self.updates:
            raise Stop


def stopped_and_gone_on(given_folders: Path, out: Path, updates: int, *settings: str) -> RetrieverTraining:
    """A training that was stopped after some updates, whose last checkpoint is that of the fourth."""
    stopped = RetrieverTraining(recipe_of(given_folders, *settings), out, StopsAfter(updates))
    stopped.begin(resume=False)
    with pytest.raises(Stop):
        stopped.train()
    checkpoint = last_checkpoint(out / "checkpoints")
    assert checkpoint is not None and checkpoint.name == "checkpoint-4"
    return train(given_folders, out, *settings, resume=True)


def timeless_lines(out: Path) -> list[dict[str, float]]:
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if "time/" not in name} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [
        ("training.lora={rank: 2}", "training.dropout=0.1", "held_out.keep=best"),
        ("training.checkpoint_every=2", "held_out.keep=best"),
        ("kind=late-interaction", "token_dimension=8", "training.dropout=0.1"),
        ("kind=sparse", "loss.temperature=1"),
    ],
)
def test_a_run_that_goes_on_ends_with_the_same_weights(
    given_folders: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    # A row of metrics every three updates: the second row is incomplete at the checkpoint of the fourth.
    settings = ("training.steps=9", "training.checkpoint_every=4", "training.log_every=3", "held_out.every=4", *more)
    whole = train(given_folders, tmp_path / "whole", *settings)
    gone_on = stopped_and_gone_on(given_folders, tmp_path / "stopped", 6, *settings)
    wanted, got = weights_of(whole.encoder_folder), weights_of(gone_on.encoder_folder)
    assert wanted.keys() == got.keys() and not any("lora" in name for name in wanted)
    assert all(torch.equal(wanted[name], got[name]) for name in wanted)
    assert timeless_lines(tmp_path / "whole") == timeless_lines(tmp_path / "stopped")


@pytest.mark.slow
@pytest.mark.parametrize("more", [("training.lora={rank: 2}",), ("kind=sparse", "loss.temperature=1")])
def test_the_start_keeps_its_share_of_every_weight(given_folders: Path, tmp_path: Path, more: tuple[str, ...]) -> None:
    settings = ("training.steps=2", "training.optimizer.lr=0.01", *more)
    trained = train(given_folders, tmp_path / "trained", *settings)
    mixed = train(given_folders, tmp_path / "mixed", *settings, "training.start_share=0.25")
    start, end, mean = (
        weights_of(folder) for folder in (trained.start_folder, trained.encoder_folder, mixed.encoder_folder)
    )
    assert any(not torch.equal(start[name], end[name]) for name in start)
    for name, weight in mean.items():
        assert torch.allclose(weight, 0.75 * end[name] + 0.25 * start[name], atol=1e-6)


def test_a_checkpoint_that_a_kill_cut_short_is_passed_over(tmp_path: Path) -> None:
    for step, state in ((4, "{}"), (8, '{"epo')):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights.pt").touch()
        (folder / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-12").mkdir()
    checkpoint = last_checkpoint(tmp_path)
    assert checkpoint is not None and checkpoint.name == "checkpoint-4"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more", "start", "similarity"),
    [("late-interaction", (), "start-tokens", "maxsim"), ("sparse", ("loss.temperature=1",), "start-sparse", "words")],
)
def test_another_kind_learns_and_is_searched_as_it_was_measured(
    given_folders: Path, tmp_path: Path, kind: str, more: tuple[str, ...], start: str, similarity: str
) -> None:
    settings = (f"kind={kind}", "training.steps=40", "training.optimizer.lr=0.003", *more)
    training = train(given_folders, tmp_path / "out", *settings)
    training.results()
    read = json.loads((tmp_path / "out" / "table.json").read_text())["searchers"]
    assert read["trained"]["mrr"] > read["before"]["mrr"]
    assert training.next_command.startswith(f"coseek index DATA --retriever {kind}")
    check_served_as_measured(training, kind, tmp_path / "index")
    # A trained encoder can be trained further, and cannot be opened as one of a vector per text.
    unused = ("token_dimension=64",) if kind == "late-interaction" else ()
    further = (*settings[:1], "training.steps=1", f"encoder={tmp_path}/out/encoder", *unused)
    again = RetrieverTraining(recipe_of(given_folders, *further), tmp_path / "again", heard := Heard())
    again.begin(resume=False)
    again.train()
    assert ["token_dimension is not used" in text for text in heard.warned] == [True] * len(unused)
    assert not (tmp_path / "again" / start).exists() and again.card.similarity == similarity
    with pytest.raises(DataError, match=f"kind={kind}"):
        train(given_folders, tmp_path / "dense", f"encoder={tmp_path}/out/encoder")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dense", "late-interaction"])
def test_targets_are_learnt_by_divergence(given_folders: Path, tmp_path: Path, kind: str) -> None:
    steps = ("training.steps=30", "training.optimizer.lr=0.003", "held_out.share=0")
    more = ("loss={kind: kl, temperature: 0.1}", f"kind={kind}", *steps)
    training = train(given_folders, tmp_path / "out", *more, labels="targets")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.5 * lines[0]["loss"] and lines[-1]["negatives"] == 3
    assert training.results() is None
    with pytest.raises(DataError, match="targets"):
        train(given_folders, tmp_path / "other", *more)


@pytest.mark.slow
def test_wide_vectors_are_trained_stored_and_served(given_folders: Path, tmp_path: Path) -> None:
    shape = LaptopEncoderSettings(hidden=16, heads=2, feed_forward=16, vocabulary=300, dimension=40)
    made = tmp_path / "given" / "encoder"
    make_laptop_encoder(shape, ["some words"], made, seed=0)
    (tmp_path / "given" / "labels").symlink_to(given_folders / "labels")
    training = train(tmp_path / "given", tmp_path / "out", "training.steps=1", "training.optimizer.lr=0.003")
    before, after = (load_file(folder / "1_Dense" / "model.safetensors") for folder in (made, training.encoder_folder))
    assert not torch.equal(before["linear.weight"], after["linear.weight"])
    served = Encoder.open(training.encoder_folder, DenseSettings(encoder=str(training.encoder_folder)))
    assert served.encode(["some words"], prompt="", max_tokens=8, batch_size=1).shape == (1, 40)


@given(st.lists(st.lists(st.integers(0, 3), min_size=4, max_size=4), min_size=1, max_size=5), st.integers(0, 3))
def test_a_rank_is_the_place_in_the_sorted_order(scores: list[list[int]], row: int) -> None:
    scores_QU = np.array(scores, dtype=np.float32)
    ranks = ranks_of(scores_QU, np.full(len(scores), row))
    for index, values in enumerate(scores):
        order = sorted(range(4), key=lambda column: (-values[column], column))
        assert ranks[index] == order.index(row) + 1


def test_a_compressed_corpus_of_a_data_set_is_searched_too(given_folders: Path, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write('{"id": "further", "title": "", "text": "ba bo bu"}\n')
    training = RetrieverTraining(recipe_of(given_folders, f"held_out.corpus={tmp_path}"), tmp_path / "out")
    assert training.material.held_out is not None and "held_out.corpus" in training.identities()
    assert "further" in [passage.id for passage in training.material.held_out.pool]


def test_what_is_searched_holds_every_positive_and_no_text_twice() -> None:
    labels = [label(number) for number in range(20)]
    others = [Passage(f"other {number}", "", f"words {number % 7}") for number in range(50)]
    held_out = HeldOut.of({"a": labels[:9], "b": labels[9:]}, others, HeldOutSettings(turns=10, passages=14), 0)
    texts = [f"{passage.title} {passage.text}" for passage in held_out.pool]
    assert len(held_out.labels) == 10 and len(set(texts)) == len(texts) == 14
    for held in held_out.labels:
        good = held.passage(held.positive)
        assert f"{good.title} {good.text}" in texts


@pytest.mark.parametrize("name", retriever_recipe_names())
def test_our_recipes_are_recipes(name: str) -> None:
    labels = [] if name == "laptop" else ["labels"]
    assert load_retriever_recipe(name, labels=labels).about


def test_the_papers_recipes_have_the_papers_encoders_and_numbers() -> None:
    first, second = (load_retriever_recipe(name, labels=["labels"]) for name in ("agentic-r", "agentir"))
    assert (first.encoder, first.pooling) == ("models/e5-base-v2", "mean")
    assert (first.query_prompt, first.passage_prompt) == ("query: ", "passage: ")
    assert (first.query_tokens, first.passage_tokens, first.view) == (512, 512, "question+query")
    assert (first.loss.temperature, first.loss.negatives, first.training.batch_size) == (0.01, 15, 8 * 32)
    assert (second.encoder, second.view) == ("models/Qwen3-Embedding-4B", "reasoning+query@paper")
    assert (second.query_tokens, second.passage_tokens) == (8192, 4096)
    assert (second.loss.negatives, second.loss.in_batch_rows, second.training.batch_size) == (7, 4, 8)
    assert second.training.gradient_checkpointing and second.training.lora is not None
    shown = (second.query_prompt or "") + render_view("reasoning+query@paper", Query("q", reasoning="r"))
    assert re.fullmatch(r"Instruction: [^\n]+[^\s]\nQuery: Reasoning: r\nQuery: q", shown)


@pytest.mark.slow
def test_an_encoder_is_never_fed_more_tokens_than_it_has_positions(given_folders: Path, tmp_path: Path) -> None:
    """Longer texts would end the training in the middle of it, with a stack of torch's."""
    long = ("query_tokens=8192", "passage_tokens=100", "training.steps=1", "held_out.share=0")
    training = train(given_folders, tmp_path / "out", *long)
    card = EncoderCard.of(training.encoder_folder)
    assert (card.query_tokens, card.passage_tokens) == (128, 100)
    fed = FeatureBuilder(training.open(training.encoder_folder), card).features("query", ["ba be bi bo " * 400])
    assert cast(torch.Tensor, fed["input_ids"]).shape == (1, 128)


def say(*words: str) -> int:
    return main(["train", "retriever", *words])


@pytest.mark.medium
def test_mistakes_are_sentences(given_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, labels = ["--out", str(tmp_path / "out")], ["--labels", str(given_folders / "labels")]
    (tmp_path / "empty").mkdir()
    for words, message in (
        (["agentic"], "agentic-r"),
        (["agentic-r", *out], "--labels"),
        (["agentic-r", "encoder=minilm", "--labels", str(tmp_path / "empty"), *out], "coseek label"),
        (["agentic-r", "loss.temprature=1", *labels, *out], "temperature"),
        (["agentic-r", "encoder=nowhere", *labels, *out], "no encoder 'nowhere'"),
        (["agentic-r", "view=querry", *labels, *out], "query"),
        (["laptop", "loss.kind=kl", *out], "replug"),
        (["replug", f"encoder={given_folders / 'encoder'}", *labels, *out], "targets"),
    ):
        assert say(*words) == 2, words
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error, error


@pytest.mark.slow
def test_the_command_trains_says_where_and_refuses_to_overwrite(
    given_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["agentic-r", f"encoder={given_folders / 'encoder'}", "query_tokens=48", "training.steps=2"]
    words += ["held_out.share=0.2", "--labels", str(given_folders / "labels"), "--out", str(tmp_path / "out")]
    assert say(*words, "--json") == 0
    assert set(json.loads(capsys.readouterr().out)["searchers"]) == {"BM25", "before", "trained"}
    assert say(*words) == 2
    assert "--resume" in capsys.readouterr().err
    assert say(*words, "training.epochs=9", "--resume") == 2
    assert "training" in capsys.readouterr().err
    assert say(*words, "--resume") == 0
    assert "coseek index" in capsys.readouterr().out


@pytest.mark.slow
def test_two_workers_end_with_the_weights_of_one(given_folders: Path, tmp_path: Path) -> None:
    run_workers(2, train_every_kind, given_folders, tmp_path / "two")
    for kind, more in SETTINGS.items():
        training = train(given_folders, tmp_path / kind, *more)
        before, alone = weights_of(training.start_folder), weights_of(training.encoder_folder)
        both = weights_of(tmp_path / "two" / kind / "encoder")
        moved = max(float((alone[name] - before[name]).abs().max()) for name in alone)
        apart = max(float((alone[name] - both[name]).abs().max()) for name in alone)
        print(f"{kind}: weights moved by up to {moved:.1e}, two workers from one by {apart:.1e}")
        assert apart < 1e-5 < moved / 100


@pytest.mark.slow
def test_ctrl_c_loses_no_update_though_no_checkpoint_was_due(given_folders: Path, tmp_path: Path) -> None:
    settings = ("training.steps=8", "training.checkpoint_every=100")
    whole = weights_of(train(given_folders, tmp_path / "whole", *settings).encoder_folder)
    pressed = RetrieverTraining(recipe_of(given_folders, *settings), tmp_path / "out", Presses(3))
    pressed.begin(resume=False)
    with pytest.raises(KeyboardInterrupt):
        pressed.train()
    resumed = trained(
        RetrieverTraining(recipe_of(given_folders, *settings), tmp_path / "out", progress := Heard()), resume=True
    )
    assert progress.steps[0] == 4
    got = weights_of(resumed.encoder_folder)
    assert all(torch.equal(whole[name], got[name]) for name in whole)
