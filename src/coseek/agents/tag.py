"""Tag: the marks around one part of an agent's text, its author, the action when it is closed, and how the text inside
is parsed.

Any text parses; a problem with its form is returned. Whatever can be understood is carried out. A wrong form makes the
trajectory invalid but does not stop the turn.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Literal

from pydantic import Field

from coseek.agents.tool import ParsedAction, Tool
from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.core.settings import Settings
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.trajectory import Author
from coseek.retrieval.lexical.analyzer import words

NOT_FOUND = "not in these documents"
"""What an agent answers when the documents do not hold the answer."""
FLAGS = ("true", "1")
"""Words for a true flag; case is ignored."""
_BRACKETS = {"{": "}", "[": "]", "(": ")"}


class Action(StrEnum):
    """What the environment does when the agent closes a tag."""

    NONE = "none"
    SEARCH = "search"
    ANSWER = "answer"
    TOOL = "tool"
    """Call one of the protocol's tools."""
    SELECT = "select"
    """Select documents of the latest block."""
    COMPLETE = "complete"
    """A flag that ends the run when it is true."""


class QueryFormat(StrEnum):
    """How the text inside a search tag is parsed."""

    TEXT = "text"
    """The whole text is one query."""
    ITEMS = "items"
    """Each inner tag holds a query."""
    JSON = "json"
    """`{"query": "…"}`, `{"query": ["…", …]}`, or the text or list alone."""
    SENTENCE = "sentence"
    """The first sentence is the query (IRCoT)."""


class TagFile(Settings):
    """One tag of a protocol file."""

    author: Author
    """The author: `agent` or `environment`."""
    action: Action = Action.NONE
    """Action when it is closed: `search`, `answer`, `tool`, `select` (documents of the latest block), `complete` (a
    flag that ends the run when it is true), or `none`."""
    open: str = ""
    """Opening mark, if not `<name>`."""
    close: str = ""
    """Closing mark, if not `</name>`."""
    query_format: QueryFormat = QueryFormat.TEXT
    """How a search is parsed: `text`, `items` (each inner tag is a query), `json`, or `sentence`."""
    item: str = "query"
    """The inner tag, or the JSON key, that holds a query."""
    max_items: int | None = Field(default=None, ge=1)
    """Queries per search, or documents per selection. Further ones are dropped and make the form invalid."""
    stop: tuple[str, ...] | None = None
    """Stop strings of the sampler; by default the closing mark of a search, tool call or answer (except a bracketed
    answer) and a whole true flag. With an empty list the agent continues after an answer, and its last answer
    counts."""
    of_several: Literal["first", "last"] = "last"
    """Which of several selections in one turn counts."""
    true_words: tuple[str, ...] = FLAGS
    """Words for a true flag, in lower case."""
    declines: tuple[str, ...] = (NOT_FOUND,)
    """Answers that decline to answer; case and marks are ignored. With an empty list the agent cannot decline."""


