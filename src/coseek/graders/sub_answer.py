"""Sub-answer: the answer that each search of a finished run should find, inferred by a model from the whole run and the
accepted answers (Agentic-R, section 4.1). It helps to score passages. A turn without a sub-answer is still labelled.

One call per run. A search has no sub-answer if the model is not sure, and none of a run has if its output is unreadable
twice, which is counted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.record import Record
from coseek.data.trajectory import COMMON_TAGS, PROMPT, Author, Segment, Trajectory
from coseek.graders.generator import PROMPTS
from coseek.graders.structured_output import (
    ModelGrader,
    OutputRequest,
    Unreadable,
    after_mark,
    ask_with_retry,
    read_lines,
)
from coseek.models.text_model import CutText
from coseek.retrieval.llm import neutralise_numbers

_UNSURE = ("not sure ", "unsure ", "not certain ")
"""Beginnings of outputs without a sub-answer."""
_NO_ANSWER = frozenset({"", "unknown", "none", "n/a"})
"""Whole outputs without a sub-answer. A title may begin with these words."""
_NO_WORD = re.compile(r"[^\w/]+")


@dataclass(frozen=True, slots=True)
class SubAnswers(Record):
    """Sub-answers of the searches of one run."""

    question_id: str
    seed: int
    context: str
    """Digest of the model's input."""
    answers: tuple[str | None, ...] | None
    """One per search, `None` if the model was not sure. `None` for all after an unreadable output or a fault."""
    texts: tuple[str, ...] = ()
    unreadable: str = ""
    fault: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.question_id, str(self.seed), self.context


class SubAnswerPrompt(PromptFile):
    """Prompt that shows a run."""

    prompt: str
    """The prompt, with the fields `{question}`, `{answers}`, `{run}`, `{searches}` and `{count}`."""
    agent: str
    """One turn of the agent, with the field `{text}`."""
    shown: str
    """The observation after it, with the field `{text}`."""
    search: str
    """One search, with the fields `{number}` (from 1) and `{query}`."""
    again: str = ""
    """Appended to the prompt after an unreadable output, with the field `{count}`."""
    answers_after: str = ""
    """The lines follow the last occurrence of this mark. Empty: the whole output."""


_FIELDS = {
    "prompt": {"question", "answers", "run", "searches", "count"},
    "agent": {"text"},
    "shown": {"text"},
    "search": {"number", "query"},
    "again": {"count"},
}


def load_sub_answer_prompt(name: str) -> SubAnswerPrompt:
    """A built-in prompt by name, or a YAML file."""
    return load_prompt(SubAnswerPrompt, name, Path(), _FIELDS, PROMPTS)


class SubAnswerModel(ModelGrader[SubAnswerPrompt]):
    """A language model that infers the sub-answers of whole runs."""

    kind = "sub-answer"

    def infer(self, runs: Sequence[Trajectory]) -> list[SubAnswers]:
        """The sub-answers of each run, in order."""
        requests = [self._request(run) for run in runs]
        outputs = ask_with_retry(self.model, requests, self.max_tokens, self.tally)
        sub_answers = []
        for run, request, output in zip(runs, requests, outputs, strict=True):
            digest = digest_of(request.prompt)[:16]
            result = (output.value, output.texts, output.unreadable, output.fault)
            sub_answers.append(SubAnswers(run.question.id, run.seed, digest, *result))
        return sub_answers

    def digest(self, run: Trajectory) -> str:
        """Digest of the model's input for a run."""
        return digest_of(self.shown(run))[:16]

    def shown(self, run: Trajectory) -> str:
        """The whole prompt. Text from outside is put on one line, and its numbers in brackets are neutralised."""
        lines: list[str] = []
        turn, is_shown = 0, False
        for segment in run.segments:
            if segment.author is Author.AGENT:
                turn, is_shown = turn + 1, False
                lines.append(fill_template(self.prompt.agent, text=neutralise_numbers(one_line(segment.text))))
            elif segment.tag != PROMPT and (segment.tag in COMMON_TAGS or not is_shown):
                is_shown = is_shown or segment.tag not in COMMON_TAGS  # native calls of one turn have a segment each
                text = self._observation(run, turn, segment)
                lines.append(fill_template(self.prompt.shown, text=neutralise_numbers(text)))
        searches = (
            fill_template(self.prompt.search, number=str(number), query=neutralise_numbers(one_line(search.query)))
            for number, search in enumerate(run.searches, start=1)
        )
        return fill_template(
            self.prompt.prompt,
            question=neutralise_numbers(one_line(run.question.question)),
            answers=" | ".join(neutralise_numbers(one_line(answer)) for answer in run.question.answers),
            run="".join(lines).rstrip("\n"),
            searches="".join(searches).rstrip("\n"),
            count=str(len(run.searches)),
        )

    def _observation(self, run: Trajectory, turn: int, segment: Segment) -> str:
        """The passages of a turn of the agent, with at most `max_words` words of each. Notes on passages and other
        observations count as one text."""
        passages = [hit.passage for search in run.searches if search.turn == turn for hit in search.hits]
        if not passages or run.side_contexts or segment.tag in COMMON_TAGS:
            return one_line(segment.text, self.max_words)
        lines = (one_line(f"{passage.title} | {passage.text}", self.max_words) for passage in passages)
        return " ; ".join(dict.fromkeys(lines))

    def _request(self, run: Trajectory) -> OutputRequest[tuple[str | None, ...]]:
        count = len(run.searches)
        again = fill_template(self.prompt.again, count=str(count))
        return OutputRequest(self.shown(run), again, lambda text: self._read(text, count))

    def _read(self, text: str, count: int) -> tuple[str | None, ...] | Unreadable:
        # A date that was cut at a word ("12 May") looks like a whole sub-answer.
        answers = after_mark(text.rpartition("\n")[0] if isinstance(text, CutText) else text, self.prompt.answers_after)
        lines = answers if isinstance(answers, Unreadable) else read_lines(answers, count)
        return lines if isinstance(lines, Unreadable) else tuple(map(sure, lines))


def sure(answer: str) -> str | None:
    """The sub-answer, or `None` if the model is not sure."""
    words = " ".join(_NO_WORD.sub(" ", answer.casefold()).split())
    return None if words in _NO_ANSWER or f"{words} ".startswith(_UNSURE) else answer
