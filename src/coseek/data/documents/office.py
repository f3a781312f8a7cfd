"""Readers of DOCX, PPTX, XLSX and EPUB.

The file's own structure becomes sections directly, not through Markdown, which cannot express nested tables, rows of
unequal length, and text that looks like markup.
"""

import datetime
import io
import posixpath
import re
import zipfile
from collections.abc import Iterable, Iterator
from html import unescape
from itertools import zip_longest
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree import ElementTree

from coseek.core.files import JsonObject
from coseek.core.text import counted
from coseek.data.documents.document import CELL, Document, DocumentFault, Section, clean, decoded_text, paragraphs
from coseek.data.documents.markup import read_html

if TYPE_CHECKING:
    from pptx.shapes.base import BaseShape

_FIELD = re.compile(rb"<(?:dc:(title|creator|date)|dcterms:(modified))[^>]*>([^<]{1,1000})</")
_FIELD_NAMES = {b"title": "title", b"creator": "author", b"date": "date", b"modified": "date"}


def read_office(data: bytes, name: str) -> Document:
    """Read the sections of a file, its title, author and date."""
    kind = name.rpartition(".")[2].lower()
    fields: JsonObject = {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            metadata = [part for part in archive.namelist() if part == "docProps/core.xml" or part.endswith(".opf")]
            for part in metadata[:1]:
                for title_or_creator, modified, value in _FIELD.findall(archive.read(part)):
                    text = clean(unescape(value.decode("utf-8", "replace"))).strip()
                    field = _FIELD_NAMES[title_or_creator or modified]
                    if field == "author" and field in fields:
                        fields[field] = f"{fields[field]}, {text}"
                    else:  # a book's subtitle and later dates follow its title and first date
                        fields.setdefault(field, text)
            document = {"docx": _word, "pptx": _slides, "xlsx": _sheets, "epub": _book}[kind](archive, data)
    except (zipfile.BadZipFile, ElementTree.ParseError, RuntimeError, ValueError, KeyError) as error:
        raise DocumentFault(f"it is no whole {kind.upper()} ({error})") from None
    document.title = str(fields.pop("title", "") or document.title)
    document.meta |= fields
    return document


_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_ALTERNATE = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_WORD_TEXTS = re.compile(r"word/(document\d*|footnotes|endnotes)\.xml")
_UNKNOWN_TO_MAMMOTH = {"fldSimple": "smartTag", "dir": "smartTag", "bdo": "smartTag", "ruby": "smartTag",
                       "rubyBase": "smartTag", "rt": "del", "cr": "br", "ptab": "tab"}  # fmt: skip


def _word(archive: zipfile.ZipFile, data: bytes) -> Document:
    """Read DOCX with mammoth, and equations with markitdown."""
    import mammoth  # type: ignore[import-untyped]
    from markitdown.converter_utils.docx.pre_process import pre_process_docx

    file = io.BytesIO()
    with zipfile.ZipFile(pre_process_docx(io.BytesIO(data))) as source, zipfile.ZipFile(file, "w") as target:
        for name in source.namelist():
            part = source.read(name)
            target.writestr(name, _for_mammoth(part) if _WORD_TEXTS.fullmatch(name) else part)
    without_pictures = mammoth.images.img_element(lambda _: {"src": ""})
    return read_html(mammoth.convert_to_html(file, convert_image=without_pictures).value)


def _for_mammoth(xml: bytes) -> bytes:
    """Rename the elements with text that mammoth ignores: fields, right-to-left text, text with pronunciations, text
    boxes without an older form, equations that markitdown could not convert."""
    root = ElementTree.fromstring(xml)
    for element in list(root.iter()):
        namespace, _, tag = element.tag.rpartition("}")
        if f"{namespace}}}" == _MATH:
            element.tag = _WORD + (tag if tag in ("r", "t") else "smartTag")
        elif f"{namespace}}}" == _WORD:
            element.tag = _WORD + _UNKNOWN_TO_MAMMOTH.get(tag, tag)
            if tag == "br":
                element.attrib.clear()  # mammoth ignores page and column breaks
        boxes = list(element.iter(f"{_WORD}txbxContent")) if tag in ("AlternateContent", "drawing") else []
        if boxes and element.find(f"{_ALTERNATE}Fallback//{_WORD}txbxContent") is None:
            element.tag, element[:] = f"{_WORD}pict", boxes
    return ElementTree.tostring(root)


def _sheets(archive: zipfile.ZipFile, data: bytes) -> Document:
    """A section for each sheet, including hidden sheets."""
    from openpyxl import load_workbook  # type: ignore[import-untyped]

    document = Document("", [])
    for sheet in load_workbook(io.BytesIO(data), read_only=True, data_only=True).worksheets:
        sheet.reset_dimensions()  # some programs write wrong ones
        rows = (_row(_display_text(cell.value, cell.number_format) for cell in row) for row in sheet.iter_rows())
        if text := "\n".join(filter(None, rows)):
            document.sections.append(Section((clean(text),), (sheet.title,)))
    if len(document.sections) == 1:
        document.title = document.sections[0].headings[0]
    sheets = (archive.read(name) for name in archive.namelist() if name.startswith("xl/worksheets/"))
    if count := sum(len(_WITHOUT_VALUE.findall(sheet)) for sheet in sheets):
        fault = f"{counted(count, 'formula')} without a stored value; open and save it with a spreadsheet program"
        document.faults.append(fault)
    return document


_WITHOUT_VALUE = re.compile(rb"""<c (?![^>]*t=["']str)[^>]*><f[^>]*(?:/>|>[^<]*</f>)(?:<v ?/>|<v></v>)?</c>""")
"""A cell with a formula whose value is not stored."""


def _row(cells: Iterable[str]) -> str:
    """A row of a table as one line, without trailing empty cells."""
    return CELL.join(" ".join(cell.split()) for cell in cells).rstrip(" |").lstrip()


def _display_text(value: object, number_format: str) -> str:
    """Format a value as a spreadsheet shows it."""
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).upper()
    if isinstance(value, int | float):
        if number_format.startswith("00") and not number_format.strip("0"):  # a postcode or an article number
            return f"{value:0{len(number_format)}.0f}"
        if "%" in number_format:
            return f"{value * 100:.15g}%"
        return str(value) if isinstance(value, int) else f"{value:.{17 if value % 1 == 0 else 15}g}"
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ").removesuffix(" 00:00:00")
    return str(value)


