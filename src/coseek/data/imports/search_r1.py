"""Search-R1's questions and corpus, which FlashRAG's reader reads."""

from coseek.data.imports.flashrag import files, read

__all__ = ["files", "read"]
