"""Query views: the text that a retriever sees of a search turn. A view is part of a retriever and stored with it.

A view selects pieces of a `Query`, each with a role; `render_view` joins them into one text. A view with separators
gives `Q [SEP] q`; a view with lines puts each piece on a line after its label:

    Reasoning: the director is Ada Byron
    Query: where was Ada Byron born

Text inside a piece is data. Its white space is collapsed to single blanks, so that it cannot start a line; a view with
a template keeps the line breaks and escapes lines that imitate its own (`ViewTemplate`). The separator in a piece
loses its punctuation (`[SEP]` → `SEP`), so that it cannot end a field or become a special token. Only the view `query`
passes the agent's text on unchanged.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from coseek.core.errors import SettingError, UnknownName
from coseek.core.fingerprint import file_digest
from coseek.core.plugins import (
    PluginSpec,
    check_takes,
    function_module,
    is_function,
    is_plugin_path,
    load_plugin,
    offer,
    running,
)
from coseek.retrieval.query import EVERYTHING, ContextFields, Past, Query, QueryLike

Count: TypeAlias = Callable[[str], int]
"""Counts the tokens of a text with the encoder's tokenizer."""


class Role(Enum):
    """The role of a piece. The value is the label of its line; the order is the order of truncation within a turn."""

    DOCUMENT = "Turn {turn} found"
    PAST_REASONING = "Turn {turn} reasoning"
    PAST_QUERY = "Turn {turn} query"
    REASONING = "Reasoning"
    QUESTION = "Question"
    QUERY = "Query"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a view with one role."""

    role: Role
    text: str
    turn: int = 0
    """The past turn it is from, 1 the oldest; 0 for the current turn."""


# Templates: layouts that keep the line breaks of their fields, as published retrievers read them.
#
# A template is a text with {question}, {turns}, {reasoning} and {query}; the template of a turn, which is repeated for
# each earlier search, has {turn}, {reasoning}, {query}, {documents} and {count}. Fields are filled in once. A backslash
# is put before a line of a field that begins like a line of the template, so that no text from an agent or a passage
# can imitate another field.

NO_REASONING = "Empty"
"""Replaces missing reasoning, as in AgentIR's training data."""
_FIELD = re.compile(r"\{([a-z]*)\}")
_OTHER_FIELD = re.compile(r"\{(?!turn\})")
"""The start of a field other than `{turn}`."""
_TEXT_FIELDS = ("question", "turns", "reasoning", "query")
_TURN_FIELDS = ("turn", "reasoning", "query", "documents", "count")
_LINE_ENDS = "\n\r\v\f\x1c-\x1e\x85\u2028\u2029"


@dataclass(frozen=True)
class ViewTemplate:
    """The layout of a view. Raises `SettingError` for an unknown field, or if `{query}` does not occur exactly once."""

    text: str
    turn: str = ""
    """One earlier search. Needed if `text` has `{turns}`."""

    def __post_init__(self) -> None:
        for name, template, fields in (("text", self.text, _TEXT_FIELDS), ("turn", self.turn, _TURN_FIELDS)):
            unknown = [field for field in _FIELD.findall(template) if field not in fields]
            if unknown:
                raise SettingError(f"a view's {name} has no field {{{unknown[0]}}}; use {', '.join(fields)} in braces")
        if self.text.count("{query}") != 1:
            raise SettingError(f"a view's text needs {{query}} once: {self.text!r}")
        if ("{turns}" in self.text) != bool(self.turn):
            raise SettingError("a view with {turns} in its text needs a template `turn`, and no other view has one")

    def has(self, field: str) -> bool:
        """Whether a field occurs in either template."""
        return f"{{{field}}}" in self.text + self.turn

    def fill(self, fields: Mapping[str, str]) -> str:
        """Fill in the current turn; the field `turns` holds the texts of `fill_turn`."""
        return _fill(self.text, fields)

    def fill_turn(self, number: int, reasoning: str, query: str, documents: list[str]) -> str:
        """Fill in an earlier search."""
        fields = {"turn": str(number), "reasoning": reasoning or NO_REASONING, "query": query}
        return _fill(self.turn, {**fields, "documents": "\n\n".join(documents), "count": str(len(documents))})

    def escape(self, field: str, text: str) -> str:
        """Put a backslash before each line of a field's text that begins like a line of the template. The first line
        counts if the field begins a line."""
        begins_line = f"\n{{{field}}}" in f"\n{self.text}\n{self.turn}"
        return self._imitation.sub(r"\1\\", f"\n{text}")[1:] if begins_line else self._imitation.sub(r"\1\\", text)

    @cached_property
    def _imitation(self) -> re.Pattern[str]:
        labels = "|".join(dict.fromkeys(_labels(self.text + "\n" + self.turn)))
        # Without a label there is nothing to imitate, and the pattern matches nowhere.
        return re.compile(rf"([{_LINE_ENDS}])(?=[^\S{_LINE_ENDS}]*(?:{labels or '(?!)'}))", re.IGNORECASE)


