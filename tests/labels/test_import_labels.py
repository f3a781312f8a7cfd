"""Fears about others' training rows: a query wrapped in a second view, rows that come back changed or mixed up."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sentence_transformers import SentenceTransformer
from tests.retrieval.tiny_encoder import make_encoder
from tests.training.tiny_labels import label

from coseek.core.errors import DataError
from coseek.core.files import Json, JsonObject, write_jsonl
from coseek.labels.importing import import_labels
from coseek.labels.label_folder import LabelFolder
from coseek.labels.label_set import LabelSet, write_tevatron
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, QueryEncoder
from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.batch import Collator, FeatureBuilder, Features
from coseek.training.encoder.examples import TrainingExample, read_labels
from coseek.training.encoder.loss import RetrieverObjective
from coseek.training.encoder.recipe import RetrieverLoss

VIEW = "reasoning+query@code"


def published(ident: str, query: str, *passages: str) -> JsonObject:
    """A row of Tevatron/AgentIR-data: no titles."""
    texts: list[Json] = [{"docid": name, "text": f"text of {name}"} for name in passages]
    return {"query_id": ident, "query": query, "positive_passages": texts[:1], "negative_passages": texts[1:]}


def test_an_export_that_is_imported_gives_the_same_rows_batches_and_loss(tmp_path: Path) -> None:
    made = [label(number, search=search) for number in range(4) for search in range(2)]
    made = [replace(label, query=replace(label.query, reasoning="ba be\n\nbi")) for label in made]
    made.append(replace(made[-1], copy=1, positive=made[-1].negatives[0], negatives=made[-1].negatives[1:]))
    write_tevatron(tmp_path / "rows.jsonl", made, VIEW)
    assert import_labels([tmp_path / "rows.jsonl"], tmp_path / "labels").to_json() == {
        "turns": 8, "rows": 9, "sets": 9, "without_positive": 0, "repeated": 0,
    }  # fmt: skip
    again = read_labels([str(tmp_path / "labels")])
    write_tevatron(tmp_path / "again.jsonl", again, "question+history")
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "rows.jsonl").read_bytes()

    encoder = make_encoder(tmp_path / "encoder")
    fed, loss = zip(*(trained(encoder, labels, view) for labels, view in ((made, VIEW), (again, "query"))), strict=True)
    assert fed[0].keys() == fed[1].keys()
    assert all(torch.equal(fed[0][name], fed[1][name]) for name in fed[0]) and loss[0] == loss[1]
    assert trained(encoder, again, "question+query")[1] == loss[0], "the query was wrapped in another view"


def trained(folder: Path, labels: list[LabelSet], view: str) -> tuple[dict[str, torch.Tensor], float]:
    """The tensors of one batch, and its loss."""
    model, card = SentenceTransformer(str(folder), device="cpu"), EncoderCard.of(folder)
    seen = QueryEncoder(EmbeddingSettings(encoder=str(folder), view=view), folder, card).seen
    rows = [TrainingExample.of(label, seen) for label in labels]
    fed = Collator(FeatureBuilder(model, card), RetrieverLoss())(rows)
    whole = {name: value for name, value in fed.items() if isinstance(value, torch.Tensor)}
    target = fed["label"]
    assert isinstance(target, dict)
    sides: list[Features] = [
        {name.removeprefix(f"{side}_"): value for name, value in whole.items() if name.startswith(f"{side}_")}
        for side in ("query", "passage")
    ]
    loss = RetrieverLoss(temperature=0.05)
    objective = RetrieverObjective(model, loss, micro_batch_tokens=10**6, cached=False, normalise=True)
    model.eval()
    return whole | target, float(objective(sides, target).detach())


def test_rows_of_the_published_shape_keep_their_query_and_their_question(tmp_path: Path) -> None:
    text = 'Reasoning: one line.\n\nand another\n\nQuery: "who" [SEP] Query: x\n'
    rows = [
        published("id_7_turn3", text, "a", "b", "b", "a"),
        published("id_7_turn4", "q", "c", "d"),
        published("x", "q"),
    ]
    rows.append(published("id_7_turn3", text, "e"))
    write_jsonl(tmp_path / "webshaper_train.jsonl", rows)
    made = import_labels([tmp_path / "webshaper_train.jsonl"], tmp_path / "labels")
    assert (made.sets, made.without_positive, made.repeated) == (3, 1, 2)
    first, second, third = read_labels([str(tmp_path / "labels")])
    assert first.query.text == text and first.query.given and first.negatives == ("b",)
    assert (first.turn.key, second.copy, third.turn.key) == (("id_7", "0", "3"), 1, ("id_7", "0", "4"))
    assert len({label.question.question for label in (first, second, third)}) == 1
    assert [(drop.turn.question_id, drop.reason) for drop in LabelFolder(tmp_path / "labels").dropped()] == [
        ("x", "no-positive")
    ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"query_id": "1", "query": "q", "positive_passages": []}, "no row with a positive passage"),
        ({"query": "q", "positive_passages": []}, "query_id"),
        ({"query_id": "1", "query": "q", "positive_passages": [{"text": "t"}]}, "docid"),
    ],
)
def test_rows_of_another_shape_are_refused_and_nothing_is_written(row: JsonObject, says: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=says):
        import_labels([tmp_path / "rows.jsonl"], tmp_path / "labels")
    assert not (tmp_path / "labels").exists()


def test_an_id_of_two_queries_is_refused_and_none_of_them_is_lost(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "rows.jsonl", [published("7", "who?", "a", "b"), published("7", "where?", "c", "d")])
    with pytest.raises(DataError, match=r"line 2: the query_id '7' has another query in an earlier row; give each"):
        import_labels([tmp_path / "rows.jsonl"], tmp_path / "labels")
    assert not (tmp_path / "labels").exists()
