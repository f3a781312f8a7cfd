"""Retrievers: one module each, named like the retriever; see `coseek.retrieval.index` and
`coseek.retrieval.factory`."""
