"""Likelihood: how probable a local language model finds given words behind given others. It writes nothing.

Prompt and continuation are joined as ids and never tokenised together, so the same continuation is the same tokens
behind every prompt, and its likelihoods can be compared. Texts are data: a special token in them is ordinary
characters; only the model's own chat template puts special tokens around a prompt.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import Settings
from coseek.hardware.precision import EncodingPrecision, Use
from coseek.hardware.speed import precision_of
from coseek.models.local_text import chat_frame
from coseek.models.remote_text import named_server
from coseek.models.shape import hidden_size
from coseek.models.tokenizer import HfTokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_Row: TypeAlias = tuple[int, list[int], int]
"""Its place among those asked for, its ids, and where its continuation begins."""


class LikelihoodSettings(Settings):
    """How a local model is asked for likelihoods."""

    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens read in one forward pass, padding included; a longer row is read alone."""
    max_context: int = Field(default=32_768, ge=2)
    """Prompt and continuation together have at most this many tokens, or what the model allows where that is less."""
    precision: EncodingPrecision = "float32"
    """Of the weights."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt, and words that might follow it."""

    prompt: str
    """What a user says; the model's frame goes around it."""
    text: str
    """The words that are weighed."""
    lead: str = ""
    """Words of the model between the two, such as `Answer:`. They are taken as written and not weighed."""


@dataclass(frozen=True, slots=True)
class ContinuationLogprob:
    """What a model makes of a continuation."""

    nats: float | None
    """Natural log of P(text | prompt, lead), the sum over its tokens; `None` for a fault."""
    tokens: int = 0
    """Tokens of the text."""
    fault: str | None = None
    """Why there is no number."""


class LikelihoodModel(Protocol):
    """A model that says how probable words are."""

    @property
    def identity(self) -> str:
        """A digest of all that a likelihood depends on besides the texts."""
        ...

    @property
    def uses_chat_template(self) -> bool:
        """Whether a chat template stands around the prompt, so that a continuation begins a message."""
        ...

    def score(self, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
        """One number or one fault a row, in order. The same rows in one call give the same numbers, bit for bit."""
        ...


@dataclass(frozen=True)
class LocalLikelihood:
    """The causal language model of a Hugging Face folder."""

    model: "PreTrainedModel"
    tokenizer: HfTokenizer
    around: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids in front of a prompt and behind it."""
    max_context: int
    batch_tokens: int
    identity: str

    @property
    def uses_chat_template(self) -> bool:
        return bool(self.around[1])

    def score(self, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
        """Rows of like length are read together, padded at their ends, which a causal model does not look at."""
        asked = [self._ids(row) for row in rows]
        found = {place: one for place, one in enumerate(asked) if isinstance(one, ContinuationLogprob)}
        left = sorted(
            ((place, *one) for place, one in enumerate(asked) if not isinstance(one, ContinuationLogprob)),
            key=lambda row: len(row[1]),
        )
        for batch in self._batches(left):
            numbers = self._nats([(ids, start) for _, ids, start in batch])
            for (place, ids, start), nats in zip(batch, numbers, strict=True):
                found[place] = _weighed(nats, len(ids) - start)
        return [found[place] for place in range(len(rows))]

    def _ids(self, row: Continuation) -> tuple[list[int], int] | ContinuationLogprob:
        """The whole row, and where its continuation begins; a fault where there is nothing to weigh."""
        before, after = self.around
        encode = self.tokenizer.encode_data
        given = [*before, *encode(row.prompt), *after, *encode(row.lead)]
        whole = [*given, *encode(row.text)]
        if len(whole) == len(given):
            return ContinuationLogprob(None, fault="there are no words to weigh")
        if not given:
            return ContinuationLogprob(None, fault="the prompt is empty; a model needs something to go on from")
        if len(whole) > self.max_context:
            return ContinuationLogprob(None, fault=f"{len(whole)} tokens are more than the model's {self.max_context}")
        return whole, len(given)

    def _batches(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Rows by rising length, so many at once as fit when all are as long as the last."""
        batch: list[_Row] = []
        for row in rows:
            if batch and len(row[1]) * (len(batch) + 1) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _nats(self, rows: Sequence[tuple[list[int], int]]) -> list[float]:
        """log P of every row from `start` on: Σₜ log softmax(logits at t − 1)[id at t]."""
        import torch

        longest = max(len(ids) for ids, _ in rows)
        device = self.model.device
        ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows], device=device)
        first = min(start for _, start in rows) - 1  # the output before a token says how probable the token is
        with torch.inference_mode():
            logits_BWV = self._logits(ids_BT, first)
            next_BW1 = ids_BT[:, first + 1 :, None]
            # In float32 whatever the weights, a row at a time: a copy of all logits would be the largest thing here.
            logprobs_BW = torch.stack(
                [
                    torch.log_softmax(logits_WV.float(), -1).gather(-1, next_W1)[:, 0]
                    for logits_WV, next_W1 in zip(logits_BWV, next_BW1, strict=True)
                ]
            ).double()
        return [
            float(logprobs_W[start - 1 - first : len(ids) - 1 - first].sum())
            for logprobs_W, (ids, start) in zip(logprobs_BW, rows, strict=True)
        ]

    def _logits(self, ids_BT: "Tensor", first: int) -> "Tensor":
        """Logits at `first` … T − 2; models that can are asked for no others."""
        import torch

        last = ids_BT.shape[1] - 1
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            kept = torch.arange(first, last, device=ids_BT.device)
            logits = self.model(input_ids=ids_BT, use_cache=False, logits_to_keep=kept).logits
        else:
            logits = self.model(input_ids=ids_BT, use_cache=False).logits[:, first:last]
        assert isinstance(logits, torch.Tensor)
        return logits


def _weighed(nats: float, tokens: int) -> ContinuationLogprob:
    if not math.isfinite(nats):
        return ContinuationLogprob(None, tokens, f"the likelihood is {nats}, which is no number")
    return ContinuationLogprob(nats, tokens)


def open_likelihood(name: str, settings: LikelihoodSettings | None = None) -> LocalLikelihood:
    """Open the model of a Hugging Face folder. Nothing is ever fetched."""
    from coseek.models.pretrained import load_model  # here and not above: it brings torch

    if named_server(name) is not None:
        raise SettingError(f"{name} is a server, and likelihoods are read off a model folder; name the model's folder")
    settings = settings or LikelihoodSettings()
    folder = Path(name).expanduser()
    precision = precision_of(settings.precision, Use.ENCODING, hidden_size(folder))
    model = load_model(folder, precision)
    tokenizer = HfTokenizer.load(folder)
    config = model.config.get_text_config()
    context = min(int(getattr(config, "max_position_embeddings", 0) or settings.max_context), settings.max_context)
    return LocalLikelihood(
        model=model,
        tokenizer=tokenizer,
        around=chat_frame(tokenizer, folder),
        max_context=context,
        batch_tokens=settings.batch_tokens,
        identity=f"{fingerprint(folder)}:{precision}:{context}:{settings.batch_tokens}",
    )
