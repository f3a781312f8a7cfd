"""Text: a local language model as a writer of texts. Prompts in, texts out; always the likeliest token.

A prompt is data: a special token that someone typed into it is ordinary characters. Only the model's own chat template
puts special tokens around it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from coseek.core.errors import DataError, ModelError
from coseek.core.fingerprint import fingerprint
from coseek.core.settings import Settings
from coseek.data.question import Question
from coseek.hardware.precision import SamplingPrecision, Use
from coseek.hardware.speed import precision_of
from coseek.models.model import EpisodeState, Model, Request, TurnEnd
from coseek.models.remote_text import RemoteTextModel, named_server, open_remote_text
from coseek.models.shape import hidden_size
from coseek.models.tokenizer import HfTokenizer

CUT = "\n[A part was left out here, because the whole did not fit.]\n"
"""Stands for what was cut out of the middle of a prompt that is too long."""
_SLOT = "\ue000prompt\ue001"
"""Put through a chat template to see what it writes around a prompt; no template holds these private-use characters."""


class TextModelSettings(Settings):
    """How a local model writes texts."""

    max_rows: int = Field(default=16, ge=1)
    """Texts written at once."""
    max_context: int = Field(default=32_768, ge=16)
    """Prompt and text together have at most this many tokens, or what the model allows where that is less."""
    precision: SamplingPrecision = "float32"
    """Of weights and cache."""


@dataclass
class LocalTextModel:
    """Writes greedily. A text depends on its prompt alone, whatever else is in the batch."""

    model: Model
    """Takes the likeliest token at every step."""
    around: tuple[tuple[int, ...], tuple[int, ...]]
    """Ids in front of a prompt and behind it."""
    max_context: int
    """Tokens that a prompt and its text may have together."""
    identity: str
    """A digest of weights, tokenizer and settings."""
    cut_prompts: int = 0
    """Prompts that were too long and lost their middle."""
    _next: int = field(default=0, repr=False)

    def write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        """One text a prompt, in order, each of at most `max_tokens` tokens. A failure is a `ModelError`."""
        keys = [self._next + place for place in range(len(prompts))]
        self._next += len(prompts)
        texts: dict[int, str] = {}
        opened: list[int] = []
        try:
            for key, prompt in zip(keys, prompts, strict=True):
                ids = self._ids(prompt, max_tokens)
                self.model.start(Request(key, ids, max_tokens, seed=0, state=EpisodeState(Question(str(key), prompt))))
                opened.append(key)
            while len(texts) < len(prompts):
                self._collect(texts)
        finally:
            for key in opened:
                if key not in texts:
                    self.model.close(key)
        return [texts[key] for key in keys]

    def holds(self, prompt: str, max_tokens: int) -> bool:
        """Whether the prompt is read whole when so many tokens are to be written."""
        before, after = self.around
        return len(before) + len(self.model.tokenizer.encode_data(prompt)) + len(after) + max_tokens <= self.max_context

    def _collect(self, texts: dict[int, str]) -> None:
        """Take the texts that are done."""
        for turn in self.model.step():
            if turn.end is TurnEnd.FAULT:
                raise ModelError(turn.fault)
            self.model.close(turn.key)
            ids = turn.ids[:-1] if turn.end is TurnEnd.EOS else turn.ids
            texts[turn.key] = self.model.tokenizer.decode(ids)

    def _ids(self, prompt: str, max_tokens: int) -> tuple[int, ...]:
        """The prompt in its frame; one that is too long keeps its beginning and its end, where instructions stand."""
        before, after = self.around
        ids = self.model.tokenizer.encode_data(prompt)
        room = self.max_context - max_tokens - len(before) - len(after)
        if len(ids) > room:
            sentence = self.model.tokenizer.encode_data(CUT)
            kept = room - len(sentence)
            if kept < 2:
                raise ModelError(
                    f"{self.max_context} tokens of context leave no room for a prompt beside {max_tokens} to be written"
                )
            ids = [*ids[: kept - kept // 2], *sentence, *ids[len(ids) - kept // 2 :]]
            self.cut_prompts += 1
        whole = (*before, *ids, *after)
        if not whole:
            raise ModelError("the prompt is empty; a model needs something to go on from")
        return whole


def open_text_model(name: str, settings: TextModelSettings | None = None) -> LocalTextModel | RemoteTextModel:
    """Open a writer of texts: the model in a Hugging Face folder, the server at an address, or that of a YAML file."""
    server = named_server(name)
    return open_local_text_model(Path(name).expanduser(), settings) if server is None else open_remote_text(server)


def open_local_text_model(folder: Path, settings: TextModelSettings | None = None) -> LocalTextModel:
    """Open the causal language model in a Hugging Face folder as a writer of texts. Nothing is ever fetched."""
    # Here and not above: these bring torch.
    from coseek.models.pretrained import load_model
    from coseek.models.sampler import Sampler, SamplerSettings

    settings = settings or TextModelSettings()
    precision = precision_of(settings.precision, Use.SAMPLING, hidden_size(folder))
    network = load_model(folder, precision)
    tokenizer = HfTokenizer.load(folder)
    config = network.config.get_text_config()
    longest = int(getattr(config, "max_position_embeddings", 0) or settings.max_context)
    context = min(longest, settings.max_context)
    sampling = SamplerSettings(temperature=0.0, max_rows=settings.max_rows, max_tokens=context, dtype=precision)
    return LocalTextModel(
        model=Sampler(network, tokenizer, (), sampling),
        around=chat_frame(tokenizer, folder),
        max_context=context,
        identity=f"{fingerprint(folder)}:{precision}:{context}",
    )


def chat_frame(tokenizer: HfTokenizer, folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids in front of and behind what a user says, by the folder's chat template.

    Without a template: the beginning-of-text token in front, where the tokenizer writes one.
    """
    if tokenizer.fast.chat_template is None:
        bos_id = tokenizer.fast.bos_token_id
        begins = isinstance(bos_id, int) and list(tokenizer.fast("").input_ids)[:1] == [bos_id]
        return ((bos_id,) if begins else ()), ()
    turn = [{"role": "user", "content": _SLOT}]
    said = tokenizer.fast.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, found, after = str(said).partition(_SLOT)
    if not found:
        raise DataError(f"the chat template of {folder} drops what a user says; mend its chat_template")
    return tuple(tokenizer.encode(before)), tuple(tokenizer.encode(after))
