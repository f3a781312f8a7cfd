"""LangChain: a coseek retriever as a `BaseRetriever` (`pip install 'coseek[langchain]'`)."""

from pydantic import PrivateAttr

from coseek.adapters import metadata
from coseek.core.errors import missing_extras
from coseek.retrieval.factory import open_retriever
from coseek.retrieval.retriever import Retriever

with missing_extras("the LangChain retriever"):
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever


class LangChainRetriever(BaseRetriever):  # type: ignore[misc]
    """Finds `k` passages: `LangChainRetriever(source="INDEX", k=5).invoke("a query")`.

    `source` is an index folder, a URL, a YAML file or a mapping. `ainvoke` searches in a thread. A failed search raises
    `RetrieverError`.
    """

    source: str | dict[str, object]
    k: int = 5
    _retriever: Retriever = PrivateAttr()

    def model_post_init(self, context: object) -> None:
        self._retriever = open_retriever(self.source)

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        hits = self._retriever.search([query], self.k)[0]
        return [Document(id=hit.passage.id, page_content=hit.passage.text, metadata=metadata(hit)) for hit in hits]
