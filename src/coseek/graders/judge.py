"""Judge: says whether a response gives an accepted answer. A frozen model, or the oracle of a laptop world.

A verdict is the one word yes or no and nothing else. "yesterday" is not yes, and "yes, but" is not either: whatever
cannot be read is a fault, which is counted and is never a no.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pydantic import Field

from coseek.core.errors import ModelError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.settings import Settings, dump_settings
from coseek.data.grade_cache import Verdict
from coseek.data.question import Question
from coseek.graders.generator import PROMPTS, fault_of
from coseek.models.text_model import TextModel, generate_each
from coseek.world.oracle import Oracle

_MARKS = "\"'“”‘’`*.!"
"""What may stand around the one word."""


class JudgePrompt(PromptFile):
    """What a judge reads, and where its verdict stands."""

    prompt: str
    """`{question}`, `{answers}` and `{response}` are filled in."""
    verdict_after: str = ""
    """The verdict is what stands behind the last of these marks, for models that think first; empty: all of it."""


_FIELDS = {"prompt": {"question", "answers", "response"}}


class JudgeSettings(Settings):
    """How a judge is asked."""

    model: str
    """A model folder, the URL of a server, or the folder of a laptop world, whose oracle then judges."""
    prompt: str = "judge"
    """A prompt of ours by name, or a YAML file."""
    max_tokens: int = Field(default=16, ge=1)
    """Tokens that the judge may write."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A response to a question."""

    question: Question
    response: str


class Judge(Protocol):
    """Whoever marks responses."""

    @property
    def identity(self) -> str:
        """A digest of all that a verdict depends on besides the claim."""
        ...

    @property
    def card(self) -> JsonObject:
        """Who this is, for the head of a sheet."""
        ...

    def judge(self, claims: Sequence[Claim]) -> list[Verdict]:
        """One verdict a claim, in order. A failure is a verdict with a fault."""
        ...


@dataclass(frozen=True)
class ModelJudge:
    """A language model that is asked yes or no."""

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
        texts = generate_each(self.model, [self._shown(claim) for claim in claims], self.settings.max_tokens)
        return [self._verdict(claim, text) for claim, text in zip(claims, texts, strict=True)]

    def _shown(self, claim: Claim) -> str:
        answers = " | ".join(one_line(answer) for answer in claim.question.answers)
        return fill_template(
            self.prompt.prompt,
            question=one_line(claim.question.question),
            answers=answers,
            response=one_line(claim.response),
        )

    def _verdict(self, claim: Claim, text: str | ModelError) -> Verdict:
        if not isinstance(text, str):
            return Verdict(claim.question.id, claim.response, None, fault=fault_of(text))
        right = read_verdict(text, self.prompt.verdict_after)
        fault = f"the judge said neither yes nor no: {text.strip()[:80]!r}" if right is None else None
        return Verdict(claim.question.id, claim.response, right, text, fault)


def read_verdict(text: str, after: str = "") -> bool | None:
    """True for yes, False for no, `None` for anything else.

    The whole text must be the one word, in any case, but for white space and marks around it; with `after`, the text
    behind the last `after`, which must be there.
    """
    if after:
        _, mark, text = text.rpartition(after)
        if not mark:
            return None
    word = " ".join(text.split()).strip(" " + _MARKS).lower()
    return {"yes": True, "no": False}.get(word)


@dataclass(frozen=True)
class OracleJudge:
    """The oracle of a laptop world: it knows, and is never at fault."""

    oracle: Oracle
    source: str

    @cached_property
    def identity(self) -> str:
        return digest_of("oracle", json.dumps(self.oracle.to_json(), sort_keys=True))

    @property
    def card(self) -> JsonObject:
        return {"oracle": self.source}

    def judge(self, claims: Sequence[Claim]) -> list[Verdict]:
        return [
            Verdict(claim.question.id, claim.response, self.oracle.judge(claim.question, claim.response))
            for claim in claims
        ]


def is_world(name: str) -> bool:
    """Whether a judge's name is the folder of a laptop world."""
    return (Path(name).expanduser() / "world.json").is_file()


def load_judge_prompt(settings: JudgeSettings) -> JudgePrompt:
    return load_prompt(JudgePrompt, settings.prompt, Path(), _FIELDS, PROMPTS)
