"""Expanded: a language model rewrites each query before any retriever searches it.

HyDE (Gao et al., 2023) searches a passage that the model makes up; a rewriter reasons first and searches better words
(Reason-Rewriter, a baseline of AgentIR). The model sees the query alone unless `view` says otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from coseek.core.prompt_file import PromptFile, fill_template, one_line
from coseek.data.passage import Hit
from coseek.models.judge_text import unfenced
from coseek.models.text_model import TextModel
from coseek.models.written import visible_after
from coseek.retrieval.llm import ModelRetriever, ModelRetrieverSettings
from coseek.retrieval.query import Query, QueryLike, as_queries
from coseek.retrieval.retriever import Retriever, Shortfall


class ExpansionPrompt(PromptFile):
    """The prompt of a model that rewrites queries."""

    prompt: str
    """`{query}` is filled in."""
    text_after: str = ""
    """The text after the last occurrence of this mark is searched; an output without it expands nothing."""


EXPANSION_FIELDS = {"prompt": {"query"}}


class ExpandedSettings(ModelRetrieverSettings):
    """The retriever, and the model that rewrites its queries."""

    prompt: str = "hyde"
    """`hyde`, `reason-rewriter`, or a YAML file with `prompt` and `text_after`."""
    combine: Literal["replace", "append"] = "append"
    """Search what the model wrote in place of the query, or behind it."""
    max_tokens: int = Field(default=200, ge=1)
    """Tokens that the model may write."""


@dataclass
class ExpansionStats:
    """Counts since the retriever was opened."""

    queries: int = 0
    unexpanded: int = 0
    """Outputs without a text, so that the query was searched as it was."""

    @property
    def shortfall(self) -> Shortfall:
        return Shortfall(self.unexpanded, self.queries, "queries were searched unchanged")


class ExpandedRetriever(ModelRetriever):
    """A retriever whose queries a language model rewrites."""

    name = "expanded"
    PROMPT, FIELDS = ExpansionPrompt, EXPANSION_FIELDS
    stats: ExpansionStats
    settings: ExpandedSettings
    _prompt: ExpansionPrompt

    def __init__(self, over: Retriever, settings: ExpandedSettings, model: TextModel, prompt: ExpansionPrompt) -> None:
        super().__init__(over, settings, model, prompt)
        self.stats = ExpansionStats()

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        prompts = [fill_template(self._prompt.prompt, query=one_line(shown)) for shown in self._shown(queries)]
        outputs = self._write(prompts, self.settings.max_tokens)
        return self.over.search([self._with(query, text) for query, text in zip(queries, outputs, strict=True)], k)

    def _with(self, query: QueryLike, output: str) -> QueryLike:
        """The query with the text that the model wrote. A bare query remains the question."""
        text = one_line(unfenced(visible_after(output, self._prompt.text_after) or ""))
        self.stats.queries += 1
        self.stats.unexpanded += not text
        asked = Query.of(query)
        bare = asked == Query(asked.text)
        if not text:
            return asked.text if bare else asked
        asked = replace(asked, question=asked.text) if bare else asked
        return replace(asked, text=f"{asked.text} {text}" if self.settings.combine == "append" else text)


SETTINGS = ExpandedSettings
open = ExpandedRetriever.open
