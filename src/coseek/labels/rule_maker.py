"""Rule maker: labels from a rule that names positives, with negatives drawn from the retriever's candidates; and what
rules ask of a run: which passages were shown before a search, and used after it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from pydantic import Field

from coseek.agents.actions import texts_of
from coseek.agents.scripted.rules import STOP_WORDS
from coseek.agents.search_turns import SearchTurn
from coseek.core.fingerprint import digest_of
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.data.trajectory import Search, met_passages
from coseek.labels.label_set import Candidate, Candidates, DroppedTurn, label_sets, not_equal_to
from coseek.labels.maker import Labelled
from coseek.labels.resources import LabelResources
from coseek.measure.corpus_coverage import answer_words, holds_answer, is_decidable
from coseek.retrieval.lexical.analyzer import words

LEAST_PART = 40
"""Least number of characters of a passage that counts as a part of another one."""


class RuleSettings(Settings):
    """Candidates, positives and negatives."""

    candidates: int = Field(default=20, ge=1)
    """Number of passages of the retriever per turn."""
    negatives: int = Field(default=15, ge=1)
    """Number of negatives per label set."""
    every: bool = False
    """Use every positive, each in its own label set, instead of only the first."""
    seed: int = 0
    """Seed of the negatives."""


@dataclass(frozen=True, slots=True)
class RuledTurn:
    """The positives of a turn, and the passages to keep out of its negatives."""

    positives: Sequence[Candidate]
    """Best first; a passage that the retriever did not return has rank 0."""
    not_negative: Sequence[Passage]
    """Passages that are neither positives nor negatives."""


Rule: TypeAlias = Callable[[SearchTurn, Candidates], RuledTurn | str]
"""Judge a turn, or return the reason why it has no label."""


@dataclass(frozen=True)
class RuleMaker:
    """Implements `LabelMaker` with a rule. `name` and `settings` identify the rule."""

    name: str
    settings: RuleSettings
    parts: LabelResources
    rule: Rule

    @cached_property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.model_dump_json(), self.parts.retriever.identity)

    def label(self, turns: Iterable[SearchTurn]) -> Iterator[Labelled]:
        return self.parts.each_searched(self._labels, turns, self.settings.candidates)

    def _labels(self, turn: SearchTurn, candidates: Candidates) -> Iterator[Labelled]:
        ruling = self.rule(turn, candidates)
        if isinstance(ruling, str):
            yield DroppedTurn(turn.id, ruling)
            return
        positives = ruling.positives if self.settings.every else ruling.positives[:1]
        chosen = {candidate.passage.id: candidate.passage for candidate in positives}
        rest = [candidate for candidate in candidates if candidate.passage.id not in chosen]
        excluded = [*(candidate.passage for candidate in ruling.positives), *ruling.not_negative]
        others = not_equal_to(rest, excluded)
        pool = [each.passage.id for each in others if not any(_is_part(each.passage, known) for known in excluded)]
        if not pool:
            yield DroppedTurn(turn.id, "no-negatives")
            return
        ranked = (*positives, *rest)
        yield from label_sets(turn, ranked, [*chosen.values()], pool, self.settings.negatives, self.settings.seed)


def _is_part(first: Passage, second: Passage) -> bool:
    """Whether one text contains the other, if that is long: a log may have several passages as one."""
    shorter, longer = sorted((" ".join(each.text.casefold().split()) for each in (first, second)), key=len)
    return len(shorter) >= LEAST_PART and shorter in longer


def candidate_of(passage: Passage, candidates: Candidates) -> Candidate:
    """The candidate with this text, which may have another id in a run of another system; else the passage, with rank
    0."""
    texts = (passage.title, passage.text)
    matches = (candidate for candidate in candidates if (candidate.passage.title, candidate.passage.text) == texts)
    return next(matches, Candidate(passage, 0))


# Used passages: which passages of a search the agent used afterwards, as its run shows.
#
# opened    the agent visited it, or gave its id or address to a tool. That counts for the last search before it that
#           returned the passage.
# selected  the agent selected it.
# query     the agent's next queries hold new words of it: words that neither the question nor any query so far nor the
#           reasoning before this query has, that are no function words, and that not every passage of the search holds.
#           More new words come first.
# answer    it holds the final answer as a run of whole words, if no later turn searched.

Use: TypeAlias = Literal["opened", "selected", "query", "answer"]


def shown_before(turn: SearchTurn) -> dict[str, Passage]:
    """By id what searches and visits of earlier turns returned. Searches of one turn run at once, so none of them is
    earlier than another."""
    number = turn.trajectory.searches[turn.search].turn
    earlier = [search for search in turn.trajectory.searches[: turn.search] if number is None or search.turn != number]
    visits = [visit for visit in turn.trajectory.visits if number is not None and visit.turn < number]
    return met_passages(earlier, visits)


def used(turn: SearchTurn, use: Use) -> list[Passage]:
    """The passages of the search that were used in this way, best first."""
    return _USES[use](turn)


def _passages(turn: SearchTurn) -> list[Passage]:
    return [hit.passage for hit in turn.trajectory.searches[turn.search].hits]


def _passages_by_id(turn: SearchTurn, idents: list[str]) -> list[Passage]:
    by_id = {passage.id: passage for passage in _passages(turn)}
    return [by_id[ident] for ident in dict.fromkeys(idents) if ident in by_id]


def _opened_passages(turn: SearchTurn) -> list[Passage]:
    opened = [(visit.turn, visit.id) for visit in turn.trajectory.visits]
    for call in turn.trajectory.calls:
        names = {text for value in call.arguments.values() for text in texts_of(value)}
        opened += [(call.turn, hit.id) for hit in _passages(turn) if call.fault is None and names & {hit.id, hit.url}]
    idents: list[str] = []
    for opened_turn, ident in opened:
        numbers = [
            number
            for number, search in enumerate(turn.trajectory.searches)
            if search.turn is not None
            and search.turn < opened_turn
            and any(hit.passage.id == ident for hit in search.hits)
        ]
        if numbers and numbers[-1] == turn.search:
            idents.append(ident)
    return _passages_by_id(turn, idents)


def _selected_passages(turn: SearchTurn) -> list[Passage]:
    return _passages_by_id(turn, [*(turn.trajectory.searches[turn.search].selected or ())])


def _next_searches(turn: SearchTurn) -> list[Search]:
    """The searches of the next turn that searches."""
    now = turn.trajectory.searches[turn.search].turn
    later = [search for search in turn.trajectory.searches[turn.search + 1 :] if now is None or search.turn != now]
    return [search for search in later if search.turn is not None and search.turn == later[0].turn] or later[:1]


def _query_passages(turn: SearchTurn) -> list[Passage]:
    old_words = {*words(turn.question.question), *words(turn.query.reasoning)}
    for search in turn.trajectory.searches[: turn.search + 1]:
        old_words.update(words(search.query))
    new_words = {word for search in _next_searches(turn) for word in words(search.query)} - old_words - STOP_WORDS
    passages = _passages(turn)
    shared_words = [new_words & set(words(passage.contents)) for passage in passages]
    if len(shared_words) > 1:
        common_words = set.intersection(*shared_words)
        shared_words = [own_words - common_words for own_words in shared_words]
    order = sorted(range(len(passages)), key=lambda index: -len(shared_words[index]))
    return [passages[index] for index in order if shared_words[index]]


def _answer_passages(turn: SearchTurn) -> list[Passage]:
    answer = answer_words(turn.trajectory.answer or "")
    if _next_searches(turn) or not is_decidable(answer):
        return []
    return [passage for passage in _passages(turn) if holds_answer(passage.contents, [answer])]


_USES: Mapping[Use, Callable[[SearchTurn], list[Passage]]] = {
    "opened": _opened_passages,
    "selected": _selected_passages,
    "query": _query_passages,
    "answer": _answer_passages,
}
