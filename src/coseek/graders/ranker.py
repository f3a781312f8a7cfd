"""Ranker: orders passages for one search query, given the question and its answer (DR-Synth's oracle).

A model's order must name every passage exactly once, or nearly so where a lenient reading is chosen. Otherwise the
model is called once more, and after a second failure there is no order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import fill_template, load_prompt, one_line
from coseek.data.passage import Passage
from coseek.data.question import Question
from coseek.graders.grader import Grader
from coseek.graders.relevance import PROMPTS
from coseek.graders.structured_output import (
    CallCounts,
    OutputRequest,
    ParsedOutput,
    Unreadable,
    after_mark,
    ask_with_retry,
)
from coseek.models.text_model import TextModel
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.llm import LISTWISE_FIELDS, ListwisePrompt, fill_listwise_prompt, parse_ranking, sliding_together
from coseek.retrieval.query import Query

REPAIRED = "orders_repaired"
"""Name in the counts."""
MOST_MISSING = 0.2
"""Share of the passages that a repaired order may miss."""


@dataclass(frozen=True, slots=True)
class RankingRequest:
    """Input of a ranker for one search turn."""

    question: Question
    query: Query
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class RankedOrder(ParsedOutput[tuple[int, ...]]):
    """Output of a ranker for one request: `found` are indices of the passages from 0, best first; `None` where there is
    no order."""

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

    Gold passages are ordered by whether an earlier search of the run has returned them (new ones first), then by the
    number of words that they share with the query and the reasoning before it, then by the given order.
    """

    @property
    def identity(self) -> str:
        return digest_of("gold ranker")

    @property
    def card(self) -> JsonObject:
        return {"ranker": "gold evidence"}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        return [RankedOrder(self._places(one)) for one in asked]

    def _places(self, asked: RankingRequest) -> tuple[int, ...]:
        known = {document for turn in asked.query.history for document in turn.documents}
        wanted = set(words(f"{asked.query.text} {asked.query.reasoning}"))

        def behind(place: int) -> tuple[bool, bool, int]:
            passage = asked.passages[place]
            if passage.id not in asked.question.gold_ids:
                return True, False, 0
            return False, passage.contents in known, -len(wanted & set(words(f"{passage.title} {passage.text}")))

        return tuple(sorted(range(len(asked.passages)), key=behind))


class RankPrompt(ListwisePrompt):
    """Prompt of a ranking model."""

    again: str = ""
    """Appended to the prompt after an unreadable output; `{count}` is filled in."""
    ranking_after: str = ""
    """The ranking is the text after the last occurrence of this mark, for models that reason first. Empty: the whole
    output."""


_FIELDS = {
    **LISTWISE_FIELDS,
    "prompt": LISTWISE_FIELDS["prompt"] | {"question", "answers"},
    "again": {"count"},
}


def load_rank_prompt(name: str) -> RankPrompt:
    """A built-in prompt by name, or a YAML file."""
    return load_prompt(RankPrompt, name, Path(), _FIELDS, PROMPTS)


@dataclass(frozen=True)
class ModelRanker:
    """A language model that ranks all passages at once, or sliding windows from the last to the first (RankGPT).

    One pass of windows moves the best `window - step` passages to the front, in order.
    """

    model: TextModel
    prompt: RankPrompt
    max_tokens: int
    max_words: int
    """Words of a passage that are shown."""
    window: int | None
    """Passages per call; all when not set."""
    step: int
    tally: CallCounts
    lenient: bool = False
    """Repair an order that names most passages; see `read_order`."""

    @cached_property
    def identity(self) -> str:
        prompt = self.prompt.model_dump_json(exclude={"about"})
        sizes = (self.max_tokens, self.max_words, self.window, self.step if self.window else None)
        lenient = ("lenient",) if self.lenient else ()
        return digest_of("model ranker", self.model.identity, prompt, *map(str, sizes), *lenient)

    @property
    def card(self) -> JsonObject:
        return {"ranker": "a model", "model_identity": self.model.identity, "prompt": self.prompt.about}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        state = [_RankingState() for _ in asked]

        def rank_windows(windows: list[tuple[int, list[int]]]) -> list[Sequence[int]]:
            due = [(number, items) for number, items in windows if state[number].failed is None]
            outputs = ask_with_retry(
                self.model, [self._ask(asked[n], items) for n, items in due], self.max_tokens, self.tally
            )
            found: dict[int, Sequence[int]] = {}
            for (number, items), one in zip(due, outputs, strict=True):
                state[number].texts += one.texts
                if one.found is None:
                    state[number].failed = one
                found[number] = one.found if one.found is not None else range(len(items))
            # A list with one failed window has no order, so its other windows are not sent to the model.
            return [found.get(number, range(len(items))) for number, items in windows]

        lists = [range(len(one.passages)) for one in asked]
        whole = max([2, *map(len, lists)])
        window, step = (self.window, self.step) if self.window else (whole, whole - 1)
        ranked = sliding_together(lists, rank_windows, window, step)
        return [one.order(places) for one, places in zip(state, ranked, strict=True)]

    def _ask(self, asked: RankingRequest, places: Sequence[int]) -> OutputRequest[tuple[int, ...]]:
        prompt = fill_listwise_prompt(
            self.prompt,
            asked.query.text,
            [asked.passages[place] for place in places],
            self.max_words,
            question=asked.question.question,
            answers=" | ".join(one_line(answer) for answer in asked.question.answers),
        )
        count = len(places)
        return OutputRequest(
            prompt, fill_template(self.prompt.again, count=str(count)), lambda text: self._read(text, count)
        )

    def _read(self, text: str, count: int) -> tuple[int, ...] | Unreadable:
        behind = after_mark(text, self.prompt.ranking_after)
        if isinstance(behind, Unreadable):
            return behind
        strict = read_order(behind, count)
        if not self.lenient or not isinstance(strict, Unreadable):
            return strict
        repaired = read_order(behind, count, lenient=True)
        self.tally.add(REPAIRED, not isinstance(repaired, Unreadable))
        return repaired


@dataclass
class _RankingState:
    """Outputs for one list so far."""

    texts: tuple[str, ...] = ()
    failed: ParsedOutput[tuple[int, ...]] | None = field(default=None)

    def order(self, places: Sequence[int]) -> RankedOrder:
        if self.failed is not None:
            return RankedOrder(None, self.texts, self.failed.unreadable, self.failed.fault)
        return RankedOrder(tuple(places), self.texts)


def read_order(text: str, count: int, lenient: bool = False) -> tuple[int, ...] | Unreadable:
    """`[2] > [1] > [3]` as indices from 0. Unreadable unless each of 1 … count occurs exactly once.

    A `lenient` reading drops repeated and invented numbers and appends missing ones in the given order. It is
    unreadable where more than a fifth of the numbers are missing.
    """
    reading = parse_ranking(text, count)
    if reading.unreadable:
        return Unreadable("no ranking")
    if lenient and reading.missing <= count * MOST_MISSING:
        return reading.order
    if reading.missing or reading.repeated or reading.invented:
        return Unreadable(
            f"a ranking of {count} passages with {reading.missing} missing, {reading.repeated} repeated and "
            f"{reading.invented} invented"
        )
    return reading.order
