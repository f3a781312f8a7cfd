"""Proof of retriever training: the packed batches of one encoder step, as the encoder's layers receive them."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.proof.canonical import Proof, digest, metrics
from tests.proof.material import Material, json_lines, movement, recipe_file
from tests.retrieval.tiny_encoder import make_encoder

import coseek
from coseek.core.files import Json


def proof(material: Material) -> Proof:
    """Token ids and masks of every micro-batch of a step, its metrics, and how far each weight moved."""
    labels, start, out = (material.folder / f"encoder-{name}" for name in ("labels", "start", "out"))
    coseek.label(material.run, "gold", labels)
    make_encoder(start)
    settings = {
        "encoder": str(start),
        "labels": [str(labels)],
        "view": "question+query",
        "query_tokens": 48,
        "passage_tokens": 48,
        "loss": {"temperature": 0.05, "negatives": 3},
        "training": {
            "steps": 1,
            "batch_size": 8,
            "dropout": 0.0,
            "micro_batch_tokens": 400,
            "log_every": 1,
            "optimizer": {"lr": 0.01, "eps": 1e-4},
        },
        "held_out": {"share": 0.0},
        "device": "cpu",
        "threads": 1,
    }
    recipe = str(recipe_file(material.folder / "encoder.yaml", settings))
    with recorded() as batches:
        trained = coseek.train_retriever(recipe, out=out)
    items: Proof = {f"micro-batch {number:02}": digest(batch) for number, batch in enumerate(batches, start=1)}
    for row in json_lines(out / "metrics.jsonl"):
        items[f"step {row['step']}"] = metrics(row)  # type: ignore[arg-type]
    return items | {name: list(moved) for name, moved in movement(start, trained).items()}


@contextmanager
def recorded() -> Iterator[list[Json]]:
    """The inputs of every pass of an encoder while it trains, whoever calls it."""
    from transformers import BertModel

    seen: list[Json] = []
    plain = BertModel.forward

    def forward(self: BertModel, *args: object, **inputs: object) -> object:
        if self.training:
            seen.append({name: inputs[name].tolist() for name in ("input_ids", "attention_mask")})  # type: ignore[attr-defined]
        return plain(self, *args, **inputs)

    BertModel.forward = forward  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        BertModel.forward = plain  # type: ignore[method-assign]
