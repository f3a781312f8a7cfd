"""The readers of DOCX, PPTX, XLSX and EPUB: no cell, mark or sheet is lost, and a broken file is refused."""

import datetime
import io
import sys
import zipfile
from pathlib import Path

import pytest
from tests.data.document_files import imported, read_one, zipped


@pytest.mark.slow
def test_a_file_of_another_kind_than_its_name_says_is_no_text(tmp_path: Path) -> None:
    kinds = ("docx", "pptx", "xlsx", "pdf", "epub")
    broken = {f"broken__{kind}": b"Not what it says." for kind in kinds}
    made, passages = imported(tmp_path, **broken, note__txt=b"Herons fish at dawn.")
    assert [passage.text for passage in passages] == ["Herons fish at dawn."]
    assert str(made.report["unread"]).count("it is no") == len(kinds)


@pytest.mark.slow
def test_sheets_and_slides_become_passages_with_their_titles(tmp_path: Path) -> None:
    from openpyxl import Workbook  # type: ignore[import-untyped, unused-ignore]
    from pptx import Presentation  # type: ignore[import-not-found, unused-ignore]

    book, sheet, talk, slides = Workbook(), io.BytesIO(), Presentation(), io.BytesIO()
    book.active.title = "Feeding"
    for row in (("bird", "keeper"), ("heron", "Ada Stone")):
        book.active.append(row)
    book.save(sheet)
    slide = talk.slides.add_slide(talk.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Where herons fish", "At the mouth of the river."
    talk.save(slides)
    was_loaded = "markitdown" in sys.modules  # by a test before this one
    made, passages = imported(tmp_path, birds__xlsx=sheet.getvalue(), talk__pptx=slides.getvalue())
    assert made.report["unread"] == []
    told = {passage.title: passage.text for passage in passages}
    assert told == {
        "Feeding": "bird | keeper\nheron | Ada Stone", "Where herons fish": "At the mouth of the river."
    }  # fmt: skip
    assert ("markitdown" in sys.modules) is was_loaded  # it works in the reader's process alone


@pytest.mark.slow
def test_cells_of_a_sheet_are_what_a_spreadsheet_shows() -> None:
    from openpyxl import Workbook

    book, file = Workbook(), io.BytesIO()
    rows = [("NA", None, "null"), (None, "a | b", None, None), (1.0, 0.1 + 0.2, True, 4111111111111111, 3e15)]
    for row in (*rows, (0.25, datetime.date(2026, 1, 2), 12)):
        book.active.append(row)
    book.active["A4"].number_format, book.active["C4"].number_format = "0%", "000"
    hidden = book.create_sheet("Hidden")
    hidden.sheet_state, hidden["B2"] = "hidden", "=SUM(A1:A2)"
    hidden["A1"] = "<b> *x*"
    book.create_sheet("Empty")
    book.save(file)
    document, text = read_one("a.xlsx", file.getvalue())
    assert text.split("\n") == ["NA |  | null", "| a | b", "1 | 0.3 | TRUE | 4111111111111111 | 3000000000000000",
                                "25% | 2026-01-02 | 012", "<b> *x*"]  # fmt: skip
    assert [section.headings for section in document.sections] == [("Sheet",), ("Hidden",)]
    assert document.faults[0].startswith("1 formula without a stored value")


@pytest.mark.slow
def test_slides_keep_marks_tables_charts_groups_and_notes() -> None:
    from pptx import Presentation
    from pptx.chart.data import CategoryChartData  # type: ignore[import-not-found, unused-ignore]
    from pptx.enum.chart import XL_CHART_TYPE  # type: ignore[import-not-found, unused-ignore]

    talk, file, numbers = Presentation(), io.BytesIO(), CategoryChartData()  # type: ignore[no-untyped-call, unused-ignore]
    slide = talk.slides.add_slide(talk.slide_layouts[1])
    slide.shapes.title.text, slide.placeholders[1].text = "Fish", "# <eel> __init__\n---\none\vtwo"
    slide.notes_slide.notes_text_frame.text = "Say this."
    slide = talk.slides.add_slide(talk.slide_layouts[6])
    table = slide.shapes.add_table(2, 2, 0, 0, 9, 9).table
    table.cell(0, 1).text, table.cell(1, 0).text = "a | b", "c"
    numbers.categories = ["East"]
    numbers.add_series("share", (1.5,))  # type: ignore[no-untyped-call, unused-ignore]
    slide.shapes.add_chart(XL_CHART_TYPE.PIE, 0, 5, 9, 9, numbers)
    slide.shapes.add_group_shape().shapes.add_textbox(0, 9, 9, 9).text_frame.text = "grouped"
    talk.save(file)
    document, text = read_one("a.pptx", file.getvalue())
    assert [section.meta["page"] for section in document.sections] == [1, 1, 2]
    assert sorted(text.split("\n")) == sorted([
        "# <eel> __init__", "---", "one", "two", "Say this.", "| a | b", "c", "| share", "East | 1.5", "grouped",
    ])  # fmt: skip


def test_a_book_keeps_its_chapters_tables_and_fields() -> None:
    package = """<package xmlns:dc="d"><dc:title>Tom &amp; Jerry</dc:title><dc:creator>A</dc:creator>
    <dc:creator>B</dc:creator><item id="1" href="ch%201.xhtml"/><item id="2" href="gone.xhtml"/>
    <itemref idref="1"/><itemref idref="2"/></package>"""
    chapter = (
        "<?xml version='1.0' encoding='cp1251'?><h1>Цапля</h1><table><tr><td>a|b<td><table><tr><td>in</table></table>"
    )
    book = zipped({
        "META-INF/container.xml": b"<container><rootfile full-path='text/a.opf'/></container>",
        "text/a.opf": package.encode(), "text/ch 1.xhtml": chapter.encode("cp1251"),
    })  # fmt: skip
    document, text = read_one("a.epub", book)
    assert (document.title, document.meta["author"], text) == ("Tom & Jerry", "A, B", "a|b | in")
    assert document.sections[0].headings == ("Цапля",) and "gone.xhtml" in document.faults[0]


SCHEMAS = "http://schemas.openxmlformats.org"


def word_document(body: str, footnotes: str) -> bytes:
    """A DOCX as programs write them: parts, relations, styles and properties."""
    main, kind = f"xmlns:w='{SCHEMAS}/wordprocessingml/2006/main'", "application/vnd.openxmlformats-officedocument"
    office, relations = f"{SCHEMAS}/officeDocument/2006/relationships", f"{SCHEMAS}/package/2006/relationships"
    style = "<w:style w:type='paragraph' w:styleId='H1'><w:name w:val='heading 1'/></w:style>"
    parts = {
        "document": f"<w:document {main}><w:body>{body}</w:body></w:document>",
        "styles": f"<w:styles {main}>{style}</w:styles>",
        "footnotes": f"<w:footnotes {main}>{footnotes}</w:footnotes>",
    }
    types = "".join(
        f"<Override PartName='/word/{name}.xml' "
        f"ContentType='{kind}.wordprocessingml.{'document.main' if name == 'document' else name}+xml'/>"
        for name in parts
    )
    links = "".join(
        f"<Relationship Id='{name}' Type='{office}/{name}' Target='{name}.xml'/>" for name in ("styles", "footnotes")
    )
    root = f"<Relationship Id='r' Type='{office}/officeDocument' Target='word/document.xml'/>"
    fields = "<dc:creator>Ada Stone</dc:creator><dcterms:modified>2026-01-02</dcterms:modified>"
    rels = "<Default Extension='rels' ContentType='application/vnd.openxmlformats-package.relationships+xml'/>"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(
            "[Content_Types].xml", f"<Types xmlns='{SCHEMAS}/package/2006/content-types'>{rels}{types}</Types>"
        )
        archive.writestr("_rels/.rels", f"<Relationships xmlns='{relations}'>{root}</Relationships>")
        archive.writestr("word/_rels/document.xml.rels", f"<Relationships xmlns='{relations}'>{links}</Relationships>")
        archive.writestr("docProps/core.xml", f"<core xmlns:dc='d' xmlns:dcterms='t'>{fields}</core>")
        for name, text in parts.items():
            archive.writestr(f"word/{name}.xml", text)
    return file.getvalue()


def text(words: str) -> str:
    return f"<w:r><w:t xml:space='preserve'>{words}</w:t></w:r>"


def paragraph(words: str) -> str:
    return f"<w:p>{text(words)}</w:p>"


def table(*rows: tuple[str, ...]) -> str:
    cells = ("".join(f"<w:tc>{cell}</w:tc>" for cell in row) for row in rows)
    return f"<w:tbl>{''.join(f'<w:tr>{row}</w:tr>' for row in cells)}</w:tbl>"


@pytest.mark.slow
def test_a_word_document_keeps_headings_tables_changes_and_notes(tmp_path: Path) -> None:
    rows = [tuple(map(paragraph, row)) for row in (("fish", "share"), ("perch", "nine"))]
    body = f"""<w:p><w:pPr><w:pStyle w:val='H1'/></w:pPr>{text("Birds")}</w:p>
        <w:p>{text("Herons")}<w:ins>{text(" wait")}</w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>
        <w:r><w:footnoteReference w:id='2'/></w:r></w:p>{table(*rows)}"""
    notes = f"<w:footnote w:id='2'>{paragraph('at dawn')}</w:footnote>"
    made, passages = imported(tmp_path, birds__docx=word_document(body, footnotes=notes))
    assert made.report["unread"] == [] and [passage.title for passage in passages] == ["Birds"]
    for kept in ("Herons wait", "fish | share\nperch | nine", "at dawn"):
        assert kept in passages[0].text
    assert "old" not in passages[0].text
    assert (passages[0].meta["author"], passages[0].meta["date"]) == ("Ada Stone", "2026-01-02")


@pytest.mark.slow
def test_a_word_document_keeps_every_cell_field_and_box(tmp_path: Path) -> None:
    math, box = f"xmlns:m='{SCHEMAS}/officeDocument/2006/math'", f"<w:txbxContent>{paragraph('boxed')}</w:txbxContent>"
    a, b, d, e, f, g, h = map(paragraph, ("a", "b | c", "d", "e", "f", "g", "h"))
    body = table((a, b), (d + table((e, table((f,)))), g, h)) + paragraph("# i &lt;j&gt; *k*")
    body += f"<w:p><w:r><w:drawing><n:x xmlns:n='n'>{box}</n:x></w:drawing></w:r></w:p><w:p><w:fldSimple>"
    body += f"{paragraph('field')}</w:fldSimple><m:oMath {math}><m:r><m:t>x=y</m:t></m:r></m:oMath></w:p>"
    body += "<w:p><w:bdo w:val='rtl'><w:r><w:t>one</w:t><w:cr/><w:t>two</w:t><w:br w:type='page'/></w:r></w:bdo></w:p>"
    _, passages = imported(tmp_path, a__docx=word_document(body, footnotes=""))
    lines = passages[0].text.split("\n")
    assert lines[:3] == ["a | b | c", "d e f | g | h", ""] and "# i <j> *k*" in lines
    assert {"boxed", "one", "two"} <= {*lines} and "field" in passages[0].text and "x=y" in passages[0].text
