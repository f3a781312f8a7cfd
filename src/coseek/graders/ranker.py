"""Ranker: orders passages for one search query, knowing the question behind it and the answer (DR-Synth's oracle).

Nothing is guessed: a model's order must name every passage exactly once. One that does not is asked for once more, and
then there is no order.
"""

import json
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
from coseek.graders.call_counts import CallCounts
from coseek.graders.listed_answer import Unreadable, after_mark
from coseek.graders.relevance import PROMPTS
from coseek.graders.structured_output import OutputRequest, ParsedOutput, ask_with_retry
from coseek.models.text_model import TextModel
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.llm.listwise_prompt import LISTWISE_FIELDS, ListwisePrompt, parse_ranking, show
from coseek.retrieval.llm.sliding_window import sliding_together
from coseek.retrieval.query import Query
from coseek.world.oracle import Oracle


@dataclass(frozen=True, slots=True)
class RankingRequest:
    """What a ranker is told of one search turn."""

    question: Question
    query: Query
    passages: tuple[Passage, ...]


@dataclass(frozen=True, slots=True)
class RankedOrder:
    """What came of it."""

    places: tuple[int, ...] | None
    """Places of the passages from 0, best first; `None` where there is no order."""
    scores: tuple[float, ...] | None = None
    """A score a passage, in their given order, from a ranker that has any."""
    texts: tuple[str, ...] = ()
    """All that the ranker wrote."""
    unreadable: str = ""
    """Why there is no order, where the ranker did answer."""
    fault: str | None = None
    """Why there is no answer."""


class Ranker(Protocol):
    """Whoever orders passages."""

    @property
    def identity(self) -> str:
        """A digest of all that an order depends on besides what is ranked."""
        ...

    @property
    def card(self) -> JsonObject:
        """Who this is, for the head of a sheet."""
        ...

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        """One order each. A failure is an order with a fault, and takes no others along."""
        ...


@dataclass(frozen=True)
class OracleRanker:
    """The oracle of a laptop world: by relevance for the hop that the query is for, equals in their given order."""

    oracle: Oracle

    @cached_property
    def identity(self) -> str:
        return digest_of("oracle ranker", json.dumps(self.oracle.to_json(), sort_keys=True))

    @property
    def card(self) -> JsonObject:
        return {"ranker": "the oracle of a laptop world"}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        return [self._order(one) for one in asked]

    def _order(self, asked: RankingRequest) -> RankedOrder:
        hop = self.oracle.hop_of(asked.question, asked.query.text)
        scores = [float(self.oracle.relevance(asked.question, passage, hop)) for passage in asked.passages]
        return RankedOrder(tuple(sorted(range(len(scores)), key=lambda place: -scores[place])), tuple(scores))


@dataclass(frozen=True)
class GoldRanker:
    """Gold evidence, for data sets that name it: gold passages first, all others in their given order.

    Among gold passages those come first which no earlier search of the run has brought, then those that hold more of
    the words of the query and of the reasoning in front of it, then the given order.
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
    """What a model that ranks is shown, and how it is asked again."""

    again: str = ""
    """Put behind the prompt when the first answer could not be read; `{count}` is filled in."""
    ranking_after: str = ""
    """The ranking is what stands behind the last of these marks, for models that think first; empty: all of it."""


_FIELDS = {
    **LISTWISE_FIELDS,
    "prompt": LISTWISE_FIELDS["prompt"] | {"question", "answers"},
    "again": {"count"},
}


def load_rank_prompt(name: str) -> RankPrompt:
    """One of ours by name, or a YAML file."""
    return load_prompt(RankPrompt, name, Path(), _FIELDS, PROMPTS)


@dataclass(frozen=True)
class ModelRanker:
    """A language model that sees all passages at once, or windows of them from the back to the front (RankGPT).

    One pass of windows puts the best `window - step` passages in front, in order; what it leaves last is the worst of
    the last window.
    """

    model: TextModel
    prompt: RankPrompt
    max_tokens: int
    max_words: int
    """Words of a passage that are shown."""
    window: int | None
    """Passages at once; all when not set."""
    step: int
    tally: CallCounts

    @cached_property
    def identity(self) -> str:
        prompt = self.prompt.model_dump_json(exclude={"about"})
        sizes = (self.max_tokens, self.max_words, self.window, self.step if self.window else None)
        return digest_of("model ranker", self.model.identity, prompt, *map(str, sizes))

    @property
    def card(self) -> JsonObject:
        return {"ranker": "a model", "model_identity": self.model.identity, "prompt": self.prompt.about}

    def rank(self, asked: Sequence[RankingRequest]) -> list[RankedOrder]:
        heard = [_Heard() for _ in asked]

        def rank_windows(windows: list[tuple[int, list[int]]]) -> list[Sequence[int]]:
            due = [(number, items) for number, items in windows if heard[number].failed is None]
            said = ask_with_retry(
                self.model, [self._ask(asked[n], items) for n, items in due], self.max_tokens, self.tally
            )
            found: dict[int, Sequence[int]] = {}
            for (number, items), one in zip(due, said, strict=True):
                heard[number].texts += one.texts
                if one.found is None:
                    heard[number].failed = one
                found[number] = one.found if one.found is not None else range(len(items))
            # A list of which one window has no order has none: what is left of its pass is not asked for.
            return [found.get(number, range(len(items))) for number, items in windows]

        lists = [range(len(one.passages)) for one in asked]
        whole = max([2, *map(len, lists)])
        window, step = (self.window, self.step) if self.window else (whole, whole - 1)
        ranked = sliding_together(lists, rank_windows, window, step)
        return [one.order(places) for one, places in zip(heard, ranked, strict=True)]

    def _ask(self, asked: RankingRequest, places: Sequence[int]) -> OutputRequest[tuple[int, ...]]:
        prompt = show(
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
        return behind if isinstance(behind, Unreadable) else read_order(behind, count)


@dataclass
class _Heard:
    """What was heard about one list so far."""

    texts: tuple[str, ...] = ()
    failed: ParsedOutput[tuple[int, ...]] | None = field(default=None)

    def order(self, places: Sequence[int]) -> RankedOrder:
        if self.failed is not None:
            return RankedOrder(None, None, self.texts, self.failed.unreadable, self.failed.fault)
        return RankedOrder(tuple(places), None, self.texts)


def read_order(text: str, count: int) -> tuple[int, ...] | Unreadable:
    """`[2] > [1] > [3]` as places from 0; anything but each of 1 … count exactly once is unreadable."""
    reading = parse_ranking(text, count)
    if reading.unreadable:
        return Unreadable("no ranking")
    if reading.missing or reading.repeated or reading.invented:
        return Unreadable(
            f"a ranking of {count} passages with {reading.missing} missing, {reading.repeated} repeated and "
            f"{reading.invented} invented"
        )
    return reading.order
