"""Files of documents for tests: a small one of each format, broken ones and zip archives, and how they are read."""

import io
import zipfile
from pathlib import Path

from coseek.data.dataset import Dataset
from coseek.data.documents.document import Document
from coseek.data.documents.readers import kind_of, read_document
from coseek.data.imports import ImportSummary, import_data
from coseek.data.passage import Passage

FOLDER = Path(__file__).with_name("documents")
GOOD = {path.suffix[1:]: path for path in sorted(FOLDER.glob("heron.*"))}
"""Suffix → a file of three paragraphs about herons."""
BROKEN = {
    "txt": b"\x00\x01\x02", "md": b"\x00\x01", "html": b"\x00\x02\x03", "rst": b"\x01\x02\x00", "csv": b"\x00,\x00\n",
    "eml": b"no headers here\n\nat all", "docx": b"PK\x03\x04 cut off", "pdf": b"%PDF-1.4\ncut off",
}  # fmt: skip


def zipped(files: dict[str, bytes]) -> bytes:
    """A zip archive with the same bytes at any time: two workers of the tests must agree on its test's name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def read_one(name: str, data: bytes) -> tuple[Document, str]:
    kind = kind_of(name, data)
    assert kind is not None
    document = read_document(kind, data, name)
    return document, "\n".join(block for section in document.sections for block in section.blocks)


def imported(tmp_path: Path, **files: bytes) -> tuple[ImportSummary, list[Passage]]:
    """What comes of files, whose names have `__` for the full stop."""
    (tmp_path / "notes").mkdir()
    for name, data in files.items():
        (tmp_path / "notes" / name.replace("__", ".")).write_bytes(data)
    made = import_data("documents", [tmp_path / "notes"], tmp_path / "out")
    return made, list(Dataset(tmp_path / "out").corpus)