def _slides(archive: zipfile.ZipFile, data: bytes) -> Document:
    """A section for each slide and one for its notes; `page` is the number of the slide."""
    from pptx import Presentation

    document = Document("", [])
    for number, slide in enumerate(Presentation(io.BytesIO(data)).slides, start=1):
        title = slide.shapes.title
        headings = (" ".join(title.text.split()),) if title is not None and title.text.strip() else ()
        blocks = [text for shape in _reading_order(slide.shapes) if shape != title for text in _texts(shape)]
        notes = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
        for texts, steps in ((blocks or headings, headings), ([notes.text] if notes else (), (*headings, "Notes"))):
            if slide_paragraphs := tuple(paragraph for text in texts for paragraph in paragraphs(text)):
                document.sections.append(Section(slide_paragraphs, steps, {"page": number}))
    document.title = next((section.headings[0] for section in document.sections if section.headings), "")
    return document


def _reading_order(shapes: "Iterable[BaseShape]") -> "list[BaseShape]":
    return sorted(shapes, key=lambda shape: (shape.top or 0, shape.left or 0))


_DRAWING = "{http://schemas.openxmlformats.org/drawingml/2006/main}"
_DIAGRAM = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}dm"


def _texts(shape: "BaseShape") -> Iterator[str]:
    """The texts of a shape, or of its group, table, chart or diagram."""
    from pptx.shapes.graphfrm import GraphicFrame
    from pptx.shapes.group import GroupShape

    if isinstance(shape, GroupShape):
        yield from (text for member in _reading_order(shape.shapes) for text in _texts(member))
    elif not isinstance(shape, GraphicFrame):
        yield getattr(shape, "text", "")
    elif shape.has_table:
        yield "\n".join(_row(cell.text for cell in row.cells) for row in shape.table.rows)
    elif shape.has_chart:
        chart = shape.chart
        if chart.has_title and chart.chart_title.has_text_frame:
            yield chart.chart_title.text_frame.text
        columns = [["", *(category.label for category in chart.plots[0].categories)]]
        columns += [[series.name, *(_display_text(value, "") for value in series.values)] for series in chart.series]
        yield "\n".join(map(_row, zip_longest(*columns, fillvalue="")))
    for element in shape.element.iter():
        if identifier := element.get(_DIAGRAM):
            diagram = ElementTree.fromstring(shape.part.related_part(identifier).blob)
            yield "\n".join("".join(paragraph.itertext()) for paragraph in diagram.iter(f"{_DRAWING}p"))


def _book(archive: zipfile.ZipFile, data: bytes) -> Document:
    """The chapters in reading order."""
    container = ElementTree.fromstring(archive.read("META-INF/container.xml"))
    path = next((root.attrib["full-path"] for root in container.iterfind(".//{*}rootfile")), "")
    package = ElementTree.fromstring(archive.read(path))
    files = {item.get("id"): unquote(item.get("href", "")) for item in package.iterfind(".//{*}item")}
    document = Document("", [])
    for chapter in package.iterfind(".//{*}itemref"):
        name = posixpath.normpath(posixpath.join(posixpath.dirname(path), files.get(chapter.get("idref"), "")))
        try:
            text = decoded_text(archive.read(name), is_page=True)
            document.encoding = document.encoding or (text.encoding if text.is_guess else "")
            document.sections += read_html(text.text).sections
        except (KeyError, DocumentFault) as error:
            document.faults.append(f"{name}: {error}")
    document.title = next((section.headings[0] for section in document.sections if section.headings), "")
    return document
