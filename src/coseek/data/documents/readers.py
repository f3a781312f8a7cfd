"""Readers by kind: what kind a file is, by its name or its first bytes, and which function reads it."""

import re
from collections.abc import Callable, Collection
from functools import partial
from typing import cast

from coseek.data.documents.converted import Convertible, read_converted
from coseek.data.documents.document import Document
from coseek.data.documents.markup import read_html, read_markdown, read_rst, read_text
from coseek.data.documents.office import read_docx, read_pdf
from coseek.data.documents.rows import read_csv, read_json, read_jsonl, read_mail

READERS: dict[str, Callable[[bytes, str], Document]] = {
    "text": read_text,
    "markdown": read_markdown,
    "html": read_html,
    "rst": read_rst,
    "pdf": read_pdf,
    "docx": read_docx,
    "csv": read_csv,
    "jsonl": read_jsonl,
    "json": read_json,
    "mail": read_mail,
}
"""Kind → its reader, which takes the bytes and the name of a file and raises `DocumentFault`."""
TEXTS = ("text", "markdown", "html", "rst", "csv", "jsonl", "json")
"""Kinds that are text in an encoding."""
ARCHIVES = ("zip", "tar", "packed", "mbox")
"""Kinds that hold files; a mail does, too."""
_SUFFIXES = {
    "text": "txt text log",
    "markdown": "md markdown mdown",
    "html": "html htm xhtml",
    "rst": "rst rest",
    "pdf": "pdf",
    "docx": "docx",
    "csv": "csv tsv",
    "jsonl": "jsonl jsonlines ndjson",
    "json": "json",
    "mail": "eml",
    "zip": "zip",
    "tar": "tar tgz tbz2 txz tar.gz tar.bz2 tar.xz",
    "packed": "gz bz2 xz",
    "mbox": "mbox",
}
_KIND_OF = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_FOREIGN = re.compile(
    r"\.(png|jpe?g|gif|webp|ico|bmp|tiff?|svg|mp[34]|wav|ogg|avi|mov|webm|ttf|otf|woff2?|exe|dll|so|dylib|o|a|pyc|pyd|"
    r"class|jar|whl|xlsx?|pptx?|doc|odt|ods|odp|epub|rtf|msg|pst|7z|rar|zst|npy|npz|pt|bin|safetensors|parquet|sqlite|db)\Z",
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


def converted_kind(name: str, chosen: Collection[str]) -> Convertible | None:
    """The ending of a file that is converted, if it is one of the chosen."""
    ending = name.lower().rpartition(".")[2]
    return cast(Convertible, ending) if ending in chosen else None


def reader_of(kind: str, chosen: Collection[str]) -> Callable[[bytes, str], Document]:
    """The reader of a kind: markitdown for the chosen ones."""
    return partial(read_converted, kind=cast(Convertible, kind)) if kind in chosen else READERS[kind]
