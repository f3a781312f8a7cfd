"""Generator: a frozen model that answers a question from given passages. It never searches and is never trained here.

Decoding is greedy, so that the same passages give the same answer. Each passage is on one line after its number, so
that its text cannot imitate a line of the prompt. Faults of the model are counted and are not answers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field

from coseek.core.errors import ModelError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of, fingerprint
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.settings import Settings, dump_settings
from coseek.data.passage import Passage
from coseek.models.model import Tokenizer
from coseek.models.model_folder import model_path
from coseek.models.text_model import CutText, OutOfTokens, TextModel, generate_each
from coseek.models.written import visible_after

PROMPTS = Path(__file__).parent / "prompts"
OWN_PROMPT = "generator.yaml"
"""File of a model folder with the prompt that the model was trained on, which is then the default prompt."""

AnswerPart: TypeAlias = Literal["whole", "first_line"]


class GeneratorPrompt(PromptFile):
    """Prompt of a generator, and the position of the answer in its output."""

    prompt: str
    """The prompt, with the fields `{question}` and `{passages}`."""
    passage: str
    """One passage, with the fields `{number}` (from 1), `{title}` and `{text}`."""
    no_passages: str = ""
    """Text used when there are no passages."""
    answer_after: str = ""
    """The answer follows the last occurrence of this mark; an output without the mark has no answer. Empty: the whole
    output."""
    answer: AnswerPart = "whole"
    """The answer is the whole text, or its first non-empty line."""
    max_answer_tokens: int = Field(default=64, ge=1)
    """Tokens that the generator may generate, including those before the mark."""


_FIELDS = {"prompt": {"question", "passages"}, "passage": {"number", "title", "text"}}


class GeneratorSettings(Settings):
    """Model, prompt and context of a generator."""

    model: str
    """A shipped model (`base`), a model folder, or the URL of a server."""
    prompt: str | None = None
    """Name of a built-in prompt, or a YAML file; default: the model folder's own, else `generator`."""
    max_passages: int | None = Field(default=None, ge=0)
    """Maximum number of passages; default: as many as fit."""
    max_context_tokens: int = Field(default=2048, ge=0)
    """Maximum number of tokens of titles and texts; use the same number for agents that are compared."""
    counted_by: str | None = None
    """A model folder whose tokenizer counts them; default: words, punctuation marks and single CJK characters."""
    answer: AnswerPart | None = None
    """The answer is the whole response, as in s3 and QAgent, or its `first_line`; default: as the prompt says."""
    max_answer_tokens: int | None = Field(default=None, ge=1)
    """Tokens that the generator may generate; default: as the prompt says (64)."""


@dataclass(frozen=True, slots=True)
class GeneratorOutput:
    """Output of the generator for one context."""

    answer: str | None
    text: str = ""
    fault: str | None = None
    cut: bool = False
    """Whether the token limit cut the answer, or the text before it."""


@dataclass(frozen=True, slots=True)
class GeneratorContext:
    """Prompt of the generator for one question."""

    prompt: str
    passage_ids: tuple[str, ...]
    tokens: int
    truncated: bool
    """Whether passages were left out or shortened because of the token budget."""

    @property
    def digest(self) -> str:
        return digest_of(self.prompt)[:16]


# Context budget: the passages that a generator reads, limited in number and tokens.
#
# Without a tokenizer a token is a sequence of letters and digits, a single punctuation mark, or one character of a
# script without spaces. If a tokenizer is named, it counts for all generators: contexts of two agents are compared at
# the same budget, so they must not be counted by two vocabularies.

