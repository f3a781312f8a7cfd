"""Readers by kind: what kind a file is, by its name or its first bytes, and which function reads it. PDF is read by
pdfium; DOCX, PPTX, XLSX and EPUB by markitdown, by way of Markdown."""

import io
import re
import zipfile
from collections.abc import Callable
from itertools import pairwise, takewhile

from coseek.core.files import JsonObject
from coseek.data.documents.document import Document, DocumentFault, Section, clean, decoded_text, paragraphs
from coseek.data.documents.markup import read_html, read_markdown, read_rst
from coseek.data.documents.rows import read_csv, read_json, read_jsonl, read_mail, undecoded

_PDF_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?")
_FIELD = re.compile(rb"<(?:dc:(title|creator)|dcterms:(modified))[^>]*>([^<]{1,1000})</")
_SENTENCE = tuple(".!?:;…。！？")
_FULL = 0.7
"""Share of the third quartile of the lengths of lines from which a line is full, so that its paragraph goes on."""
_MAX_UNPACKED = 500 << 20
"""Bytes of all that one office file unpacks to."""


def read_pdf(data: bytes, name: str) -> Document:
    """The text of every page. A PDF of pictures has none."""
    import pypdfium2  # type: ignore[import-untyped]

    try:
        pdf = pypdfium2.PdfDocument(data)
        fields = pdf.get_metadata_dict(skip_empty=True)
        count = len(pdf)
    except pypdfium2.PdfiumError as error:
        locked = "password" in str(error).lower()
        raise DocumentFault("it needs a password" if locked else f"it is no whole PDF ({error})") from None
    document = Document(" ".join(clean(fields.get("Title", "")).split()), [])
    if author := clean(fields.get("Author", "")).strip():
        document.meta["author"] = author[:1000]
    if date := _PDF_DATE.match(fields.get("ModDate") or fields.get("CreationDate") or ""):
        document.meta["date"] = "-".join(takewhile(bool, date.groups("")))
    for number in range(1, count + 1):
        try:
            page = pdf[number - 1]
            text = page.get_textpage().get_text_bounded()
            page.close()
        except pypdfium2.PdfiumError as error:
            document.faults.append(f"page {number}: {error}")
            continue
        if blocks := tuple(map(_unwrapped, paragraphs(text))):
            document.sections.append(Section(blocks, (), {"page": number}))
    return document


def _unwrapped(text: str) -> str:
    """Paragraphs of printed lines: a full line that ends no sentence goes on in the next one."""
    lines = [line.strip() for line in text.replace("\x02\n", "").split("\n")]
    usual = sorted(map(len, lines))[len(lines) * 3 // 4]
    text = lines[0]
    for before, line in pairwise(lines):
        goes_on = len(before) >= _FULL * usual and not before.endswith(_SENTENCE)
        text += f"{' ' if goes_on else chr(10)}{line}"
    return text


def read_office(data: bytes, name: str) -> Document:
    """The Markdown that markitdown makes of a file. A file of another kind than its name says is refused: markitdown
    would take it for text."""
    kind = name.rpartition(".")[2].lower()
    meta: JsonObject = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            size = sum(part.file_size for part in parts.infolist())
            if size > _MAX_UNPACKED:
                raise DocumentFault(f"it unpacks to {size >> 20:,} MB, more than {_MAX_UNPACKED >> 20}")
            if "docProps/core.xml" in parts.namelist():
                for title_or_creator, modified, value in _FIELD.findall(parts.read("docProps/core.xml")):
                    meta[(title_or_creator or modified).decode()] = clean(value.decode("utf-8", "replace")).strip()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError) as error:
        raise DocumentFault(f"it is no whole {kind.upper()} ({error})") from None
    from markitdown import MarkItDown, MarkItDownException, StreamInfo

    try:
        result = MarkItDown(enable_plugins=False).convert_stream(
            io.BytesIO(data), stream_info=StreamInfo(extension=f".{kind}", filename=name)
        )
    except MarkItDownException as error:
        raise DocumentFault(f"markitdown cannot read it ({str(error).splitlines()[0][:200]})") from None
    document = read_markdown(result.markdown)
    document.title = str(meta.pop("title", "") or document.title)
    document.meta |= {{"creator": "author", "modified": "date"}.get(key, key): value for key, value in meta.items()}
    return document


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
