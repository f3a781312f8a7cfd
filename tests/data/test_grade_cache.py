"""Fears about sheets: entries lost by a kill, entries of another part, faults that stay for ever."""

from pathlib import Path

import pytest

from coseek.core.errors import DataError
from coseek.data.grade_cache import GeneratedAnswer, GradeCache, Verdict


def sheet(folder: Path, identity: str = "judge one") -> GradeCache[Verdict]:
    return GradeCache.beside(folder, Verdict, identity, {"model": "m"})


def write(where: GradeCache[Verdict], *entries: Verdict) -> None:
    with where.appending() as file:
        for entry in entries:
            where.append(file, entry)


def test_a_later_entry_about_the_same_holds(tmp_path: Path) -> None:
    where = sheet(tmp_path)
    write(where, Verdict("q", "a", None, fault="away"), Verdict("q", "b", True))
    write(where, Verdict("q", "a", False))
    assert where.entries() == {("q", "a", ""): Verdict("q", "a", False), ("q", "b", ""): Verdict("q", "b", True)}


def test_a_line_that_a_kill_cut_short_is_dropped_and_the_others_stay(tmp_path: Path) -> None:
    where = sheet(tmp_path)
    write(where, Verdict("q", "a", True), Verdict("q", "b", True))
    where.path.write_bytes(where.path.read_bytes()[:-9])
    assert [entry.response for entry in where.entries().values()] == ["a"]
    write(where, Verdict("q", "c", False))
    assert [entry.response for entry in where.entries().values()] == ["a", "c"]


def test_parts_that_differ_have_different_sheets(tmp_path: Path) -> None:
    assert sheet(tmp_path).path != sheet(tmp_path, "judge two").path
    assert sheet(tmp_path).path != GradeCache.beside(tmp_path, GeneratedAnswer, "judge one", {}).path


def test_a_sheet_of_another_part_is_refused(tmp_path: Path) -> None:
    write(sheet(tmp_path), Verdict("q", "a", True))
    sheet(tmp_path).path.rename(sheet(tmp_path, "judge two").path)
    with pytest.raises(DataError, match=r"line 1: another part wrote this sheet"):
        sheet(tmp_path, "judge two").entries()


def test_a_broken_entry_is_named_with_its_line(tmp_path: Path) -> None:
    where = sheet(tmp_path)
    write(where, Verdict("q", "a", True))
    with where.path.open("a", encoding="utf-8") as file:
        file.write('{"question_id": "q", "response": "b", "right": "yes", "text": "", "fault": null}\n')
    with pytest.raises(DataError, match="line 3: not an entry"):
        where.entries()
