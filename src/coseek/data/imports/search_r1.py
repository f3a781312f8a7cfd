"""Search-R1's questions and corpus, which FlashRAG's reader reads."""

from coseek.data.imports.flashrag import read

__all__ = ["read"]
