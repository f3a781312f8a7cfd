"""Fears about linked documents: that a file outside them is served, and that a script in one runs on our page."""

from pathlib import Path

import pytest
from tests.serve.agent_live import live_agent
from tests.serve.live import WEB


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes" / "sub").mkdir(parents=True)
    (tmp_path / "notes" / "sub" / "a b.html").write_text("<script>alert(1)</script>", encoding="utf-8")
    (tmp_path / "notes" / "m.pdf").write_bytes(b"%PDF-1.4")
    (tmp_path / "notes-secret").mkdir()
    (tmp_path / "notes-secret" / "key").write_text("secret", encoding="utf-8")
    (tmp_path / "notes" / "link").symlink_to(tmp_path / "notes-secret" / "key")
    return tmp_path / "notes"


def test_a_file_of_the_documents_is_served_without_its_scripts(folder: Path) -> None:
    with live_agent("rules", documents=str(folder)) as (url, _):
        page, pdf = WEB.get(f"{url}/documents/notes/sub/a%20b.html"), WEB.get(f"{url}/documents/notes/m.pdf")
    assert page.status_code == 200 and "sandbox" in page.headers["content-security-policy"]
    assert pdf.content == b"%PDF-1.4" and pdf.headers["content-type"] == "application/pdf"
    assert pdf.headers["content-disposition"].startswith("inline")


@pytest.mark.parametrize(
    "path",
    ["notes-secret/key", "notes/..%2fnotes-secret/key", "notes/link", "%2fetc/passwd", "notes", "notes/none", "a%00b"],
)
def test_nothing_else_is_served(folder: Path, path: str) -> None:
    with live_agent("rules", documents=str(folder)) as (url, _):
        refused = WEB.get(f"{url}/documents/{path}")
    assert refused.status_code == 404 and "secret" not in refused.text.replace("notes-secret", "")


def test_no_file_is_served_where_none_was_named(folder: Path) -> None:
    with live_agent("rules") as (url, _):
        assert WEB.get(f"{url}/documents/notes/m.pdf").status_code == 404
