"""Query views: what a retriever sees of a search turn. A view is part of a retriever, and is kept with it.

A view is a small function from a `Query` to pieces, each with its role; `render` puts the pieces into one text. A
view that separates gives `Q [SEP] q`; a view of lines gives each piece a line that begins with its role:

    Reasoning: the director is Ada Byron
    Query: where was Ada Byron born

Text inside a piece is data. White space in it becomes single blanks, so that it cannot begin a line, and the separator
in it loses its marks (`[SEP]` → `SEP`), so that it can neither close a field nor become a special token. Only the
view `query` hands on what the agent typed as it is.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import accumulate
from typing import Annotated, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from coseek.core.errors import UnknownName
from coseek.retrieval.query import PastTurn, Query, QueryLike

Count: TypeAlias = Callable[[str], int]
"""Tokens of a text, by the tokenizer of the encoder that will read it."""


class Role(Enum):
    """What a piece is, with the label of its line; in the order in which pieces are lost when there is no room."""

    DOCUMENT = "Turn {turn} found"
    PAST_REASONING = "Turn {turn} reasoning"
    PAST_QUERY = "Turn {turn} query"
    REASONING = "Reasoning"
    QUESTION = "Question"
    QUERY = "Query"


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a view with one role."""

    role: Role
    text: str
    turn: int = 0
    """Which past turn it is from, 1 the oldest; 0 for the turn at hand."""


@dataclass(frozen=True, slots=True)
class QueryView:
    """One view: what it is for, which pieces it takes, and how they are told apart."""

    about: str
    pieces: Callable[[Query], list[Piece]]
    lines: bool = True
    """Each piece is a line with its role in front; otherwise the separator stands between the pieces."""


def _now(query: Query, *, reasoning: bool = False) -> list[Piece]:
    """The turn at hand. Missing reasoning is said, as AgentIR's retrievers were trained to read it."""
    pieces = [Piece(Role.REASONING, query.reasoning)] if reasoning else []
    return [*pieces, Piece(Role.QUERY, query.text)]


def _past(turns: Sequence[PastTurn], *, reasonings: bool = False, documents: bool = False) -> list[Piece]:
    """Earlier turns, oldest first: reasoning, query, documents."""
    pieces: list[Piece] = []
    for number, turn in enumerate(turns, start=1):
        if reasonings:
            pieces.append(Piece(Role.PAST_REASONING, turn.reasoning, number))
        pieces.append(Piece(Role.PAST_QUERY, turn.query, number))
        if documents:
            pieces += [Piece(Role.DOCUMENT, document, number) for document in turn.documents]
    return pieces


def _question_query(query: Query) -> list[Piece]:
    return [Piece(Role.QUESTION, query.question), *_now(query)]


def _question_reasoning_query(query: Query) -> list[Piece]:
    return [Piece(Role.QUESTION, query.question), *_now(query, reasoning=True)]


def _question_history(query: Query) -> list[Piece]:
    return [Piece(Role.QUESTION, query.question), *_past(query.history), *_now(query)]


def _prior_queries(query: Query) -> list[Piece]:
    return [*_past(query.history), *_now(query)]


def _prior_reasonings(query: Query) -> list[Piece]:
    return [*_past(query.history, reasonings=True), *_now(query, reasoning=True)]


def _prior_documents(query: Query) -> list[Piece]:
    return [*_past(query.history, reasonings=True, documents=True), *_now(query, reasoning=True)]


def _last_turns(turns: int, query: Query) -> list[Piece]:
    """f(t) = (τj, qj, …, τt, qt) with j = max(1, t − turns + 1): this turn is one of them (AgentIR, appendix D)."""
    kept = query.history[max(0, len(query.history) - turns + 1) :]
    return _prior_reasonings(replace(query, history=kept))


