import json
import mmap
from pathlib import Path

import numpy as np
import pytest

from coseek.core.errors import DataError, IndexMismatch, UserError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index, update_index
from coseek.retrieval.retrievers.bm25 import Bm25

CORPUS = Corpus([Passage("1", "Ada", "wrote programs"), Passage("2", "Bob", "wrote songs"), Passage("3", "Cy", "")])
OTHER = Corpus([Passage("1", "Ada", "wrote poems")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CORPUS.save(tmp_path / "world" / "corpus.jsonl")
    return tmp_path / "world"


@pytest.mark.parametrize("retriever", ["bm25", "random"])
def test_an_opened_index_finds_what_the_built_one_found(folder: Path, tmp_path: Path, retriever: str) -> None:
    built = build_index(folder, retriever, tmp_path / "index")
    opened = open_index(tmp_path / "index")
    queries = ["wrote", "ada programs", "nobody"]
    assert opened.search(queries, 2) == built.search(queries, 2)
    assert opened.name == retriever


def test_the_arrays_of_an_index_stay_on_disk(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, Bm25)
    source: object = opened._postings.weights_P
    while isinstance(source, np.ndarray) and not isinstance(source, np.memmap):
        source = source.base
    assert isinstance(source, np.memmap | mmap.mmap)


def test_the_card_names_no_place_of_this_machine(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    card = (tmp_path / "index" / "index.json").read_text()
    assert str(tmp_path) not in card
    assert json.loads(card)["corpus"]["path"] == "../world/corpus.jsonl"


def test_corpus_and_index_may_move_together(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", folder / "bm25")
    folder.rename(tmp_path / "elsewhere")
    assert open_index(tmp_path / "elsewhere" / "bm25").search(["songs"], 1)[0][0].passage.id == "2"


def test_an_index_of_another_corpus_is_refused(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    with pytest.raises(IndexMismatch, match=r"indexes another corpus .* rebuild it"):
        open_index(tmp_path / "index", OTHER)
    OTHER.save(folder / "corpus.jsonl")
    with pytest.raises(IndexMismatch):
        open_index(tmp_path / "index")


def test_an_index_over_a_corpus_in_memory_wants_that_corpus_back(tmp_path: Path) -> None:
    build_index(CORPUS, "bm25", tmp_path / "index")
    assert len(open_index(tmp_path / "index", CORPUS).search(["wrote"], 5)[0]) == 2
    with pytest.raises(DataError, match="corpus in memory"):
        open_index(tmp_path / "index")


def test_a_corpus_that_is_gone_is_named(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    (folder / "corpus.jsonl").unlink()
    with pytest.raises(DataError, match=r"no longer at .*corpus\.jsonl"):
        open_index(tmp_path / "index")


@pytest.mark.parametrize("name", ["hybrid.yaml", "runs/x/run.yaml"])
def test_neither_a_build_nor_an_update_loses_a_file_in_an_index_folder(folder: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "index"
    build_index(folder, "bm25", out)
    build_index(folder, "bm25", out)
    update_index(folder, out)
    mine = out / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    for make in (lambda: build_index(folder, "bm25", out), lambda: update_index(folder, out)):
        with pytest.raises(DataError, match=f"holds {name}, which is no part of its index"):
            make()
    assert mine.read_text() == "mine"
    mine.unlink()
    (out / "checksums.json").write_text("{}")
    build_index(folder, "bm25", out)  # a damaged one is mended by making it anew


def test_a_failed_build_leaves_the_old_index(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    with pytest.raises(UserError, match="no encoder"):
        build_index(folder, "dense", tmp_path / "index", {"encoder": "nowhere/to/be/found"})
    assert open_index(tmp_path / "index").name == "bm25"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "world"]
