"""Answer likelihood: log P(answer | question, passages) under a frozen model, the basis of three label makers.

The prompt is a generator's, with question and passages. The likelihood is in nats, summed over the tokens of the first
accepted answer, or of the likeliest one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.record import Record
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.generator import (
    ContextBudget,
    GeneratorContext,
    GeneratorPrompt,
    GeneratorSettings,
    context_of,
    load_generator_prompt,
)
from coseek.labels.label_folder import ScoreCache
from coseek.labels.label_set import Candidate, DroppedTurn, find_candidates
from coseek.labels.maker import Labelled
from coseek.labels.resources import LabelResources
from coseek.retrieval.query import Query

if TYPE_CHECKING:
    from coseek.models.likelihood import ContinuationLogprob

LOGP = "logp"
"""Name of the score log P(answer | question, passage)."""


class AnswerLikelihoodSettings(Settings):
    """Candidates, queries and prompt."""

    candidates: int = Field(default=20, ge=2)
    """Passages of the current retriever that are scored for each query."""
    queries: Literal["turn", "question"] = "turn"
    """Query of a label: the agent's query of the turn, or the user's question, once per run."""
    answers: Literal["first", "best"] = "first"
    """Which accepted answer is scored: the first one, or the one that is likeliest with these passages."""
    prompt: str | None = None
    """Name of a built-in generator prompt, or a YAML file; default: the model folder's own, else `generator`."""
    max_context_tokens: int = Field(default=2048, ge=1)
    """Maximum number of words and punctuation marks in the titles and texts of one prompt."""


@dataclass(frozen=True, slots=True)
class AnswerLikelihoods(Record):
    """The likelihood of one question's answer under several lists of passages."""

    question_id: str
    """For people."""
    asked: str
    """Digest of all prompts and answers of the batch."""
    nats: tuple[float, ...] | None
    """Log-likelihood by list of passages; `None` for a fault."""
    tokens: tuple[int, ...] = ()
    """Tokens of each accepted answer that was scored."""
    fault: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.asked,)


