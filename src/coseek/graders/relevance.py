"""Relevance: how well each candidate answers the query of one search turn, from 0 to 100 (Agentic-R, eq. 1: LR).

All candidates of a turn, or a window of them, are scored in one call, because their scores are compared. The scorer is
the oracle of a laptop world, the gold passages of a data set, or a model with a prompt from a file.

A sub-answer, the answer that a search should find, helps to score passages: a model infers those of all searches of a
finished run from the whole run and the accepted answers (section 4.1), in one call. A search has none if the model is
not sure, and no search of a run has one if the output is unreadable twice, which is counted. A turn without one is
still labelled.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from coseek.agents.search_turns import SearchTurn, TurnId, TurnRecord
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.record import Record
from coseek.data.passage import Passage
from coseek.data.trajectory import COMMON_TAGS, PROMPT, Author, Segment, Trajectory
from coseek.graders.generator import PROMPTS
from coseek.graders.structured_output import (
    Form,
    Grader,
    ModelGrader,
    OutputRequest,
    ParsedOutput,
    Unreadable,
    after_mark,
    ask_with_retry,
    neutral_line,
    read_lines,
    read_scores,
)
from coseek.models.text_model import CutText


@dataclass(frozen=True)
class CandidateList:
    """Candidate passages of one search turn, to be scored together."""

    turn: SearchTurn
    passages: tuple[Passage, ...]
    sub_answer: str | None = None
    """The answer that the search should find, if known."""

    @cached_property
    def digest(self) -> str:
        texts = (text for passage in self.passages for text in (passage.id, passage.title, passage.text))
        return digest_of(self.turn.query.text, self.sub_answer or "", *texts)[:16]


@dataclass(frozen=True, slots=True)
class Rating(TurnRecord):
    """Scores of passages that were scored together."""

    turn: TurnId
    context: str
    """Digest of the scorer's input."""
    scores: Mapping[str, float] | None
    """By passage id; `None` for an unreadable output or a fault."""
    texts: tuple[str, ...] = ()
    """Outputs of the scorer, one per call."""
    unreadable: str = ""
    """Why the output could not be parsed."""
    fault: str | None = None
    """Why there is no output."""

    @property
    def key(self) -> tuple[str, ...]:
        return *self.turn.key, self.context


class RelevanceScorer(Grader, Protocol):
    """Scores passages for a search turn."""

    def rate(self, asked: Sequence[CandidateList]) -> list[Rating]:
        """One rating per list, in order. A failure is a rating with a fault."""
        ...


@dataclass(frozen=True)
class GoldRelevance:
    """Gold evidence: 100 for a gold passage of the question, 0 for any other, in every turn."""

    @property
    def identity(self) -> str:
        return digest_of("gold")

    @property
    def card(self) -> JsonObject:
        return {"gold": "100 for a gold passage of the question, 0 for any other"}

    def rate(self, asked: Sequence[CandidateList]) -> list[Rating]:
        ratings = []
        for candidates in asked:
            gold_ids = candidates.turn.question.gold_ids
            scores = {passage.id: 100.0 * (passage.id in gold_ids) for passage in candidates.passages}
            ratings.append(Rating(candidates.turn.id, candidates.digest, scores))
        return ratings


class RelevancePrompt(PromptFile):
    """Prompt of a scorer, and the format of its scores."""

    prompt: str
    """The prompt, with the fields `{passages}`, `{count}`, `{query}`, `{question}` and `{hint}`."""
    passage: str
    """One passage, with the fields `{number}` (from 1), `{title}` and `{text}`."""
    hint: str = ""
    """Inserted into the prompt if the answer that the search should find is known, as `{sub_answer}`."""
    again: str = ""
    """Appended to the prompt after an unreadable output, with the field `{count}`."""
    form: Form = "numbered"
    """`numbered`: `[2] 71` for each passage; `bare`: only the scores, in the order of the passages."""
    scores_after: str = ""
    """The scores follow the last occurrence of this mark, for models that reason first. Empty: the whole output."""


