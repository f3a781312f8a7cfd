"""Listwise: reorders the candidates of any retriever with a language model that ranks many passages at once.

RankGPT (Sun et al., EMNLP 2023): windows slide from the end of the candidates to their front, and the model writes an
order such as `[2] > [1] > [3]` for each. An unreadable answer keeps the order and is counted.
"""

from collections.abc import Sequence
from functools import partial

from pydantic import Field

from coseek.core.errors import SettingError
from coseek.data.passage import Hit, Passage
from coseek.models.text_model import CutText, TextModel
from coseek.retrieval.llm import (
    LISTWISE_FIELDS,
    ListwisePrompt,
    ModelRetriever,
    ModelRetrieverSettings,
    fill_listwise_prompt,
    parse_ranking,
    sliding_together,
)
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.ranking import rank_hits
from coseek.retrieval.retriever import Retriever


class ListwiseSettings(ModelRetrieverSettings):
    """The retriever of the candidates, and the prompts of the model that ranks them."""

    depth: int = Field(default=100, ge=1)
    """Candidates per query, or `k` if that is more."""
    window: int = Field(default=20, ge=2)
    """Passages per prompt."""
    step: int = Field(default=10, ge=1)
    """Passages that the window moves, less than `window`. One pass moves the best `window - step` to the front."""
    passage_words: int = Field(default=150, ge=1)
    """Passages are truncated to this many words."""
    answer_tokens: int = Field(default=200, ge=1)
    """Tokens that the model may write: about six per passage of the window, more for a model that reasons first."""
    prompt: str = "listwise"
    """The name of a built-in prompt, or a YAML file with `prompt` and `passage`."""


class ListwiseReranker(ModelRetriever):
    """A retriever ranked by a language model. Scores are 1, 1/2, 1/3, …, since the model gives an order only."""

    name = "listwise"
    PROMPT, FIELDS = ListwisePrompt, LISTWISE_FIELDS
    PROBLEM = "orders could not be read, or were cut at answer_tokens"
    settings: ListwiseSettings
    _prompt: ListwisePrompt

    def __init__(self, over: Retriever, settings: ListwiseSettings, model: TextModel, prompt: ListwisePrompt) -> None:
        if settings.step >= settings.window:
            raise SettingError(f"step {settings.step} skips passages; it must be less than window {settings.window}")
        super().__init__(over, settings, model, prompt)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        candidates = self.over.search(queries, max(k, self.settings.depth))
        orders = [[hit.passage for hit in hits] for hits in candidates]
        rank = partial(self._rank, self._rendered(queries))
        rankings = sliding_together(orders, rank, self.settings.window, self.settings.step)
        return [rank_hits(passages[:k]) for passages in rankings]

    def _rank(self, queries: Sequence[str], windows: Sequence[tuple[int, list[Passage]]]) -> list[tuple[int, ...]]:
        """The model's order of each window, which is of the query of that number."""
        words = self.settings.passage_words
        prompts = [fill_listwise_prompt(self._prompt, queries[number], shown, words) for number, shown in windows]
        answers = self._generate(prompts, self.settings.answer_tokens)
        orders = []
        for answer, (_, passages) in zip(answers, windows, strict=True):
            ranking = parse_ranking(answer, len(passages))
            if isinstance(answer, CutText) and ranking.missing:
                ranking = parse_ranking("", len(passages))
            self.stats.outputs += 1
            self.stats.unreadable += ranking.unreadable
            orders.append(ranking.order)
        return orders


SETTINGS = ListwiseSettings
open = ListwiseReranker.open
