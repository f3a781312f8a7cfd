"""Reasoning: clues and claims in an agent's reasonings, extracted by a language model (AgentIR, appendices E and G).

Two prompt files make four kinds of calls: the clues of all reasonings of a run, then those of each reasoning; the
results of the question's steps, from its answer and evidence, then the correct and incorrect claims of each reasoning.
A question with a plan needs no call for its steps. `measure.reasoning.reasoning_values` takes the result.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from coseek.core.files import Json
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Passage
from coseek.data.question import Question, has_plan, plan_of
from coseek.graders.generator import PROMPTS
from coseek.graders.structured_output import CallCounts, OutputRequest, Unreadable, ask_with_retry, neutral_line
from coseek.measure.reasoning import ReasoningClaims
from coseek.models.judge_text import unfenced
from coseek.models.text_model import TextModel
from coseek.models.written import without_reasoning

T = TypeVar("T")
MAX_TOKENS = 2048
"""Maximum number of tokens of one response of the model."""
MAX_WORDS = 2000
"""Maximum number of words shown of one reasoning or passage."""


class CluePrompt(PromptFile):
    """Prompts about clues."""

    prompt: str
    """Asks for the clues, with the fields `{question}` and `{reasonings}`."""
    reasoning: str
    """One reasoning, with the fields `{number}` (from 1) and `{text}`."""
    assign: str
    """Asks for the clues in one reasoning, with the fields `{clues}` and `{text}`."""
    clue: str
    """One clue, with the fields `{number}` (from 1) and `{text}`."""
    again: str = ""
    """Appended after an unreadable output."""


class ClaimPrompt(PromptFile):
    """Prompts about claims."""

    hops: str
    """Asks for the results of the steps, with the fields `{question}`, `{answers}` and `{evidence}`."""
    passage: str
    """A passage of the evidence, with the fields `{title}` and `{text}`."""
    prompt: str
    """Asks for the claims in one reasoning, with the fields `{question}`, `{hops}` and `{text}`."""
    hop: str
    """The result of a step, with the fields `{number}` (from 1) and `{text}`."""
    again: str = ""
    """Appended after an unreadable output."""


@dataclass(frozen=True, slots=True)
class ReasonedRun:
    """The reasonings of one run (`measure.reasoning.reasonings_of`)."""

    question: Question
    reasonings: tuple[str, ...]
    evidence: tuple[Passage, ...] = ()
    """The gold passages; unused if the question has a plan."""


@dataclass(frozen=True)
class ReasoningReader:
    """A language model that reads reasonings."""

    model: TextModel
    clues: CluePrompt
    claims: ClaimPrompt
    tally: CallCounts

    @classmethod
    def over(cls, model: TextModel) -> "ReasoningReader":
        """A reader with the built-in prompts."""
        clues = load_prompt(CluePrompt, "clues", Path(), {}, PROMPTS)
        claims = load_prompt(ClaimPrompt, "claims", Path(), {}, PROMPTS)
        return cls(model, clues, claims, CallCounts())

    def read(self, runs: Sequence[ReasonedRun]) -> list[list[ReasoningClaims] | None]:
        """The claims of each reasoning of each run; `None` for a run with a call that failed or was unreadable twice,
        which `tally` counts."""
        clues = self._ask([(self._clues_prompt(run), _parse_texts) for run in runs], self.clues.again)
        hops = self._hops(runs)
        complete = {
            index: (run_clues, run_hops)
            for index, (run_clues, run_hops) in enumerate(zip(clues, hops, strict=True))
            if run_clues is not None and run_hops
        }
        rows = [(index, *complete[index], text) for index in complete for text in runs[index].reasonings]
        numbers = self._ask(
            [(self._assign_prompt(clues, text), partial(_parse_numbers, len(clues))) for _, clues, _, text in rows],
            self.clues.again,
        )
        counts = self._ask(
            [(self._claims_prompt(runs[index], hops, text), _parse_counts) for index, _, hops, text in rows],
            self.claims.again,
        )
        claims: dict[int, list[ReasoningClaims]] = {index: [] for index in complete}
        for (index, *_), clue_numbers, claim_counts in zip(rows, numbers, counts, strict=True):
            if clue_numbers is None or claim_counts is None:
                claims.pop(index, None)
            elif index in claims:
                claims[index].append(ReasoningClaims(clue_numbers, *claim_counts))
        return [claims.get(index) for index in range(len(runs))]

    def _hops(self, runs: Sequence[ReasonedRun]) -> list[tuple[str, ...] | None]:
        """The results of the steps of each question."""
        unplanned = [index for index, run in enumerate(runs) if not has_plan(run.question)]
        hops = self._ask([(self._hops_prompt(runs[index]), _parse_texts) for index in unplanned], self.claims.again)
        hops_of = dict(zip(unplanned, hops, strict=True))
        return [
            hops_of[index]
            if index in hops_of
            else tuple(f"{step.sub_question} {step.sub_answer}" for step in plan_of(run.question))
            for index, run in enumerate(runs)
        ]

    def _ask(self, calls: Sequence[tuple[str, Callable[[Json], T | None]]], again: str) -> list[T | None]:
        """Send each prompt and parse the JSON in the output with its function; `None` if that is not possible."""

        def request(prompt: str, convert: Callable[[Json], T | None]) -> OutputRequest[T]:
            def parse(text: str) -> T | Unreadable:
                try:
                    value = convert(parse_lenient(unfenced(without_reasoning(text))))
                except InvalidJson as error:
                    return Unreadable(str(error))
                return Unreadable("JSON of another form") if value is None else value

            return OutputRequest(prompt, again, parse)

        requests = [request(*pair) for pair in calls]
        return [output.value for output in ask_with_retry(self.model, requests, MAX_TOKENS, self.tally)]

    def _clues_prompt(self, run: ReasonedRun) -> str:
        lines = _numbered(self.clues.reasoning, map(_excerpt, run.reasonings))
        return fill_template(self.clues.prompt, question=neutral_line(run.question.question), reasonings=lines)

    def _assign_prompt(self, clues: Sequence[str], text: str) -> str:
        lines = _numbered(self.clues.clue, map(neutral_line, clues))
        return fill_template(self.clues.assign, clues=lines, text=_excerpt(text))

    def _hops_prompt(self, run: ReasonedRun) -> str:
        evidence = "".join(
            fill_template(self.claims.passage, title=neutral_line(passage.title), text=_excerpt(passage.text))
            for passage in run.evidence
        )
        answers, question = " | ".join(map(neutral_line, run.question.answers)), neutral_line(run.question.question)
        return fill_template(self.claims.hops, question=question, answers=answers, evidence=evidence.rstrip())

    def _claims_prompt(self, run: ReasonedRun, hops: Sequence[str], text: str) -> str:
        lines, question = _numbered(self.claims.hop, map(neutral_line, hops)), neutral_line(run.question.question)
        return fill_template(self.claims.prompt, question=question, hops=lines, text=_excerpt(text))


def _excerpt(text: str) -> str:
    return neutral_line(text, MAX_WORDS)


def _numbered(template: str, texts: Iterable[str]) -> str:
    lines = (fill_template(template, number=str(number), text=text) for number, text in enumerate(texts, 1))
    return "".join(lines).rstrip("\n")


def _parse_texts(value: Json) -> tuple[str, ...] | None:
    """Parse a list of texts."""
    if not isinstance(value, list):
        return None
    texts = tuple(text for text in value if isinstance(text, str))
    return texts if len(texts) == len(value) else None


def _parse_numbers(count: int, value: Json) -> frozenset[int] | None:
    """Parse a list of numbers from 1 to `count` to indices from 0."""
    if not isinstance(value, list):
        return None
    numbers = [number for number in value if type(number) is int and 1 <= number <= count]
    return frozenset(number - 1 for number in numbers) if len(numbers) == len(value) else None


def _parse_counts(value: Json) -> tuple[int, int] | None:
    """The numbers of correct and incorrect claims in an object."""
    if not isinstance(value, dict):
        return None
    correct, incorrect = _parse_texts(value.get("correct")), _parse_texts(value.get("incorrect"))
    return None if correct is None or incorrect is None else (len(correct), len(incorrect))