@dataclass(frozen=True)
class LikelihoodMaker(ABC):
    """Base of label makers: candidates → likelihoods → label. Implements `LabelMaker`.

    All lists of one turn are scored in one batch and cached as one entry. In float32 the last digits of a row depend on
    the other rows of its batch, so an unfinished turn is scored again as a whole and gets the same numbers.
    """

    settings: AnswerLikelihoodSettings
    parts: LabelResources

    @property
    @abstractmethod
    def name(self) -> str:
        """Method and its own settings; part of the identity of labels."""

    @abstractmethod
    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        """Lists of candidates under which the answer is scored."""

    @abstractmethod
    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        """The label of a turn from the likelihood under each list."""

    @cached_property
    def prompt(self) -> GeneratorPrompt:
        """The prompt of the settings, or the model's own."""
        return load_generator_prompt(GeneratorSettings(model=self.parts.likelihood.folder, prompt=self.settings.prompt))

    @cached_property
    def cache(self) -> ScoreCache[AnswerLikelihoods]:
        """The likelihoods of the model with this prompt."""
        parts, model, prompt = self.parts, self.parts.likelihood, self.prompt
        words = prompt.model_dump_json(exclude={"about"})
        identity = digest_of("weighing", model.identity, words, str(self.settings.max_context_tokens))
        card: JsonObject = {"model": parts.likelihood_name, "model_identity": model.identity, "prompt": prompt.about}
        return parts.score_cache("likelihood", AnswerLikelihoods, identity, card)

    @cached_property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"prompt"})  # the cache's identity holds its text
        return digest_of(self.name, settings, self.cache.identity, self.parts.retriever.identity)

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        return self.parts.each(self._labels, turns, self.parts.likelihood)

    def _labels(self, turns: Sequence[SearchTurn]) -> list[Labelled]:
        scored: list[SearchTurn] = []
        labels: list[Labelled] = []
        for turn in turns:
            if not turn.question.answers:
                labels.append(DroppedTurn(turn.id, "no-answer", "the question has no accepted answer"))
            elif self.settings.queries == "question" and turn.search > _first_labelled(turn):
                detail = "the first search of the run has the label of this question"
                labels.append(DroppedTurn(turn.id, "same-question", detail))
            else:
                question = Query(turn.question.searched, turn.question.searched)
                scored.append(turn if self.settings.queries == "turn" else replace(turn, query=question))
        candidate_lists = find_candidates(self.parts.retriever, scored, self.settings.candidates, self.parts.tally)
        for turn, candidates in zip(scored, candidate_lists, strict=True):
            label = None if candidates is None else self._label(turn, distinct(candidates))
            if label is not None:
                labels.append(label)
        return labels

    def _label(self, turn: SearchTurn, candidates: Sequence[Candidate]) -> Labelled | None:
        """A label or the reason for none; `None` for a fault of the model."""
        if len(candidates) < 2:
            return DroppedTurn(turn.id, "too-few", f"{len(candidates)} passages were found")
        budget = ContextBudget(self.settings.max_context_tokens)
        contexts = [
            context_of(self.prompt, budget, turn.question.question, passages)
            for passages in self.lists([candidate.passage for candidate in candidates])
        ]
        # Likelihoods are compared between lists of the same texts, so every passage must be read whole.
        if any(context.truncated for context in contexts):
            limit = self.settings.max_context_tokens
            return DroppedTurn(turn.id, "too-long", f"its passages do not fit into max_context_tokens={limit}")
        likelihoods = self._score(turn.question, contexts)
        if likelihoods.nats is None:
            self.parts.tally.fail("likelihood", likelihoods.fault or "")
            return None
        return self.decide(turn, candidates, likelihoods.nats)

    def _score(self, question: Question, contexts: Sequence[GeneratorContext]) -> AnswerLikelihoods:
        """The likelihood of the answer in each context. A fault in one context is a fault of the whole turn."""
        from coseek.models.likelihood import Continuation

        model, lead = self.parts.likelihood, self.prompt.answer_after
        answers = question.answers[:1] if self.settings.answers == "first" else question.answers
        # After a chat template the answer starts the message; elsewhere a blank separates it from the prompt.
        blank = "" if model.uses_chat_template and not lead else " "
        continuations = [
            Continuation(context.prompt, blank + answer.strip(), lead) for context in contexts for answer in answers
        ]
        key = digest_of(*(text for item in continuations for text in (item.prompt, item.lead, item.text)))[:32]
        likelihoods = self.cache.get((key,))
        if likelihoods is None:
            likelihoods = _likelihoods(question.id, key, model.score(continuations), len(answers))
            self.cache.keep([likelihoods])
        return likelihoods


def _first_labelled(turn: SearchTurn) -> int:
    """The first search of the run that did not fail: failed ones are no search turns."""
    return next(index for index, search in enumerate(turn.trajectory.searches) if search.fault is None)


def _likelihoods(
    question_id: str, key: str, continuations: "Sequence[ContinuationLogprob]", answers: int
) -> AnswerLikelihoods:
    fault = next((continuation.fault for continuation in continuations if continuation.fault is not None), None)
    tokens = tuple(continuation.tokens for continuation in continuations[:answers])
    if fault is not None:
        return AnswerLikelihoods(question_id, key, None, tokens, fault)
    nats = [cast(float, continuation.nats) for continuation in continuations]
    best = tuple(max(nats[start : start + answers]) for start in range(0, len(nats), answers))
    return AnswerLikelihoods(question_id, key, best, tokens)


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without duplicates; the first of equal texts stays. A copy of the positive is no negative."""
    first: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates:
        words = (" ".join(candidate.passage.title.split()), " ".join(candidate.passage.text.split()))
        first.setdefault(words, candidate)
    return list(first.values())


def scored(candidates: Sequence[Candidate], **scores: Sequence[float]) -> list[Candidate]:
    """The candidates with additional scores, by name."""
    return [
        replace(candidate, scores={**candidate.scores, **{name: values[index] for name, values in scores.items()}})
        for index, candidate in enumerate(candidates)
    ]


def softmax(values: Sequence[float], temperature: float) -> tuple[float, ...]:
    """exp(v / τ) / Σ exp(v / τ) in double precision; the maximum is subtracted to avoid overflow."""
    greatest = max(values)
    weights = [math.exp((value - greatest) / temperature) for value in values]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
