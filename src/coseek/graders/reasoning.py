"""Reasoning: clues and claims of an agent's reasonings, as a language model reads them (AgentIR, appendices E and G).

Four kinds of calls in two prompt files: the clues of all reasonings of a run together, then those of each one; what the
steps of the question find, from its answer and evidence, then the right and wrong claims of each reasoning. A question
with a plan needs no call for its steps. The result is for `measure.reasoning.reasoning_values`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from coseek.core.files import Json
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Passage
from coseek.data.question import Question, has_plan, plan_of
from coseek.graders.relevance import PROMPTS
from coseek.graders.structured_output import CallCounts, OutputRequest, Unreadable, ask_with_retry
from coseek.measure.reasoning import ReasoningClaims
from coseek.models.judge_text import unfenced
from coseek.models.text_model import TextModel
from coseek.models.written import visible
from coseek.retrieval.llm import neutralise_numbers

T = TypeVar("T")
MAX_TOKENS = 2048
"""Tokens of one response of the model."""
MAX_WORDS = 2000
"""Words of one reasoning or passage that are shown."""


class CluePrompt(PromptFile):
    """Prompts about clues."""

    prompt: str
    """`{question}` and `{reasonings}` are filled in."""
    reasoning: str
    """One reasoning; `{number}` from 1 and `{text}` are filled in."""
    assign: str
    """`{clues}` and `{text}` are filled in."""
    clue: str
    """One clue; `{number}` from 1 and `{text}` are filled in."""
    again: str = ""
    """Appended after an unreadable output."""


class ClaimPrompt(PromptFile):
    """Prompts about claims."""

    hops: str
    """`{question}`, `{answers}` and `{evidence}` are filled in."""
    passage: str
    """A passage of the evidence; `{title}` and `{text}` are filled in."""
    prompt: str
    """`{question}`, `{hops}` and `{text}` are filled in."""
    hop: str
    """What a step finds; `{number}` from 1 and `{text}` are filled in."""
    again: str = ""
    """Appended after an unreadable output."""


_CLUES = {
    "prompt": {"question", "reasonings"},
    "reasoning": {"number", "text"},
    "assign": {"clues", "text"},
    "clue": {"number", "text"},
}
_CLAIMS = {
    "hops": {"question", "answers", "evidence"},
    "passage": {"title", "text"},
    "prompt": {"question", "hops", "text"},
    "hop": {"number", "text"},
}


@dataclass(frozen=True, slots=True)
class ReasonedRun:
    """The reasonings of one run (`measure.reasoning.reasonings_of`)."""

    question: Question
    reasonings: tuple[str, ...]
    evidence: tuple[Passage, ...] = ()
    """The gold passages; not read where the question has a plan."""


@dataclass(frozen=True)
class ReasoningReader:
    """A language model that reads reasonings."""

    model: TextModel
    clues: CluePrompt
    claims: ClaimPrompt
    tally: CallCounts

    @classmethod
    def over(cls, model: TextModel) -> "ReasoningReader":
        """A reader with the package's prompts."""
        clues = load_prompt(CluePrompt, "clues", Path(), _CLUES, PROMPTS)
        claims = load_prompt(ClaimPrompt, "claims", Path(), _CLAIMS, PROMPTS)
        return cls(model, clues, claims, CallCounts())

    def read(self, runs: Sequence[ReasonedRun]) -> list[list[ReasoningClaims] | None]:
        """What each reasoning of each run holds; `None` for a run of which a call failed or was unreadable twice, which
        `tally` counts."""
        clues = self._ask([(self._clues_of(run), _texts) for run in runs], self.clues.again)
        hops = self._hops(runs)
        known = {
            at: (some, steps)
            for at, (some, steps) in enumerate(zip(clues, hops, strict=True))
            if some is not None and steps
        }
        each = [(at, text) for at in known for text in runs[at].reasonings]
        assign = [(self._assign(known[at][0], text), partial(_numbers, len(known[at][0]))) for at, text in each]
        named = self._ask(assign, self.clues.again)
        said = self._ask([(self._said(runs[at], known[at][1], text), _counts) for at, text in each], self.claims.again)
        found: dict[int, list[ReasoningClaims] | None] = {at: [] for at in known}
        for (at, _), numbers, counts in zip(each, named, said, strict=True):
            some = found[at]
            if some is None or numbers is None or counts is None:
                found[at] = None
            else:
                some.append(ReasoningClaims(numbers, *counts))
        return [found.get(at) for at in range(len(runs))]

    def _hops(self, runs: Sequence[ReasonedRun]) -> list[tuple[str, ...] | None]:
        """What the steps of each question find."""
        unknown = [at for at, run in enumerate(runs) if not has_plan(run.question)]
        asked = self._ask([(self._hops_of(runs[at]), _texts) for at in unknown], self.claims.again)
        made = dict(zip(unknown, asked, strict=True))
        return [made[at] if at in made else _planned(run.question) for at, run in enumerate(runs)]

    def _ask(self, asked: Sequence[tuple[str, Callable[[Json], T | None]]], again: str) -> list[T | None]:
        """What each reader makes of the JSON that the model writes for its prompt; `None` where it cannot be read."""

        def request(prompt: str, read: Callable[[Json], T | None]) -> OutputRequest[T]:
            def parsed(text: str) -> T | Unreadable:
                try:
                    found = read(parse_lenient(unfenced(visible(text))))
                except InvalidJson as error:
                    return Unreadable(str(error))
                return Unreadable("JSON of another form") if found is None else found

            return OutputRequest(prompt, again, parsed)

        requests = [request(*one) for one in asked]
        return [one.found for one in ask_with_retry(self.model, requests, MAX_TOKENS, self.tally)]

    def _clues_of(self, run: ReasonedRun) -> str:
        listed = _listed(self.clues.reasoning, map(self._shown, run.reasonings))
        return fill_template(self.clues.prompt, question=_plain(run.question.question), reasonings=listed)

    def _assign(self, clues: Sequence[str], text: str) -> str:
        listed = _listed(self.clues.clue, map(_plain, clues))
        return fill_template(self.clues.assign, clues=listed, text=self._shown(text))

    def _hops_of(self, run: ReasonedRun) -> str:
        shown = (
            fill_template(self.claims.passage, title=_plain(one.title), text=self._shown(one.text))
            for one in run.evidence
        )
        answers, question = " | ".join(map(_plain, run.question.answers)), _plain(run.question.question)
        return fill_template(self.claims.hops, question=question, answers=answers, evidence="".join(shown).rstrip())

    def _said(self, run: ReasonedRun, hops: Sequence[str], text: str) -> str:
        listed, question = _listed(self.claims.hop, map(_plain, hops)), _plain(run.question.question)
        return fill_template(self.claims.prompt, question=question, hops=listed, text=self._shown(text))

    def _shown(self, text: str) -> str:
        return neutralise_numbers(one_line(text, MAX_WORDS))


