"""Model service: a model, and the way from a request to token ids and back. Knows no HTTP."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from coseek import __version__
from coseek.core.errors import CoseekError, DataError, ModelError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import fingerprint
from coseek.hardware.precision import Precision
from coseek.models.chat import Message, begin_ids, chat_ids
from coseek.models.model import TurnEnd
from coseek.models.shape import hidden_size
from coseek.models.tokenizer import HfTokenizer
from coseek.serve.completions import (
    ChatAsked,
    CompletionAsked,
    WeightsAsked,
    WrittenText,
    chat_completion,
    completion,
)
from coseek.serve.contract import BUG, RefusedRequest
from coseek.serve.generation import GenerationJob, GenerationRequest, GenerationWorker, SamplingKind
from coseek.serve.settings import ModelServeSettings
from coseek.serve.worker import Service

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from coseek.serve.mixed_sampler import MixedSampler

P = ParamSpec("P")
T = TypeVar("T")
_DEFAULT_TOKENS = 16
"""Tokens of a completion without `max_tokens`, as in OpenAI's API."""
Write: TypeAlias = Callable[[], JsonObject]
"""Writes an answer; may be called in a thread."""
CHARS_A_TOKEN = 8
"""Characters of a text that are encoded first, for each token of the context."""
_CUT_TOKENS = 64
"""Tokens by which a text that is cut in the middle of a word may have more than it has whole, and to spare."""
_LONG = 4_000
"""Characters from which a prompt is encoded in a thread, so that other requests are not blocked."""


@dataclass(frozen=True)
class Weights:
    """An open model."""

    network: "PreTrainedModel"
    tokenizer: HfTokenizer
    vocabulary: int
    context: int
    """Tokens of prompt and text together, at most."""
    bos_ids: tuple[int, ...]
    identity: str
    precision: Precision

    @classmethod
    def of(cls, folder: Path, settings: ModelServeSettings) -> "Weights":
        from coseek.models.pretrained import load_model

        network = load_model(folder, settings).requires_grad_(False)
        tokenizer = HfTokenizer.load(folder)
        config = network.config.get_text_config()
        longest = int(getattr(config, "max_position_embeddings", 0) or 2**20)
        return cls(
            network,
            tokenizer,
            int(config.vocab_size),
            min(longest, settings.max_context or longest),
            begin_ids(tokenizer),
            fingerprint(folder),
            settings.precision_at(hidden_size(folder)),
        )


