import json
import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coseek.core.errors import DataError, IndexMismatch, SettingError, UnknownName, UserError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index, retriever_names
from coseek.retrieval.index_update import update_index
from coseek.retrieval.retrievers.bm25 import Bm25

CORPUS = Corpus([Passage("1", "Ada", "wrote programs"), Passage("2", "Bob", "wrote songs"), Passage("3", "Cy", "")])
OTHER = Corpus([Passage("1", "Ada", "wrote poems")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CORPUS.save(tmp_path / "world" / "corpus.jsonl")
    return tmp_path / "world"


def test_the_retrievers_are_found_by_their_files_names() -> None:
    assert {"bm25", "dense", "hnsw", "ivf-pq", "random"} <= set(retriever_names())


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


def test_settings_are_kept_with_the_index(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index", {"k1": 0.5, "stem": "plural"})
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, Bm25)
    assert opened.settings.k1 == 0.5
    assert [hit.passage.id for hit in opened.search(["song"], 3)[0]] == ["2"]


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


def broken(path: Path) -> None:
    (path / "index.json").write_text("{")


def of_tomorrow(path: Path) -> None:
    (path / "index.json").write_text('{"schema": 99}')


def not_a_card(path: Path) -> None:
    (path / "index.json").write_text('["schema"]')


def of_no_retriever(path: Path) -> None:
    card = json.loads((path / "index.json").read_text())
    (path / "index.json").write_text(json.dumps({**card, "retriever": "bm52"}))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (broken, "not valid JSON"),
        (of_tomorrow, "schema 99"),
        (not_a_card, "a JSON object is needed, not list; rebuild it"),
        (of_no_retriever, r"index\.json is damaged"),
    ],
)
def test_a_spoilt_card_ends_in_a_sentence(
    folder: Path, tmp_path: Path, spoil: Callable[[Path], None], sentence: str
) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    spoil(tmp_path / "index")
    with pytest.raises(UserError, match=sentence):
        open_index(tmp_path / "index")


def test_paths_may_be_plain_strings(folder: Path, tmp_path: Path) -> None:
    build_index(str(folder), "bm25", str(tmp_path / "index"))
    assert open_index(str(tmp_path / "index")).name == "bm25"


@pytest.mark.parametrize("length", [251, 255, 300])
def test_a_name_too_long_to_exist_is_no_index(tmp_path: Path, length: int) -> None:
    with pytest.raises(DataError, match="there is no index"):
        open_index(tmp_path / ("x" * length))


def test_a_folder_that_is_no_index_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no index"):
        open_index(tmp_path / "nowhere")
    with pytest.raises(DataError, match="not an index"):
        open_index(folder)


def test_an_unknown_retriever_or_setting_offers_the_nearest_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean 'bm25'"):
        build_index(folder, "bm-25", tmp_path / "index")
    with pytest.raises(SettingError, match="did you mean 'stem'"):
        build_index(folder, "bm25", tmp_path / "index", {"stemm": "plural"})
    with pytest.raises(SettingError, match="'k1' needs at least 0"):
        build_index(folder, "bm25", tmp_path / "index", {"k1": -1})
    assert not (tmp_path / "index").exists()


def test_what_needs_no_index_is_not_built(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="'hybrid' needs no index; put `retriever: hybrid` into a YAML file"):
        build_index(folder, "hybrid", tmp_path / "index")
    assert "hybrid" not in retriever_names()


def test_only_what_matters_when_searching_may_be_chosen_when_opening(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    assert open_index(tmp_path / "index", overrides={}).name == "bm25"
    with pytest.raises(SettingError, match="'k1' is fixed when an index of 'bm25' is made; nothing may be"):
        open_index(tmp_path / "index", overrides={"k1": 0.5})


def test_an_index_never_replaces_a_folder_of_something_else(folder: Path) -> None:
    with pytest.raises(DataError, match="exists and is not an index"):
        build_index(folder, "bm25", folder)
    assert len(Corpus.load(folder / "corpus.jsonl")) == 3


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


def test_a_data_folder_without_a_corpus_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no corpus\.jsonl"):
        build_index(tmp_path, "bm25", tmp_path / "index")
