"""Reranker: start, pairs, loss and evaluation of a cross-encoder's training.

The score of a query and a passage is the network's output for the pair. The loss is that of `loss.py` over a row's own
candidates, so `contrastive` is ListNet (Cao et al. 2007) with all of the target on the positive: localized contrastive
estimation (Gao et al. 2021).
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder as Network
from sentence_transformers.base.model import BaseModel
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from coseek.core.files import atomic_folder
from coseek.hardware.placement import Placement
from coseek.models.pretrained import quiet
from coseek.retrieval.retrievers.rerank import CrossEncoder
from coseek.retrieval.vectors.encoder import EncoderCard, load_encoder
from coseek.training.encoder.batch import EncoderBatch, Features
from coseek.training.encoder.evaluation import BATCH, BM25, ORACLE, EncoderEvaluator, EvaluationResult, HeldOut
from coseek.training.encoder.examples import Seen, TrainingExample
from coseek.training.encoder.loss import RetrieverObjective, Target
from coseek.training.encoder.recipe import RetrieverLoss
from coseek.training.trainer.workers import Workers

DEPTH = 50
"""BM25's candidates of a held-out turn, as many as `rerank` orders."""


def make_reranker(encoder: Path, folder: Path, seed: int, *, trust: bool = False) -> None:
    """Write a cross-encoder atomically: an encoder's language model and an untrained layer for the score."""
    whole = load_encoder(encoder, Placement(device="cpu"), "float32", trust=trust)
    trunk, tokenizer = whole.transformers_model, whole.tokenizer
    assert trunk is not None
    config = copy.deepcopy(trunk.config)
    config.num_labels = 1
    config.sentence_transformers = {"activation_fn": "torch.nn.Identity"}  # the usual sigmoid makes high scores equal
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForSequenceClassification.from_config(config, trust_remote_code=trust)
    network.base_model.load_state_dict(trunk.state_dict(), strict=False)  # some have no pooler below a score
    first, last = tokenizer.cls_token, tokenizer.sep_token
    if first and last and not tokenizer.num_special_tokens_to_add(pair=True):  # made for single texts
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{first} $A {last}",
            pair=f"{first} $A {last} $B:1 {last}:1",
            special_tokens=[(name, tokenizer.convert_tokens_to_ids(name)) for name in (first, last)],
        )

    def fill(part: Path) -> None:
        with quiet():
            network.save_pretrained(part)
            tokenizer.save_pretrained(part)

    atomic_folder(folder, fill)


@dataclass
class PairCollator:
    """Turns examples into pairs of their query with each of their candidates: this worker's share, and the whole
    batch's structure."""

    reader: CrossEncoder
    loss: RetrieverLoss
    workers: Workers

    def __call__(self, rows: Sequence[TrainingExample]) -> Features:
        if self.loss.kind == "kl":
            batch = EncoderBatch.weighed(rows)
        else:
            batch = EncoderBatch.contrastive(rows, in_batch=False, mask=self.loss.mask_false_negatives)
        places = [(row, slot) for row, slot in batch.allowed_BS.nonzero().tolist()]
        texts = [
            self.reader.pairs(rows[row].query, [batch.passages[int(batch.passage_S[slot])]])[0] for row, slot in places
        ]
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at][0]) - len(texts[at][1]))  # little padding
        pairs = [texts[at] for at in order]
        spare = pairs[-1:] * max(0, self.workers.world_size - len(pairs))  # see `Collator`
        encoded = self.reader.model.preprocess(self.workers.strided_share([*pairs, *spare]))
        features: Features = {f"pair_{name}": one for name, one in encoded.items() if isinstance(one, Tensor)}
        place_P2 = torch.tensor([places[at] for at in order])
        features["label"] = batch.structure() | {"row_P": place_P2[:, 0], "slot_P": place_P2[:, 1]}
        return features


class RerankerObjective(RetrieverObjective):
    """The loss of the scores of pairs."""

    def _scores(self, reps: list[list[Tensor]], labels: Target) -> Tensor:
        row_P, slot_P = labels["row_P"], labels["slot_P"]
        scores_P = self._gather(torch.cat(reps[0]))[: len(row_P), 0]
        return scores_P.new_zeros(labels["allowed_BS"].shape).index_put((row_P, slot_P), scores_P)


class RerankerEvaluator(EncoderEvaluator):
    """Evaluates a cross-encoder on held-out turns: it orders BM25's best `DEPTH` passages; the others keep their ranks
    below them."""

    def __init__(self, held_out: HeldOut, card: EncoderCard, seen: Seen, folder: Path) -> None:
        super().__init__(held_out, card, seen)
        self._folder = folder

    def evaluate(self, model: BaseModel) -> EvaluationResult:
        assert isinstance(model, Network)
        reader = CrossEncoder(model, self._folder)
        scores_QU = self._bm25_scores.copy()
        for query, scores_U in zip(self._queries, scores_QU, strict=True):
            best = np.argsort(-scores_U, kind="stable")[:DEPTH]
            best = best[scores_U[best] >= 0]  # what BM25 returned
            read = reader.scores(query, [self._texts[row] for row in best], BATCH)
            scores_U[best[np.argsort(-np.array(read), kind="stable")]] = scores_U.max() + np.arange(len(best), 0, -1)
        return self._result(scores_QU)

    def beside(self) -> dict[str, EvaluationResult]:
        """BM25, and the ceiling: its candidates in the perfect order, for the positive and for the gold passages."""
        first = super().beside()[BM25]
        depth_Q = np.minimum(DEPTH, (self._bm25_scores >= 0).sum(axis=1))
        gold = [found and _moved_up(found, depth) for found, depth in zip(first.gold, depth_Q.tolist(), strict=True)]
        return {BM25: first, ORACLE: EvaluationResult(np.where(first.ranks <= depth_Q, 1, first.ranks), tuple(gold))}


def _moved_up(ranks: Sequence[int], depth: int) -> tuple[int, ...]:
    """Ranks when those up to `depth` come first."""
    return tuple(place if rank <= depth else rank for place, rank in enumerate(sorted(ranks), start=1))
