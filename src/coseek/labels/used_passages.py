"""Used passages: which passages of a search the agent used afterwards, as its run shows.

opened    the agent visited it. A visit counts for the last search before it that returned the passage.
selected  the agent selected it.
query     the agent's next queries hold new words of it: words that neither the question nor any query so far nor the
          reasoning before this query has, and that not every passage of the search holds. More new words come first.
answer    it holds the final answer as a run of whole words, if no later turn searched.
"""

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

from coseek.agents.search_turns import SearchTurn
from coseek.data.passage import Passage
from coseek.data.trajectory import Search, met_passages
from coseek.measure.corpus_coverage import answer_words, holds_answer, is_decidable
from coseek.retrieval.lexical.analyzer import words

Use: TypeAlias = Literal["opened", "selected", "query", "answer"]


def shown_before(turn: SearchTurn) -> dict[str, Passage]:
    """By id what searches and visits of earlier turns returned. Searches of one turn run at once, so none of them is
    earlier than another."""
    now = turn.trajectory.searches[turn.search].turn
    before = [search for search in turn.trajectory.searches[: turn.search] if now is None or search.turn != now]
    visits = [visit for visit in turn.trajectory.visits if now is not None and visit.turn < now]
    return met_passages(before, visits)


def used(turn: SearchTurn, use: Use) -> list[Passage]:
    """The passages of the search that were used in this way, best first."""
    return _USES[use](turn)


def _passages(turn: SearchTurn) -> list[Passage]:
    return [hit.passage for hit in turn.trajectory.searches[turn.search].hits]


def _named(turn: SearchTurn, idents: list[str]) -> list[Passage]:
    by_id = {passage.id: passage for passage in _passages(turn)}
    return [by_id[ident] for ident in dict.fromkeys(idents) if ident in by_id]


def _opened(turn: SearchTurn) -> list[Passage]:
    idents: list[str] = []
    for visit in turn.trajectory.visits:
        found = [
            number
            for number, search in enumerate(turn.trajectory.searches)
            if search.turn is not None
            and search.turn < visit.turn
            and any(hit.passage.id == visit.id for hit in search.hits)
        ]
        if found and found[-1] == turn.search:
            idents.append(visit.id)
    return _named(turn, idents)


def _selected(turn: SearchTurn) -> list[Passage]:
    return _named(turn, [*(turn.trajectory.searches[turn.search].selected or ())])


def _next_searches(turn: SearchTurn) -> list[Search]:
    """The searches of the next turn that searches."""
    now = turn.trajectory.searches[turn.search].turn
    later = [one for one in turn.trajectory.searches[turn.search + 1 :] if now is None or one.turn != now]
    return [one for one in later if one.turn is not None and one.turn == later[0].turn] or later[:1]


def _of_query(turn: SearchTurn) -> list[Passage]:
    known = {*words(turn.question.question), *words(turn.query.reasoning)}
    for search in turn.trajectory.searches[: turn.search + 1]:
        known.update(words(search.query))
    new = {word for search in _next_searches(turn) for word in words(search.query)} - known
    passages = _passages(turn)
    held = [new & set(words(passage.contents)) for passage in passages]
    if len(held) > 1:
        everywhere = set.intersection(*held)
        held = [some - everywhere for some in held]
    order = sorted(range(len(passages)), key=lambda place: -len(held[place]))
    return [passages[place] for place in order if held[place]]


def _of_answer(turn: SearchTurn) -> list[Passage]:
    answer = answer_words(turn.trajectory.answer or "")
    if _next_searches(turn) or not is_decidable(answer):
        return []
    return [passage for passage in _passages(turn) if holds_answer(passage.contents, [answer])]


_USES: Mapping[Use, Callable[[SearchTurn], list[Passage]]] = {
    "opened": _opened,
    "selected": _selected,
    "query": _of_query,
    "answer": _of_answer,
}
