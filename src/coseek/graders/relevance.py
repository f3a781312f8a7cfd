"""Relevance: how well each candidate answers the query of one search turn, from 0 to 100 (Agentic-R, eq. 1: LR).

All candidates of a turn, or a window of them, are scored in one call, because their scores are compared. The scorer is
the oracle of a laptop world, the gold passages of a data set, or a model with a prompt from a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from coseek.agents.search_turns import SearchTurn, TurnId, TurnRecord
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.data.passage import Passage
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
    read_scores,
)
from coseek.retrieval.llm import neutralise_numbers


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
                title=neutralise_numbers(one_line(passage.title, self.max_words)),
                text=neutralise_numbers(one_line(passage.text, self.max_words)),
            )
            for number, passage in enumerate(asked.passages, start=1)
        )
        hint = ""
        if asked.sub_answer is not None:
            hint = fill_template(self.prompt.hint, sub_answer=neutralise_numbers(one_line(asked.sub_answer)))
        return fill_template(
            self.prompt.prompt,
            passages=passages.rstrip("\n"),
            count=str(len(asked.passages)),
            query=neutralise_numbers(one_line(asked.turn.query.text)),
            question=neutralise_numbers(one_line(asked.turn.question.question)),
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
