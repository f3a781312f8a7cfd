"""Turns: what a retriever is told of a search turn. Made in one place, while a run happens and from a finished one."""

from collections.abc import Sequence
from itertools import takewhile

from coseek.agents.grammar import Action, Grammar
from coseek.agents.protocol import Protocol
from coseek.data.question import Question
from coseek.data.trajectory import Author, Search, Trajectory
from coseek.retrieval.query import PastTurn, Query


def search_turn(question: Question, history: Sequence[PastTurn], text: str, written: str, grammar: Grammar) -> Query:
    """The query `text` as a retriever is asked it.

    `history` holds the run's earlier searches, `written` all that the agent wrote in this turn (nothing, for a search
    that the environment opens the run with).
    """
    return Query(text, question.question, reasoning_of(grammar, written), tuple(history))


def past_turn(query: Query, search: Search) -> PastTurn:
    """A search that has happened, as later turns look back on it."""
    return PastTurn(query.text, query.reasoning, tuple(hit.passage.contents for hit in search.hits))


def reasoning_of(grammar: Grammar, written: str) -> str:
    """What stands in front of the query of a turn, without tags."""
    before = takewhile(lambda span: grammar.action_of(span) is Action.NONE, grammar.parse(written))
    return " ".join(span.text.strip() for span in before if span.text.strip())


def search_turns(trajectory: Trajectory, protocol: Protocol) -> list[Query]:
    """What the retriever was asked in each of a finished run's searches, in order: equal to what the driver asked."""
    grammar = protocol.grammar
    written = [segment.text for segment in trajectory.segments if segment.author is Author.AGENT]
    turns = [text for text in written if grammar.action(text)[0] is Action.SEARCH]
    if protocol.opens_with_search:
        turns.insert(0, "")
    queries: list[Query] = []
    history: list[PastTurn] = []
    # The agent may have asked for one search more than the run holds: the one that ended it.
    for search, text in zip(trajectory.searches, turns, strict=False):
        queries.append(search_turn(trajectory.question, history, search.query, text, grammar))
        history.append(past_turn(queries[-1], search))
    return queries
