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


def found(index: Path, query: str, k: int) -> list[Hit]:
    hits = open_retriever(index).search([query], k)[0]
    assert len(hits) == k
    return hits


def test_langchain_gets_the_hits_of_the_index_also_in_a_chain_and_asynchronously(world: Path, index: Path) -> None:
    pytest.importorskip("langchain_core", reason="make test-adapters")
    from langchain_core.runnables import RunnableLambda

    from coseek.adapters.langchain import LangChainRetriever

    retriever, asked = LangChainRetriever(source=str(index), k=4), question(world)
    wanted = [(hit.passage.id, hit.passage.text, hit.passage.title, hit.score) for hit in found(index, asked, 4)]
    chain = RunnableLambda(lambda row: row["q"]) | retriever
    for documents in (retriever.invoke(asked), asyncio.run(retriever.ainvoke(asked)), chain.invoke({"q": asked})):
        shown = [(one.id, one.page_content, one.metadata["title"], one.metadata["score"]) for one in documents]
        assert shown == wanted
    assert [len(documents) for documents in retriever.batch([asked, asked])] == [4, 4]


def test_llama_index_gets_the_hits_of_the_index_also_asynchronously(world: Path, index: Path) -> None:
    pytest.importorskip("llama_index.core", reason="make test-adapters")
    from coseek.adapters.llama_index import LlamaIndexRetriever

    retriever, asked = LlamaIndexRetriever(index, k=4), question(world)
    wanted = [(hit.passage.id, hit.passage.text, hit.passage.title, hit.score) for hit in found(index, asked, 4)]
    for nodes in (retriever.retrieve(asked), asyncio.run(retriever.aretrieve(asked))):
        assert [(one.node_id, one.text, one.metadata["title"], one.score) for one in nodes] == wanted


def test_haystack_gets_the_hits_of_the_index_in_a_pipeline_that_was_stored(world: Path, index: Path) -> None:
    pytest.importorskip("haystack", reason="make test-adapters")
    from haystack import Pipeline

    from coseek.adapters.haystack import HaystackRetriever

    asked = question(world)
    wanted = [(hit.passage.id, hit.passage.text, hit.passage.title, hit.score) for hit in found(index, asked, 4)]
    pipeline = Pipeline()
    pipeline.add_component("search", HaystackRetriever(str(index), top_k=4))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["coseek.adapters.haystack"])
    for one in (pipeline, again):
        documents = one.run({"search": {"query": asked}})["search"]["documents"]
        assert [(each.id, each.content, each.meta["title"], each.score) for each in documents] == wanted
    assert len(pipeline.run({"search": {"query": asked, "top_k": 2}})["search"]["documents"]) == 2


def test_a_search_that_fails_is_an_error_and_not_an_empty_list() -> None:
    pytest.importorskip("langchain_core", reason="make test-adapters")
    pytest.importorskip("httpx", reason="make test-adapters")
    from coseek.adapters.langchain import LangChainRetriever

    with pytest.raises((RetrieverError, UserError)):
        LangChainRetriever(source="http://127.0.0.1:9").invoke("a query")