def _fill(template: str, fields: Mapping[str, str]) -> str:
    return _FIELD.sub(lambda match: fields[match[1]], template)


def _labels(templates: str) -> Iterator[str]:
    """Patterns of the beginnings of the templates' lines: up to a colon, else up to the first field."""
    for line in templates.replace("{turns}", "\n").splitlines():
        start, colon, _ = line.partition(":")
        label = _OTHER_FIELD.split(start + colon)[0].strip()
        if label and label != "{turn}":
            yield r"\d+".join(map(re.escape, label.split("{turn}")))


@dataclass(frozen=True, slots=True)
class QueryView:
    """One view: its description, the pieces it selects, and their layout."""

    about: str
    question: bool = False
    past: Past = ""
    """What it includes of past turns."""
    reasoning: bool = False
    """Includes the current turn's reasoning. Missing reasoning reads `Empty`, as in AgentIR's training data."""
    lines: bool = True
    """One line per piece, with its label; otherwise the separator stands between the pieces."""
    turns: int | None = None
    """The number of latest turns, this one included; `None` for all."""
    template: ViewTemplate | None = None
    """Replaces `lines`: a layout of its own, which keeps the line breaks of the fields."""

    @property
    def fields(self) -> ContextFields:
        """The context fields that the view reads."""
        return ContextFields(self.question, self.reasoning, self.past, self.turns)

    def pieces(self, query: Query) -> list[Piece]:
        """The pieces of a query: question, past turns oldest first, reasoning, query."""
        pieces = [Piece(Role.QUESTION, query.question)] if self.question else []
        for number, turn in enumerate(query.past_turns(self.turns) if self.past else (), start=1):
            if self.past != "queries":
                pieces.append(Piece(Role.PAST_REASONING, turn[0].reasoning, number))
            for search in turn:
                pieces.append(Piece(Role.PAST_QUERY, search.query, number))
                if self.past == "documents":
                    pieces += [Piece(Role.DOCUMENT, document, number) for document in search.documents]
        if self.reasoning:
            pieces.append(Piece(Role.REASONING, query.reasoning))
        return [*pieces, Piece(Role.QUERY, query.text)]