_UNSPACED = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Kana and Chinese characters."""
_TOKEN = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+|[^\w\s]")


@dataclass(frozen=True)
class ContextBudget:
    """Limits of passages and of the tokens in their titles and texts."""

    max_tokens: int
    max_passages: int | None = None
    tokenizer: Tokenizer | None = None
    """Counts tokens instead of the rule."""

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.tokenizer.encode_data(text)) if self.tokenizer else len(_TOKEN.findall(text))

    def cut(self, text: str, most: int) -> str:
        """The first `most` tokens of a text."""
        if self.tokenizer is not None:
            ids = self.tokenizer.encode_data(text)
            return text if len(ids) <= most else self.tokenizer.decode(ids[:most]).rstrip("\ufffd")
        matches = list(islice(_TOKEN.finditer(text), most + 1))
        return text if len(matches) <= most else text[: matches[most - 1].end()]

    def fill(self, passages: Sequence[Passage]) -> tuple[tuple[Passage, ...], int]:
        """The passages that fit, in order, each on one line, and their number of tokens."""
        return self.fill_or_cut(passages)[:2]

    def fill_or_cut(self, passages: Sequence[Passage]) -> tuple[tuple[Passage, ...], int, bool]:
        """The same as `fill`, and whether passages were left out or shortened for lack of tokens.

        The first passage that does not fit is truncated, and no other follows it. It is left out if no word after its
        title fits. Passages with equal title and text are included once.
        """
        included: dict[tuple[str, str], Passage] = {}
        tokens, truncated = 0, False
        for passage in passages:
            title, text = one_line(passage.title), one_line(passage.text)
            if (title, text) in included:
                continue
            if truncated or len(included) == self.max_passages:
                break
            tokens_left = self.max_tokens - tokens - self.count(title)
            cut = self.cut(text, tokens_left) if tokens_left > 0 else ""
            truncated = tokens_left < 0 or cut != text
            if tokens_left < 0 or (text and not cut):
                break
            included[title, text] = replace(passage, title=title, text=cut)
            tokens += self.count(title) + self.count(cut)
        return tuple(included.values()), tokens, truncated


@dataclass(frozen=True)
class Generator:
    """A model with its prompt and context budget."""

    model: TextModel
    prompt: GeneratorPrompt
    settings: GeneratorSettings
    tokenizer: Tokenizer | None = None
    """The tokenizer of the budget."""

    @cached_property
    def identity(self) -> str:
        """Digest of everything that an answer depends on besides question and passages."""
        prompt = self.prompt.model_dump_json(exclude={"about"})
        settings = self.settings.model_dump_json(exclude={"model", "prompt", "counted_by"})
        counted_by = self.settings.counted_by
        counting = fingerprint(model_path(counted_by)) if counted_by else "by rule"
        return digest_of("generator", self.model.identity, prompt, settings, counting)

    @property
    def card(self) -> JsonObject:
        """Description for the first line of a grade cache."""
        return {**dump_settings(self.settings), "model_identity": self.model.identity}

    @cached_property
    def budget(self) -> ContextBudget:
        return ContextBudget(self.settings.max_context_tokens, self.settings.max_passages, self.tokenizer)

    @property
    def max_answer_tokens(self) -> int:
        return self.settings.max_answer_tokens or self.prompt.max_answer_tokens

    def context(self, question: str, passages: Sequence[Passage]) -> GeneratorContext:
        """The whole prompt, with the passages (best first) that fit the budget."""
        return context_of(self.prompt, self.budget, question, passages)

    def answer(self, contexts: Sequence[GeneratorContext]) -> list[GeneratorOutput]:
        """One answer per context, in order. Equal contexts are sent once; a failure affects no other context."""
        texts = generate_each(self.model, [context.prompt for context in contexts], self.max_answer_tokens)
        return [
            self.read(text)
            if isinstance(text, str)
            else GeneratorOutput(None, fault=fault_of(text, "max_answer_tokens"))
            for text in texts
        ]

    def read(self, text: str) -> GeneratorOutput:
        """The answer in an output without its reasoning: the whole text or its first line, after the mark of the
        prompt, if any."""
        marked = visible_after(text, self.prompt.answer_after)
        answer = (marked or "").strip()
        if (self.settings.answer or self.prompt.answer) != "whole":
            answer = next((line.strip() for line in answer.splitlines()), "")
        cut = isinstance(text, CutText) and text.rstrip().endswith(answer)
        fault = "the text was cut before its answer; raise max_answer_tokens" if cut and marked is None else None
        return GeneratorOutput(answer or None, text, fault, cut)


def context_of(
    prompt: GeneratorPrompt, budget: ContextBudget, question: str, passages: Sequence[Passage]
) -> GeneratorContext:
    """The whole prompt with as many passages as the budget allows."""
    included, tokens, truncated = budget.fill_or_cut(passages)
    shown = "".join(
        fill_template(prompt.passage, number=str(number), title=passage.title, text=passage.text)
        for number, passage in enumerate(included, start=1)
    )
    shown = (shown or prompt.no_passages).rstrip("\n")
    text = fill_template(prompt.prompt, passages=shown, question=one_line(question))
    return GeneratorContext(text, tuple(passage.id for passage in included), tokens, truncated)


def load_generator_prompt(settings: GeneratorSettings) -> GeneratorPrompt:
    """The prompt of the settings, else the model folder's prompt, else the built-in prompt."""
    path = model_path(settings.model) / OWN_PROMPT
    name = settings.prompt or (str(path.absolute()) if path.is_file() else "generator")
    return load_prompt(GeneratorPrompt, name, Path(), _FIELDS, PROMPTS)


def fault_of(error: ModelError, limit: str) -> str:
    """The message of an error; `limit` is the setting that limits the model's tokens."""
    message = str(error) or "the model failed without a message"
    return f"{message}, or {limit}" if isinstance(error, OutOfTokens) else message