class ModelService(Service[ModelServeSettings]):
    """Serves one model, which is opened in the worker's thread."""

    def __init__(self, folder: Path, settings: ModelServeSettings, name: str | None = None) -> None:
        self.name = name or folder.resolve().name
        self.generation = GenerationWorker(
            self._sampler, settings.max_rows, settings.cache_tokens, settings.queue, settings.most_wait_s
        )
        self.weights: Weights | None = None
        self._folder = folder
        self._encoding = ThreadPoolExecutor(1, "coseek-encode")
        super().__init__(settings, self.generation)

    def _open(self) -> None:
        self.weights = Weights.of(self._folder, self.settings)

    @property
    def not_ready(self) -> str:
        """Why nothing can be generated now; empty when it can."""
        return self.why_not(self.name, self.weights is not None)

    def health(self) -> JsonObject:
        why, worker = self.not_ready, self.generation
        counts: JsonObject = {"waiting": worker.waiting, "running": worker.running, "faults": worker.faults}
        return {"ready": not why, "why": why, **counts}

    def models(self) -> JsonObject:
        """What `/v1/models` lists."""
        return {"object": "list", "data": [self.model_entry()]}

    def model_entry(self) -> JsonObject:
        """What `/v1/models/NAME` answers."""
        card: JsonObject = {"id": self.name, "object": "model", "created": 0, "owned_by": "coseek"}
        if self.weights is not None:
            card["max_model_len"] = self.weights.context
        return card

    def info(self) -> JsonObject:
        weights = self._open_weights()
        return {
            "model": self.name,
            "identity": weights.identity,
            "architecture": type(weights.network).__name__,
            "vocabulary": weights.vocabulary,
            "max_context": weights.context,
            "chat_template": weights.tokenizer.fast.chat_template is not None,
            "weight_version": self.generation.version,
            "precision": weights.precision,
            "device": str(weights.network.device),
            "written_tokens": self.generation.written_tokens,
            "reused_tokens": self.generation.reused_tokens,
            "coseek": __version__,
        }

    async def complete(self, asked: CompletionAsked, record: JsonObject, arrived: float | None = None) -> Write:
        """Generate for `/v1/completions`; counts are added to the log's `record`. `arrived`: when the request did, in
        the event loop's time."""
        weights = self._named(asked.model)
        prompts = asked.prompts
        if not 0 < len(prompts) <= self.settings.max_prompts:
            raise RefusedRequest(400, f"a request has 1 to {self.settings.max_prompts} prompts, not {len(prompts)}")
        bos = weights.bos_ids if asked.add_special_tokens else ()
        requests = []
        for prompt in prompts:
            ids = tuple(await self._encoded(prompt) if isinstance(prompt, str) else prompt)
            if isinstance(prompt, str) and ids[: len(bos)] != bos:  # a client that applied the template has written it
                ids = bos + ids
            wanted = asked.max_tokens or _DEFAULT_TOKENS
            requests.append(self._request(weights, ids, wanted, asked.drawn_seed, asked.kind))
        self._check_product([request.max_tokens for request in requests])
        jobs = await self.generation.write(requests, arrived)
        self._note(jobs, record)
        return lambda: completion(asked, self.name, _texts(weights, jobs))

    async def load_weights(self, asked: WeightsAsked) -> Write:
        """Answer `/update_weights_from_disk`: open a model and generate with it from then on. The old one generates
        meanwhile."""
        folder = self._loadable(asked.model_path)
        try:
            weights = await asyncio.to_thread(Weights.of, folder, self.settings)
        except CoseekError as error:
            raise RefusedRequest(400, str(error)) from None

        def change() -> None:
            self.weights = weights

        await self.generation.change_weights(change, asked.weight_version)
        message = f"{self.name} has new weights"
        return lambda: {"success": True, "message": message, "weight_version": asked.weight_version}

    def _loadable(self, path: str) -> Path:
        if self.settings.weights_below is None:
            raise RefusedRequest(400, "this service loads no weights; start it with --weights-below FOLDER")
        self._open_weights()
        below = Path(self.settings.weights_below).resolve()
        try:
            folder = (below / path).resolve()
        except (OSError, ValueError):  # a NUL, or a loop of links
            raise RefusedRequest(400, "model_path is no path") from None
        if not folder.is_relative_to(below) or not (folder / "config.json").is_file():
            raise RefusedRequest(400, "model_path is no model folder below the one of --weights-below")
        return folder

    async def chat(self, asked: ChatAsked, record: JsonObject, arrived: float | None = None) -> Write:
        """Generate for `/v1/chat/completions`; `arrived` as in `complete`."""
        weights = self._named(asked.model)
        messages = [Message(message.role, message.content) for message in asked.messages]
        self._check_length(sum(len(message.content) for message in messages))
        for message in messages:
            if len(message.content) > CHARS_A_TOKEN * weights.context:
                self._check_room(weights, len(await self._encoded(message.content)))
        try:
            ids = await self._apart(chat_ids, weights.tokenizer, messages)
        except DataError as error:
            raise RefusedRequest(400, str(error)) from None
        wanted = asked.max_tokens or asked.max_completion_tokens or max(1, weights.context - len(ids))
        wanted = min(wanted, self.settings.max_new_tokens)
        request = self._request(weights, ids, wanted, asked.drawn_seed, asked.kind)
        jobs = await self.generation.write([request], arrived)
        self._note(jobs, record)
        return lambda: chat_completion(asked, self.name, _texts(weights, jobs)[0])

    def _open_weights(self) -> Weights:
        if self.weights is None:
            raise RefusedRequest(503, f"{self.not_ready or 'not ready'}; retry later", retry_after_s=1)
        return self.weights

    def check_name(self, name: str | None) -> None:
        """Raise `RefusedRequest` (404) for another name than the model's."""
        if name is not None and name != self.name:
            raise RefusedRequest(404, f"there is no model {name[:200]!r} here; it is called {self.name!r}")

    def _named(self, name: str | None) -> Weights:
        self.check_name(name)
        return self._open_weights()

    async def _encoded(self, text: str) -> list[int]:
        self._check_length(len(text))
        weights = self._open_weights()
        if len(text) < _LONG:
            return weights.tokenizer.encode(text)
        return await self._apart(encoded_up_to, weights.tokenizer, text, weights.context)

    async def _apart(self, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """The result of a call in the thread that encodes: several long texts at once would hold their tokens, too."""
        return await asyncio.get_running_loop().run_in_executor(self._encoding, partial(call, *given, **named))

    def _check_length(self, chars: int) -> None:
        if chars > self.settings.max_prompt_chars:
            raise RefusedRequest(
                413, f"a prompt has {chars} characters, and at most {self.settings.max_prompt_chars} are accepted"
            )

    def _request(
        self, weights: Weights, ids: tuple[int, ...], max_tokens: int, seed: int, kind: SamplingKind
    ) -> GenerationRequest:
        if not ids:
            raise RefusedRequest(400, "the prompt is empty; give at least one token")
        self._check_room(weights, len(ids))
        if max(ids) >= weights.vocabulary:
            raise RefusedRequest(
                400, f"the prompt holds the id {max(ids)}, and the vocabulary ends at {weights.vocabulary}"
            )
        return GenerationRequest(ids, min(max_tokens, weights.context - len(ids)), seed, kind)

    def _check_room(self, weights: Weights, tokens: int) -> None:
        if tokens >= weights.context:
            raise RefusedRequest(
                400, f"the prompt has at least {tokens} tokens, which leaves no room in a context of {weights.context}"
            )

    def _check_product(self, tokens: list[int]) -> None:
        if sum(tokens) > self.settings.max_new_tokens:
            raise RefusedRequest(
                413,
                f"{len(tokens)} prompts may be continued by {sum(tokens)} tokens together, and at most "
                f"{self.settings.max_new_tokens} are generated for one request; split it",
            )

    def _note(self, jobs: list[GenerationJob], record: JsonObject) -> None:
        """Count for the log. Raises `RefusedRequest` for a bug of the sampler."""
        record["texts"] = len(jobs)
        record["read"] = sum(len(job.request.ids) for job in jobs)
        record["reused"] = sum(job.reused for job in jobs)
        record["written"] = sum(len(job.turn.ids) for job in jobs if job.turn is not None)
        for job in jobs:
            if job.fault is not None:
                raise RefusedRequest(500, BUG)

    def _sampler(self) -> "MixedSampler":
        from coseek.models.sampler import SamplerSettings
        from coseek.serve.mixed_sampler import MixedSampler

        weights = self._open_weights()
        settings = SamplerSettings(
            max_rows=self.settings.max_rows,
            cache_tokens=self.settings.cache_tokens,
            max_tokens=weights.context,
            dtype=weights.precision,
            patience=0.0,  # a text is returned as soon as it is done
        )
        return MixedSampler(weights.network, weights.tokenizer, settings)


def encoded_up_to(tokenizer: HfTokenizer, text: str, most: int) -> list[int]:
    """The ids of a text; of one that has more than `most`, those of a beginning that has more, too. While a text is
    encoded a token takes some 400 bytes, so that a million that are refused afterwards would be most of the memory."""
    end = CHARS_A_TOKEN * most
    while end < len(text):
        ids = tokenizer.encode(text[:end])
        if len(ids) > most + _CUT_TOKENS:
            return ids
        end *= 2
    return tokenizer.encode(text)


def _texts(weights: Weights, jobs: list[GenerationJob]) -> list[WrittenText]:
    """The texts of finished jobs. Decoding tokens one by one takes longer than all else here, hence a `Write`."""
    return [_told(weights.tokenizer, job) for job in jobs]


def _told(tokenizer: HfTokenizer, job: GenerationJob) -> WrittenText:
    turn = job.turn
    assert turn is not None
    if turn.end is TurnEnd.FAULT:
        raise ModelError(turn.fault)
    text = tokenizer.decode(turn.ids[:-1] if turn.end is TurnEnd.EOS else turn.ids)
    stop = None
    if turn.end is TurnEnd.STOP:
        stop = min((stop for stop in job.request.kind.stops if stop in text), key=text.find)
    pieces = tuple(tokenizer.decode((ident,)) for ident in turn.ids)
    return WrittenText(turn, pieces, text, stop, job.request.ids, job.version)
