"""Retrievers inside other libraries, called as these libraries do: the hits are coseek's, in order.

The libraries are installed in an environment of their own: `make test-adapters`.
"""

import asyncio
from pathlib import Path

import pytest

from coseek.core.errors import RetrieverError, UserError
from coseek.data.dataset import Dataset
from coseek.data.passage import Hit
from coseek.retrieval.factory import open_retriever


def question(world: Path) -> str:
    return Dataset(world).questions("test")[0].question


def hits_for(index: Path, query: str, k: int) -> list[Hit]:
    hits = open_retriever(index).search([query], k)[0]
    assert len(hits) == k
    return hits


def test_langchain_gets_the_hits_of_the_index_also_in_a_chain_and_asynchronously(world: Path, index: Path) -> None:
    pytest.importorskip("langchain_core", reason="make test-adapters")
    from langchain_core.runnables import RunnableLambda

    from coseek.adapters.langchain import LangChainRetriever

    retriever, query = LangChainRetriever(source=str(index), k=4), question(world)
    wanted = [(hit.passage.id, hit.passage.text, hit.passage.title, hit.score) for hit in hits_for(index, query, 4)]
    chain = RunnableLambda(lambda row: row["q"]) | retriever
    for documents in (retriever.invoke(query), asyncio.run(retriever.ainvoke(query)), chain.invoke({"q": query})):
        shown = [(doc.id, doc.page_content, doc.metadata["title"], doc.metadata["score"]) for doc in documents]
        assert shown == wanted
    assert [len(documents) for documents in retriever.batch([query, query])] == [4, 4]


def test_llama_index_gets_the_hits_of_the_index_also_asynchronously(world: Path, index: Path) -> None:
    pytest.importorskip("llama_index.core", reason="make test-adapters")
    from coseek.adapters.llama_index import LlamaIndexRetriever

    retriever, query = LlamaIndexRetriever(index, k=4), question(world)
    wanted = [(hit.passage.id, hit.passage.text, hit.passage.title, hit.score) for hit in hits_for(index, query, 4)]
    for nodes in (retriever.retrieve(query), asyncio.run(retriever.aretrieve(query))):
        assert [(node.node_id, node.text, node.metadata["title"], node.score) for node in nodes] == wanted


def test_haystack_gets_the_hits_of_the_index_in_a_pipeline_that_was_stored(world: Path, index: Path) -> None:
    pytest.importorskip("haystack", reason="make test-adapters")
    from haystack import Pipeline

    from coseek.adapters.haystack import HaystackRetriever

    query = question(world)
    wanted = [(hit.passage.id, hit.passage.text, hit.passage.title, hit.score) for hit in hits_for(index, query, 4)]
    pipeline = Pipeline()
    pipeline.add_component("search", HaystackRetriever(str(index), top_k=4))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["coseek.adapters.haystack"])
    for runnable in (pipeline, again):
        documents = runnable.run({"search": {"query": query}})["search"]["documents"]
        assert [(each.id, each.content, each.meta["title"], each.score) for each in documents] == wanted
    assert len(pipeline.run({"search": {"query": query, "top_k": 2}})["search"]["documents"]) == 2


def test_a_search_that_fails_is_an_error_and_not_an_empty_list() -> None:
    pytest.importorskip("langchain_core", reason="make test-adapters")
    pytest.importorskip("httpx", reason="make test-adapters")
    from coseek.adapters.langchain import LangChainRetriever

    with pytest.raises((RetrieverError, UserError)):
        LangChainRetriever(source="http://127.0.0.1:9").invoke("a query")
