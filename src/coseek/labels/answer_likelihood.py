"""Weighing: how likely a frozen model finds a question's answer, given passages. What three label makers stand on.

The model reads a generator's prompt (question and passages) and the answer is weighed behind it: log P(answer |
question, passages), in nats, the sum over the answer's tokens. The answer is the first accepted one, or the likeliest.
Whatever a rule says about likelihoods, it says about these.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol, cast

from pydantic import Field

from coseek.agents.search_turns import SearchTurn
from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.call_counts import FAULT
from coseek.graders.context_budget import ContextBudget
from coseek.graders.generator import (
    GeneratorContext,
    GeneratorPrompt,
    GeneratorSettings,
    ReadingInput,
    context_of,
    load_generator_prompt,
)
from coseek.labels.candidates import find_candidates
from coseek.labels.label_set import Candidate, DroppedTurn
from coseek.labels.maker import Labelled
from coseek.labels.resources import LabelResources
from coseek.labels.score_cache import ScoreCache
from coseek.retrieval.query import Query

if TYPE_CHECKING:
    from coseek.models.likelihood import ContinuationLogprob, LikelihoodModel

LOGP = "logp"
"""The name of log P(answer | question, passage)."""


class AnswerLikelihoodSettings(Settings):
    """Which passages are weighed for what, and how the model is asked."""

    candidates: int = Field(default=20, ge=2)
    """Passages of the current retriever that are weighed for each query."""
    queries: Literal["turn", "question"] = "turn"
    """What a label's query is: what the agent asked in the turn, or the user's question as it stands, once a run."""
    answers: Literal["first", "best"] = "first"
    """Which accepted answer is weighed: the first one, or the one that is likeliest with these passages."""
    prompt: str | None = None
    """A generator's prompt of ours by name, or a YAML file; else the model folder's own, else `generator`."""
    max_context_tokens: int = Field(default=2048, ge=1)
    """Words and marks of titles and texts that are shown at once, at most."""


@dataclass(frozen=True, slots=True)
class AnswerLikelihoods:
    """The likelihood of one question's answer under several lists of passages."""

    question_id: str
    """For people."""
    asked: str
    """Digest of all prompts and answers that were weighed together."""
    nats: tuple[float, ...] | None
    """By list; `None` for a fault."""
    tokens: tuple[int, ...] = ()
    """Tokens of each accepted answer that was weighed."""
    fault: str | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return (self.asked,)

    def to_json(self) -> JsonObject:
        return {
            "question_id": self.question_id,
            "asked": self.asked,
            "nats": None if self.nats is None else list(self.nats),
            "tokens": list(self.tokens),
            "fault": self.fault,
        }

    @classmethod
    def from_json(cls, row: JsonObject) -> "AnswerLikelihoods":
        nats, tokens, fault = row["nats"], row["tokens"], row["fault"]
        assert isinstance(tokens, list) and (nats is None or isinstance(nats, list))
        return cls(
            question_id=str(row["question_id"]),
            asked=str(row["asked"]),
            nats=None if nats is None else tuple(map(float, cast(list[float], nats))),
            tokens=tuple(cast(list[int], tokens)),
            fault=None if fault is None else str(fault),
        )


@dataclass(frozen=True)
class AnswerLikelihoodScorer:
    """A frozen model, the prompt it is asked with, and what it said before.

    All lists of one turn are weighed in one call and kept as one entry: in float32 a row's last digits depend on the
    rows beside it, so a turn that was not finished is weighed again as a whole, and has the same numbers.
    """

    model: "LikelihoodModel"
    prompt: GeneratorPrompt
    budget: ContextBudget
    answers: Literal["first", "best"]
    kept: ScoreCache[AnswerLikelihoods]

    def contexts(self, question: Question, lists: Sequence[Sequence[Passage]]) -> list[GeneratorContext]:
        return [context_of(self.prompt, self.budget, ReadingInput(question.question, tuple(one))) for one in lists]

    def weigh(self, question: Question, contexts: Sequence[GeneratorContext]) -> AnswerLikelihoods:
        """The likelihood of the answer in each context; one fault among them is a fault of all."""
        from coseek.models.likelihood import Continuation

        answers = question.answers[:1] if self.answers == "first" else question.answers
        lead = self.prompt.answer_after
        # Behind a chat template the answer begins the message; elsewhere a blank parts it from what stands before.
        blank = "" if self.model.uses_chat_template and not lead else " "
        rows = [
            Continuation(context.prompt, blank + answer.strip(), lead) for context in contexts for answer in answers
        ]
        asked = digest_of(*(text for row in rows for text in (row.prompt, row.lead, row.text)))[:32]
        known = self.kept.get((asked,))
        if known is None:
            known = _weighing(question.id, asked, self.model.score(rows), len(answers))
            self.kept.keep([known])
        return known


