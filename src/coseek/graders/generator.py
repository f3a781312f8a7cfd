"""Generator: a frozen model that answers a question from given passages. It never searches and is never trained here.

Greedy, so that the same passages give the same answer. What the passages say is data: each stands on one line behind
its number, and nothing in it can forge a line of the prompt. Faults of the model are counted and are no answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import Field

from coseek.core.errors import ModelError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.settings import Settings, dump_settings
from coseek.data.passage import Passage
from coseek.graders.context_budget import ContextBudget
from coseek.models.model import Tokenizer
from coseek.models.text_model import TextModel, generate_each

PROMPTS = Path(__file__).parent / "prompts"
OWN_PROMPT = "generator.yaml"
"""A model folder that holds this file is asked with it: the prompt that the model was trained on."""


class GeneratorPrompt(PromptFile):
    """What a generator reads, and where its answer stands."""

    prompt: str
    """`{question}` and `{passages}` are filled in."""
    passage: str
    """One passage; `{number}` from 1, `{title}` and `{text}` are filled in."""
    no_passages: str = ""
    """Stands for the passages when there are none."""
    answer_after: str = ""
    """The answer is what stands behind the last of these marks; without the mark there is none. Empty: all of it."""


_FIELDS = {"prompt": {"question", "passages"}, "passage": {"number", "title", "text"}}


class GeneratorSettings(Settings):
    """How a generator is asked."""

    model: str
    """A model folder, or the URL of a server."""
    prompt: str | None = None
    """A prompt of ours by name, or a YAML file; else the model folder's own, else `generator`."""
    max_passages: int | None = Field(default=None, ge=0)
    """Passages at most; as many as fit when not set."""
    max_context_tokens: int = Field(default=2048, ge=0)
    """Tokens of the passages' titles and texts at most: equal for agents that are compared."""
    counted_by: str | None = None
    """A model folder whose tokenizer counts them; without one words, marks and single CJK characters are counted."""
    max_answer_tokens: int = Field(default=64, ge=1)
    """Tokens that the generator may write."""


@dataclass(frozen=True, slots=True)
class ReadingInput:
    """A question with the passages to answer it from, best first."""

    question: str
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class GeneratorOutput:
    """What came of it."""

    answer: str | None
    text: str = ""
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class GeneratorContext:
    """What the generator is given for one question."""

    prompt: str
    passage_ids: tuple[str, ...]
    tokens: int

    @property
    def digest(self) -> str:
        return digest_of(self.prompt)[:16]


@dataclass(frozen=True)
class Generator:
    """A model, the prompt it is asked with and the budget of its context."""

    model: TextModel
    prompt: GeneratorPrompt
    settings: GeneratorSettings
    tokenizer: Tokenizer | None = None
    """Counts the budget, in the place of the rule."""

    @cached_property
    def identity(self) -> str:
        """A digest of all that an answer depends on besides question and passages."""
        prompt = self.prompt.model_dump_json(exclude={"about"})
        settings = self.settings.model_dump_json(exclude={"model", "prompt", "counted_by"})
        counted_by = self.settings.counted_by
        counting = fingerprint(Path(counted_by).expanduser()) if counted_by else "by rule"
        return digest_of("generator", self.model.identity, prompt, settings, counting)

    @property
    def card(self) -> JsonObject:
        """Who this is, for the head of a sheet."""
        return {**dump_settings(self.settings), "model_identity": self.model.identity}

    @cached_property
    def budget(self) -> ContextBudget:
        return ContextBudget(self.settings.max_context_tokens, self.settings.max_passages, self.tokenizer)

    def context(self, asked: ReadingInput) -> GeneratorContext:
        """The whole prompt, within the budget."""
        return context_of(self.prompt, self.budget, asked)

    def answer(self, contexts: Sequence[GeneratorContext]) -> list[GeneratorOutput]:
        """One answer a context, in order; equal contexts are written once, and a failure takes no others along."""
        texts = generate_each(self.model, [context.prompt for context in contexts], self.settings.max_answer_tokens)
        return [
            self.read(text) if isinstance(text, str) else GeneratorOutput(None, fault=fault_of(text)) for text in texts
        ]

    def read(self, text: str) -> GeneratorOutput:
        """The answer in what the model wrote: its first line that is not empty, or what stands behind the mark."""
        after = self.prompt.answer_after
        _, mark, behind = text.rpartition(after) if after else ("", "", text)
        if after and not mark:
            return GeneratorOutput(None, text)
        lines = (line.strip() for line in behind.splitlines())
        return GeneratorOutput(next((line for line in lines if line), None), text)


def context_of(prompt: GeneratorPrompt, budget: ContextBudget, asked: ReadingInput) -> GeneratorContext:
    """The whole prompt with as many passages as the budget allows."""
    given, tokens = budget.fill(asked.passages)
    shown = (
        fill_template(prompt.passage, number=str(number), title=passage.title, text=passage.text)
        for number, passage in enumerate(given, start=1)
    )
    passages = "".join(shown) or prompt.no_passages
    text = fill_template(prompt.prompt, passages=passages.rstrip("\n"), question=one_line(asked.question))
    return GeneratorContext(text, tuple(passage.id for passage in given), tokens)


def load_generator_prompt(settings: GeneratorSettings) -> GeneratorPrompt:
    """The prompt that was asked for, or the model folder's own, or ours."""
    own = Path(settings.model).expanduser() / OWN_PROMPT
    name = settings.prompt or (str(own.absolute()) if own.is_file() else "generator")
    return load_prompt(GeneratorPrompt, name, Path(), _FIELDS, PROMPTS)


def fault_of(error: ModelError) -> str:
    """What went wrong, in words."""
    return str(error) or "the model failed without a word"