class Tag(TagFile):
    """A tag with its name, marks and stop strings. Raises `DataError` for marks that cannot be parsed reliably."""

    name: str
    """The name in the protocol file."""

    def model_post_init(self, _: object) -> None:
        if len(self.closing) == 1 and not self.is_bracket:
            raise DataError(f"the tag {self.name!r} closes with {self.closing!r}, which plain text may hold")

    @cached_property
    def opening(self) -> str:
        return self.open or f"<{self.name}>"

    @cached_property
    def closing(self) -> str:
        return self.close or f"</{self.name}>"

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The stop strings of the sampler."""
        if self.stop is not None:
            return self.stop
        if self.action is Action.COMPLETE:
            # All usual spellings of a true flag. After a false flag the agent continues with its query. The opening
            # mark is included, since `step 1</search_complete>` is not a flag.
            words = dict.fromkeys(form for word in self.true_words for form in (word.capitalize(), word, word.upper()))
            blanks = ("", " ", "\n")
            spellings = (f"{before}{word}{after}" for before, after, word in product(blanks, blanks, words))
            return tuple(f"{self.opening}{spelling}{self.closing}" for spelling in spellings)
        # A bracketed answer has no stop string: any other bracket in the agent's reasoning would end its turn.
        if self.action is Action.ANSWER and self.is_bracket:
            return ()
        return (self.closing,) if self.action in (Action.SEARCH, Action.ANSWER, Action.TOOL) else ()

    @property
    def is_bracket(self) -> bool:
        r"""Whether it closes with the bracket that ends its opening (`\boxed{…}`); its content is then balanced."""
        return _BRACKETS.get(self.opening[-1]) == self.closing

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening,) if self.is_bracket else (self.opening, self.closing)

    @property
    def inner_marks(self) -> tuple[str, ...]:
        return (f"<{self.item}>", f"</{self.item}>") if self.query_format is QueryFormat.ITEMS else ()


@dataclass(frozen=True, slots=True)
class ParsedQueries:
    """The queries of a search, and what is wrong with how they are written."""

    queries: tuple[str, ...] = ()
    problem: str = ""


def parse_queries(text: str, reads: QueryFormat, item: str = "query", most: int | None = None) -> ParsedQueries:
    """Parse the non-empty queries of a search in the order written, at most `most`."""
    if reads is QueryFormat.ITEMS:
        parsed = _items(text, item)
    elif reads is QueryFormat.JSON:
        parsed = _json_queries(text, item)
    else:
        query = first_sentence(text) if reads is QueryFormat.SENTENCE else text.strip()
        parsed = ParsedQueries((query,) if query else ())
    if most is not None and len(parsed.queries) > most:
        problem = parsed.problem or f"{len(parsed.queries)} queries in one search, and at most {most} are allowed"
        return ParsedQueries(parsed.queries[:most], problem)
    return parsed


def _items(text: str, item: str) -> ParsedQueries:
    pieces = re.split(rf"(</?{re.escape(item)}>)", text)  # text and marks in turn
    queries: list[str] = []
    problem, is_inside = "", False
    for index, piece in enumerate(pieces):
        if index % 2:
            if (piece[1] == "/") != is_inside:
                problem = problem or f"{piece} at the wrong place in a search"
            is_inside = piece[1] != "/"
        elif is_inside:
            is_closed = pieces[index + 1 : index + 2] == [f"</{item}>"]
            if is_closed and piece.strip():
                queries.append(piece.strip())
            else:
                problem = problem or (f"an empty <{item}>" if is_closed else f"<{item}> is not closed")
        elif piece.strip():
            problem = problem or f"text outside <{item}> in a search: {piece.strip()[:40]!r}"
    return ParsedQueries(tuple(queries), problem or ("" if queries else f"a search without a <{item}>"))


def _json_queries(text: str, key: str) -> ParsedQueries:
    text = text.strip()
    value = _from_json(text)
    if not isinstance(value, str | list | dict):
        # Plain text is taken as the query; half a JSON object is not.
        is_plain = bool(text) and text[0] not in "{["
        return ParsedQueries((text,) if is_plain else (), "the query is no JSON")
    items = value.get(key) if isinstance(value, dict) else value
    queries = texts_of(items)
    is_complete = queries and len(queries) == (len(items) if isinstance(items, list) else 1)
    return ParsedQueries(queries, "" if is_complete else f"the JSON holds no {key!r} text")


def parse_tool_call(text: str, tools: Mapping[str, Tool]) -> ParsedAction:
    """Parse a tool call: `{"name": "…", "arguments": {…}}`."""
    call = _from_json(text.strip())
    if not isinstance(call, dict):
        return ParsedAction(problem='a tool call is a JSON object with "name" and "arguments"')
    name, arguments = call.get("name"), call.get("arguments")
    if isinstance(arguments, str):  # JSON in a string, as in the OpenAI format
        arguments = _from_json(arguments)
    tool = tools.get(name) if isinstance(name, str) else None
    if tool is None:
        return ParsedAction(problem=f"no tool named {str(name)[:40]!r}; there are: {', '.join(tools)}")
    if not isinstance(arguments, dict):
        return ParsedAction(problem=f"the arguments of {name!r} are no JSON object")
    return tool.parse(arguments)


# Possessive (`*+`) here and below: a model may write any number of blanks, marks and digits.
_NUMBERS = re.compile(r"""\[?\s*+(?:["']?[0-9]{1,6}+["']?(?:\s*+,\s*+["']?[0-9]{1,6}+["']?)*+)?\s*+\]?""")
_DIGITS = re.compile("[0-9]+")
_SHORT_NUMBERS = re.compile("(?<![0-9])[0-9]{1,6}(?![0-9])")


def parse_numbers(text: str) -> tuple[int, ...] | None:
    """`[1, 3]` or `1, 3` → each number once, in order; `[]` and an empty text → `()`; `None` for any other text."""
    if not _NUMBERS.fullmatch(text.strip()):
        return None
    return tuple(dict.fromkeys(int(number) for number in _DIGITS.findall(text)))


def numbers_in(text: str) -> tuple[int, ...]:
    """All numbers of a text, each once, in order: `[Doc 1, Doc 3]` → 1, 3."""
    return tuple(dict.fromkeys(map(int, _SHORT_NUMBERS.findall(text))))


def parse_flag(text: str, yes: Sequence[str] = FLAGS) -> bool | None:
    """True for a word of `yes`, False for `False` or `0`; `None` for any other text."""
    word = text.strip().lower()
    if word in yes:
        return True
    return False if word in ("false", "0") else None


_SENTENCE_END = re.compile(r"""(?:(?<![!?])[!?]++|(?:(?<=\w\w\w)|(?<=[\d\s]))\.++)["')\]]*+(?=\s|$)""")


def first_sentence(text: str) -> str:
    """The text up to the first `!`, `?`, or full stop after a word of three letters or more (not `Dr.`, `J.`)."""
    text = text.strip()
    end = _SENTENCE_END.search(text)
    return text[: end.end()] if end else text


def says_one_of(text: str, phrases: Sequence[str]) -> bool:
    """Whether a text is one of the phrases and nothing else; case and marks are ignored. False for an empty text."""
    text_words = words(text)
    return bool(text_words) and any(text_words == words(phrase) for phrase in phrases)


def _from_json(text: str) -> Json:
    try:
        return parse_lenient(text)
    except InvalidJson:
        return None


def texts_of(value: Json) -> tuple[str, ...]:
    """The non-empty texts of a value that is a text or a list, stripped."""
    items: Sequence[Json] = value if isinstance(value, list) else [value]
    return tuple(text.strip() for text in items if isinstance(text, str) and text.strip())
