"""Local text: a local language model as a text model, with greedy decoding.

Special tokens in a prompt are encoded as ordinary characters; only the model's chat template adds special tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from coseek.core.errors import ModelError
from coseek.core.fingerprint import fingerprint
from coseek.data.question import Question
from coseek.hardware.placement import Placement
from coseek.hardware.precision import Precision
from coseek.models.chat import chat_frame
from coseek.models.model import EpisodeState, Model, Request, Turn, TurnEnd
from coseek.models.remote_text import RemoteTextModel, named_server, open_remote_text
from coseek.models.shape import hidden_size
from coseek.models.shipped import model_path
from coseek.models.text_model import OutOfTokens, Output, texts_of
from coseek.models.tokenizer import HfTokenizer
from coseek.models.written import opened_at_end, visible

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CUT = "\n[A part was left out here, because the whole did not fit.]\n"
"""Replaces the removed middle of a prompt that is too long."""


class TextModelSettings(Placement):
    """Limits and placement of a local model."""

    max_rows: int = Field(default=16, ge=1)
    """Texts generated at once."""
    max_context: int = Field(default=32_768, ge=16)
    """Maximum tokens of prompt and text, or the model's limit if that is less."""


@dataclass
class LocalTextModel:
    """Greedy generation. A text depends on its prompt only, not on the batch."""

    model: Model
    around: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids before and after a prompt."""
    max_context: int
    identity: str
    cut_prompts: int = 0
    """The number of prompts whose middle was removed."""
    _next: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self._opened = opened_at_end(self.model.tokenizer.decode(self.around[1]))

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One text per prompt, in order, each of at most `max_tokens` tokens. Failures are a `PartialFailure`."""
        keys = [self._next + place for place in range(len(prompts))]
        self._next += len(prompts)
        outputs: dict[int, Output] = {}
        opened: list[int] = []
        try:
            for key, prompt in zip(keys, prompts, strict=True):
                try:
                    ids = self._ids(prompt, max_tokens)
                except ModelError as error:
                    outputs[key] = error
                    continue
                self.model.start(Request(key, ids, max_tokens, seed=0, state=EpisodeState(Question(str(key), prompt))))
                opened.append(key)
            while len(outputs) < len(prompts):
                self._collect(outputs)
        finally:
            for key in opened:
                if key not in outputs:
                    self.model.close(key)
        return texts_of([outputs[key] for key in keys])

    def holds(self, prompt: str, max_tokens: int) -> bool:
        """Whether the prompt fits without truncation beside `max_tokens` tokens."""
        before, after = self.around
        return len(before) + len(self.model.tokenizer.encode_data(prompt)) + len(after) + max_tokens <= self.max_context

    def _collect(self, outputs: dict[int, Output]) -> None:
        """Collect finished texts."""
        for turn in self.model.step():
            self.model.close(turn.key)
            outputs[turn.key] = self._output(turn)

    def _output(self, turn: Turn) -> Output:
        """The text of a finished row, with the mark of reasoning that the chat template wrote in front of it."""
        if turn.end is TurnEnd.FAULT:
            return ModelError(turn.fault)
        ids = turn.ids[:-1] if turn.end is TurnEnd.EOS else turn.ids
        text = self._opened + self.model.tokenizer.decode(ids)
        if turn.end is TurnEnd.LENGTH and text.strip() and not visible(text).strip():
            return OutOfTokens(f"{len(ids)} tokens were used up before an answer; raise its limit of tokens")
        return text

    def _ids(self, prompt: str, max_tokens: int) -> tuple[int, ...]:
        """The prompt in its frame. A long prompt keeps its beginning and end, where instructions are."""
        before, after = self.around
        ids = self.model.tokenizer.encode_data(prompt)
        room = self.max_context - max_tokens - len(before) - len(after)
        if len(ids) > room:
            sentence = self.model.tokenizer.encode_data(CUT)
            kept = room - len(sentence)
            if kept < 2:
                raise ModelError(
                    f"{self.max_context} tokens of context leave no room for a prompt and {max_tokens} output tokens"
                )
            ids = [*ids[: kept - kept // 2], *sentence, *ids[len(ids) - kept // 2 :]]
            self.cut_prompts += 1
        whole = (*before, *ids, *after)
        if not whole:
            raise ModelError("the prompt is empty; a model needs at least one token")
        return whole


def open_text_model(name: str, settings: TextModelSettings | None = None) -> LocalTextModel | RemoteTextModel:
    """Open a text model: a shipped model, a Hugging Face folder, a server's URL, or its YAML file."""
    server = named_server(name)
    return open_local_text_model(model_path(name), settings) if server is None else open_remote_text(server)


def open_local_text_model(folder: Path, settings: TextModelSettings | None = None) -> LocalTextModel:
    """Open the causal language model of a Hugging Face folder as a text model. Nothing is downloaded."""
    from coseek.models.sampler import Sampler, SamplerSettings  # imports torch

    settings = settings or TextModelSettings()
    network, tokenizer, precision, context = load_local(folder, settings, settings.max_context)
    sampling = SamplerSettings(temperature=0.0, max_rows=settings.max_rows, max_tokens=context, dtype=precision)
    return LocalTextModel(
        model=Sampler(network, tokenizer, (), sampling),
        around=chat_frame(tokenizer),
        max_context=context,
        identity=f"{fingerprint(folder)}:{precision}:{context}",
    )


def load_local(
    folder: Path, placement: Placement, max_context: int
) -> tuple["PreTrainedModel", HfTokenizer, Precision, int]:
    """Load a folder's model and tokenizer. Also returns the precision, and the smaller of both context limits."""
    from coseek.models.pretrained import load_model  # imports torch

    model, chosen = load_model(folder, placement).requires_grad_(False), placement.precision_at(hidden_size(folder))
    longest = int(getattr(model.config.get_text_config(), "max_position_embeddings", 0) or max_context)
    return model, HfTokenizer.load(folder), chosen, min(longest, max_context)
