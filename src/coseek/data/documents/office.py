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
_M = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_PARTS = (
    "word/document.xml", "word/styles.xml", "word/footnotes.xml", "word/endnotes.xml", "docProps/core.xml",
)  # fmt: skip
_PARAGRAPH, _TABLE, _BOX = f"{_W}p", f"{_W}tbl", f"{_W}txbxContent"
_GONE = (
    f"{_W}moveFrom",
    f"{_W}del",
    "{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback",
)
"""What a reader does not see: text that was moved away or deleted, and the older form of a shape that stands twice."""
_TEXTS = (f"{_W}t", f"{_M}t")
_SIGNS = {
    f"{_W}tab": "\t", f"{_W}ptab": "\t", f"{_W}br": "\n", f"{_W}cr": "\n", f"{_W}noBreakHyphen": "-", f"{_M}num": "(",
    f"{_M}den": "(", f"{_M}sup": "^", f"{_M}sub": "_", f"{_M}rad": "√",
}  # fmt: skip
"""What stands for an element; in equations at its beginning."""
_MATH_ENDS = {f"{_M}num": ")/", f"{_M}den": ")"}
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
    """Headings by style or outline level, paragraphs, tables, text boxes, equations, footnotes and endnotes.

    Text that was deleted or moved away and hidden text are left out.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            names = {*parts.namelist()}
            if "word/document.xml" not in names:
                raise DocumentFault("it is no DOCX (it has no word/document.xml)")
            body, styles, footnotes, endnotes, core = (_xml(parts, part) if part in names else None for part in _PARTS)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        raise DocumentFault(f"it is no whole DOCX ({str(error)[:100]})") from None
    outline = Outline()
    levels = {} if styles is None else _heading_styles(styles)
    for part in (body, footnotes, endnotes):
        for node in () if part is None else _nearest(part, _PARAGRAPH, _TABLE):
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


def _nearest(root: "_Element", *tags: str) -> Iterator["_Element"]:
    """The elements of these tags below an element that lie in no other one of them, in order, without what is gone."""
    stack = [*reversed(root)]
    while stack:
        node = stack.pop()
        if node.tag in tags:
            yield node
        elif node.tag not in _GONE:
            stack.extend(reversed(node))


def _add_docx(node: "_Element", outline: Outline, levels: dict[str, int]) -> None:
    if node.tag == _TABLE:
        for cells in _table(node):
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
    for box in _nearest(node, _BOX):
        for inner in _nearest(box, _PARAGRAPH, _TABLE):
            _add_docx(inner, outline, levels)


def _table(table: "_Element") -> Iterator[list[str]]:
    """The texts of the cells of each row that is not deleted."""
    for row in _nearest(table, f"{_W}tr"):
        if row.find(f"{_W}trPr/{_W}del") is None:
            yield [" ".join(_cell(cell).split()) for cell in _nearest(row, f"{_W}tc")]


def _cell(cell: "_Element") -> str:
    """The text of a cell or a text box; a table in it has commas between cells and semicolons between rows."""
    found: list[str] = []
    for node in _nearest(cell, _PARAGRAPH, _TABLE):
        if node.tag == _TABLE:
            found.append("; ".join(", ".join(filter(None, row)) for row in _table(node)))
        else:
            found += [_docx_text(node), *map(_cell, _nearest(node, _BOX))]
    return " ".join(found)


def _docx_text(paragraph: "_Element") -> str:
    """The words of a paragraph as a reader sees them; equations on one line. Text boxes in it are left to others."""
    from lxml import etree

    found: list[str] = []
    walk = etree.iterwalk(paragraph, events=("start", "end"))
    for event, node in walk:
        if event == "end":
            found.append(_MATH_ENDS.get(node.tag, ""))
        elif node.tag in (*_GONE, _BOX) or (node.tag == f"{_W}r" and _is_hidden(node)):
            walk.skip_subtree()
        elif node.tag in _TEXTS:
            found.append(node.text or "")
        else:
            found.append(_SIGNS.get(node.tag, ""))
    return "".join(found)


def _is_hidden(run: "_Element") -> bool:
    vanish = run.find(f"{_W}rPr/{_W}vanish")
    return vanish is not None and vanish.get(f"{_W}val") not in ("0", "false", "off")
