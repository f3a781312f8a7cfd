"""Train a reranker: the labels of a retriever's training → a cross-encoder folder and its metrics on held-out turns."""

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import ClassVar, cast

from sentence_transformers import CrossEncoder as Network
from sentence_transformers.base.model import BaseModel

from coseek.core.progress import Progress
from coseek.hardware.placement import Placement
from coseek.hub.card import ModelKind
from coseek.measure.table import Table
from coseek.pipelines.encoder import RetrieverTraining
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.rerank import QUERY_TOKENS, CrossEncoder
from coseek.retrieval.vectors.encoder import EncoderCard, is_cross_encoder, most_read, trained_card
from coseek.training.encoder.batch import UpdateCollator
from coseek.training.encoder.evaluation import BEFORE, EncoderEvaluator
from coseek.training.encoder.recipe import RetrieverRecipe
from coseek.training.encoder.reranker import PairCollator, RerankerEvaluator, RerankerObjective, make_reranker
from coseek.training.learner.workers import workers_here

PASSAGE_TOKENS = 256
"""Default tokens of a passage, unless the recipe or an earlier training sets them."""


class RerankerTraining(RetrieverTraining):
    """The training of one cross-encoder, which is saved in the folder `encoder`."""

    about: ClassVar[Mapping[str, str]] = {
        "start": "A cross-encoder with an untrained layer for the score.",
        "encoder": "A cross-encoder for reranking, trained by coseek.",
    }
    model_kind: ModelKind = "reranker"
    objective = RerankerObjective

    @cached_property
    def start_folder(self) -> Path:
        """The initial cross-encoder; made here if the recipe names an encoder."""
        start, folder = self._given_folder, self.folder / "start-reranker"
        if is_cross_encoder(start):
            return start
        if not folder.exists():
            make_reranker(start, folder, self.recipe.seed, trust=self.recipe.trust_remote_code)
        return folder

    def card_of(self, folder: Path) -> EncoderCard:
        return trained_card(folder) or self.card if is_cross_encoder(folder) else EncoderCard.of(folder)

    @cached_property
    def card(self) -> EncoderCard:
        """View and lengths of the trained cross-encoder."""
        card, recipe = trained_card(self.start_folder), self.recipe
        query, passage = (card.query_tokens, card.passage_tokens) if card else (QUERY_TOKENS, PASSAGE_TOKENS)
        return EncoderCard(
            view=recipe.view or (card.view if card else None),
            query_tokens=recipe.query_tokens or query,
            passage_tokens=recipe.passage_tokens or passage,
            pooling="none",
            normalise=False,
            similarity="dot",
        )

    @property
    def longest(self) -> int:
        return min(most_read(self.start_folder) or 2**31, self.card.query_tokens + self.card.passage_tokens)

    @cached_property
    def seen(self) -> Callable[[Query], str]:
        """Maps a query to the text that is read with every passage, as the retriever `rerank` does."""
        placement, card = Placement(device="cpu"), self.card
        reader = CrossEncoder.open(self.start_folder, placement, trust=self.recipe.trust_remote_code)
        return lambda query: reader.render(card.view or "query", query, card.query_tokens)

    @cached_property
    def evaluator(self) -> EncoderEvaluator | None:
        held_out, k = self.material.held_out, self.recipe.held_out.k
        return RerankerEvaluator(held_out, self.card, self.seen, k, self.start_folder) if held_out is not None else None

    def open(self, folder: Path) -> BaseModel:
        """Open a cross-encoder on the training device in float32."""
        recipe = self.recipe
        placement = Placement(device=recipe.device, attention=recipe.attention, precision="float32")
        model = CrossEncoder.open(folder, placement, self.longest, trust=recipe.trust_remote_code).model
        # The library's gradient cache takes the score of a pair for the vector of a text.
        model.register_forward_hook(lambda _, __, features: {**features, "sentence_embedding": features["scores"]})
        return model

    def _collator(self, model: BaseModel) -> UpdateCollator:
        return PairCollator(CrossEncoder(cast(Network, model), self.start_folder), self.recipe.loss, self.workers)

    @property
    def next_command(self) -> str:
        """The command that ranks with the reranker of the verdict."""
        model = self.start_folder if self.kept == BEFORE else self.encoder_folder
        settings = f"{{retriever: rerank, over: INDEX, model: {model}}}"
        return f"coseek search {quote(settings)} 'some words'"


def training_of(recipe: RetrieverRecipe) -> type[RetrieverTraining]:
    """The training of the recipe's kind."""
    return RerankerTraining if recipe.kind == "reranker" else RetrieverTraining


def train_and_measure(
    recipe: RetrieverRecipe, folder: Path, resume: bool, progress: Progress
) -> tuple[RetrieverTraining, Table | None]:
    """Train by the recipe, and write the table. It is `None` if nothing is held out, and in all workers but the
    first."""
    training = training_of(recipe)(recipe, folder, progress, workers_here())
    training.begin(resume)
    training.train()
    return training, training.results() if training.workers.is_main else None
