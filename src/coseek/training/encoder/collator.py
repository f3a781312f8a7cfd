"""Feeding: texts as the encoder reads them. What is trained on is what serving will encode: the same tokenizer call,
the same prompts, the same cut."""

from collections.abc import Sequence
from dataclasses import dataclass, field
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
"""Texts that are tokenised at once."""


@dataclass
class FeatureBuilder:
    """Texts of either side as tensors. Every text is tokenised once."""

    model: SentenceTransformer
    card: EncoderCard
    _known: dict[tuple[Side, str], dict[str, Tensor]] = field(default_factory=dict)
    _prompt_length: dict[Side, int] = field(default_factory=dict)

    def prepare(self, side: Side, texts: Sequence[str]) -> None:
        """Tokenise what is not known yet."""
        prompt = self.card.query_prompt if side == "query" else self.card.passage_prompt
        missing = [text for text in dict.fromkeys(texts) if (side, text) not in self._known]
        self.model.max_seq_length = self.card.query_tokens if side == "query" else self.card.passage_tokens
        for start in range(0, len(missing), CHUNK):
            chunk = missing[start : start + CHUNK]
            read = self.model.preprocess(chunk, prompt=prompt or None)
            mask_NT = read["attention_mask"].bool()
            names = [name for name, value in read.items() if isinstance(value, Tensor) and value.shape == mask_NT.shape]
            for place, text in enumerate(chunk):
                self._known[side, text] = {name: read[name][place][mask_NT[place]].clone() for name in names}
            if "prompt_length" in read:
                self._prompt_length[side] = int(read["prompt_length"])

    def features(self, side: Side, texts: Sequence[str]) -> dict[str, Tensor | int]:
        """The texts as one padded block. Padding stands on the right whatever the tokenizer prefers: micro-batches cut
        it off there, and neither pooling nor positions care."""
        self.prepare(side, texts)
        known = [self._known[side, text] for text in texts]
        padding = {"input_ids": self.model.tokenizer.pad_token_id or 0}
        padded: dict[str, Tensor | int] = {
            name: pad_sequence([one[name] for one in known], batch_first=True, padding_value=padding.get(name, 0))
            for name in known[0]
        }
        if side in self._prompt_length:
            padded["prompt_length"] = self._prompt_length[side]
        return padded


@dataclass
class Collator:
    """Rows → what the trainer hands to the loss: this worker's share of the texts, and the whole batch's structure."""

    feeder: FeatureBuilder
    in_batch: bool
    kl: bool
    workers: Workers = ALONE

    def __call__(self, rows: Sequence[TrainingExample]) -> Features:
        batch = EncoderBatch.weighed(rows) if self.kl else EncoderBatch.contrastive(rows, self.in_batch)
        fed: Features = {}
        sides: list[tuple[Side, Sequence[str]]] = [("query", batch.queries), ("passage", batch.passages)]
        for side, texts in sides:
            for name, value in self.feeder.features(side, self.workers.mine(texts)).items():
                fed[f"{side}_{name}"] = value
        fed["label"] = {
            "query_B": batch.query_B,
            "passage_S": batch.passage_S,
            "allowed_BS": batch.allowed_BS,
            "positive_B": batch.positive_B,
            "targets_BS": batch.targets_BS,
        }
        return fed