_FIELDS = {
    "prompt": {"passages", "count", "query", "question", "hint"},
    "passage": {"number", "title", "text"},
    "hint": {"sub_answer"},
    "again": {"count"},
}


def load_relevance_prompt(name: str) -> RelevancePrompt:
    """A built-in prompt by name, or a YAML file."""
    return load_prompt(RelevancePrompt, name, Path(), _FIELDS, PROMPTS)


class ModelRelevance(ModelGrader[RelevancePrompt]):
    """A language model that scores numbered passages."""

    kind = "relevance"

    def rate(self, asked: Sequence[CandidateList]) -> list[Rating]:
        outputs = ask_with_retry(self.model, list(map(self._request, asked)), self.max_tokens, self.tally)
        return [self._rating(*pair) for pair in zip(asked, outputs, strict=True)]

    def _request(self, candidates: CandidateList) -> OutputRequest[tuple[int, ...]]:
        count = len(candidates.passages)
        again = fill_template(self.prompt.again, count=str(count))
        return OutputRequest(self.shown(candidates), again, lambda text: self._read(text, count))

    def shown(self, asked: CandidateList) -> str:
        """The whole prompt. Numbers in brackets are neutralised in text from outside."""
        passages = "".join(
            fill_template(
                self.prompt.passage,
                number=str(number),
                title=neutral_line(passage.title, self.max_words),
                text=neutral_line(passage.text, self.max_words),
            )
            for number, passage in enumerate(asked.passages, start=1)
        )
        hint = ""
        if asked.sub_answer is not None:
            hint = fill_template(self.prompt.hint, sub_answer=neutral_line(asked.sub_answer))
        return fill_template(
            self.prompt.prompt,
            passages=passages.rstrip("\n"),
            count=str(len(asked.passages)),
            query=neutral_line(asked.turn.query.text),
            question=neutral_line(asked.turn.question.question),
            hint=hint,
        )

    def _read(self, text: str, count: int) -> tuple[int, ...] | Unreadable:
        scores = after_mark(text, self.prompt.scores_after)
        return scores if isinstance(scores, Unreadable) else read_scores(scores, count, self.prompt.form)

    def _rating(self, candidates: CandidateList, output: ParsedOutput[tuple[int, ...]]) -> Rating:
        scores = None
        if output.value is not None:
            pairs = zip(candidates.passages, output.value, strict=True)
            scores = {passage.id: float(score) for passage, score in pairs}
        return Rating(candidates.turn.id, candidates.digest, scores, output.texts, output.unreadable, output.fault)


# Sub-answers.

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


_RUN_FIELDS = {
    "prompt": {"question", "answers", "run", "searches", "count"},
    "agent": {"text"},
    "shown": {"text"},
    "search": {"number", "query"},
    "again": {"count"},
}


def load_sub_answer_prompt(name: str) -> SubAnswerPrompt:
    """A built-in prompt by name, or a YAML file."""
    return load_prompt(SubAnswerPrompt, name, Path(), _RUN_FIELDS, PROMPTS)


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
                lines.append(fill_template(self.prompt.agent, text=neutral_line(segment.text)))
            elif segment.tag != PROMPT and (segment.tag in COMMON_TAGS or not is_shown):
                is_shown = is_shown or segment.tag not in COMMON_TAGS  # native calls of one turn have a segment each
                text = self._observation(run, turn, segment)
                lines.append(fill_template(self.prompt.shown, text=neutral_line(text)))
        searches = (
            fill_template(self.prompt.search, number=str(number), query=neutral_line(search.query))
            for number, search in enumerate(run.searches, start=1)
        )
        return fill_template(
            self.prompt.prompt,
            question=neutral_line(run.question.question),
            answers=" | ".join(neutral_line(answer) for answer in run.question.answers),
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
