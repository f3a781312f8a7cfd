"""Expanded: a language model rewrites each query before any retriever searches it.

HyDE (Gao et al., 2023) searches a passage that the model makes up; a rewriter reasons first and searches better words
(Reason-Rewriter, a baseline of AgentIR). The model sees the query alone unless `view` says otherwise.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from coseek.core.errors import ModelError, RetrieverError
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, count_words, fill_template, load_prompt, one_line
from coseek.core.settings import Settings
from coseek.data.passage import Hit
from coseek.models.local_text import TextModelSettings
from coseek.models.model_text import unfenced
from coseek.models.text_model import TextModel
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.query import Query, QueryLike, as_queries
from coseek.retrieval.retriever import LayeredRetriever, Retriever
from coseek.retrieval.views import View, render_view


class ExpansionPrompt(PromptFile):
    """The prompt of a model that rewrites queries."""

    prompt: str
    """`{query}` is filled in."""
    text_after: str = ""
    """The text after the last occurrence of this mark is searched; an output without it expands nothing."""


EXPANSION_FIELDS = {"prompt": {"query"}}


class ExpandedSettings(Settings):
    """The retriever, and the model that rewrites its queries."""

    over: str | dict[str, object]
    """The retriever that searches: an index folder, a URL, a YAML file, or settings."""
    model: str
    """The language model that rewrites."""
    local: TextModelSettings = TextModelSettings()
    """Limits and placement of a model folder."""
    prompt: str = "hyde"
    """`hyde`, `reason-rewriter`, or a YAML file with `prompt` and `text_after`."""
    combine: Literal["replace", "append"] = "append"
    """Search what the model wrote in place of the query, or behind it."""
    max_tokens: int = Field(default=200, ge=1)
    """Tokens that the model may write."""
    query_words: int = Field(default=300, ge=1)
    """The view is truncated to this many words, but never the query itself."""
    view: View = "query"
    """The view of a search turn for the model; the retriever below keeps its own."""


@dataclass
class ExpansionStats:
    """Counts since the retriever was opened."""

    queries: int = 0
    unexpanded: int = 0
    """Outputs without a text, so that the query was searched as it was."""


class ExpandedRetriever(LayeredRetriever):
    """A retriever whose queries a language model rewrites. A failure of the model is a fault of the search."""

    name = "expanded"

    def __init__(self, over: Retriever, settings: ExpandedSettings, model: TextModel, prompt: ExpansionPrompt) -> None:
        super().__init__(over)
        self.settings = settings
        self.stats = ExpansionStats()
        self._model = model
        self._prompt = prompt

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"over", "model", "local", "prompt"})
        prompt = self._prompt.model_dump_json(exclude={"about"})
        return digest_of(self.name, settings, prompt, self._model.identity, self.over.identity)

    def seen(self, query: QueryLike) -> str:
        """What the other retriever sees of the query as it is, and the untruncated view of the model."""
        return json.dumps([self.over.seen(query), render_view(self.settings.view, query)], ensure_ascii=False)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        queries = as_queries(queries, k)
        if not queries:
            return []
        limit = self.settings.query_words
        views = [render_view(self.settings.view, query, limit=limit, count=count_words) for query in queries]
        prompts = [fill_template(self._prompt.prompt, query=one_line(view)) for view in views]
        try:
            outputs = self._model.write(prompts, self.settings.max_tokens)
        except ModelError as error:
            raise RetrieverError(f"the model that rewrites queries failed: {error}") from error
        return self.over.search([self._with(query, text) for query, text in zip(queries, outputs, strict=True)], k)

    def _with(self, query: QueryLike, output: str) -> Query:
        """The query with the text that the model wrote."""
        after = self._prompt.text_after
        _, mark, behind = output.rpartition(after) if after else ("", "", output)
        text = "" if after and not mark else one_line(unfenced(behind))
        self.stats.queries += 1
        self.stats.unexpanded += not text
        asked = Query.of(query)
        if not text:
            return asked
        return replace(asked, text=f"{asked.text} {text}" if self.settings.combine == "append" else text)


SETTINGS = ExpandedSettings


def open(settings: ExpandedSettings, opening: OpenContext) -> ExpandedRetriever:
    """Open the other retriever, the prompt and the model."""
    prompt = load_prompt(ExpansionPrompt, settings.prompt, opening.folder, EXPANSION_FIELDS, PROMPTS)
    return ExpandedRetriever(
        opening.open(settings.over), settings, opening.writer(settings.model, settings.local), prompt
    )
