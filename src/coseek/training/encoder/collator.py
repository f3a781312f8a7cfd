"""Collator: tokenises the texts of an update, with the tokenizer call, prompts and truncation of serving."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, TypeAlias

from sentence_transformers import SentenceTransformer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from coseek.retrieval.vectors.encoder_card import EncoderCard
from coseek.training.encoder.batch import EncoderBatch
from coseek.training.encoder.examples import TrainingExample
from coseek.training.trainer.workers import ALONE, Workers

Side: TypeAlias = Literal["query", "passage"]
Features: TypeAlias = "dict[str, Tensor | int | dict[str, Tensor]]"

CHUNK = 256
"""Texts per tokenizer call."""
CACHED_TEXTS = 200_000
"""Texts that are kept tokenised: 1 GB at 200 tokens each."""


@dataclass
class FeatureBuilder:
    """Turns queries and passages into tensors. Tokenises each text once, while the texts are few."""

    model: SentenceTransformer
    card: EncoderCard
    _cache: dict[tuple[Side, str], dict[str, Tensor]] = field(default_factory=dict)
    _prompt_length: dict[Side, int] = field(default_factory=dict)

    def prepare(self, side: Side, texts: Sequence[str]) -> None:
        """Tokenise the texts that are not cached yet."""
        prompt = self.card.query_prompt if side == "query" else self.card.passage_prompt
        missing = [text for text in dict.fromkeys(texts) if (side, text) not in self._cache]
        self.model.max_seq_length = self.card.query_tokens if side == "query" else self.card.passage_tokens
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            encoded = self.model.preprocess(chunk, prompt=prompt or None)
            mask_NT = encoded["attention_mask"].bool()
            names = [
                name for name, value in encoded.items() if isinstance(value, Tensor) and value.shape == mask_NT.shape
            ]
            for place, text in enumerate(chunk):
                self._cache[side, text] = {name: encoded[name][place][mask_NT[place]].clone() for name in names}
            if "prompt_length" in encoded:
                self._prompt_length[side] = int(encoded["prompt_length"])

    def features(self, side: Side, texts: Sequence[str]) -> dict[str, Tensor | int]:
        """Return the texts as one padded block. Padding is on the right whatever the tokenizer's default: micro-batches
        cut it off there, and neither pooling nor positions depend on it."""
        self.prepare(side, texts)
        known = [self._cache[side, text] for text in texts]
        padding = {"input_ids": self.model.tokenizer.pad_token_id or 0}
        for old in [*islice(self._cache, max(0, len(self._cache) - CACHED_TEXTS))]:
            del self._cache[old]
        padded: dict[str, Tensor | int] = {
            name: pad_sequence([one[name] for one in known], batch_first=True, padding_value=padding.get(name, 0))
            for name in known[0]
        }
        if side in self._prompt_length:
            padded["prompt_length"] = self._prompt_length[side]
        return padded


@dataclass
class Collator:
    """Turns examples into the inputs of the loss: this worker's share of the texts, and the whole batch's structure."""

    builder: FeatureBuilder
    in_batch: bool
    kl: bool
    workers: Workers = ALONE
    in_batch_rows: int | None = None

    def __call__(self, rows: Sequence[TrainingExample]) -> Features:
        if self.kl:
            batch = EncoderBatch.weighed(rows)
        else:
            batch = EncoderBatch.contrastive(rows, self.in_batch, self.in_batch_rows)
        features: Features = {}
        sides: list[tuple[Side, tuple[str, ...]]] = [("query", batch.queries), ("passage", batch.passages)]
        for side, texts in sides:
            # A worker without a text could make no vector for the others to wait for. A vector behind the last one is
            # in no score and has no gradient.
            spare = texts[-1:] * max(0, self.workers.world - len(texts))
            for name, value in self.builder.features(side, self.workers.mine([*texts, *spare])).items():
                features[f"{side}_{name}"] = value
        features["label"] = {
            "query_B": batch.query_B,
            "passage_S": batch.passage_S,
            "allowed_BS": batch.allowed_BS,
            "positive_B": batch.positive_B,
            "targets_BS": batch.targets_BS,
        }
        return features
