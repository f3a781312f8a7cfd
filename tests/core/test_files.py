"""Files: written whole or not at all; errors name the broken line."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from coseek.core.cache import TextCache
from coseek.core.errors import DataError
from coseek.core.files import (
    JsonObject,
    atomic_folder,
    atomic_write,
    check_output_folder,
    json_line,
    read_json,
    read_jsonl,
    recover_folder,
    sweep,
    write_jsonl,
)


@given(st.dictionaries(st.text(max_size=5), st.lists(st.none() | st.floats(-1e9, 1e9) | st.text()), max_size=4))
def test_an_object_is_one_line_for_every_reader_and_comes_back_the_same(row: JsonObject) -> None:
    line = json_line(row)
    assert line.endswith("\n")
    assert len(line.splitlines()) == 1
    assert json.loads(line) == row


def test_lines_are_numbered_from_one_and_blank_ones_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('\n{"a": 1}\n\n  \n{"a": 2}\n', encoding="utf-8")
    assert list(read_jsonl(path)) == [(2, {"a": 1}), (5, {"a": 2})]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "line 2: not valid JSON"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', "line 2: a JSON object is needed, not list"),
        ("a.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', "not UTF-8"),
        ("a.jsonl.gz", b"no gzip at all", "gzip"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}\n' * 500)[:-20], r"a broken \.gz file"),
        ("", b"", "is a folder"),
        ("none.jsonl", b"", "no file"),
    ],
    ids=["JSON cut", "no object", "no UTF-8", "no gzip", "gzip cut", "folder", "missing"],
)
def test_what_cannot_be_read_is_named(name: str, data: bytes, says: str, tmp_path: Path) -> None:
    if data:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=says):
        list(read_jsonl(tmp_path / name))


def test_gzip_and_the_mark_that_editors_write_before_a_text_are_read_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress('{"a": "é"}\n'.encode()))
    assert list(read_jsonl(tmp_path / "a.jsonl.gz")) == [(1, {"a": "é"})]
    (tmp_path / "marked.jsonl").write_bytes(b'\xef\xbb\xbf{"a": 1}\n{"a": 2}\n')
    assert [row for _, row in read_jsonl(tmp_path / "marked.jsonl")] == [{"a": 1}, {"a": 2}]


def test_a_broken_document_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n"a": 1,\n"b" 2}\n', encoding="utf-8")
    with pytest.raises(DataError, match="line 3"):
        read_json(tmp_path / "a.json")


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old", encoding="utf-8")

    def half() -> None:
        with atomic_write(path) as file:
            file.write("new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_not_a_number_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_jsonl(tmp_path / "a.jsonl", [{"a": float("nan")}])
    assert list(tmp_path.iterdir()) == []


def fill(folder: Path) -> None:
    (folder / "deep").mkdir()
    (folder / "deep" / "a.txt").write_text("new", encoding="utf-8")


def test_a_folder_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    atomic_folder(tmp_path / "index", lambda folder: (folder / "old.txt").touch())
    atomic_folder(tmp_path / "index", fill)
    assert [path.name for path in (tmp_path / "index").iterdir()] == ["deep"]
    assert list(tmp_path.iterdir()) == [tmp_path / "index"]


def test_a_folder_that_cannot_be_filled_leaves_the_old_one(tmp_path: Path) -> None:
    atomic_folder(tmp_path / "index", fill)

    def broken(folder: Path) -> None:
        fill(folder)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic_folder(tmp_path / "index", broken)
    assert (tmp_path / "index" / "deep" / "a.txt").read_text(encoding="utf-8") == "new"
    assert list(tmp_path.iterdir()) == [tmp_path / "index"]


def test_a_replacement_cut_in_two_is_undone(tmp_path: Path) -> None:
    atomic_folder(tmp_path / "index", fill)
    os.replace(tmp_path / "index", tmp_path / ".index.old")  # where a kill between the two renames leaves it
    recover_folder(tmp_path / "index")
    assert (tmp_path / "index" / "deep" / "a.txt").exists()
    assert list(tmp_path.iterdir()) == [tmp_path / "index"]


def test_a_file_is_never_taken_for_a_folder_to_replace(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    with pytest.raises(DataError, match=r"notes\.txt is a file; choose a folder"):
        atomic_folder(tmp_path / "notes.txt", fill)
    for name in ("notes.txt", "notes.txt/below"):
        with (
            pytest.raises(DataError, match="is a file; choose another place"),
            atomic_write(tmp_path / name / "a.json"),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("names", [(), (".hidden",), ("train.log",), ("scores",), ("corpus.jsonl", "run.yaml")])
def test_a_new_an_empty_and_an_own_folder_may_be_written_to(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    check_output_folder(tmp_path, "run.yaml", own=("scores",))
    check_output_folder(tmp_path / "new", "run.yaml")


def test_what_a_killed_process_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / ".index.abc_1234.part").mkdir()
    (tmp_path / ".index.abc_1234.part" / "half.json").touch()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / ".rows.json.abcd1234.part").touch()
    (tmp_path / ".gone.old").mkdir()
    (tmp_path / ".mine.part").touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".mine.part", "gone", "index"]


# --- the cache: a text under the wrong key, a foreign file, unbounded growth


def test_a_key_keeps_its_first_text_and_a_later_cache_finds_it(tmp_path: Path) -> None:
    first = TextCache(tmp_path / "s" / "texts.sqlite")
    first.write({"a": "one\0é\u2028", "b": ""})
    first.write({"b": "two", "a": "two"})
    first.close()
    again = TextCache(tmp_path / "s" / "texts.sqlite")
    assert again.read(["a", "b", "c"]) == {"a": "one\0é\u2028", "b": ""}
    again.close()


def test_the_texts_unused_for_the_longest_make_room(tmp_path: Path) -> None:
    store = TextCache(tmp_path / "texts.sqlite", max_rows=4)
    for key in "abcd":
        store.write({key: key})
    assert store.read(["a"]) == {"a": "a"}  # used again, so it stays
    store.write({"e": "e", "f": "f"})
    assert set(store.read(list("abcdef"))) == {"a", "d", "e", "f"}
    store.close()


def test_a_link_to_nothing_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to("nowhere")
    with pytest.raises(DataError, match="a link to nothing"):
        TextCache(tmp_path / "cache")
    assert not (tmp_path / "nowhere").exists()
