"""Visit: opens a page of a document that a search of this episode has found."""

from collections.abc import Sequence
from typing import ClassVar, cast

from coseek.agents.tool import DocumentPage, ParsedCall, ToolContext, ToolRequest, ToolSettings
from coseek.core.files import JsonObject


class VisitSettings(ToolSettings):
    """Settings of `visit`."""

    overlaps: ClassVar[bool] = False  # the document is at hand, so there is nothing to wait for
    id: str = "id"
    """The argument that holds the id of the document."""
    page: str = "page"
    """The argument that holds the page, from 1; the first page when it is left out."""


SETTINGS = VisitSettings


def parse(arguments: JsonObject, settings: VisitSettings) -> ParsedCall:
    """The id and page of a call; of a list of ids the first."""
    ident, page = arguments.get(settings.id), arguments.get(settings.page, 1)
    if isinstance(ident, list) and ident:
        ident = ident[0]
    if isinstance(ident, bool) or not isinstance(ident, str | int) or not str(ident).strip():
        return ParsedCall(problem=f"a visit needs {settings.id!r}, the id of a document that a search has found")
    if isinstance(page, bool) or not isinstance(page, int):
        return ParsedCall(problem=f"{settings.page!r} is a whole number from 1")
    return ParsedCall({"id": str(ident).strip(), "page": page})


def run(requests: Sequence[ToolRequest], settings: VisitSettings, context: ToolContext) -> list[DocumentPage]:
    """Look each document up among those that its episode has found."""
    pages = []
    for request in requests:
        ident, page = cast(str, request.arguments["id"]), cast(int, request.arguments["page"])
        hits = (hit for search in request.searches for hit in search.hits)
        pages.append(DocumentPage(next((hit for hit in hits if hit.passage.id == ident), None), ident, page))
    return pages


def render(result: DocumentPage, settings: VisitSettings, context: ToolContext) -> tuple[int, ...]:
    """The page in pages of `max_observation_tokens`, or a notice that there is no such page."""
    size = context.limits.max_observation_tokens
    return context.template.page_ids(context.tokenizer, result.hit, result.ident, result.page, size)
