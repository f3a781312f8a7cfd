"""Search-R1's question lines and corpus: FlashRAG's reader knows them, too."""

from coseek.data.imports.flashrag import read

__all__ = ["read"]