VIEWS: Mapping[str, QueryView] = {
    "query": QueryView("the query as the agent typed it", _now),
    "question+query": QueryView("the question, then the query (Agentic-R, eq. 4)", _question_query, lines=False),
    "question+history": QueryView(
        "the question, all queries so far, then this one (Agentic-R, eq. 6)", _question_history, lines=False
    ),
    "reasoning+query": QueryView(
        "what the agent wrote in front of the query, then the query (AgentIR)", partial(_now, reasoning=True)
    ),
    "question+reasoning+query": QueryView(
        "the question, then what the agent wrote in front of the query, then the query (both papers' at once)",
        _question_reasoning_query,
    ),
    "prior-queries": QueryView("all queries so far, then this one (AgentIR, section 5.2)", _prior_queries),
    "prior-queries+reasonings": QueryView(
        "every turn's reasoning and query, this turn last (AgentIR, section 5.2)", _prior_reasonings
    ),
    "prior-queries+reasonings+documents": QueryView(
        "every turn's reasoning, query and what it found, this turn last (AgentIR, section 5.2)", _prior_documents
    ),
}
"""Every view by name; `last-K-turns` for any K ≥ 1 comes on top (`find_view`)."""
LAST_TURNS = "last-K-turns"
LAST_TURNS_ABOUT = "reasoning and query of the K latest turns, this one included (AgentIR, section 5.3)"
_LAST_TURNS = re.compile(r"last-([1-9]\d{0,5})-turns")
_NO_REASONING = "Empty"
_NO_LETTERS = re.compile(r"[\W_]+")


def find_view(name: str) -> QueryView:
    """The view of this name; an unknown one is refused with the nearest."""
    last = _LAST_TURNS.fullmatch(name)
    if last:
        return QueryView(LAST_TURNS_ABOUT, partial(_last_turns, int(last[1])))
    if name not in VIEWS:
        raise UnknownName("query view", name, [*VIEWS, LAST_TURNS])
    return VIEWS[name]


def check_view(name: str) -> str:
    """The name again when there is such a view: makes a misspelt one fail when settings are made."""
    try:
        find_view(name)
    except UnknownName as error:
        raise PydanticCustomError("unknown_view", "{sentence}", {"sentence": str(error)}) from None
    return name


View: TypeAlias = Annotated[str, AfterValidator(check_view)]
"""The type of a `view` in settings."""


def render_view(
    view: str,
    query: QueryLike,
    *,
    separator: str = "[SEP]",
    limit: int | None = None,
    count: Count = len,
    bare: bool = False,
) -> str:
    """The text that a retriever with this view looks up, of at most `limit` tokens; the query itself is never cut.

    What matters least is lost first, word by word, and no more of it than must be:

    1. documents, oldest turn first, the last word first: they are the noisiest part (AgentIR, table 3) and the longest;
    2. past turns, oldest first, reasoning before query: a later reasoning sums the earlier ones up (AgentIR, 5.3);
    3. this turn's reasoning, from its front: its end is what led to the query;
    4. the question, from its end: without it nothing says what all the searching is for, and it is short.

    Turns that are left are numbered from 1. When even the query with its labels is too long, it stands alone, whole. A
    blank query asks for nothing, whatever led to it, and gives an empty text.
    `bare` leaves labels and separators out, one piece a line: a lexical retriever would look them up as words.
    """
    asked, part = Query.of(query), find_view(view)
    if view == "query":
        return asked.text
    if not asked.text.strip():
        return ""
    pieces = [replace(piece, text=neutralise_separator(piece.text, separator)) for piece in part.pieces(asked)]
    layout: _Layout = _bare if bare else _in_lines if part.lines else partial(_separated, separator)
    whole = layout(pieces)
    if limit is None or count(whole) <= limit:
        return whole
    fitting = _fitting(pieces, layout, limit, count)
    return neutralise_separator(asked.text, separator) if fitting is None else fitting


