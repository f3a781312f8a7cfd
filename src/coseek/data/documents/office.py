"""Readers of PDF (by pdfium) and of DOCX (a zip of XML, read without entities)."""

import io
import re
import zipfile
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

from coseek.core.files import JsonObject
from coseek.data.documents.document import Document, DocumentFault, Outline, Section, clean, paragraphs
from coseek.data.documents.markup import CELL

if TYPE_CHECKING:
    from lxml.etree import _Element  # type: ignore[import-untyped]

_PDF_DATE = re.compile(r"(?:D:)?(\d{4})(\d{2})?(\d{2})?")
_HEADING = re.compile("heading ([1-9])")
_SENTENCE = tuple(".!?:;…。！？")
_FULL = 0.7
"""Share of the third quartile of the lengths of lines from which a line is full, so that its paragraph goes on."""
_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MOST_XML = 100 << 20
"""Bytes of one XML part of a DOCX, unpacked."""


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
    meta: JsonObject = {}
    if author := clean(fields.get("Author", "")).strip():
        meta["author"] = author[:1000]
    if dated := _PDF_DATE.match(fields.get("ModDate") or fields.get("CreationDate") or ""):
        meta["date"] = "-".join(takewhile(bool, dated.groups("")))
    document = Document(" ".join(clean(fields.get("Title", "")).split()), (), meta)

    def pages() -> Iterator[Section]:
        for number in range(count):
            try:
                page = pdf[number]
                sheet = page.get_textpage()
                text = clean(sheet.get_text_bounded())
                sheet.close()
                page.close()
            except pypdfium2.PdfiumError as error:
                document.faults.append(f"page {number + 1}: {error}")
                continue
            if blocks := tuple(map(_unwrapped, paragraphs(text))):
                yield Section(blocks, (), {"page": number + 1})

    document.sections = pages()
    return document


def _unwrapped(text: str) -> str:
    """Paragraphs of printed lines: a full line that ends no sentence goes on in the next one."""
    lines = [line.strip() for line in text.replace("\x02\n", "").replace("\ufffe\n", "").split("\n")]
    usual = sorted(map(len, lines))[len(lines) * 3 // 4]
    made = [lines[0]]
    for before, line in pairwise(lines):
        if len(before) >= _FULL * usual and not before.endswith(_SENTENCE):
            made[-1] += f" {line}"
        else:
            made.append(line)
    return "\n".join(made)


def read_docx(data: bytes, name: str) -> Document:
    """Headings by style or outline level, paragraphs, tables, footnotes; deleted text is left out."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            names = {*parts.namelist()}
            if "word/document.xml" not in names:
                raise DocumentFault("it is no DOCX (it has no word/document.xml)")
            body, styles, notes, core = (
                _xml(parts, part) if part in names else None
                for part in ("word/document.xml", "word/styles.xml", "word/footnotes.xml", "docProps/core.xml")
            )
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise DocumentFault(f"it is no whole DOCX ({str(error)[:100]})") from None
    outline = Outline()
    levels = {} if styles is None else _heading_styles(styles)
    for part in (body, notes):
        for node in () if part is None else _tops(part):
            _add_docx(node, outline, levels)
    meta: JsonObject = {}
    title = ""
    for field in core if core is not None else ():
        said = clean(field.text or "").strip()[:1000]
        key = str(field.tag).rpartition("}")[2]
        if key == "title":
            title = said
        elif said and key in ("creator", "modified"):
            meta["author" if key == "creator" else "date"] = said
    sections = outline.finish()
    return Document(title or outline.first_heading, sections, meta)


def _xml(parts: zipfile.ZipFile, name: str) -> "_Element":
    from lxml import etree  # type: ignore[import-untyped]

    with parts.open(name) as file:
        data = file.read(_MOST_XML + 1)
    if len(data) > _MOST_XML:
        raise DocumentFault(f"its part {name} is larger than {_MOST_XML >> 20} MB")
    # Entities are not expanded, and nothing is fetched.
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, remove_comments=True)
    try:
        return etree.fromstring(data, parser)
    except etree.XMLSyntaxError as error:
        raise DocumentFault(f"its part {name} is not XML ({str(error)[:100]})") from None


def _heading_styles(styles: "_Element") -> dict[str, int]:
    """Style id → heading level, for the styles named `heading N` and `Title`, and those with an outline level."""
    levels: dict[str, int] = {}
    for style in styles.iter(f"{_W}style"):
        ident = style.get(f"{_W}styleId") or ""
        name = (getattr(style.find(f"{_W}name"), "attrib", {}).get(f"{_W}val") or "").lower()
        outline = style.find(f"{_W}pPr/{_W}outlineLvl")
        if found := _HEADING.fullmatch(name):
            levels[ident] = int(found.group(1))
        elif name == "title":
            levels[ident] = 1
        elif outline is not None:
            levels[ident] = _level(outline)
    return levels


def _level(node: "_Element") -> int:
    value = node.get(f"{_W}val") or ""
    return int(value) + 1 if value.isdecimal() and len(value) == 1 else 1


def _tops(root: "_Element") -> Iterator["_Element"]:
    """The paragraphs and tables that lie in no other one, through any wrapper."""
    stack = [root]
    while stack:
        node = stack.pop()
        if node.tag in (f"{_W}p", f"{_W}tbl"):
            yield node
        else:
            stack.extend(reversed(node))


def _add_docx(node: "_Element", outline: Outline, levels: dict[str, int]) -> None:
    if node.tag == f"{_W}tbl":
        for row in node.iter(f"{_W}tr"):
            cells = (" ".join(" ".join(map(_docx_text, cell.iter(f"{_W}p"))).split()) for cell in row.iter(f"{_W}tc"))
            outline.block(CELL.join(cells), id(node))
        return
    style, own = node.find(f"{_W}pPr/{_W}pStyle"), node.find(f"{_W}pPr/{_W}outlineLvl")
    level = levels.get(style.get(f"{_W}val") or "") if style is not None else None
    level = _level(own) if own is not None else level
    if level:
        outline.heading(level, _docx_text(node))
    else:
        in_list = node.find(f"{_W}pPr/{_W}numPr") is not None
        outline.block(_docx_text(node), "list" if in_list else None)


def _docx_text(paragraph: "_Element") -> str:
    found = []
    for node in paragraph.iter(f"{_W}t", f"{_W}tab", f"{_W}br", f"{_W}cr", f"{_W}noBreakHyphen"):
        name = str(node.tag).removeprefix(_W)
        found.append({"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}.get(name, node.text or ""))
    return "".join(found)
