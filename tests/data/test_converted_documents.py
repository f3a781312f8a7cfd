"""Documents that markitdown converts."""

import io
import sys
import zipfile
from pathlib import Path

import pytest

from coseek.data.dataset import Dataset
from coseek.data.imports import ImportSummary, import_data
from coseek.data.passage import Passage


def imported(tmp_path: Path, **files: bytes) -> tuple[ImportSummary, list[Passage]]:
    """What comes of files, whose names have `__` for the full stop."""
    (tmp_path / "notes").mkdir()
    for name, data in files.items():
        (tmp_path / "notes" / name.replace("__", ".")).write_bytes(data)
    made = import_data("documents", [tmp_path / "notes"], tmp_path / "out")
    return made, list(Dataset(tmp_path / "out").corpus)


def reasons(made: ImportSummary) -> str:
    return str(made.report["unread"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["docx", "pptx", "xlsx", "pdf", "epub"])
def test_a_file_of_another_kind_than_its_name_says_is_no_text(tmp_path: Path, kind: str) -> None:
    made, passages = imported(tmp_path, **{f"broken__{kind}": b"Not what it says."}, note__txt=b"Herons fish at dawn.")
    assert [one.text for one in passages] == ["Herons fish at dawn."]
    assert f"broken.{kind}" in reasons(made) and "it is no" in reasons(made)


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
    made, passages = imported(tmp_path, birds__xlsx=sheet.getvalue(), talk__pptx=slides.getvalue())
    assert made.report["unread"] == []
    told = {one.title: one.text for one in passages}
    assert told == {
        "Feeding": "bird | keeper\nheron | Ada Stone", "Where herons fish": "At the mouth of the river."
    }  # fmt: skip
    assert "markitdown" not in sys.modules  # it works in the reader's process alone


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


@pytest.mark.slow
def test_a_word_document_keeps_headings_tables_changes_and_notes(tmp_path: Path) -> None:
    def text(words: str) -> str:
        return f"<w:r><w:t xml:space='preserve'>{words}</w:t></w:r>"

    def cell(words: str) -> str:
        return f"<w:tc><w:p>{text(words)}</w:p></w:tc>"

    body = f"""<w:p><w:pPr><w:pStyle w:val='H1'/></w:pPr>{text("Birds")}</w:p>
        <w:p>{text("Herons")}<w:ins>{text(" wait")}</w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del>
        <w:r><w:footnoteReference w:id='2'/></w:r></w:p>
        <w:tbl><w:tr>{cell("fish")}{cell("share")}</w:tr><w:tr>{cell("perch")}{cell("nine")}</w:tr></w:tbl>"""
    notes = f"<w:footnote w:id='2'><w:p>{text('at dawn')}</w:p></w:footnote>"
    made, passages = imported(tmp_path, birds__docx=word_document(body, footnotes=notes))
    assert made.report["unread"] == [] and [one.title for one in passages] == ["Birds"]
    for kept in ("Herons wait", "fish | share\nperch | nine", "at dawn"):
        assert kept in passages[0].text
    assert "old" not in passages[0].text
    assert (passages[0].meta["author"], passages[0].meta["date"]) == ("Ada Stone", "2026-01-02")


@pytest.mark.slow
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for number in range(6):
            file.writestr(f"xl/{number}.xml", bytes(100 << 20))
    made, _ = imported(tmp_path, bomb__xlsx=bomb.getvalue(), note__txt=b"Herons fish at dawn.")
    assert "it unpacks to 600 MB" in reasons(made)
