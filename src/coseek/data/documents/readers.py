"""Readers by kind: what kind a file is, by its name or its first bytes, and which function reads it."""

import re
from collections.abc import Callable

from coseek.data.documents.document import Document, Section, decoded_text, paragraphs
from coseek.data.documents.markup import read_html, read_markdown, read_rst
from coseek.data.documents.office import read_office, read_pdf
from coseek.data.documents.rows import read_csv, read_json, read_jsonl, read_mail, undecoded


def read_text(text: str, name: str) -> Document:
    """Paragraphs between blank lines."""
    return Document("", [Section(tuple(paragraphs(text)))])


TEXTS: dict[str, Callable[[str, str], Document]] = {
    "text": read_text, "markdown": read_markdown, "html": read_html, "rst": read_rst, "csv": read_csv,
    "jsonl": read_jsonl, "json": read_json,
}  # fmt: skip
"""Kind → its reader, which takes the text and the name of a file and raises `DocumentFault`."""
BINARIES: dict[str, Callable[[bytes, str], Document]] = {"pdf": read_pdf, "office": read_office, "mail": read_mail}
"""The same for kinds that are no text in one encoding."""
ARCHIVES = ("zip", "tar", "packed", "mbox")
"""Kinds that hold files; a mail does, too."""
_SUFFIXES = {
    "text": "txt text log", "markdown": "md markdown mdown", "html": "html htm xhtml", "rst": "rst rest", "pdf": "pdf",
    "office": "docx pptx xlsx epub", "csv": "csv tsv", "jsonl": "jsonl jsonlines ndjson", "json": "json",
    "mail": "eml", "zip": "zip", "tar": "tar tgz tbz2 txz tar.gz tar.bz2 tar.xz", "packed": "gz bz2 xz",
    "mbox": "mbox",
}  # fmt: skip
_KIND_OF = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_FOREIGN = re.compile(
    r"\.(png|jpe?g|gif|webp|ico|bmp|tiff?|svg|mp[34]|wav|ogg|avi|mov|webm|ttf|otf|woff2?|exe|dll|so|dylib|o|a|pyc|pyd|"
    r"class|jar|whl|xls|ppt|doc|odt|ods|odp|rtf|msg|pst|7z|rar|zst|npy|npz|pt|bin|safetensors|parquet|sqlite|db)\Z",
    re.IGNORECASE,
)
_HTML = re.compile(rb"\A\s*+(?:<\?xml[^>]{0,200}>\s*+)?<(?:!doctype html|html)\b", re.IGNORECASE)


def kind_of(name: str, head: bytes) -> str | None:
    """The kind of a file; without a known suffix by its first bytes, text at last. `None` where there is no reader."""
    lower = name.lower().rpartition("/")[2]
    for suffix in (".".join(lower.split(".")[-2:]), lower.rpartition(".")[2]):
        if "." in lower and suffix in _KIND_OF:
            return _KIND_OF[suffix]
    if head.startswith(b"%PDF-"):
        return "pdf"
    if _FOREIGN.search(lower) or b"\x00" in head[:8192]:
        return None
    return "html" if _HTML.match(head) else "text"


def read_document(kind: str, data: bytes, name: str) -> Document:
    """Read a file of a kind. Raises `DocumentFault`."""
    if kind in BINARIES:
        return BINARIES[kind](data, name)
    text = decoded_text(data, is_page=kind == "html")
    document = TEXTS[kind](text.text, name)
    document.encoding = text.encoding if text.is_guess else ""
    document.faults += undecoded(text)
    return document
