"""LlamaIndex: a coseek retriever as a `BaseRetriever` (`pip install 'coseek[llama-index]'`)."""

from coseek.adapters import metadata
from coseek.core.errors import missing_extras
from coseek.retrieval.factory import Source, open_retriever

with missing_extras("the LlamaIndex retriever"):
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode


class LlamaIndexRetriever(BaseRetriever):  # type: ignore[misc]
    """Finds `k` passages: `LlamaIndexRetriever("INDEX", k=5).retrieve("a query")`.

    `source` is an index folder, a URL, a YAML file or a mapping. A failed search raises `RetrieverError`.
    """

    def __init__(self, source: Source, k: int = 5) -> None:
        self._k, self._retriever = k, open_retriever(source)
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        hits = self._retriever.search([query_bundle.query_str], self._k)[0]
        return [
            NodeWithScore(
                node=TextNode(id_=hit.passage.id, text=hit.passage.text, metadata=metadata(hit)), score=hit.score
            )
            for hit in hits
        ]
