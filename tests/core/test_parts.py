"""Fears about parts: what a kill leaves stays for ever, or is taken for a result."""

from pathlib import Path

import pytest

from coseek.core.files import atomic_folder, atomic_write
from coseek.core.parts import sweep


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".index.abc_1234.part").mkdir()
    (tmp_path / ".index.abc_1234.part" / "half.json").touch()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / ".rows.json.abcd1234.part").touch()
    (tmp_path / ".gone.old").mkdir()
    (tmp_path / ".mine.part").touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".mine.part", "gone", "index"]


def test_a_block_that_fails_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(ZeroDivisionError), atomic_write(tmp_path / "file"):
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        atomic_folder(tmp_path / "folder", lambda part: [(part / "a").touch(), 1 // 0])  # type: ignore[arg-type, func-returns-value]
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "old"
