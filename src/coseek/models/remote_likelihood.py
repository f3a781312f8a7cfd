"""Remote likelihood: a likelihood model behind HTTP, from the log-probabilities that a server returns for prompts.

    url: http://127.0.0.1:8000
    tokenizer: models/policy          # the folder of the served model's tokenizer

Prompts are sent as ids, encoded as for a local model, so that equal weights give equal likelihoods. vLLM, SGLang, and
completion servers that take ids with `echo` can do this.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Literal, cast

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import TOKENIZER, digest_of, fingerprint
from coseek.core.http import HttpClient, HttpFailure
from coseek.models.chat import chat_frame
from coseek.models.dialect import PromptDialect, PromptRequest, prompt_dialect_of
from coseek.models.likelihood import (
    Continuation,
    ContinuationLogprob,
    LikelihoodSettings,
    LocalLikelihood,
    RowEncoder,
    open_local_likelihood,
)
from coseek.models.remote import ServerInfo, detect_server, same_text
from coseek.models.remote_text import server_settings
from coseek.models.server import ServerPaths, ServerSettings, open_client, with_changes
from coseek.models.shipped import model_path
from coseek.models.tokenizer import HfTokenizer

_ABLE = "vLLM, SGLang, or with `dialect: completions` a server that takes ids with `echo` and `logprobs`"
_PROBE = Continuation("Which city is the capital of France?", " The capital of France is Paris.")
"""Plain letters, whose tokens have the same texts alone and together."""


class RemoteLikelihoodSettings(ServerSettings):
    """A server of a likelihood model."""

    url: str
    """The server's URL."""
    dialect: Literal["auto", "vllm", "sglang", "completions"] = "auto"
    """The server's dialect; `auto` asks the server. `completions` is a server that takes ids with `echo`."""
    tokenizer: str | None = None
    """The folder of the served model's tokenizer; default: the model's name, where it is a folder here."""


@dataclass(frozen=True)
class RemoteLikelihood(RowEncoder):
    """A causal language model on a server. Thread-safe."""

    calls: HttpClient
    served: ServerInfo
    speech: PromptDialect
    identity: str
    """A digest of the server's URL, dialect and model, and of the tokenizer."""
    send: Mapping[str, object] = field(default_factory=dict)
    """Changes of the request's fields."""

    @property
    def concurrency(self) -> int:
        """Prompts that the server reads at once."""
        return self.calls.patience.concurrency

    def score(self, rows: Sequence[Continuation]) -> list[ContinuationLogprob]:
        """Score each row with one call. A failed call is a fault of its row only."""
        asked = [self.encode(row) for row in rows]
        requests = [
            None if isinstance(one, ContinuationLogprob) else PromptRequest(self.served.model, tuple(one[0]), one[1])
            for one in asked
        ]
        answers = [None if one is None else self._submit(one) for one in requests]
        try:
            return [
                one if isinstance(one, ContinuationLogprob) else self._scored(cast(PromptRequest, ask), answer)
                for one, ask, answer in zip(asked, requests, answers, strict=True)
            ]
        finally:
            for answer in answers:
                if answer is not None:
                    answer.cancel()  # Ctrl-C while waiting

    def probe(self) -> None:
        """Raise `SettingError` for a server that returns no log-probabilities of prompts, or has another tokenizer."""
        whole, start = cast(tuple[list[int], int], self.encode(_PROBE))
        ask = PromptRequest(self.served.model, tuple(whole), start)
        try:
            found = self.speech.read_prompt(self._submit(ask).result(), ask)
        except HttpFailure as error:
            raise SettingError(
                f"{error}; likelihoods need a server that returns log-probabilities of prompts"
            ) from None
        except ValueError as error:
            raise SettingError(
                f"{self.calls.base} returns no exact log-probabilities of prompts ({error}); likelihoods need {_ABLE}"
            ) from None
        if not same_text(self.tokenizer.decode(ask.scored), found.text):
            raise SettingError(
                f"the tokens of {self.served.model} at {self.calls.base} are not those of {self.folder}; set tokenizer "
                "to the folder of its model"
            )

    def _submit(self, ask: PromptRequest) -> "Future[JsonObject]":
        body = with_changes(self.speech.prompt_body(ask), self.send)
        return self.calls.submit("POST", self.served.paths.path(self.speech.PATH), body)

    def _scored(self, ask: PromptRequest, answer: "Future[JsonObject] | None") -> ContinuationLogprob:
        """The sum of the log-probabilities in an answer, or its fault."""
        tokens = len(ask.scored)
        try:
            logprobs = self.speech.read_prompt(cast("Future[JsonObject]", answer).result(), ask).logprobs
        except (HttpFailure, ValueError, CancelledError) as error:
            return ContinuationLogprob(None, tokens, str(error) or "the connection to the server was closed")
        return ContinuationLogprob(math.fsum(logprobs), tokens)


def open_likelihood(name: str, settings: LikelihoodSettings | None = None) -> LocalLikelihood | RemoteLikelihood:
    """Open a likelihood model: a shipped model, a Hugging Face folder, a server's URL, or its YAML file."""
    server = server_settings(name, RemoteLikelihoodSettings)
    return open_local_likelihood(model_path(name), settings) if server is None else open_remote_likelihood(server)


def open_remote_likelihood(settings: RemoteLikelihoodSettings) -> RemoteLikelihood:
    """Open the client of a server, and probe it. A server that cannot do this is a `SettingError`."""
    calls, paths = open_client(settings.url, settings)
    try:
        return _probed(calls, paths, settings)
    except BaseException:
        calls.close()
        raise


def _probed(calls: HttpClient, paths: ServerPaths, settings: RemoteLikelihoodSettings) -> RemoteLikelihood:
    served = detect_server(calls, paths, settings.dialect, settings.model, samples=False)
    speech = prompt_dialect_of(served.dialect)
    if speech is None:
        raise SettingError(
            f"{calls.base} speaks {served.dialect}, which has no log-probabilities of prompts; likelihoods need {_ABLE}"
        )
    folder = model_path(settings.tokenizer or served.model)
    if settings.tokenizer is None and not folder.is_dir():
        raise SettingError(
            f"the tokenizer of {served.model!r} at {calls.base} is unknown; name a YAML file with `url` and "
            "`tokenizer`, the folder of its model"
        )
    tokenizer = HfTokenizer.load(folder)
    sent = (calls.base, served.dialect, served.model, fingerprint(folder, TOKENIZER))
    opened = RemoteLikelihood(
        tokenizer, chat_frame(tokenizer, given=True), calls, served, speech, digest_of(*sent), settings.send
    )
    opened.probe()
    return opened
