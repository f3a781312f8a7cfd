"""Expanded: a language model rewrites each query before any retriever searches it.

HyDE (Gao et al., 2023) searches a passage that the model makes up; a rewriter reasons first and searches better words
(Reason-Rewriter, a baseline of AgentIR). The model sees the query alone unless `view` says otherwise.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from coseek.core.prompt_file import PromptFile, fill_template, one_line
from coseek.data.passage import Hit
from coseek.models.judge_text import unfenced
from coseek.models.written import visible_after
from coseek.retrieval.llm import ModelRetriever, ModelRetrieverSettings
from coseek.retrieval.query import Query, QueryLike, as_queries


class ExpansionPrompt(PromptFile):
    """The prompt of a model that rewrites queries."""

    prompt: str
    """`{query}` is filled in."""
    text_after: str = ""
    """The text after the last occurrence of this mark is searched; an output without it expands nothing."""


class ExpandedSettings(ModelRetrieverSettings):
    """The retriever, and the model that rewrites its queries."""

    prompt: str = "hyde"
    """`hyde`, `reason-rewriter`, or a YAML file with `prompt` and `text_after`."""
    combine: Literal["replace", "append"] = "append"
    """Replace the query by the model's text, or append the text to it."""
    max_tokens: int = Field(default=200, ge=1)
    """Tokens that the model may write."""


class ExpandedRetriever(ModelRetriever):
    """A retriever whose queries a language model rewrites."""

    name = "expanded"
    keeps_scores = True
    PROMPT, FIELDS = ExpansionPrompt, {"prompt": {"query"}}
    PROBLEM = "queries were searched unchanged"
    settings: ExpandedSettings
    _prompt: ExpansionPrompt

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        nonblank = [index for index, query in enumerate(queries) if Query.of(query).text.strip()]
        texts = self._rendered([queries[index] for index in nonblank])
        prompts = [fill_template(self._prompt.prompt, query=one_line(text)) for text in texts]
        for index, output in zip(nonblank, self._generate(prompts, self.settings.max_tokens), strict=True):
            queries[index] = self._expand(queries[index], output)
        return self.over.search(queries, k)

    def _expand(self, query: QueryLike, output: str) -> QueryLike:
        """The query with the model's text. A query without context keeps its text as the question."""
        text = one_line(unfenced(visible_after(output, self._prompt.text_after) or ""))
        self.stats.outputs += 1
        self.stats.unreadable += not text
        query = Query.of(query)
        has_context = query != Query(query.text)
        if not text:
            return query if has_context else query.text
        query = query if has_context else replace(query, question=query.text)
        return replace(query, text=f"{query.text} {text}" if self.settings.combine == "append" else text)


SETTINGS = ExpandedSettings
open = ExpandedRetriever.open
