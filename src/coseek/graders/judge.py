"""Judge: decides whether a response contains an accepted answer. A frozen model, or the oracle of a laptop world.

Verdicts are parsed by `models/judge_text.py`: neither "yesterday" nor "yes, but" is a yes. An unreadable verdict is a
fault. Faults are counted and never treated as a no.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeAlias

from pydantic import Field

from coseek.core.errors import ModelError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.settings import Settings, dump_settings
from coseek.data.grade_cache import Verdict
from coseek.data.question import Question
from coseek.graders.generator import PROMPTS, fault_of
from coseek.graders.structured_output import Grader
from coseek.models.judge_text import read_verdict
from coseek.models.model_folder import model_path
from coseek.models.text_model import CutText, TextModel, generate_each, whole_words
from coseek.models.written import repeatable

VerdictKey: TypeAlias = tuple[str, str, str]
"""Question id, response, and the digest of question and gold answers."""


class JudgePrompt(PromptFile):
    """Prompt of a judge, and the position of the verdict in its output."""

    prompt: str
    """The prompt, with the fields `{question}`, `{answers}` and `{response}`."""
    verdict_after: str = ""
    """The verdict follows the last occurrence of this mark, for models that reason first. Empty: the whole output."""


_FIELDS = {"prompt": {"question", "answers", "response"}}


class JudgeSettings(Settings):
    """Model and prompt of a judge."""

    model: str
    """A shipped model, a model folder, the URL of a server, or the folder of a laptop world, whose oracle then
    judges."""
    prompt: str = "judge"
    """Name of a built-in prompt, or a YAML file."""
    max_tokens: int = Field(default=16, ge=1)
    """Tokens that the judge may generate: some hundreds for a model that reasons first (`reasoning_tokens` in the YAML
    file of a server adds to them)."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A response to a question."""

    question: Question
    response: str

    @property
    def asked(self) -> str:
        """Digest of the question and its gold answers."""
        return digest_of(self.question.question, *self.question.answers)

    @property
    def key(self) -> VerdictKey:
        """The `Verdict.key` of its verdict."""
        return self.question.id, self.response, self.asked


class Judge(Grader, Protocol):
    """Grades responses."""

    def judge(self, claims: Sequence[Claim]) -> list[Verdict]:
        """One verdict per claim, in order. A failure is a verdict with a fault."""
        ...


@dataclass(frozen=True)
class ModelJudge:
    """A language model that answers yes or no."""

    model: TextModel
    prompt: JudgePrompt
    settings: JudgeSettings

    @cached_property
    def identity(self) -> str:
        prompt = self.prompt.model_dump_json(exclude={"about"})
        return digest_of("judge", self.model.identity, prompt, str(self.settings.max_tokens))

    @property
    def card(self) -> JsonObject:
        return {**dump_settings(self.settings), "model_identity": self.model.identity}

    def judge(self, claims: Sequence[Claim]) -> list[Verdict]:
        texts = generate_each(self.model, [self._prompt_of(claim) for claim in claims], self.settings.max_tokens)
        return [self.read(claim, text) for claim, text in zip(claims, texts, strict=True)]

    def _prompt_of(self, claim: Claim) -> str:
        answers = " | ".join(one_line(answer) for answer in claim.question.answers)
        question, response = one_line(claim.question.question), repeatable(one_line(claim.response))
        return fill_template(self.prompt.prompt, question=question, answers=answers, response=response)

    def read(self, claim: Claim, text: str | ModelError) -> Verdict:
        """Parse the verdict in an output."""
        question_id, response = claim.question.id, claim.response
        if not isinstance(text, str):
            return Verdict(question_id, response, None, fault=fault_of(text, "max_tokens"), asked=claim.asked)
        right = read_verdict(whole_words(text) or text, self.prompt.verdict_after)  # a single word is whole
        cut_reason = f"was cut at max_tokens={self.settings.max_tokens}"
        reason = cut_reason if isinstance(text, CutText) else "said neither yes nor no"
        fault = f"the judge {reason}: {text.strip()[:80]!r}" if right is None else None
        return Verdict(question_id, response, right, text, fault, claim.asked)


def is_world(name: str | Path) -> bool:
    """Whether this judge or folder is a laptop world."""
    return (model_path(name) / "world.json").is_file()


def load_judge_prompt(settings: JudgeSettings) -> JudgePrompt:
    return load_prompt(JudgePrompt, settings.prompt, Path(), _FIELDS, PROMPTS)