VIEWS: Mapping[str, QueryView] = {
    "query": QueryView("the query as the agent typed it"),
    "question+query": QueryView("the question, then the query (Agentic-R, eq. 4)", question=True, lines=False),
    "question+history": QueryView(
        "the question, all queries so far, then this one (Agentic-R, eq. 6)", question=True, past="queries", lines=False
    ),
    "reasoning+query": QueryView(
        "what the agent wrote in front of the query, then the query (AgentIR)", reasoning=True
    ),
    "question+reasoning+query": QueryView(
        "the question, then what the agent wrote in front of the query, then the query (both papers' at once)",
        question=True,
        reasoning=True,
    ),
    "prior-queries": QueryView("all queries so far, then this one (AgentIR, section 5.2)", past="queries"),
    "prior-queries+reasonings": QueryView(
        "every turn's reasoning and query, this turn last (AgentIR, section 5.2)", past="reasonings", reasoning=True
    ),
    "prior-queries+reasonings+documents": QueryView(
        "every turn's reasoning, query and what it found, this turn last (AgentIR, section 5.2)",
        past="documents",
        reasoning=True,
    ),
}
"""Views by name; `find_view` also accepts `last-K-turns` and `last-K-turns@paper` for any K ≥ 1."""
_HISTORY = "Browsing History:\n{turns}Current Query: {query}"
TEMPLATES: Mapping[str, QueryView] = {
    "reasoning+query@code": QueryView(
        "what AgentIR's program and its model card write: a blank line before the query",
        reasoning=True,
        template=ViewTemplate("Reasoning: {reasoning}\n\nQuery: {query}"),
    ),
    "reasoning+query@paper": QueryView(
        "AgentIR's paper, figure 5", reasoning=True, template=ViewTemplate("Reasoning: {reasoning}\nQuery: {query}")
    ),
    "prior-queries@paper": QueryView(
        "AgentIR's paper, figure 7", past="queries", template=ViewTemplate(_HISTORY, "Turn {turn}: {query}\n")
    ),
    "prior-queries+reasonings@paper": QueryView(
        "AgentIR's paper, figure 8; without the current reasoning, as printed",
        past="reasonings",
        template=ViewTemplate(_HISTORY, "Turn {turn}: {reasoning} {query}\n"),
    ),
    "prior-queries+reasonings+documents@paper": QueryView(
        "AgentIR's paper, figure 9; without the current reasoning, as printed",
        past="documents",
        template=ViewTemplate(
            _HISTORY, "Turn {turn}: A search for {reasoning} {query} found {count} results:\n{documents}\n"
        ),
    ),
}
"""Views whose texts are those of a paper or its program, byte for byte. An instruction is an encoder's query prompt."""
LAST_TURNS = "last-K-turns"
LAST_TURNS_ABOUT = "reasoning and query of the K latest turns, this one included (AgentIR, section 5.3)"
_LAST_TURNS = re.compile(r"last-([1-9]\d{0,5})-turns(@paper)?")
_NO_LETTERS = re.compile(r"[\W_]+")


CONTRACT: PluginSpec = {"VIEW": QueryView}
"""The name that a user's own view file must define."""
_loaded: dict[str, QueryView] = {}
"""The views of loaded files, by `load_view`'s name."""


@dataclass(frozen=True, slots=True)
class FunctionView(QueryView):
    """A view that is a function of the query."""

    function: Callable[[Query], str] | None = None

    @property
    def fields(self) -> ContextFields:
        """All, since it is unknown which the function reads."""
        return EVERYTHING

    def pieces(self, query: Query) -> list[Piece]:
        """The function's text, whose end is truncated to an encoder's limit."""
        assert self.function is not None
        return [Piece(Role.QUESTION, self.function(query)), Piece(Role.QUERY, "")]


def view_name(given: str | Path | Callable[[Query], str]) -> str:
    """The name of a view in settings. `given` is a name, a file, or a function of a `Query` to the search text."""
    if not callable(given):
        return str(given)
    check_takes("query view", given, "query")
    name = offer("query view", given, {})
    _loaded[name] = FunctionView("a function", lines=False, function=given)
    return name


def load_view(path: str, folder: Path = Path()) -> str:
    """Execute a view file, relative to `folder`, and return the name that settings store: the file's, with a digest of
    its content. Pass only paths that the user's own text names; any other name is returned as it is."""
    if not is_plugin_path(path) or is_function(path):
        return path
    file = folder / Path(path).expanduser()
    module = load_plugin("query view", str(file), CONTRACT)
    name = f"{file.name}#{file_digest(file)[:16]}"
    _loaded[name] = module.VIEW
    return name


def load_views(tree: Mapping[str, object], folder: Path = Path()) -> dict[str, object]:
    """Load the file that the setting `view` of a user's settings names; its path is relative to `folder`."""
    view = tree.get("view")
    return {**tree, "view": load_view(view, folder)} if isinstance(view, str) else dict(tree)


