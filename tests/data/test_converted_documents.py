"""Documents that markitdown converts (`make test-layout`), and what is said without it."""

import io
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from coseek.core.errors import MissingExtra, SettingError
from coseek.data.dataset import Dataset
from coseek.data.imports import ImportSummary, import_data
from coseek.data.passage import Passage

needs_markitdown = pytest.mark.skipif(find_spec("markitdown") is None, reason="needs coseek[layout]")


def imported(tmp_path: Path, convert: list[str], **files: bytes) -> tuple[ImportSummary, list[Passage]]:
    """What comes of files, whose names have `__` for the full stop."""
    (tmp_path / "notes").mkdir()
    for name, data in files.items():
        (tmp_path / "notes" / name.replace("__", ".")).write_bytes(data)
    made = import_data("documents", [tmp_path / "notes"], tmp_path / "out", settings={"convert": convert})
    return made, list(Dataset(tmp_path / "out").corpus)


def reasons(made: ImportSummary) -> str:
    return str(made.report["unread"])


def test_slides_are_left_out_with_the_setting_that_reads_them(tmp_path: Path) -> None:
    made, _ = imported(tmp_path, [], talk__pptx=b"PK\x03\x04\x00", note__txt=b"Herons fish at dawn.")
    assert "convert=[pptx]" in reasons(made)


@pytest.mark.skipif(find_spec("markitdown") is not None, reason="markitdown is installed")
def test_a_missing_markitdown_is_named_with_its_extra(tmp_path: Path) -> None:
    book = io.BytesIO()
    with zipfile.ZipFile(book, "w") as file:
        file.writestr("a", "b")
    with pytest.raises(MissingExtra, match=r"coseek\[layout\]"):
        imported(tmp_path, ["xlsx"], table__xlsx=book.getvalue())


def test_an_ending_that_markitdown_is_not_asked_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="convert"):
        imported(tmp_path, ["exe"], note__txt=b"Herons fish at dawn.")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pptx", "xlsx", "pdf", "epub"])
def test_a_file_of_another_kind_than_its_name_says_is_no_text(tmp_path: Path, kind: str) -> None:
    made, passages = imported(
        tmp_path, [kind], **{f"broken__{kind}": b"Not what it says."}, note__txt=b"Herons fish at dawn."
    )
    assert [one.text for one in passages] == ["Herons fish at dawn."]
    assert f"broken.{kind}" in reasons(made) and "it is no" in reasons(made)


@pytest.mark.slow
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        for number in range(6):
            file.writestr(f"xl/{number}.xml", bytes(100 << 20))
    made, _ = imported(tmp_path, ["xlsx"], bomb__xlsx=bomb.getvalue(), note__txt=b"Herons fish at dawn.")
    assert "it unpacks to 600 MB" in reasons(made)


@needs_markitdown
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
    made, passages = imported(tmp_path, ["xlsx", "pptx"], birds__xlsx=sheet.getvalue(), talk__pptx=slides.getvalue())
    assert made.report["unread"] == []
    told = {one.title: one.text for one in passages}
    assert told == {
        "Feeding": "bird | keeper\nheron | Ada Stone", "Where herons fish": "At the mouth of the river."
    }  # fmt: skip
    assert "markitdown" not in sys.modules  # it works in the reader's process alone
