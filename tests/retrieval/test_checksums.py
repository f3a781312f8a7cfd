"""A damaged index, or a corpus that changed below it, never answers."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.digests import digests
from tests.examples_drawn import at_most
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import DataError, IndexMismatch, UserError
from coseek.core.files import json_line, read_json, write_json
from coseek.data.corpus_file import STAMP
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.index import build_index, open_index, verify_index
from coseek.retrieval.index_files import BLOCK_BYTES, CHECKSUMS, Checksums
from coseek.retrieval.index_update import update_index

PASSAGES = list(sentences(40))
ASKED = ["ba be bi", "do du", "fa"]
KINDS: dict[str, tuple[str, dict[str, object]]] = {
    "bm25": ("bm25", {}),
    "exact": ("dense", {"search": "exact"}),
    "int8": ("dense", {"search": "int8"}),
    "hnsw": ("hnsw", {"m": 8}),
    "ivf-pq": ("ivf-pq", {"nbits": 4, "m": 2}),
}


def silent(what: str, done: int, total: int) -> None:
    pass


def saved(passages: list[Passage], path: Path) -> Path:
    """The corpus file, with a time long ago."""
    Corpus(passages).save(path)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[list[Hit]]]]:
    """An index of a kind, made once, and what it finds."""
    home, found = tmp_path_factory.mktemp("indexes"), {}
    path, encoder = saved(PASSAGES, home / "corpus.jsonl"), make_encoder(home / "encoder")

    def make(kind: str) -> tuple[Path, list[list[Hit]]]:
        retriever, options = KINDS[kind]
        if kind not in found:
            named = {} if kind == "bm25" else {"encoder": str(encoder)}
            found[kind] = build_index(path, retriever, home / kind, {**options, **named}).search(ASKED, 5)
        return home / kind, found[kind]

    return make


def refusal(folder: Path) -> str:
    """The sentence with which an index does not open; empty for one that does."""
    try:
        open_index(folder)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=at_most(60), deadline=None)
@given(data=st.data())
def test_a_flipped_bit_anywhere_in_an_index_is_a_sentence_with_the_file_or_changes_nothing(
    kind: str, data: st.DataObject, made: Callable[[str], tuple[Path, list[list[Hit]]]]
) -> None:
    folder, wanted = made(kind)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    file = data.draw(st.sampled_from(files))
    whole = file.read_bytes()
    at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
    file.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    try:
        if file.name in (CHECKSUMS, STAMP):  # the first may accuse another file, the second is renewed
            said = refusal(folder)
            assert str(folder) in said if said else open_index(folder).search(ASKED, 5) == wanted
        else:
            assert file.name in refusal(folder) and "coseek index" in refusal(folder)
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda file: file.unlink(),
        lambda file: os.truncate(file, file.stat().st_size // 2),
        lambda file: (file.unlink(), file.mkdir()),
    ],
    ids=["gone", "short", "a folder"],
)
@pytest.mark.parametrize("name", ["weights.npy", CHECKSUMS])
def test_a_file_that_is_gone_or_short_is_named_with_the_way_out(
    tmp_path: Path, spoil: Callable[[Path], object], name: str
) -> None:
    build_index(saved(PASSAGES, tmp_path / "corpus.jsonl"), "bm25", tmp_path / "index")
    spoil(tmp_path / "index" / name)
    for use in (open_index, verify_index, lambda index: update_index(tmp_path / "corpus.jsonl", index)):
        with pytest.raises(DataError, match=f"{name}.*rebuild the index"):
            use(tmp_path / "index")


def sampled(sums: Checksums, seed: int) -> str:
    """What the check of five blocks finds."""
    try:
        sums.check_sample(random.Random(seed), 5)
    except DataError as error:
        return str(error).partition(";")[0]
    return ""


def test_a_large_file_is_sampled_when_opened_and_read_whole_on_request(tmp_path: Path) -> None:
    blocks = 9
    (tmp_path / "large").write_bytes(b"a" * BLOCK_BYTES * blocks)
    Checksums.write(tmp_path)
    sums, damaged = Checksums.read(tmp_path), tmp_path / "large"
    with damaged.open("r+b") as file:
        file.seek(BLOCK_BYTES * 5 + 7)
        file.write(b"b")
    caught = [sampled(sums, seed) for seed in range(40)]
    assert {*caught} == {"", f"{damaged} is damaged (block 6 of 9 has changed)"}
    assert 5 < caught.count("") < 35  # 4 of the 8 blocks behind the first are read
    with pytest.raises(DataError, match="block 6 of 9"):
        sums.check_all(silent)
    with damaged.open("r+b") as file:
        file.write(b"b")
    with pytest.raises(DataError, match="block 1 of 9"):
        sums.check_sample(random.Random(0), 1)


def test_checksums_that_name_files_elsewhere_are_refused(tmp_path: Path) -> None:
    for name in ("../secret", "/etc/passwd"):
        write_json(tmp_path / CHECKSUMS, {"schema": 1, "files": {name: {"bytes": 0, "blocks": ""}}})
        with pytest.raises(DataError, match="outside of the index"):
            Checksums.read(tmp_path)


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


@pytest.mark.parametrize("form", ["\n\n{}", "{}\n", "swapped"])
def test_a_corpus_whose_lines_moved_or_have_another_form_is_read_as_it_is_now(tmp_path: Path, form: str) -> None:
    path = saved(PASSAGES, tmp_path / "corpus.jsonl")
    wanted = build_index(path, "bm25", tmp_path / "index").search(ASKED, 5)
    text = path.read_text()
    rows = [dict(reversed(json.loads(line).items())) for line in text.splitlines()]
    path.write_text("".join(map(json_line, rows)) if form == "swapped" else form.format(text))
    for _ in range(2):
        assert open_index(tmp_path / "index").search(ASKED, 5) == wanted


def test_a_damaged_index_is_not_updated_into_one_that_looks_whole(tmp_path: Path) -> None:
    path = saved(PASSAGES, tmp_path / "corpus.jsonl")
    build_index(path, "bm25", tmp_path / "index")
    file = tmp_path / "index" / "times.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\7")
    saved(PASSAGES[:30], path)
    before = digests(tmp_path / "index")
    with pytest.raises(DataError, match=r"times\.npy is damaged"):
        update_index(path, tmp_path / "index")
    assert digests(tmp_path / "index") == before


def test_an_update_leaves_checksums_that_hold(tmp_path: Path) -> None:
    path = saved(PASSAGES, tmp_path / "corpus.jsonl")
    build_index(path, "bm25", tmp_path / "index")
    saved(PASSAGES[5:], path)
    update_index(path, tmp_path / "index")
    found = verify_index(tmp_path / "index")
    assert found.files == len(Checksums.read(tmp_path / "index").files) >= 10


def test_an_index_that_is_copied_with_its_corpus_stays_whole(tmp_path: Path) -> None:
    path = saved(PASSAGES, tmp_path / "here" / "corpus.jsonl")
    wanted = build_index(path, "bm25", tmp_path / "here" / "index").search(ASKED, 5)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    assert verify_index(tmp_path / "there" / "index").corpus == tmp_path / "there" / "corpus.jsonl"
    assert open_index(tmp_path / "there" / "index").search(ASKED, 5) == wanted
