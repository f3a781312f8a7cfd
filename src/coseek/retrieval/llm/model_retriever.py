"""Model retriever: the base of retrievers that ask a language model about the queries or the hits of another one."""

import json
from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

from pydantic import Field

from coseek.core.errors import ModelError, RetrieverError
from coseek.core.fingerprint import digest_of
from coseek.core.prompt_file import PromptFile, count_words, load_prompt
from coseek.core.settings import Settings
from coseek.models.text_model import KeptTexts, TextModel, TextModelSettings
from coseek.retrieval.factory import OpenContext
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.query import QueryLike
from coseek.retrieval.retriever import LayeredRetriever, Retriever, Shortfall
from coseek.retrieval.views import View, render_view


class ModelRetrieverSettings(Settings):
    """The other retriever, and what the model is shown of a query."""

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


class ModelRetrieverStats(Protocol):
    """Counts of what was asked of the model since the retriever was opened."""

    @property
    def shortfall(self) -> Shortfall: ...


class ModelRetriever(LayeredRetriever):
    """A retriever with a language model. A failure of the model is a fault of the search."""

    name: ClassVar[str]
    PROMPT: ClassVar[type[PromptFile]]
    FIELDS: ClassVar[dict[str, set[str]]]
    """The fields that each template of the prompt may hold."""
    stats: ModelRetrieverStats

    def __init__(self, over: Retriever, settings: ModelRetrieverSettings, model: TextModel, prompt: PromptFile) -> None:
        super().__init__(over)
        self.settings = settings
        self._model = model
        self._texts = KeptTexts(model)
        self._prompt = prompt

    @classmethod
    def open(cls, settings: ModelRetrieverSettings, opening: OpenContext) -> Self:
        """Open the prompt, the other retriever and the model."""
        prompt = load_prompt(cls.PROMPT, settings.prompt, opening.folder, cls.FIELDS, PROMPTS)
        return cls(opening.open(settings.over), settings, opening.writer(settings.model, settings.local), prompt)

    @property
    def identity(self) -> str:
        settings = self.settings.model_dump_json(exclude={"over", "model", "local", "prompt"})
        prompt = self._prompt.model_dump_json(exclude={"about"})
        return digest_of(self.name, settings, prompt, self._model.identity, self.over.identity)

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        return (self.stats.shortfall,)

    def seen(self, query: QueryLike) -> str:
        """What the other retriever sees, and the untruncated view of the model."""
        return json.dumps([self.over.seen(query), render_view(self.settings.view, query)], ensure_ascii=False)

    def _shown(self, queries: Sequence[QueryLike]) -> list[str]:
        """The view of the model of each query, truncated."""
        limit = self.settings.query_words
        return [render_view(self.settings.view, query, limit=limit, count=count_words) for query in queries]

    def _write(self, prompts: Sequence[str], max_tokens: int) -> list[str]:
        try:
            return self._texts.write(prompts, max_tokens)
        except ModelError as error:
            raise RetrieverError(f"the model of the retriever {self.name} failed: {error}") from error
