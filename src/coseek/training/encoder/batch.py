"""Batch: the examples of an update as tensors: each distinct text once, and the positives and negatives of each row.

A batch has one *slot* for each passage of each row, as in the formula of the loss. A passage in several slots is
encoded once.

False negatives. Two rows are *kin* if they have the same question or the same query text: a positive of one is no
negative of the other. A slot that holds the positive of a row or of its kin (the same id or the same text) is masked in
that row, even if the row's own labels list it as a negative. So are slots of other rows of the same question. Every
worker has the rows of all workers, so all use the same mask. Without `mask_false_negatives` every slot of a row and of
its block is a negative, as in Agentic-R's equation 5.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from sentence_transformers import MultiVectorEncoder
from sentence_transformers.base.model import BaseModel
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.examples import ExamplePassage, TrainingExample
from coseek.training.encoder.recipe import RetrieverLoss
from coseek.training.learner.workers import ALONE, Workers


@dataclass(frozen=True)
class EncoderBatch:
    """B rows with S slots, U distinct passages and V distinct queries."""

    queries: tuple[str, ...]
    passages: tuple[str, ...]
    query_B: Tensor
    """Index of each row's query in `queries`."""
    passage_S: Tensor
    """Index of each slot's passage in `passages`."""
    allowed_BS: Tensor
    """Whether the slot is in the denominator of the row: its positive and its negatives."""
    positive_B: Tensor
    """The slot of each row's positive (`contrastive`)."""
    targets_BS: Tensor
    """Target probability of each slot for each row (`kl`); 0 at other rows' slots."""

    @classmethod
    def of(cls, rows: Sequence[TrainingExample], loss: RetrieverLoss) -> "EncoderBatch":
        """Make the batch of an update: for `kl` of each row's candidates with their targets, else of its positive and
        negatives, which may be negatives of other rows as well (`_negatives`)."""
        is_kl = loss.kind == "kl"
        shown = [row.candidates if is_kl else (row.positive, *row.negatives) for row in rows]
        slots = [passage for passages in shown for passage in passages]
        owner_S = torch.tensor([row for row, passages in enumerate(shown) for _ in passages])
        own_BS = owner_S == torch.arange(len(rows))[:, None]
        positive_B = own_BS.int().argmax(dim=1)  # a row's first slot
        targets_BS = torch.zeros(own_BS.shape)
        if is_kl:
            allowed_BS = own_BS
            targets_BS[own_BS] = torch.tensor([target for row in rows for target in row.targets])
        else:
            negative_BS = _negatives(rows, slots, owner_S, positive_B, loss)
            allowed_BS = negative_BS | (torch.arange(len(slots)) == positive_B[:, None])
        # Longest first: micro-batches of texts of similar length need little padding.
        queries = _longest_first(row.query for row in rows)
        passages = _longest_first(passage.text for passage in slots)
        query_index = {text: index for index, text in enumerate(queries)}
        passage_index = {text: index for index, text in enumerate(passages)}
        return cls(
            queries=queries,
            passages=passages,
            query_B=torch.tensor([query_index[row.query] for row in rows]),
            passage_S=torch.tensor([passage_index[passage.text] for passage in slots]),
            allowed_BS=allowed_BS,
            positive_B=positive_B,
            targets_BS=targets_BS,
        )

    def structure(self) -> dict[str, Tensor]:
        """Return the tensors by name: how queries and passages belong together."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}


def _negatives(
    rows: Sequence[TrainingExample],
    slots: Sequence[ExamplePassage],
    owner_S: Tensor,
    positive_B: Tensor,
    loss: RetrieverLoss,
) -> Tensor:
    """Return the slots that are negatives of each row: its own, with `in_batch` also those of all other rows, or of
    those in the same block of `in_batch_rows` rows; shape BS."""
    own_BS = owner_S == torch.arange(len(rows))[:, None]
    block_B = torch.arange(len(rows)) // (loss.in_batch_rows or len(rows))
    shared_BS = _equal(block_B, block_B[owner_S]) & torch.tensor(loss.in_batch)
    if not loss.mask_false_negatives:
        return own_BS | shared_BS
    question_B, query_B = _number_keys([row.question for row in rows]), _number_keys([row.query for row in rows])
    id_S, text_S = _number_keys([passage.id for passage in slots]), _number_keys([passage.text for passage in slots])
    kin_BB = _equal(question_B, question_B) | _equal(query_B, query_B)
    holds_BS = _equal(id_S[positive_B], id_S) | _equal(text_S[positive_B], text_S)  # the positive of row B
    right_BS = (kin_BB.float() @ holds_BS.float()) > 0
    return ~right_BS & (own_BS | (~_equal(question_B, question_B[owner_S]) & shared_BS))


def _longest_first(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(texts), key=lambda text: (-len(text), text)))


def _equal(keys_M: Tensor, keys_N: Tensor) -> Tensor:
    """Return the pairwise equality of two lists of keys, shape M × N."""
    return keys_M[:, None] == keys_N


def _number_keys(keys: Sequence[Hashable]) -> Tensor:
    """Number the keys; equal keys get equal numbers."""
    numbers: dict[Hashable, int] = {}
    return torch.tensor([numbers.setdefault(key, len(numbers)) for key in keys])


# Collator: tokenises the texts of an update, with the tokenizer call, prompts and truncation of serving.

Side: TypeAlias = Literal["query", "passage"]
Features: TypeAlias = "dict[str, Tensor | int | dict[str, Tensor]]"
TASKS: dict[Side, Literal["query", "document"]] = {"query": "query", "passage": "document"}
"""Names of the sides in sentence-transformers."""


@dataclass(frozen=True)
class FeatureBuilder:
    """Turns queries and passages into tensors."""

    model: BaseModel
    card: EncoderCard

    def features(self, side: Side, texts: Sequence[str]) -> dict[str, Tensor | int]:
        """Return the texts as one padded block. Padding is on the right whatever the tokenizer's default: micro-batches
        cut it off there, and neither pooling nor positions depend on it."""
        prompt = self.card.query_prompt if side == "query" else self.card.passage_prompt
        self.model.max_seq_length = self.card.query_tokens if side == "query" else self.card.passage_tokens
        task = TASKS[side] if isinstance(self.model, MultiVectorEncoder) else None
        encoded = self.model.preprocess([*texts], prompt=prompt or None, task=task)
        mask_NT = encoded["attention_mask"].bool()
        if "query_expansion_positions" in encoded:  # padding that is scored
            mask_NT = mask_NT | encoded["query_expansion_positions"].bool()
        fill_values = {"input_ids": self.model.tokenizer.pad_token_id or 0}
        padded: dict[str, Tensor | int] = {}
        for name, value in encoded.items():
            if isinstance(value, Tensor) and value.shape == mask_NT.shape:
                rows = [row_T[mask_T] for row_T, mask_T in zip(value, mask_NT, strict=True)]
                padded[name] = pad_sequence(rows, batch_first=True, padding_value=fill_values.get(name, 0))
        if "prompt_length" in encoded:
            padded["prompt_length"] = int(encoded["prompt_length"])
        return padded


UpdateCollator: TypeAlias = Callable[[Sequence[TrainingExample]], Features]
"""The examples of an update → the inputs of its loss."""


@dataclass
class Collator:
    """Turns examples into the inputs of the loss: this worker's share of the texts, and the whole batch's structure."""

    builder: FeatureBuilder
    loss: RetrieverLoss
    workers: Workers = ALONE

    def __call__(self, rows: Sequence[TrainingExample]) -> Features:
        batch = EncoderBatch.of(rows, self.loss)
        features: Features = {}
        sides: list[tuple[Side, tuple[str, ...]]] = [("query", batch.queries), ("passage", batch.passages)]
        for side, texts in sides:
            # A worker without a text would have no vector for the others to gather. A vector after the last one is in
            # no score and has no gradient.
            padding = texts[-1:] * max(0, self.workers.world_size - len(texts))
            for name, value in self.builder.features(side, self.workers.strided_share([*texts, *padding])).items():
                features[f"{side}_{name}"] = value
        features["label"] = batch.structure()
        return features