def _planned(question: Question) -> tuple[str, ...]:
    return tuple(f"{step.sub_question} {step.sub_answer}" for step in plan_of(question))


def _plain(text: str) -> str:
    return neutralise_numbers(one_line(text))


def _listed(template: str, texts: Iterable[str]) -> str:
    return "".join(fill_template(template, number=str(at), text=text) for at, text in enumerate(texts, 1)).rstrip("\n")


def _texts(found: Json) -> tuple[str, ...] | None:
    """A list of texts."""
    texts = tuple(one for one in found if isinstance(one, str)) if isinstance(found, list) else ()
    return texts if isinstance(found, list) and len(texts) == len(found) else None


def _numbers(count: int, found: Json) -> frozenset[int] | None:
    """A list of numbers 1 … count, as places from 0."""
    places = {one - 1 for one in found if type(one) is int} if isinstance(found, list) else {-1}
    whole = isinstance(found, list) and all(type(one) is int for one in found)
    return frozenset(places) if whole and places <= set(range(count)) else None


def _counts(found: Json) -> tuple[int, int] | None:
    """How many claims of an object are correct, and how many incorrect."""
    if not isinstance(found, dict):
        return None
    correct, incorrect = _texts(found.get("correct")), _texts(found.get("incorrect"))
    return None if correct is None or incorrect is None else (len(correct), len(incorrect))
