"""A corpus on disk is the same corpus as in memory, and a damaged array or a pickle is none."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most

from coseek.core.errors import DataError, IndexMismatch
from coseek.data.corpus_file import STAMP, CorpusFile, read_array
from coseek.data.passage import Corpus, Passage

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
CORPORA = st.lists(
    st.builds(Passage, TEXTS, TEXTS, TEXTS), min_size=1, max_size=12, unique_by=lambda passage: passage.id
)


def scanned(passages: list[Passage], folder: Path) -> CorpusFile:
    path = folder / "corpus.jsonl"
    Corpus(passages).save(path)
    return CorpusFile.scan(path)


@pytest.mark.slow
@settings(max_examples=at_most(60))
@given(passages=CORPORA)
def test_a_corpus_on_disk_reads_as_the_one_in_memory(
    passages: list[Passage], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    made = scanned(passages, folder)
    made.keep(folder)
    in_memory = Corpus.load(folder / "corpus.jsonl")
    for corpus in (made, CorpusFile.open(folder / "corpus.jsonl", folder, made.digest), in_memory):
        assert list(corpus) == passages and len(corpus) == len(passages)
        assert [corpus[row] for row in range(-len(corpus), 0)] == passages
        assert corpus[1:3] == tuple(passages[1:3])
        assert all(corpus.has(passage.id) and corpus.by_id(passage.id) == passage for passage in passages)
        assert corpus.digest == Corpus(passages).digest and not corpus.has("no id has fourteen characters")


def test_blank_lines_and_contents_rows_are_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('\n{"id": "a", "contents": "\\"Ada\\"\\nwrote"}\n   \n{"id": 7, "text": "é"}', encoding="utf-8")
    corpus = CorpusFile.scan(path)
    assert list(corpus) == [Passage("a", "Ada", "wrote"), Passage("7", "", "é")] == [corpus[0], corpus[1]]
    assert not corpus.has("b")
    with pytest.raises(KeyError):
        corpus.by_id("b")
    with pytest.raises(IndexError, match="row 2"):
        corpus[2]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is empty"),
        (b'{"id": "a", "text": "x"}\n{"id"', "line 2: not valid JSON"),
        (b'{"id": "a", "text": "\xff"}', "not UTF-8"),
        (b'{"text": "x"}', 'line 1: a passage needs an "id"'),
        (b'{"id": "a"}', 'line 1: passage \'a\' has neither "text" nor "contents"'),
        (b'{"id": "a", "text": "x"}\n{"id": "a", "text": "y"}', "'a' twice"),
    ],
)
def test_a_broken_corpus_is_refused_with_its_line(data: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(data)
    for read in (CorpusFile.scan, Corpus.load):
        with pytest.raises(DataError, match=says):
            read(tmp_path / "corpus.jsonl")


def test_a_corpus_that_is_written_into_while_in_use_is_noticed(tmp_path: Path) -> None:
    corpus = scanned([Passage("a", "Ada", "wrote")], tmp_path)
    corpus.path.write_text("gone")
    with pytest.raises(IndexMismatch, match="passage 0"):
        corpus[0]


def test_a_file_that_looks_as_when_it_was_scanned_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    Corpus([Passage("a", "Ada", "wrote")]).save(path)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    CorpusFile.scan(path).keep(tmp_path)
    os.utime(tmp_path / STAMP, (4_000_000_000, 4_000_000_000))  # long after the file
    assert CorpusFile.open(path, tmp_path, "taken on trust").digest == "taken on trust"
    os.utime(path)
    assert CorpusFile.open(path, tmp_path, "no longer").digest == Corpus.load(path).digest


# --- arrays of indexes


def stored(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)  # type: ignore[arg-type]
    return file.getvalue()


BROKEN_ARRAYS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "cut": lambda: stored(np.arange(100))[:-9],
    "two columns": lambda: stored(np.zeros((4, 2), dtype=np.int64)),
    "floats": lambda: stored(np.zeros(4)),
    "objects, which are pickles": lambda: stored(np.array([{"a": 1}], dtype=object)),
}


@pytest.mark.parametrize("mapped", [None, "r", "c"])
@pytest.mark.parametrize("what", BROKEN_ARRAYS)
def test_what_no_index_writes_is_refused_with_the_way_out(what: str, mapped: None, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    with pytest.raises(DataError, match=r"rows\.npy is missing; rebuild the index"):
        read_array(path, "i", mapped=mapped)
    path.write_bytes(BROKEN_ARRAYS[what]())
    with pytest.raises(DataError, match=r"rows\.npy .*; rebuild the index with `coseek index`"):
        read_array(path, "i", mapped=mapped)


def test_whole_arrays_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "one.npy"
    for array, kind, columns in (
        (np.arange(5), "i", None),
        (np.arange(5, dtype=np.uint8), "i", None),
        (np.zeros(0, dtype=np.float32), "f", None),
        (np.arange(6).reshape(3, 2), "i", 2),
    ):
        np.save(path, array)
        for mapped in (None, "r", "c"):
            loaded = read_array(path, kind, columns, mapped=mapped)  # type: ignore[arg-type]
            assert loaded.dtype == array.dtype and np.array_equal(loaded, array)
