"""Likelihood: the probability of a continuation of a prompt under a language model.

Prompt and continuation are tokenised separately, so a continuation has the same tokens after every prompt and its
likelihoods are comparable. Special tokens in texts are encoded as ordinary characters; only the model's chat template
adds special tokens. A model behind HTTP is named by

    url: http://127.0.0.1:8000
    tokenizer: models/policy          # the folder of the served model's tokenizer

Prompts are sent as ids, encoded as for a local model, so that equal weights give equal likelihoods. vLLM and SGLang
can do this.
"""

import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias, cast

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import CHAT_TEMPLATES, TOKENIZER, digest_of, fingerprint
from coseek.core.http import HttpClient, HttpFailure
from coseek.hardware.placement import Placement, Use
from coseek.models.chat import chat_frame
from coseek.models.dialect import PromptDialect, PromptRequest, dialect_of
from coseek.models.model_folder import model_path
from coseek.models.remote import ServerInfo, detect_server, same_text
from coseek.models.server import ServerSettings, open_client, with_changes
from coseek.models.text_model import load_local, server_settings
from coseek.models.tokenizer import HfTokenizer

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


_Row: TypeAlias = tuple[int, list[int], int]
"""The index of a row, its ids, and the start of its continuation."""


class LikelihoodSettings(Placement):
    """Batching and placement of likelihoods."""

    USE: ClassVar[Use] = Use.ENCODING

    batch_tokens: int = Field(default=8192, ge=1)
    """Tokens per forward pass, padding included; a longer row is read alone."""
    max_context: int = Field(default=32_768, ge=2)
    """Maximum tokens of prompt and continuation, or the model's limit if that is less."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A prompt and its continuation."""

    prompt: str
    """The user's message, which the chat template wraps."""
    text: str
    lead: str = ""
    """Text between the two, such as `Answer:`, in the model's turn, which is not scored."""


@dataclass(frozen=True, slots=True)
class ContinuationLogprob:
    """The likelihood of a continuation."""

    nats: float | None
    """Natural log of P(text | prompt, lead), the sum over its tokens; `None` for a fault."""
    tokens: int = 0
    fault: str | None = None


