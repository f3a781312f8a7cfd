"""Language models in retrieval: the base of retrievers that ask one, the prompt of ranking models, sliding windows."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, TypeVar

from pydantic import Field

from coseek.core.errors import ModelError, RetrieverError
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, count_words, fill_template, load_prompt, one_line
from coseek.core.settings import Settings
from coseek.data.passage import Passage
from coseek.models.text_model import TextModel, TextModelSettings
from coseek.models.written import without_reasoning
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import LayeredRetriever, Retriever, Shortfall
from coseek.retrieval.views import View, render_view

PROMPTS = Path(__file__).parent / "prompts"
"""The folder of built-in prompts."""


# Model retriever: the base of retrievers that ask a language model about the queries or the hits of another one.


class ModelRetrieverSettings(Settings):
    """The other retriever, the model, its prompt and its view."""

    over: str | dict[str, object]
    """The other retriever: an index folder, a URL, a YAML file, or settings."""
    model: str
    """The language model: a shipped one, a folder, a URL or a YAML file."""
    local: TextModelSettings = TextModelSettings()
    """Limits and placement of a model folder."""
    prompt: str
    """The name of a built-in prompt, or a YAML file."""
    query_words: int = Field(default=300, ge=1)
    """The view is truncated to this many words, but never the query itself."""
    view: View = "query"
    """The view of a search turn for the model; the other retriever keeps its own."""


@dataclass
class OutputStats:
    """Counts since the retriever was opened."""

    outputs: int = 0
    unreadable: int = 0
    """Outputs that could not be used, so that the query or the order of the passages was kept."""


class ModelRetriever(LayeredRetriever):
    """A retriever with a language model. A failure of the model is a fault of the search."""

    name: ClassVar[str]
    PROMPT: ClassVar[type[PromptFile]]
    FIELDS: ClassVar[dict[str, set[str]]]
    """The fields that each template of the prompt may have."""
    PROBLEM: ClassVar[str]
    """`Shortfall.problem` of unreadable outputs."""

    def __init__(self, over: Retriever, settings: ModelRetrieverSettings, model: TextModel, prompt: PromptFile) -> None:
        super().__init__(over)
        self.settings = settings
        self.stats = OutputStats()
        self._model = model
        self._prompt = prompt

    @classmethod
    def open(cls, settings: ModelRetrieverSettings, opening: OpenContext) -> Self:
        """Open the prompt, the other retriever and the model."""
        prompt = load_prompt(cls.PROMPT, settings.prompt, opening.folder, cls.FIELDS, PROMPTS)
        return cls(opening.open(settings.over), settings, opening.open_model(settings.model, settings.local), prompt)

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"over", "model", "local", "prompt"})
        prompt = self._prompt.model_dump_json(exclude={"about"})
        return digest_of(self.name, settings, prompt, self._model.identity, self.over.identity)

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        return (Shortfall(self.stats.unreadable, self.stats.outputs, self.PROBLEM),)

    def seen(self, query: QueryLike) -> str:
        """The text that the other retriever sees, and the untruncated view of the model."""
        return json.dumps([self.over.seen(query), render_view(self.settings.view, query)], ensure_ascii=False)

    def _rendered(self, queries: Sequence[QueryLike]) -> list[str]:
        """Each query in the model's view, truncated."""
        limit = self.settings.query_words
        return [render_view(self.settings.view, query, limit=limit, count=count_words) for query in queries]

    def _generate(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        try:
            return self._model.write(prompts, max_tokens) if prompts else []
        except ModelError as error:
            raise RetrieverError(f"the model of the retriever {self.name} failed: {error}") from error


# Listwise prompt: numbered passages for a ranking model, and the parser of its answer.
#
# Parsing never fails: every passage gets exactly one rank.

_NUMBER = re.compile(r"\[\s*([0-9]{1,9})\s*\]")
_NUMBER_IN_DATA = re.compile(r"\[(\s*\d+\s*)\]")
_SEPARATOR = re.compile(r"[\s>,=]*")
_COMMENT = re.compile(r"^[ \t]*(\[\s*\d{1,9}\s*\]).*", re.M)
"""A line that begins with a number."""
_MARKUP = re.compile(r"[*_`]")
_MARK = re.compile(
    r"^[ \t]*(?:[-•]|\(?\d{1,9}[.):])[ \t]*(?=\[|passage|document)|\b(?:passage|document)\s+(?=\[)", re.I | re.M
)
"""List marks at the start of a line, and the nouns in front of a number."""


class ListwisePrompt(PromptFile):
    """The prompt of a ranking model."""

    prompt: str
    """`{passages}`, `{query}` and `{count}` are filled in."""
    passage: str
    """One passage; `{number}` from 1, `{title}` and `{text}` are filled in."""


LISTWISE_FIELDS = {"prompt": {"passages", "query", "count"}, "passage": {"number", "title", "text"}}


@dataclass(frozen=True, slots=True)
class ParsedRanking:
    """The parse of one answer."""

    order: tuple[int, ...]
    """A permutation of 0 … count − 1: the named passages in the answer's order, then the others in their old order."""
    missing: int = 0
    repeated: int = 0
    """Repeated numbers, which are ignored."""
    invented: int = 0
    """Numbers without a passage, which are ignored."""

    @property
    def unreadable(self) -> bool:
        """Whether no passage was named, so that the order is unchanged."""
        return self.missing == len(self.order)


def parse_ranking(answer: str, count: int) -> ParsedRanking:
    """Parse `[2] > [1] > [3]` as positions from 0. The ranking is the longest chain of bracketed numbers separated only
    by `>`, `=`, commas, white space, markup, list marks or the words passage and document, the last one of equal
    length, since a model that reasons first mentions passages earlier. Without one of two numbers, it is the longest
    list of lines that begin with a number (`[2] Title`). Other answers with several numbers have no ranking. Numbers
    without brackets are ignored."""
    text = _MARK.sub("", _MARKUP.sub("", without_reasoning(answer)))
    chain = _longest_chain(text)
    if len(chain) == 1 and len(set(_NUMBER.findall(text))) > 1:
        chain = _longest_chain(_COMMENT.sub(r"\1", text))
        chain = chain if len(chain) > 1 else []
    indices = [number - 1 for number in chain]
    valid = [index for index in indices if 0 <= index < count]
    order = dict.fromkeys(valid)
    rest = [index for index in range(count) if index not in order]
    return ParsedRanking(
        order=(*order, *rest), missing=len(rest), repeated=len(valid) - len(order), invented=len(indices) - len(valid)
    )


def _longest_chain(answer: str) -> list[int]:
    best: list[int] = []
    chain: list[int] = []
    end = 0
    for match in _NUMBER.finditer(answer):
        if not _SEPARATOR.fullmatch(answer, end, match.start()):
            chain = []
        chain.append(int(match.group(1)))
        end = match.end()
        if len(chain) >= len(best):
            best = chain  # an alias: grows with the chain
    return best


def fill_listwise_prompt(
    prompt: ListwisePrompt, query: str, passages: Sequence[Passage], max_words: int, **fields: str
) -> str:
    """Fill the prompt and its further `fields`. Passages have at most `max_words` words; `[n]` becomes `(n)`."""
    numbered = (
        fill_template(
            prompt.passage,
            number=str(number),
            title=neutralise_numbers(one_line(passage.title, max_words)),
            text=neutralise_numbers(one_line(passage.text, max_words)),
        )
        for number, passage in enumerate(passages, start=1)
    )
    return fill_template(
        prompt.prompt,
        passages="".join(numbered).rstrip("\n"),
        query=neutralise_numbers(one_line(query)),
        count=str(len(passages)),
        **{name: neutralise_numbers(one_line(text)) for name, text in fields.items()},
    )


def neutralise_numbers(text: str) -> str:
    """Write `[3]` as `(3)`, so that text in a passage cannot look like a passage number."""
    return _NUMBER_IN_DATA.sub(r"(\1)", text)


# Sliding windows: ranks a long list with a ranker that takes a few items at a time.
#
# Overlapping windows move from the back of the list to its front, so that the best items of a window enter the next
# one (Sun et al. 2023, RankGPT, §3.2). The ranker is a function argument.

T = TypeVar("T")

RankWindows: TypeAlias = Callable[[list[tuple[int, list[T]]]], Sequence[Sequence[int]]]
"""(list number, window) pairs → the order of each window, best first, as indices into it."""


def spans(count: int, window: int, step: int) -> list[tuple[int, int]]:
    """The (start, end) of each window over `count` items, from the back; the last one starts at 0. Consecutive windows
    share `window - step` items; the last two may share more. Fewer than two items have no windows."""
    if count < 2:
        return []
    starts = [max(count - window, 0)]
    while starts[-1] > 0:
        starts.append(max(starts[-1] - step, 0))
    return [(start, min(start + window, count)) for start in starts]


def sliding_together(
    orders: Sequence[Sequence[T]], rank_windows: RankWindows[T], window: int = 20, step: int = 10
) -> list[list[T]]:
    """Rank each list window by window: the first windows of all lists in one call, then all second ones, and so on."""
    lists = [list(order) for order in orders]
    windows = [spans(len(order), window, step) for order in lists]
    for turn in range(max(map(len, windows), default=0)):
        batch = [(number, *starts[turn]) for number, starts in enumerate(windows) if turn < len(starts)]
        rankings = rank_windows([(number, lists[number][start:end]) for number, start, end in batch])
        for (number, start, end), ranking in zip(batch, rankings, strict=True):
            items = lists[number][start:end]
            lists[number][start:end] = [items[index] for index in ranking]
    return lists