def find_view(name: str) -> QueryView:
    """The view of this name. Raises `UnknownName` with the nearest known one, and `SettingError` for a file that is not
    loaded."""
    if is_function(name):
        function_module("query view", name)  # raises where this process does not have it
    if name in _loaded:
        return _loaded[name]
    if is_plugin_path(name.partition("#")[0]):
        raise SettingError(
            f"the view {name} is a Python file, which runs only where you name it, and only with this content: write "
            "{retriever: index, path: INDEX, settings: {view: FILE}} for an index, or view=FILE for an encoder"
        )
    if match := _LAST_TURNS.fullmatch(name):
        if match[2]:  # appendix D: figure 8's layout with the latest turns, numbered from 1; one turn is figure 5
            figure = "reasoning+query@paper" if match[1] == "1" else "prior-queries+reasonings@paper"
            return replace(TEMPLATES[figure], turns=int(match[1]))
        return QueryView(LAST_TURNS_ABOUT, past="reasonings", reasoning=True, turns=int(match[1]))
    view = VIEWS.get(name) or TEMPLATES.get(name)
    if view is None:
        raise UnknownName("query view", name, [*VIEWS, LAST_TURNS, *TEMPLATES])
    return view


def check_view(name: str) -> str:
    """Validate the name of a view when settings are made."""
    try:
        find_view(name)
    except (UnknownName, SettingError) as error:
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
    """Render a query as the text that a retriever with this view looks up, of at most `limit` tokens.

    The query itself is never truncated. The rest loses words one by one until it fits, in this order:

    1. documents, oldest turn first, last word first: they are the longest and noisiest part (AgentIR, table 3);
    2. past turns, oldest first, reasoning before query: later reasonings summarise earlier ones (AgentIR, 5.3);
    3. this turn's reasoning, first word first: its end led to the query;
    4. the question, last word first.

    Remaining turns are numbered from 1. If the query with labels alone is too long, it is returned without labels. A
    blank query gives an empty text. `bare` omits labels and separators, one piece per line, for lexical retrievers.
    """
    query, query_view = Query.of(query), find_view(view)
    if view == "query" or query.given:
        return query.text
    if not query.text.strip():
        return ""
    neutralise = partial(_neutralise, query_view, separator)
    with running("query view", view.partition("#")[0]):
        pieces = [replace(piece, text=neutralise(piece.role, piece.text)) for piece in query_view.pieces(query)]
    layout: _Layout = _line_layout if query_view.template is None else partial(_template_layout, query_view.template)
    if bare or not (query_view.lines or query_view.template):
        layout = partial(_join_pieces, "\n" if bare else f" {separator.strip()} ")
    text = layout(pieces)
    if limit is None or count(text) <= limit:
        return text
    truncated = _truncate(pieces, layout, limit, count)
    return neutralise(Role.QUERY, query.text) if truncated is None else truncated


def _neutralise(view: QueryView, separator: str, role: Role, text: str) -> str:
    """Change a field so that it can neither end itself nor imitate another."""
    if view.template is None:
        return neutralise_separator(text, separator)
    mark = separator.strip()
    if mark and mark in text:
        text = "".join(
            neutralise_separator(line, separator) + line[len(line.rstrip()) :] if mark in line else line
            for line in text.splitlines(keepends=True)
        )
    return view.template.escape(_FIELD_OF[role], text)


_FIELD_OF = {
    Role.DOCUMENT: "documents",
    Role.PAST_REASONING: "reasoning",
    Role.PAST_QUERY: "query",
    Role.REASONING: "reasoning",
    Role.QUESTION: "question",
    Role.QUERY: "query",
}
"""The field of a template that a piece fills."""


def neutralise_separator(text: str, separator: str) -> str:
    """Collapse text to one line and remove the punctuation of the separator from it."""
    text, mark = " ".join(text.split()), separator.strip()
    if not mark:
        return text
    letters = _NO_LETTERS.sub(" ", mark)
    replacement = f" {letters} " if letters != mark else " "
    while mark in text:  # more than once only for a mark with blanks inside, which no tokenizer has
        text = " ".join(text.replace(mark, replacement).split())
    return text


