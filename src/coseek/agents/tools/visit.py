"""Visit: opens a document at a passage that the episode has found, and shows the passage with the neighbours that fit.
A passage without neighbours in the corpus, or longer than a page, is shown alone in pages."""

from collections.abc import Sequence
from itertools import takewhile
from typing import ClassVar, cast

from coseek.agents.tool import DocumentPage, ParsedCall, ToolContext, ToolRequest, ToolSettings
from coseek.core.files import JsonObject
from coseek.data.passage import Hit, Passage, Way, neighbours
from coseek.data.trajectory import met_passages
from coseek.retrieval.retriever import fault_of_hits


class VisitSettings(ToolSettings):
    """Settings of `visit`."""

    overlaps: ClassVar[bool] = False  # the document is at hand, so there is nothing to wait for
    id: str = "id"
    """The argument that holds the id of the document."""
    page: str = "page"
    """The argument that holds the page, from 1; default: 1."""


SETTINGS = VisitSettings


def schema(settings: VisitSettings) -> JsonObject:
    """The id of a passage and a page."""
    properties: JsonObject = {
        settings.id: {"type": "string", "description": "id of a passage that a search returned"},
        settings.page: {"type": "integer", "description": "page to read, from 1"},
    }
    return {
        "description": "Open the document around a passage that a search returned.",
        "parameters": {"type": "object", "properties": properties, "required": [settings.id]},
    }


def parse(arguments: JsonObject, settings: VisitSettings) -> ParsedCall:
    """The id and page of a call; the first id of a list."""
    ident, page = arguments.get(settings.id), arguments.get(settings.page, 1)
    if isinstance(ident, list) and ident:
        ident = ident[0]
    if isinstance(ident, bool) or not isinstance(ident, str | int) or not str(ident).strip():
        return ParsedCall(problem=f"a visit needs {settings.id!r}, the id of a document that a search has found")
    if isinstance(page, bool) or not isinstance(page, int):
        return ParsedCall(problem=f"{settings.page!r} is a whole number from 1")
    return ParsedCall({"id": str(ident).strip(), "page": page})


def run(requests: Sequence[ToolRequest], settings: VisitSettings, context: ToolContext) -> list[DocumentPage]:
    """Look up each passage among those that its episode has found, and its neighbours in the corpus."""
    pages = []
    for request in requests:
        ident, page = cast(str, request.arguments["id"]), cast(int, request.arguments["page"])
        passage = met_passages(request.searches, request.visits).get(ident)
        document = _document(passage, context) if passage is not None and page == 1 else ()
        pages.append(DocumentPage(passage, ident, page, document))
    return pages


def render(result: DocumentPage, settings: VisitSettings, context: ToolContext) -> tuple[int, ...]:
    """The requested page of `max_observation_tokens` tokens, or a notice that there is no such page."""
    return context.template.page_ids(context.tokenizer, result, context.limits.max_observation_tokens)


def _document(passage: Passage, context: ToolContext) -> tuple[Passage, ...]:
    """A passage with the neighbours that fit into `max_observation_tokens` beside it, taken alternately from after and
    before it; empty if no neighbour fits."""

    def size_of(passage: Passage) -> int:
        return len(context.template.part_ids(context.tokenizer, passage))

    corpus = context.retriever.corpus
    tokens_left = context.limits.max_observation_tokens - size_of(passage)
    if corpus is None or tokens_left <= 0:
        return ()
    after: list[Passage] = []
    before: list[Passage] = []
    sides: tuple[tuple[list[Passage], Way], ...] = ((after, "next"), (before, "previous"))
    open_sides = [(side, takewhile(_is_writable, neighbours(passage, corpus, way))) for side, way in sides]
    while open_sides:
        side, remaining = open_sides.pop(0)
        neighbour = next(remaining, None)
        if neighbour is not None and (size := size_of(neighbour)) <= tokens_left:
            side.append(neighbour)
            tokens_left -= size
            open_sides.append((side, remaining))
    return (*before[::-1], passage, *after) if before or after else ()


def _is_writable(passage: Passage) -> bool:
    return not fault_of_hits([Hit(passage, 0.0)])
