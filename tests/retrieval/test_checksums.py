"""A damaged index, or a corpus that changed below it, never answers."""

import os
from pathlib import Path

import pytest
from tests.retrieval.tiny_encoder import sentences

from coseek.core.errors import DataError, IndexMismatch
from coseek.core.files import read_json
from coseek.data.corpus_file import STAMP
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index, update_index, verify_index
from coseek.retrieval.index_files import CHECKSUMS

PASSAGES = list(sentences(40))
ASKED = ["ba be bi", "do du", "fa"]


def saved(passages: list[Passage], path: Path) -> Path:
    """The corpus file, with a time long ago."""
    Corpus(passages).save(path)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


@pytest.mark.parametrize("name", ["weights.npy", CHECKSUMS])
def test_a_file_that_is_short_is_named_with_the_way_out(tmp_path: Path, name: str) -> None:
    build_index(saved(PASSAGES, tmp_path / "corpus.jsonl"), "bm25", tmp_path / "index")
    os.truncate(tmp_path / "index" / name, (tmp_path / "index" / name).stat().st_size // 2)
    for use in (open_index, verify_index, lambda index: update_index(tmp_path / "corpus.jsonl", index)):
        with pytest.raises(DataError, match=f"{name}.*rebuild the index"):
            use(tmp_path / "index")


def test_a_flipped_bit_is_found_on_request_and_named(tmp_path: Path) -> None:
    build_index(saved(PASSAGES, tmp_path / "corpus.jsonl"), "bm25", tmp_path / "index")
    whole = (tmp_path / "index" / "rows.npy").read_bytes()
    (tmp_path / "index" / "rows.npy").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    for use in (verify_index, lambda index: update_index(tmp_path / "corpus.jsonl", index)):
        with pytest.raises(DataError, match=r"rows\.npy is damaged.*rebuild the index"):
            use(tmp_path / "index")


def changed_in_secret(path: Path) -> None:
    """Change a text, and restore size and time."""
    before = path.stat()
    path.write_text(path.read_text().replace('"p3"', '"q3"'))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


def test_a_corpus_that_changed_is_noticed_whatever_its_size_and_time(tmp_path: Path) -> None:
    passages = [Passage(f"p{row}", "", f"word{row} ada") for row in range(9)]
    path = saved(passages, tmp_path / "corpus.jsonl")
    build_index(path, "bm25", tmp_path / "index")
    opened = open_index(tmp_path / "index")
    changed_in_secret(path)
    for use in (open_index, verify_index):
        with pytest.raises(IndexMismatch, match=r"changed since|another corpus"):
            use(tmp_path / "index")
    with pytest.raises(IndexMismatch, match=r"passage 3 of .*corpus\.jsonl has changed"):
        opened.search(["word3"], 1)
    assert [hit.passage.id for hit in opened.search(["word4"], 1)[0]] == ["p4"]
    update_index(path, tmp_path / "index")
    assert [hit.passage.id for hit in open_index(tmp_path / "index").search(["word3"], 1)[0]] == ["q3"]


def test_a_corpus_that_was_only_touched_is_scanned_once_more_and_then_trusted(tmp_path: Path) -> None:
    path = saved(PASSAGES, tmp_path / "corpus.jsonl")
    build_index(path, "bm25", tmp_path / "index")
    os.utime(path, (1_100_000_000, 1_100_000_000))
    wanted = open_index(tmp_path / "index").search(ASKED, 5)
    stamp = read_json(tmp_path / "index" / STAMP)
    assert isinstance(stamp, dict) and stamp["modified_ns"] == 1_100_000_000 * 10**9
    assert open_index(tmp_path / "index").search(ASKED, 5) == wanted
    assert verify_index(tmp_path / "index").corpus == path
