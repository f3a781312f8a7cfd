"""Haystack: a coseek retriever as a component of a pipeline (`pip install 'coseek[haystack]'`)."""

from coseek.adapters import metadata
from coseek.core.errors import missing_extras
from coseek.retrieval.factory import open_retriever

with missing_extras("the Haystack retriever"):
    from haystack import Document, component


@component
class HaystackRetriever:
    """Finds `top_k` passages: `HaystackRetriever("INDEX").run(query="a query")["documents"]`.

    `source` is an index folder, a URL, a YAML file or a mapping. Stored pipelines keep these two values; load them with
    `allowed_modules=["coseek.adapters.haystack"]`. A failed search raises `RetrieverError`.
    """

    def __init__(self, source: str | dict[str, object], top_k: int = 5) -> None:
        self.source, self.top_k = source, top_k
        self._retriever = open_retriever(source)

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator]
    def run(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """Return `documents`, best first."""
        hits = self._retriever.search([query], self.top_k if top_k is None else top_k)[0]
        return {
            "documents": [
                Document(id=hit.passage.id, content=hit.passage.text, meta=metadata(hit), score=hit.score)
                for hit in hits
            ]
        }