def _weighing(
    question_id: str, asked: str, weighed: "Sequence[ContinuationLogprob]", answers: int
) -> AnswerLikelihoods:
    fault = next((one.fault for one in weighed if one.fault is not None), None)
    tokens = tuple(one.tokens for one in weighed[:answers])
    if fault is not None:
        return AnswerLikelihoods(question_id, asked, None, tokens, fault)
    nats = [cast(float, one.nats) for one in weighed]
    best = tuple(max(nats[start : start + answers]) for start in range(0, len(nats), answers))
    return AnswerLikelihoods(question_id, asked, best, tokens)


def open_weigher(settings: AnswerLikelihoodSettings, parts: LabelResources) -> AnswerLikelihoodScorer:
    """The model behind `--likelihood`, asked with the prompt of the settings or its own."""
    model, name = parts.likelihood, cast(str, parts.likelihood_name)
    prompt = load_generator_prompt(GeneratorSettings(model=name, prompt=settings.prompt))
    words = prompt.model_dump_json(exclude={"about"})
    identity = digest_of("weighing", model.identity, words, str(settings.max_context_tokens))
    card: JsonObject = {"model": name, "model_identity": model.identity, "prompt": prompt.about}
    kept = parts.sheet("likelihood", AnswerLikelihoods, identity, card)
    return AnswerLikelihoodScorer(model, prompt, ContextBudget(settings.max_context_tokens), settings.answers, kept)


class Rule(Protocol):
    """What a method makes of likelihoods."""

    @property
    def name(self) -> str:
        """With all its settings: a digest of labels holds it."""
        ...

    def lists(self, passages: Sequence[Passage]) -> list[list[Passage]]:
        """Which lists of the candidates the answer is weighed with."""
        ...

    def decide(self, turn: SearchTurn, candidates: Sequence[Candidate], nats: Sequence[float]) -> Labelled:
        """The label of a turn from the likelihood under each list."""
        ...


@dataclass(frozen=True)
class ByLikelihood:
    """A label maker: candidates → likelihoods → a rule. Implements `LabelMaker`."""

    rule: Rule
    settings: AnswerLikelihoodSettings
    parts: LabelResources

    @cached_property
    def weigher(self) -> AnswerLikelihoodScorer:
        return open_weigher(self.settings, self.parts)

    @cached_property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"prompt"})  # the weigher's identity holds its words
        return digest_of(self.rule.name, settings, self.weigher.kept.sheet.identity, self.parts.retriever.identity)

    def label(self, turns: Sequence[SearchTurn]) -> Iterator[Labelled]:
        asked: list[SearchTurn] = []
        for turn in turns:
            if not turn.question.answers:
                yield DroppedTurn(turn.id, "no-answer", "the question has no accepted answer to be weighed")
            elif self.settings.queries == "question" and turn.search > 0:
                yield DroppedTurn(turn.id, "same-question", "the first search of the run stands for its question")
            else:
                asked.append(self._asking(turn))
        found = find_candidates(self.parts.retriever, asked, self.settings.candidates, self.parts.tally)
        for turn, candidates in zip(asked, found, strict=True):
            label = None if candidates is None else self._label(turn, distinct(candidates))
            if label is not None:
                yield label

    def _asking(self, turn: SearchTurn) -> SearchTurn:
        """The turn with the query that its label is for."""
        if self.settings.queries == "turn":
            return turn
        return replace(turn, query=Query(turn.question.question, turn.question.question))

    def _label(self, turn: SearchTurn, candidates: Sequence[Candidate]) -> Labelled | None:
        """A label or a reason; nothing when the model failed."""
        if len(candidates) < 2:
            return DroppedTurn(turn.id, "too-few", f"{len(candidates)} passages were found")
        lists = self.rule.lists([candidate.passage for candidate in candidates])
        contexts = self.weigher.contexts(turn.question, lists)
        if any(len(context.passage_ids) < len(one) for context, one in zip(contexts, lists, strict=True)):
            most = self.settings.max_context_tokens
            return DroppedTurn(turn.id, "too-long", f"its passages do not fit into max_context_tokens={most}")
        weighing = self.weigher.weigh(turn.question, contexts)
        if weighing.nats is None:
            self.parts.tally.add(f"{FAULT}likelihood")
            return None
        return self.rule.decide(turn, candidates, weighing.nats)


def distinct(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates without copies: of those with the same words the first stays. A copy of a positive is no
    negative, and the generator would be shown it once."""
    first: dict[tuple[str, str], Candidate] = {}
    for candidate in candidates:
        words = (" ".join(candidate.passage.title.split()), " ".join(candidate.passage.text.split()))
        first.setdefault(words, candidate)
    return list(first.values())


def scored(candidates: Sequence[Candidate], **scores: Sequence[float]) -> list[Candidate]:
    """The candidates with more scores, one of each name for each of them."""
    return [
        replace(candidate, scores={**candidate.scores, **{name: values[place] for name, values in scores.items()}})
        for place, candidate in enumerate(candidates)
    ]


def softmax(values: Sequence[float], temperature: float) -> tuple[float, ...]:
    """exp(v / τ) / Σ exp(v / τ), in double precision, the largest taken out first so that nothing overflows."""
    if not temperature > 0:
        raise SettingError(f"a temperature is greater than 0, not {temperature}")
    top = max(values)
    weights = [math.exp((value - top) / temperature) for value in values]
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)
