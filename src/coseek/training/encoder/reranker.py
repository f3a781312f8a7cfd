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
from coseek.training.encoder.examples import QueryText, TrainingExample
from coseek.training.encoder.loss import RetrieverObjective, Target
from coseek.training.encoder.recipe import RetrieverLoss
from coseek.training.learner.workers import Workers

DEPTH = 50
"""BM25's candidates of a held-out turn, as many as `rerank` orders."""


def make_reranker(encoder: Path, folder: Path, seed: int, *, trust: bool = False) -> None:
    """Write a cross-encoder atomically: an encoder's language model and an untrained layer for the score."""
    base = load_encoder(encoder, Placement(device="cpu"), "float32", trust=trust)
    trunk, tokenizer = base.transformers_model, base.tokenizer
    assert trunk is not None
    config = copy.deepcopy(trunk.config)
    config.num_labels = 1
    config.pad_token_id = tokenizer.pad_token_id if config.pad_token_id is None else config.pad_token_id
    config.sentence_transformers = {"activation_fn": "torch.nn.Identity"}  # the usual sigmoid makes high scores equal
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoModelForSequenceClassification.from_config(config, trust_remote_code=trust)
    network.base_model.load_state_dict(trunk.state_dict(), strict=False)  # some classifiers have no pooler
    cls, sep = tokenizer.cls_token, tokenizer.sep_token
    if cls and sep and not tokenizer.num_special_tokens_to_add(pair=True):  # made for single texts
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(name, tokenizer.convert_tokens_to_ids(name)) for name in (cls, sep)],
        )

    def write(temp_folder: Path) -> None:
        with quiet():
            network.save_pretrained(temp_folder)
            tokenizer.save_pretrained(temp_folder)

    atomic_folder(folder, write)


@dataclass
class PairCollator:
    """Turns examples into pairs of their query with each of their candidates: this worker's share, and the whole
    batch's structure."""

    reader: CrossEncoder
    loss: RetrieverLoss
    workers: Workers

    def __call__(self, rows: Sequence[TrainingExample]) -> Features:
        batch = EncoderBatch.of(rows, self.loss.model_copy(update={"in_batch": False}))
        slots = [(row, slot) for row, slot in batch.allowed_BS.nonzero().tolist()]
        pairs = [
            self.reader.pairs(rows[row].query, [batch.passages[int(batch.passage_S[slot])]])[0] for row, slot in slots
        ]
        # longest first: little padding
        order = sorted(range(len(pairs)), key=lambda index: -len(pairs[index][0]) - len(pairs[index][1]))
        pairs = [pairs[index] for index in order]
        padding = pairs[-1:] * max(0, self.workers.world_size - len(pairs))  # see `Collator`
        encoded = self.reader.model.preprocess(self.workers.strided_share([*pairs, *padding]))
        features: Features = {f"pair_{name}": value for name, value in encoded.items() if isinstance(value, Tensor)}
        slots_P2 = torch.tensor([slots[index] for index in order])
        features["label"] = batch.structure() | {"row_P": slots_P2[:, 0], "slot_P": slots_P2[:, 1]}
        return features


class RerankerObjective(RetrieverObjective):
    """The loss of the scores of pairs."""

    def _scores(self, vectors: Sequence[Tensor], labels: Target) -> Tensor:
        row_P, slot_P = labels["row_P"], labels["slot_P"]
        scores_P = vectors[0][: len(row_P), 0]
        return scores_P.new_zeros(labels["allowed_BS"].shape).index_put((row_P, slot_P), scores_P)


class RerankerEvaluator(EncoderEvaluator):
    """Evaluates a cross-encoder on held-out turns: it orders BM25's best `DEPTH` passages; the others keep their ranks
    below them."""

    def __init__(
        self, held_out: HeldOut, card: EncoderCard, query_text: QueryText, k: Sequence[int], folder: Path
    ) -> None:
        super().__init__(held_out, card, query_text, k)
        self._folder = folder

    def evaluate(self, model: BaseModel) -> EvaluationResult:
        assert isinstance(model, Network)
        reader = CrossEncoder(model, self._folder)
        scores_QU = self._bm25_scores.copy()
        for query, scores_U in zip(self._queries, scores_QU, strict=True):
            top_K = np.argsort(-scores_U, kind="stable")[:DEPTH]
            top_K = top_K[scores_U[top_K] >= 0]  # what BM25 returned
            scores_K = np.array(reader.scores(query, [self._texts[row] for row in top_K], BATCH))
            reranked_K = top_K[np.argsort(-scores_K, kind="stable")]
            scores_U[reranked_K] = scores_U.max() + np.arange(len(top_K), 0, -1)
        return self._result(scores_QU)

    def baselines(self) -> dict[str, EvaluationResult]:
        """BM25, and the ceiling: its candidates in the perfect order, for the positive and for the gold passages."""
        bm25 = super().baselines()[BM25]
        depth_Q = np.minimum(DEPTH, (self._bm25_scores >= 0).sum(axis=1))
        gold = [_move_up(ranks, depth) for ranks, depth in zip(bm25.gold, depth_Q.tolist(), strict=True)]
        return {BM25: bm25, ORACLE: EvaluationResult(np.where(bm25.ranks <= depth_Q, 1, bm25.ranks), tuple(gold))}


def _move_up(ranks: Sequence[int], depth: int) -> tuple[int, ...]:
    """Return the ranks after those up to `depth` are moved to the front."""
    return tuple(new_rank if rank <= depth else rank for new_rank, rank in enumerate(sorted(ranks), start=1))
