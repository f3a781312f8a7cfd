"""Listwise: the candidates of any retriever, put in order by a language model that sees many of them at once.

    retriever: listwise
    over: indexes/bm25
    model: models/ranker

The manner of RankGPT (Sun et al., EMNLP 2023): windows slide from the back of the candidates to their front, and in
each the model writes an order such as `[2] > [1] > [3]`. An answer that cannot be read keeps the order and is counted.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from coseek.core.errors import ModelError, RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import count_words, load_prompt
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.models.text_model import TextModel
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.llm.listwise_prompt import LISTWISE_FIELDS, ListwisePrompt, ParsedRanking, parse_ranking, show
from coseek.retrieval.llm.sliding_window import sliding_together
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retriever import Retriever
from coseek.retrieval.views import View, render_view


class ListwiseSettings(Settings):
    """Whose candidates, and how they are shown to the model."""

    over: str | dict[str, object]
    """The retriever whose candidates are reranked: an index folder, a URL, a YAML file, or settings."""
    model: str
    """The language model that ranks."""
    depth: int = Field(default=100, ge=1)
    """Candidates that are reranked a query, or `k` where that is more."""
    window: int = Field(default=20, ge=2)
    """Passages that the model sees at once."""
    step: int = Field(default=10, ge=1)
    """How far the window moves; less than `window`. One pass brings the best `window - step` passages to the front."""
    passage_words: int = Field(default=150, ge=1)
    """Passages are cut to this many words."""
    query_words: int = Field(default=300, ge=1)
    """The view is cut to this many words, never the query itself."""
    answer_tokens: int = Field(default=200, ge=1)
    """Tokens that the model may write: about six a passage of the window, and more for one that thinks aloud."""
    prompt: str = "listwise"
    """One of our prompts, or a YAML file with your own: `prompt` and `passage`."""
    view: View = "query"
    """What the model is shown of a search turn; the candidates are found by the other retriever's own view."""


@dataclass
class ListwiseStats:
    """What was read out of the model's answers since the retriever was opened."""

    windows: int = 0
    """Answers read."""
    unreadable: int = 0
    """Answers that named no passage: their windows kept their order. The counts below leave them out."""
    missing: int = 0
    """Passages that an answer did not name."""
    repeated: int = 0
    """Numbers named again."""
    invented: int = 0
    """Numbers that no passage had."""

    def add(self, reading: ParsedRanking) -> None:
        self.windows += 1
        self.invented += reading.invented
        if reading.unreadable:
            self.unreadable += 1
        else:
            self.missing += reading.missing
            self.repeated += reading.repeated


class Listwise:
    """A retriever whose order is a language model's. Scores are 1, 1/2, 1/3, …: the model gives an order only."""

    name = "listwise"

    def __init__(self, over: Retriever, settings: ListwiseSettings, model: TextModel, prompt: ListwisePrompt) -> None:
        if settings.step >= settings.window:
            raise SettingError(
                f"a step of {settings.step} skips passages; it must be less than window {settings.window}"
            )
        self.over = over
        self.settings = settings
        self.stats = ListwiseStats()
        self._model = model
        self._prompt = prompt

    @property
    def corpus(self) -> Corpus | None:
        return self.over.corpus

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"over", "model", "prompt"})
        prompt = self._prompt.model_dump_json(exclude={"about"})
        return digest_of(self.name, settings, prompt, self._model.identity, self.over.identity)

    def seen(self, query: QueryLike) -> str:
        """What the other retriever sees, and what the model is shown before it is cut."""
        return json.dumps([self.over.seen(query), render_view(self.settings.view, query)], ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        candidates = self.over.search(queries, max(k, self.settings.depth))
        limit = self.settings.query_words
        shown = [render_view(self.settings.view, query, limit=limit, count=count_words) for query in queries]

        def rank(windows: list[tuple[int, list[Passage]]]) -> list[tuple[int, ...]]:
            return self._rank([(shown[number], passages) for number, passages in windows])

        orders = [[hit.passage for hit in hits] for hits in candidates]
        ranked = sliding_together(orders, rank, self.settings.window, self.settings.step)
        return [[Hit(passage, 1.0 / rank) for rank, passage in enumerate(found[:k], start=1)] for found in ranked]

    def _rank(self, windows: Sequence[tuple[str, list[Passage]]]) -> list[tuple[int, ...]]:
        """The order that the model gives each window."""
        prompts = [show(self._prompt, query, passages, self.settings.passage_words) for query, passages in windows]
        try:
            answers = self._model.write(prompts, self.settings.answer_tokens)
        except ModelError as error:
            raise RetrieverError(f"the model that ranks failed: {error}") from error
        readings = [
            parse_ranking(answer, len(passages)) for answer, (_, passages) in zip(answers, windows, strict=True)
        ]
        for reading in readings:
            self.stats.add(reading)
        return [reading.order for reading in readings]


SETTINGS = ListwiseSettings


def open(settings: ListwiseSettings, opening: OpenContext) -> Listwise:
    """Open the retriever underneath, the prompt and the model."""
    prompt = load_prompt(ListwisePrompt, settings.prompt, opening.folder, LISTWISE_FIELDS, PROMPTS)
    return Listwise(opening.open(settings.over), settings, opening.writer(settings.model), prompt)