_Layout: TypeAlias = Callable[[Sequence[Piece]], str]


def _join_pieces(separator: str, pieces: Sequence[Piece]) -> str:
    return separator.join(piece.text for piece in pieces if piece.text)


def _line_layout(pieces: Sequence[Piece]) -> str:
    turns = sorted({piece.turn for piece in pieces if piece.turn and piece.text})
    numbers = {turn: number for number, turn in enumerate(turns, start=1)}
    lines: list[str] = []
    for piece in pieces:
        text = piece.text or (NO_REASONING if piece.role is Role.REASONING else "")
        if text:
            lines.append(f"{piece.role.value.format(turn=numbers.get(piece.turn))}: {text}")
    return "\n".join(lines)


def _template_layout(template: ViewTemplate, pieces: Sequence[Piece]) -> str:
    """Fill the template. Each earlier search that still has text is a turn, with the reasoning of its turn."""
    searches: list[tuple[str, str, list[str]]] = []
    reasoning, current = dict[int, str](), dict.fromkeys(Role, "")
    for piece in pieces:
        if not piece.turn:
            current[piece.role] = piece.text
        elif piece.role is Role.PAST_REASONING:
            reasoning[piece.turn] = piece.text
        elif piece.role is Role.PAST_QUERY:
            searches.append((reasoning.get(piece.turn, ""), piece.text, []))
        elif piece.text:
            searches[-1][2].append(piece.text)
    turns = [search for search in searches if any(search)]
    return template.fill(
        {
            "question": current[Role.QUESTION],
            "turns": "".join(template.fill_turn(number, *turn) for number, turn in enumerate(turns, start=1)),
            "reasoning": current[Role.REASONING] or NO_REASONING,
            "query": current[Role.QUERY],
        }
    )


def _truncate(pieces: Sequence[Piece], layout: _Layout, limit: int, count: Count) -> str | None:
    """Remove the fewest words so that the text fits, by binary search; `None` if the query is too long."""
    indices = [index for index, piece in enumerate(pieces) if piece.role is not Role.QUERY]
    order = sorted(indices, key=partial(_truncation_key, pieces))
    word_starts = [[word.start() for word in _WORD.finditer(pieces[index].text)] for index in order]
    ends = list(accumulate(map(len, word_starts)))  # words removed when the pieces up to here are empty
    best: str | None = None
    low, high = 1, ends[-1] if ends else 0
    while low <= high:
        removed = (low + high) // 2
        shortened = list(pieces)
        last = bisect_left(ends, removed)
        for index in order[:last]:
            shortened[index] = replace(pieces[index], text="")
        removed_here = removed - (ends[last] - len(word_starts[last]))
        shortened[order[last]] = _shorten(pieces[order[last]], word_starts[last], removed_here)
        text = layout(shortened)
        if count(text) <= limit:
            best, high = text, removed - 1
        else:
            low = removed + 1
    return best


def _truncation_key(pieces: Sequence[Piece], index: int) -> tuple[int, int, int, int]:
    """Sort key of pieces by order of truncation; see `render_view`."""
    piece = pieces[index]
    if piece.role is Role.DOCUMENT:
        return 0, piece.turn, -index, 0  # documents are ranked, so the last is removed first
    rank = list(Role).index(piece.role)
    return (1, piece.turn, rank, index) if piece.turn else (2, rank, index, 0)


# A word is a run without blanks. In scripts without spaces, each character is a word.
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\s{_UNSPACED}]+")


def _shorten(piece: Piece, word_starts: Sequence[int], removed: int) -> Piece:
    """The piece without `removed` of its words: the first ones of a reasoning, the last ones of anything else."""
    if removed == len(word_starts):
        return replace(piece, text="")
    if piece.role in (Role.REASONING, Role.PAST_REASONING):
        return replace(piece, text=piece.text[word_starts[removed] :])
    return replace(piece, text=piece.text[: word_starts[len(word_starts) - removed]].rstrip())
