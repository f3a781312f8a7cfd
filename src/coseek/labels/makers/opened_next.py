"""Opened next: the passages that the agent used after a search as positives, without a model and without gold answers.

The kinds of use in `by` are tried in their order:

    opened    the agent visited it, or gave its id or address to a tool. That counts for the last search before it that
              returned the passage.
    selected  the agent selected it.
    query     the agent's next queries hold new words of it: words that neither the question nor any query so far nor
              the reasoning before this query has, that are no function words, and that not every passage of the search
              holds. More new words come first.
    answer    it holds the final answer as a run of whole words, if no later turn searched.

The first kind that finds a passage gives the positives, best first. Passages that were used in any way are no
negatives. A turn is dropped if none was used (`not-used`), or if its search found nothing (`not-found`).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeAlias

from coseek.agents.scripted.rules import STOP_WORDS
from coseek.agents.search_turns import SearchTurn
from coseek.agents.tag import texts_of
from coseek.data.passage import Passage
from coseek.data.trajectory import Search
from coseek.labels.label_set import Candidate, Candidates
from coseek.labels.maker import MakerRequirements
from coseek.labels.resources import LabelResources
from coseek.labels.rule_maker import RuledTurn, RuleMaker, RuleSettings
from coseek.measure.corpus_coverage import answer_words, holds_answer, is_decidable
from coseek.retrieval.lexical.analyzer import words

Use: TypeAlias = Literal["opened", "selected", "query", "answer"]


class OpenedSettings(RuleSettings):
    """Kinds of use, candidates, positives and negatives."""

    by: tuple[Use, ...] = ("opened", "selected", "query", "answer")
    """Kinds of use, the most telling first."""


SETTINGS = OpenedSettings


def judge(by: tuple[Use, ...], turn: SearchTurn, candidates: Candidates) -> RuledTurn | str:
    """The passages that were used after the search."""
    if not turn.trajectory.searches[turn.search].hits:
        return "not-found"
    groups = [passages for use in by if (passages := used(turn, use))]
    if not groups:
        return "not-used"
    # Passages with equal texts are one candidate.
    positives = {(candidate := candidate_of(passage, candidates)).passage.id: candidate for passage in groups[0]}
    return RuledTurn([*positives.values()], [passage for group in groups for passage in group])


def candidate_of(passage: Passage, candidates: Candidates) -> Candidate:
    """The candidate with this text, which may have another id in a run of another system; else the passage, with rank
    0."""
    texts = (passage.title, passage.text)
    matches = (candidate for candidate in candidates if (candidate.passage.title, candidate.passage.text) == texts)
    return next(matches, Candidate(passage, 0))


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
            if search.turn < opened_turn and any(hit.passage.id == ident for hit in search.hits)
        ]
        if numbers and numbers[-1] == turn.search:
            idents.append(ident)
    return _passages_by_id(turn, idents)


def _selected_passages(turn: SearchTurn) -> list[Passage]:
    return _passages_by_id(turn, [*(turn.trajectory.searches[turn.search].selected or ())])


def _next_searches(turn: SearchTurn) -> list[Search]:
    """The searches of the next turn that searches."""
    now = turn.trajectory.searches[turn.search].turn
    later = [search for search in turn.trajectory.searches[turn.search + 1 :] if search.turn != now]
    return [search for search in later if search.turn == later[0].turn]


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


def terms(settings: OpenedSettings) -> MakerRequirements:
    return MakerRequirements()


def open(settings: OpenedSettings, parts: LabelResources) -> RuleMaker:
    return RuleMaker("opened-next", settings, parts, partial(judge, settings.by))
