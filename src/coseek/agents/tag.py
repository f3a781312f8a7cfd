"""Tag: the marks around one part of an agent's text, its author, and the action when it is closed."""

from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Literal

from pydantic import Field

from coseek.agents.actions import FLAGS, NOT_FOUND, QueryFormat
from coseek.core.errors import DataError
from coseek.core.settings import Settings
from coseek.data.trajectory import Author

LONGEST_MARK = 64
"""Maximum characters of a mark: the time to find marks grows with text length times mark length."""
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
        if any(len(mark) > LONGEST_MARK for mark in (*self.marks, *self.inner_marks)):
            raise DataError(f"a mark of the tag {self.name!r} is longer than {LONGEST_MARK} characters; shorten it")

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
