"""Training a reranker from end to end: labels in, a cross-encoder out that `rerank` opens, inside the same rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import torch
from sentence_transformers import CrossEncoder as Network
from sentence_transformers.base.model import BaseModel
from sentence_transformers.cross_encoder.losses import ListNetLoss
from tests.training.retriever_run import RERANKER, recipe_of, train as train_retriever, write_given
from tests.training.tiny_labels import label

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus
from coseek.hardware.placement import FLOAT32
from coseek.pipelines.reranker import RerankerTraining
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.rerank import CrossEncoder, Reranker, RerankSettings
from coseek.training.encoder.evaluation import BEFORE, BM25, ORACLE, TRAINED
from coseek.training.encoder.examples import TrainingExample
from coseek.training.encoder.loop import CheckpointNotes
from coseek.training.encoder.reranker import _move_up


@pytest.fixture(scope="module")
def given_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_given(tmp_path_factory.mktemp("given"))


def train(given: Path, out: Path, *settings: str, labels: str = "labels", resume: bool = False) -> RerankerTraining:
    return cast(RerankerTraining, train_retriever(given, out, *RERANKER, *settings, labels=labels, resume=resume))


def batch_of(
    training: RerankerTraining, model: BaseModel, rows: Sequence[TrainingExample]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The pairs of an update and how they belong together."""
    features = training._collator(model)(rows)
    structure = cast(dict[str, torch.Tensor], features.pop("label"))
    pairs = {name.removeprefix("pair_"): value for name, value in features.items() if isinstance(value, torch.Tensor)}
    return pairs, structure


def reranked(folder: Path, **given: object) -> Reranker:
    corpus = Corpus(
        {
            candidate.passage.id: candidate.passage for number in range(24) for candidate in label(number).candidates
        }.values()
    )
    settings = {"over": "-", "model": str(folder), "precision": "float32", **given}
    return Reranker(Bm25.over(corpus), make_settings(RerankSettings, settings), folder)


@pytest.mark.slow
def test_training_ranks_better_and_the_retriever_opens_the_result(given_folders: Path, tmp_path: Path) -> None:
    training = train(given_folders, tmp_path / "out", "training.steps=40")
    training.results()
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-2]["loss"] < lines[0]["loss"]
    read = json.loads((tmp_path / "out" / "table.json").read_text())["searchers"]
    assert set(read) == {BM25, BEFORE, TRAINED, ORACLE}
    assert max(read[BM25]["mrr"], read[TRAINED]["mrr"]) <= read[ORACLE]["mrr"]
    served = reranked(training.encoder_folder)
    assert CrossEncoder.open(training.encoder_folder, FLOAT32).model.max_seq_length == 96
    assert (served.settings.view, served.settings.query_tokens) == ("question+query", 48)
    with pytest.raises(SettingError, match="trained with the view"):
        reranked(training.encoder_folder, view="query")


def test_the_ceiling_moves_up_what_the_first_stage_found_and_nothing_else() -> None:
    assert _move_up([60, 7, 3], 50) == (1, 2, 60)


@pytest.mark.slow
def test_what_training_scored_is_what_serving_scores(given_folders: Path, tmp_path: Path) -> None:
    training = train(given_folders, tmp_path / "out", "training.steps=3", "training.batch_size=2")
    model = training.open(training.encoder_folder)
    rows = training.rows()[:2]
    pairs, structure = batch_of(training, model, rows)
    scores_P = model(pairs)["scores"][:, 0].tolist()
    reader = CrossEncoder.open(training.encoder_folder, FLOAT32)
    for row, slot, score in zip(structure["row_P"].tolist(), structure["slot_P"].tolist(), scores_P, strict=True):
        shown = [given for row in rows for given in (row.positive, *row.negatives)][slot]
        assert reader.scores(rows[row].query, [shown.text], 1)[0] == pytest.approx(score, abs=1e-5)


def test_the_loss_is_the_librarys_listwise_loss(given_folders: Path, tmp_path: Path) -> None:
    """ListNet gives a candidate the softmax of its label: with a large one, all of it to the positive."""
    recipe = recipe_of(given_folders, *RERANKER, "loss.mask_false_negatives=false")
    training = RerankerTraining(recipe, tmp_path / "out")
    model, rows = training.open(training.start_folder), training.rows()[:4]
    objective = training._objective(model, CheckpointNotes())
    pairs, structure = batch_of(training, model, rows)
    ours = objective([pairs], structure)
    reader = CrossEncoder.open(training.start_folder, FLOAT32)
    texts = [reader.pairs(row.query, [passage.text for passage in (row.positive, *row.negatives)]) for row in rows]
    labels = [torch.tensor([1e4, *(0.0 for _ in row.negatives)]) for row in rows]
    theirs = ListNetLoss(cast(Network, model))(
        [[row[0][0] for row in texts], [[text for _, text in row] for row in texts]], labels
    )
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)


@pytest.mark.slow
def test_targets_are_learnt_and_a_trained_reranker_is_trained_on(given_folders: Path, tmp_path: Path) -> None:
    more = ("loss.kind=kl", "training.steps=20", "training.log_every=5", "held_out.share=0")
    training = train(given_folders, tmp_path / "out", *more, labels="targets")
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]
    again = (*more, "training.steps=1", f"encoder={training.encoder_folder}")
    second = train(given_folders, tmp_path / "again", *again, labels="targets")
    assert second.start_folder == training.encoder_folder