class LikelihoodModel(Protocol):
    """A model that computes likelihoods."""

    @property
    def identity(self) -> str:
        """A digest of everything besides the texts that a likelihood depends on."""

    @property
    def folder(self) -> str:
        """The folder of the model, or of its tokenizer if a server has the model."""

    @property
    def uses_chat_template(self) -> bool:
        """Whether a chat template wraps the prompt, so that a continuation starts a message."""

    def score(self, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
        """One value or fault per row, in order. Equal calls of a local model give bit-identical values."""


@dataclass(frozen=True)
class RowEncoder:
    """Encodes prompt, lead and continuation, each alone."""

    tokenizer: HfTokenizer
    around: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids before and after a prompt."""

    @property
    def uses_chat_template(self) -> bool:
        return bool(self.around[1])

    @property
    def folder(self) -> str:
        return self.tokenizer.source

    def encode(self, row: Continuation) -> tuple[list[int], int] | ContinuationLogprob:
        """The ids of a row and the start ≥ 1 of its continuation, or a fault."""
        before, after = self.around
        encode = self.tokenizer.encode_data
        prompt_ids = [*before, *encode(row.prompt), *after, *encode(row.lead)]
        ids = [*prompt_ids, *encode(row.text)]
        if len(ids) == len(prompt_ids):
            return ContinuationLogprob(None, fault="the continuation is empty, so it has no likelihood")
        if not prompt_ids:
            return ContinuationLogprob(None, fault="the prompt is empty; a model needs at least one token")
        return ids, len(prompt_ids)


@dataclass(frozen=True)
class LocalLikelihood(RowEncoder):
    """The causal language model of a Hugging Face folder."""

    model: "PreTrainedModel"
    max_context: int
    batch_tokens: int
    identity: str

    def score(self, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
        """Score rows in batches of similar length, right-padded, which a causal model does not see."""
        scores: dict[int, ContinuationLogprob] = {}
        encoded_rows: list[_Row] = []
        for index, row in enumerate(rows):
            encoded = self.encode(row)
            if isinstance(encoded, ContinuationLogprob):
                scores[index] = encoded
            elif len(encoded[0]) > self.max_context:
                too_long = f"{len(encoded[0])} tokens are more than the model's {self.max_context}"
                scores[index] = ContinuationLogprob(None, fault=too_long)
            else:
                encoded_rows.append((index, *encoded))
        for batch in self._batches(sorted(encoded_rows, key=lambda row: len(row[1]))):
            sums = self._nats([(ids, start) for _, ids, start in batch])
            for (index, ids, start), nats in zip(batch, sums, strict=True):
                fault = None if math.isfinite(nats) else f"the likelihood is {nats}, which is not finite"
                scores[index] = ContinuationLogprob(None if fault else nats, len(ids) - start, fault)
        return [scores[index] for index in range(len(rows))]

    def _batches(self, rows: Sequence[_Row]) -> Iterator[list[_Row]]:
        """Split rows of ascending length into batches of at most `batch_tokens` padded tokens."""
        batch: list[_Row] = []
        for row in rows:
            if batch and len(row[1]) * (len(batch) + 1) > self.batch_tokens:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch

    def _nats(self, rows: Sequence[tuple[list[int], int]]) -> list[float]:
        """log P of each row from `start` on: Σₜ log softmax(logits at t − 1)[id at t]."""
        import torch

        longest = max(len(ids) for ids, _ in rows)
        device = self.model.device
        ids_BT = torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows], device=device)
        first = min(start for _, start in rows) - 1  # the output at t − 1 predicts the token at t
        with torch.inference_mode():
            logits_BWV = self._logits(ids_BT, first)
            next_BW1 = ids_BT[:, first + 1 :, None]
            # In float32 for any precision, one row at a time: a copy of all logits would be the largest tensor.
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
        """Logits at `first` … T − 2; models that support it compute no others."""
        import torch

        last = ids_BT.shape[1] - 1
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            kept_positions = torch.arange(first, last, device=ids_BT.device)
            logits = self.model(input_ids=ids_BT, use_cache=False, logits_to_keep=kept_positions).logits
        else:
            logits = self.model(input_ids=ids_BT, use_cache=False).logits[:, first:last]
        assert isinstance(logits, torch.Tensor)
        return logits


def open_local_likelihood(folder: Path, settings: LikelihoodSettings | None = None) -> LocalLikelihood:
    """Open the model of a Hugging Face folder. Nothing is downloaded."""
    settings = settings or LikelihoodSettings()
    model, tokenizer, precision, context = load_local(folder, settings, settings.max_context)
    return LocalLikelihood(
        tokenizer=tokenizer,
        around=chat_frame(tokenizer, given=True),
        model=model,
        max_context=context,
        batch_tokens=settings.batch_tokens,
        identity=f"{fingerprint(folder)}:{precision}:{context}:{settings.batch_tokens}",
    )


_SUPPORTED = "vLLM or SGLang"
_PROBE = Continuation("Which city is the capital of France?", " The capital of France is Paris.")
"""Plain letters, whose tokens have the same text alone and together."""


class RemoteLikelihoodSettings(ServerSettings):
    """A server of a likelihood model."""

    url: str
    """The server's URL."""
    dialect: Literal["auto", "vllm", "sglang"] = "auto"
    """The server's dialect; `auto` asks the server."""
    tokenizer: str | None = None
    """The folder of the served model's tokenizer; default: the model's name, where it is a folder here."""


@dataclass(frozen=True)
class RemoteLikelihood(RowEncoder):
    """A causal language model on a server. Thread-safe."""

    calls: HttpClient
    served: ServerInfo
    dialect: PromptDialect
    identity: str
    """A digest of the server's URL, dialect and model, of changes of the request, and of the tokenizer."""
    send: Mapping[str, object] = field(default_factory=dict)
    """Changes of the request's fields."""

    @property
    def concurrency(self) -> int:
        """Prompts that the server reads at once."""
        return self.calls.patience.concurrency

    def score(self, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
        """Score each row with one call. A failed call is a fault of its row only."""
        pending: list[ContinuationLogprob | tuple[PromptRequest, Future[JsonObject]]] = []
        try:
            for row in rows:
                encoded = self.encode(row)
                if isinstance(encoded, ContinuationLogprob):
                    pending.append(encoded)
                else:
                    request = PromptRequest(self.served.model, tuple(encoded[0]), encoded[1])
                    pending.append((request, self._submit(request)))
            return [call if isinstance(call, ContinuationLogprob) else self._logprob(*call) for call in pending]
        finally:
            for call in pending:
                if not isinstance(call, ContinuationLogprob):
                    call[1].cancel()  # after Ctrl-C

    def probe(self) -> None:
        """Raise `SettingError` for a server that returns no log-probabilities of prompts, or has another tokenizer."""
        ids, start = cast(tuple[list[int], int], self.encode(_PROBE))
        request = PromptRequest(self.served.model, tuple(ids), start)
        try:
            scores = self.dialect.read_prompt(self._submit(request).result(), request)
        except HttpFailure as error:
            raise SettingError(
                f"{error}; likelihoods need a server that returns log-probabilities of prompts"
            ) from None
        except ValueError as error:
            raise SettingError(
                f"{self.calls.base} returns no exact log-probabilities of prompts ({error}); likelihoods need "
                f"{_SUPPORTED}"
            ) from None
        if not same_text(self.tokenizer.decode(request.scored), scores.text):
            raise SettingError(
                f"the tokens of {self.served.model} at {self.calls.base} are not those of {self.folder}; set tokenizer "
                "to the folder of its model"
            )

    def _submit(self, request: PromptRequest) -> "Future[JsonObject]":
        body = with_changes(self.dialect.prompt_body(request), self.send)
        return self.calls.submit("POST", self.served.paths.path(self.dialect.PATH), body)

    def _logprob(self, request: PromptRequest, answer: "Future[JsonObject]") -> ContinuationLogprob:
        """The sum of the log-probabilities in an answer, or its fault."""
        tokens = len(request.scored)
        try:
            logprobs = self.dialect.read_prompt(answer.result(), request).logprobs
        except (HttpFailure, ValueError, CancelledError) as error:
            return ContinuationLogprob(None, tokens, str(error) or "the connection to the server was closed")
        return ContinuationLogprob(math.fsum(logprobs), tokens)


def open_likelihood(name: str, settings: LikelihoodSettings | None = None) -> LocalLikelihood | RemoteLikelihood:
    """Open a likelihood model: a shipped model, a Hugging Face folder, a server's URL, or its YAML file."""
    server = server_settings(name, RemoteLikelihoodSettings)
    return open_local_likelihood(model_path(name), settings) if server is None else _open_remote(server)


def _open_remote(settings: RemoteLikelihoodSettings) -> RemoteLikelihood:
    """Open the client of a server, and probe it. A server that cannot do this is a `SettingError`."""
    calls, paths = open_client(settings.url, settings)
    with ExitStack() as on_failure:
        on_failure.callback(calls.close)
        server = detect_server(calls, paths, settings.dialect, settings.model)
        dialect = dialect_of(server.dialect)
        if not isinstance(dialect, PromptDialect):
            raise SettingError(
                f"{calls.base} speaks {server.dialect}, which has no log-probabilities of prompts; likelihoods need "
                f"{_SUPPORTED}"
            )
        folder = model_path(settings.tokenizer or server.model)
        if settings.tokenizer is None and not folder.is_dir():
            raise SettingError(
                f"the tokenizer of {server.model!r} at {calls.base} is unknown; name a YAML file with `url` and "
                "`tokenizer`, the folder of its model"
            )
        tokenizer = HfTokenizer.load(folder)
        parts = [calls.base, server.dialect, server.model, fingerprint(folder, TOKENIZER, CHAT_TEMPLATES)]
        identity = digest_of(*parts, *([json.dumps(settings.send, sort_keys=True)] if settings.send else []))
        around = chat_frame(tokenizer, given=True)
        likelihood = RemoteLikelihood(tokenizer, around, calls, server, dialect, identity, settings.send)
        likelihood.probe()
        on_failure.pop_all()
    return likelihood
