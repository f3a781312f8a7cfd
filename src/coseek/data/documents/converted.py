"""Converted documents: slides, sheets, books, and pages whose layout matters, which markitdown turns into Markdown."""

import io
import zipfile
from typing import Literal

from coseek.data.documents.document import Document, DocumentFault
from coseek.data.documents.markup import read_markdown

Convertible = Literal["docx", "epub", "pdf", "pptx", "xlsx"]
_MOST = 500 << 20
"""Bytes of all that one file unpacks to."""


def read_converted(data: bytes, name: str, kind: Convertible) -> Document:
    """The Markdown of a file, read as such. A file of another kind than its name says is refused: markitdown would take
    it for text."""
    if kind == "pdf":
        if not data.startswith(b"%PDF-"):
            raise DocumentFault("it is no PDF")
    else:
        try:
            size = sum(part.file_size for part in zipfile.ZipFile(io.BytesIO(data)).infolist())
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise DocumentFault(f"it is no whole {kind.upper()} ({error})") from None
        if size > _MOST:
            raise DocumentFault(f"it unpacks to {size >> 20:,} MB, more than {_MOST >> 20}")
    from markitdown import MarkItDown, MarkItDownException, StreamInfo  # type: ignore[import-not-found, unused-ignore]

    try:
        made = MarkItDown(enable_plugins=False).convert_stream(
            io.BytesIO(data), stream_info=StreamInfo(extension=f".{kind}", filename=name)
        )
    except MarkItDownException as error:
        raise DocumentFault(f"markitdown cannot read it ({str(error).splitlines()[0][:200]})") from None
    return read_markdown(made.markdown.encode("utf-8", "replace"), name)
