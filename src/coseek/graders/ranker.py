"""Ranker: orders passages for one search query, given the question and its answer (DR-Synth's oracle).

A model's order must name every passage exactly once, or most passages if parsing is lenient. Otherwise the model is
called once more, and after a second failure there is no order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol

from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import fill_template, load_prompt, one_line
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.generator import PROMPTS
from coseek.graders.structured_output import (
    Grader,
    ModelGrader,
    OutputRequest,
    ParsedOutput,
    Unreadable,
    after_mark,
    ask_with_retry,
)
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.llm import LISTWISE_FIELDS, ListwisePrompt, fill_listwise_prompt, parse_ranking, sliding_together
from coseek.retrieval.query import Query

REPAIRED = "orders_repaired"
"""Name of the count of repaired orders."""
MOST_MISSING = 0.2
"""Maximum share of the passages that a repaired order may miss."""


@dataclass(frozen=True, slots=True)
class RankingRequest:
    """Input of a ranker for one search turn."""

    question: Question
    query: Query
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class RankedOrder(ParsedOutput[tuple[int, ...]]):
    """Output of a ranker for one request. `found` holds indices of the passages from 0, best first; `None` without an
    order."""

    scores: tuple[float, ...] | None = None
    """One score per passage, in the given order, from rankers that score."""


class Ranker(Grader, Protocol):
    """Orders passages."""

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        """One order per request. A failure is an order with a fault and affects no other order."""
        ...


@dataclass(frozen=True)
class GoldRanker:
    """Gold evidence: gold passages first, all others in the given order.

    Gold passages that no earlier search of the run returned come first. Then they are ordered by the number of words
    that they share with the query and the reasoning before it, then by the given order.
    """

    @property
    def identity(self) -> str:
        return digest_of("gold ranker")

    @property
    def card(self) -> JsonObject:
        return {"ranker": "gold evidence"}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        return [RankedOrder(self._order(request)) for request in asked]

    def _order(self, request: RankingRequest) -> tuple[int, ...]:
        earlier_documents = {document for turn in request.query.history for document in turn.documents}
        query_words = set(words(f"{request.query.text} {request.query.reasoning}"))

        def rank_of(index: int) -> tuple[bool, bool, int]:
            passage = request.passages[index]
            if passage.id not in request.question.gold_ids:
                return True, False, 0
            common_words = query_words.intersection(words(f"{passage.title} {passage.text}"))
            return False, passage.contents in earlier_documents, -len(common_words)

        return tuple(sorted(range(len(request.passages)), key=rank_of))


class RankPrompt(ListwisePrompt):
    """Prompt of a ranking model."""

    again: str = ""
    """Appended to the prompt after an unreadable output; `{count}` is filled in."""
    ranking_after: str = ""
    """The ranking follows the last occurrence of this mark, for models that reason first. Empty: the whole output."""


_FIELDS = {
    **LISTWISE_FIELDS,
    "prompt": LISTWISE_FIELDS["prompt"] | {"question", "answers"},
    "again": {"count"},
}


def load_rank_prompt(name: str) -> RankPrompt:
    """A built-in prompt by name, or a YAML file."""
    return load_prompt(RankPrompt, name, Path(), _FIELDS, PROMPTS)


@dataclass(frozen=True)
class ModelRanker(ModelGrader[RankPrompt]):
    """A language model that ranks all passages at once, or sliding windows from the last to the first (RankGPT).

    One pass of windows moves the best `window - step` passages to the front, in order.
    """

    kind = "model ranker"
    window: int | None
    """Passages per call; `None`: all."""
    step: int
    lenient: bool = False
    """Repair an order that names most passages (`read_order`)."""

    @cached_property
    def identity(self) -> str:
        prompt = self.prompt.model_dump_json(exclude={"about"})
        sizes = (self.max_tokens, self.max_words, self.window, self.step if self.window else None)
        lenient = ("lenient",) if self.lenient else ()
        return digest_of(self.kind, self.model.identity, prompt, *map(str, sizes), *lenient)

    @property
    def card(self) -> JsonObject:
        return {"ranker": "a model", "model_identity": self.model.identity, "prompt": self.prompt.about}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        texts: list[tuple[str, ...]] = [()] * len(asked)
        failures: dict[int, ParsedOutput[tuple[int, ...]]] = {}

        def rank_windows(windows: list[tuple[int, list[int]]]) -> list[Sequence[int]]:
            # A list with a failed window has no order, so its other windows are not sent to the model.
            pending = [(number, items) for number, items in windows if number not in failures]
            requests = [self._request(asked[number], items) for number, items in pending]
            orders: dict[int, Sequence[int]] = {}
            outputs = ask_with_retry(self.model, requests, self.max_tokens, self.tally)
            for (number, _), output in zip(pending, outputs, strict=True):
                texts[number] += output.texts
                if output.value is None:
                    failures[number] = output
                else:
                    orders[number] = output.value
            return [orders.get(number, range(len(items))) for number, items in windows]

        lists = [range(len(request.passages)) for request in asked]
        longest = max([2, *map(len, lists)])
        window, step = (self.window, self.step) if self.window else (longest, longest - 1)
        ranked = [RankedOrder(tuple(order)) for order in sliding_together(lists, rank_windows, window, step)]
        for number, failure in failures.items():
            ranked[number] = RankedOrder(None, unreadable=failure.unreadable, fault=failure.fault)
        return [replace(order, texts=texts[number]) for number, order in enumerate(ranked)]

    def _request(self, request: RankingRequest, indices: Sequence[int]) -> OutputRequest[tuple[int, ...]]:
        prompt = fill_listwise_prompt(
            self.prompt,
            request.query.text,
            [request.passages[index] for index in indices],
            self.max_words,
            question=request.question.question,
            answers=" | ".join(one_line(answer) for answer in request.question.answers),
        )
        count = len(indices)
        again = fill_template(self.prompt.again, count=str(count))
        return OutputRequest(prompt, again, lambda text: self._read(text, count))

    def _read(self, text: str, count: int) -> tuple[int, ...] | Unreadable:
        ranking = after_mark(text, self.prompt.ranking_after)
        order = ranking if isinstance(ranking, Unreadable) else read_order(ranking, count)
        if self.lenient and isinstance(order, Unreadable) and isinstance(ranking, str):
            order = read_order(ranking, count, lenient=True)
            self.tally.add(REPAIRED, not isinstance(order, Unreadable))
        return order


def read_order(text: str, count: int, lenient: bool = False) -> tuple[int, ...] | Unreadable:
    """Parse `[2] > [1] > [3]` to indices from 0. Unreadable unless each of 1 … count occurs exactly once.

    With `lenient` repeated and invented numbers are dropped and missing numbers appended in the given order. Then it is
    unreadable only if more than a fifth of the numbers are missing.
    """
    ranking = parse_ranking(text, count)
    if ranking.unreadable:
        return Unreadable("no ranking")
    if lenient and ranking.missing <= count * MOST_MISSING:
        return ranking.order
    if ranking.missing or ranking.repeated or ranking.invented:
        return Unreadable(
            f"a ranking of {count} passages with {ranking.missing} missing, {ranking.repeated} repeated and "
            f"{ranking.invented} invented"
        )
    return ranking.order