def neutralise_separator(text: str, separator: str) -> str:
    """Text as data: on one line, and without the separator, whose letters stay as words."""
    text, mark = " ".join(text.split()), separator.strip()
    if not mark or mark not in text:
        return text
    letters = _NO_LETTERS.sub(" ", mark)
    instead = f" {letters} " if letters != mark else " "
    text = " ".join(text.replace(mark, instead).split())
    return _without(text, mark, instead) if mark in text else text


def _without(text: str, mark: str, instead: str) -> str:
    """Squeezed text with every `mark` replaced, also those that what stood around another one makes. Linear time: each
    replacement takes marks or letters away for good."""
    kept: list[str] = []
    left = list(reversed(text))
    while left:
        letter = left.pop()
        if letter == " " and kept[-1:] in ([], [" "]):
            continue
        kept.append(letter)
        if letter == mark[-1] and "".join(kept[-len(mark) :]) == mark:
            del kept[-len(mark) :]
            left += reversed(instead)
    return "".join(kept).strip()


_Layout: TypeAlias = Callable[[Sequence[Piece]], str]


def _separated(separator: str, pieces: Sequence[Piece]) -> str:
    return f" {separator.strip()} ".join(piece.text for piece in pieces if piece.text)


def _bare(pieces: Sequence[Piece]) -> str:
    return "\n".join(piece.text for piece in pieces if piece.text)


def _in_lines(pieces: Sequence[Piece]) -> str:
    turns = sorted({piece.turn for piece in pieces if piece.turn and piece.text})
    numbers = {turn: number for number, turn in enumerate(turns, start=1)}
    lines: list[str] = []
    for piece in pieces:
        text = piece.text or (_NO_REASONING if piece.role is Role.REASONING else "")
        if text:
            lines.append(f"{piece.role.value.format(turn=numbers.get(piece.turn))}: {text}")
    return "\n".join(lines)


def _fitting(pieces: Sequence[Piece], layout: _Layout, limit: int, count: Count) -> str | None:
    """The text with as few words lost as the limit allows; `None` when losing all but the query is not enough.

    A binary search over how many words are lost: a few counts, and what is returned was itself counted.
    """
    order = sorted((at for at, piece in enumerate(pieces) if piece.role is not Role.QUERY), key=partial(_loss, pieces))
    borders = [_borders(pieces[at].text) for at in order]
    ends = list(accumulate(map(len, borders)))  # words lost once the pieces up to here are gone
    best: str | None = None
    least, most = 1, ends[-1] if ends else 0
    while least <= most:
        lost = (least + most) // 2
        left = list(pieces)
        last = bisect_left(ends, lost)
        for at in order[:last]:
            left[at] = replace(pieces[at], text="")
        inside = lost - (ends[last] - len(borders[last]))
        left[order[last]] = _shortened(pieces[order[last]], borders[last], inside)
        text = layout(left)
        if count(text) <= limit:
            best, most = text, lost - 1
        else:
            least = lost + 1
    return best


def _loss(pieces: Sequence[Piece], at: int) -> tuple[int, int, int, int]:
    """Sorts pieces by who is lost first; see `render`."""
    piece = pieces[at]
    if piece.role is Role.DOCUMENT:
        return 0, piece.turn, -at, 0  # the documents of a turn come best first, so the last is lost first
    rank = list(Role).index(piece.role)
    return (1, piece.turn, rank, at) if piece.turn else (2, rank, at, 0)


# A word is a run without blanks, save in scripts that write none, where every character may be a border.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+")


def _borders(text: str) -> list[int]:
    """Where the words of a text begin."""
    return [word.start() for word in _WORD.finditer(text)]


def _shortened(piece: Piece, borders: Sequence[int], lost: int) -> Piece:
    """The piece without `lost` of its words: reasoning loses its first ones, everything else its last."""
    if lost == len(borders):
        return replace(piece, text="")
    if piece.role in (Role.REASONING, Role.PAST_REASONING):
        return replace(piece, text=piece.text[borders[lost] :])
    return replace(piece, text=piece.text[: borders[len(borders) - lost]].rstrip())
