"""Indexes: hits, refusals and updates; a damaged index never returns hits."""

import mmap
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.digests import digests
from tests.retrieval.tiny_encoder import WORDS, make_encoder, sentences

from coseek.core.errors import DataError, IndexMismatch, SettingError, UserError
from coseek.core.files import JsonObject, read_json
from coseek.data.corpus_file import STAMP
from coseek.data.passage import Corpus, Passage
from coseek.hardware import device
from coseek.retrieval.index import IndexCard, build_index, open_index, update_index, verify_index
from coseek.retrieval.index_files import CHECKSUMS
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.dense import Dense, DenseSettings

CORPUS = Corpus([Passage("1", "Ada", "wrote programs"), Passage("2", "Bob", "wrote songs"), Passage("3", "Cy", "")])
OTHER = Corpus([Passage("1", "Ada", "wrote poems")])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    CORPUS.save(tmp_path / "world" / "corpus.jsonl")
    return tmp_path / "world"


def test_the_arrays_of_an_index_stay_on_disk(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, Bm25)
    source: object = opened._postings.weights_P
    while isinstance(source, np.ndarray) and not isinstance(source, np.memmap):
        source = source.base
    assert isinstance(source, np.memmap | mmap.mmap)


def test_corpus_and_index_may_move_together(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", folder / "bm25")
    assert str(tmp_path) not in (folder / "bm25" / "index.json").read_text()
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


@pytest.mark.medium
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
    build_index(folder, "bm25", out)  # rebuilding repairs a damaged index


def test_an_index_of_another_retriever_is_not_replaced(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "random", tmp_path / "index")
    with pytest.raises(DataError, match="is an index of random, not bm25"):
        build_index(folder, "bm25", tmp_path / "index")
    assert open_index(tmp_path / "index").name == "random"


def test_a_failed_build_leaves_the_old_index(folder: Path, tmp_path: Path) -> None:
    build_index(folder, "bm25", tmp_path / "index")
    with pytest.raises(UserError, match="no encoder"):
        build_index(folder, "dense", tmp_path / "index", {"encoder": "nowhere/to/be/found"})
    assert open_index(tmp_path / "index").name == "bm25"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index", "world"]


# --- an updated index equals a rebuilt one


TEXTS = st.lists(st.sampled_from(["ada", "bob", "cat", "dog", "Ärger", "月が海"]), max_size=6).map(" ".join)
CORPORA = st.lists(
    st.builds(Passage, st.integers(0, 9).map(str), TEXTS, TEXTS),
    min_size=1,
    max_size=10,
    unique_by=lambda passage: passage.id,
)
ENCODED: dict[str, tuple[str, dict[str, object]]] = {
    "int8": ("dense", {"search": "int8", "dtype": "float16", "batch_size": 3}),
    "hnsw": ("hnsw", {"m": 8}),
}


def made_up(rng: random.Random, ident: int) -> Passage:
    return Passage(f"p{ident}", rng.choice(WORDS), " ".join(rng.choices(WORDS, k=rng.randint(0, 30))))


def edited(passages: list[Passage], rng: random.Random, edits: int, next_id: int) -> list[Passage]:
    """Apply `edits` random additions, changes, removals, moves and duplications."""
    changed = list(passages)
    for edit in range(edits):
        at, kind = rng.randrange(len(changed)), rng.choice(["add", "change", "remove", "move", "twice"])
        fresh = made_up(rng, next_id + edit)
        if kind == "add":
            changed.insert(at, fresh)
        elif kind == "change":
            changed[at] = replace(fresh, id=changed[at].id)
        elif kind == "remove" and len(changed) > 1:
            del changed[at]
        elif kind == "move":
            changed.insert(rng.randrange(len(changed)), changed.pop(at))
        else:
            changed.insert(at, replace(changed[at], id=fresh.id))
    return changed


class Totals(list[int]):
    """A report that records the number of passages to encode."""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "passages encoded":
            self.append(total)


def saved(passages: list[Passage], path: Path) -> Path:
    """Save the corpus with an old modification time, so that its scan is trusted."""
    Corpus(passages).save(path)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(before=CORPORA, after=CORPORA, title_weight=st.integers(0, 2))
def test_an_updated_bm25_index_has_the_bytes_of_a_rebuilt_one(
    before: list[Passage], after: list[Passage], title_weight: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("update")
    weights = {"title_weight": title_weight, "stop_words": True}
    build_index(saved(before, folder / "corpus.jsonl"), "bm25", folder / "updated", weights)
    change = update_index(saved(after, folder / "corpus.jsonl"), folder / "updated")
    build_index(folder / "corpus.jsonl", "bm25", folder / "rebuilt", weights)
    assert digests(folder / "updated") == digests(folder / "rebuilt")
    ids, texts = {passage.id for passage in before}, {passage.id: (passage.title, passage.text) for passage in before}
    assert change.added == sum(passage.id not in ids for passage in after)
    assert change.changed == sum(
        passage.id in ids and texts[passage.id] != (passage.title, passage.text) for passage in after
    )
    assert change.removed == len(ids - {passage.id for passage in after})
    assert change.added + change.changed + change.kept == len(after)


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(ENCODED))
def test_an_updated_index_of_vectors_has_the_bytes_of_a_rebuilt_one(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    passages = [made_up(rng, row) for row in range(150)]
    encoder = make_encoder(tmp_path / "encoder", normalise=kind != "hnsw")
    retriever, options = ENCODED[kind]
    options = {"encoder": str(encoder), "device": "cpu", **options}
    build_index(saved(passages, tmp_path / "corpus.jsonl"), retriever, tmp_path / "updated", options)
    for batch in range(2):
        passages = edited(passages, rng, 30, 1_000 * (batch + 1))
        path = saved(passages, tmp_path / "corpus.jsonl")
        encoded = Totals()
        change = update_index(path, tmp_path / "updated", report=encoded)
        assert 0 < max(encoded) < 60 and change.kept > 75
        build_index(path, retriever, tmp_path / "rebuilt", options)
        assert digests(tmp_path / "updated") == digests(tmp_path / "rebuilt")
        updated, rebuilt = (open_index(tmp_path / name) for name in ("updated", "rebuilt"))
        assert not isinstance(updated, Dense) or updated.method == kind
        queries = [passage.text for passage in rng.sample(passages, 20)]
        assert updated.search(queries, 10) == rebuilt.search(queries, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl", "encoder", "rebuilt", "updated"]


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "options", "changed"),
    [
        ("dense", {"search": "int8"}, {"search": "exact", "block_rows": 7}),
        ("hnsw", {}, {"ef_search": 9, "queries_together": 2}),
    ],
)
def test_a_setting_that_an_update_changes_is_kept_and_its_index_opens(
    tmp_path: Path, encoder: Path, kind: str, options: JsonObject, changed: JsonObject
) -> None:
    passages = list(sentences(40))
    build_index(
        saved(passages[:30], tmp_path / "corpus.jsonl"), kind, tmp_path / "index", {"encoder": str(encoder), **options}
    )
    update_index(saved(passages, tmp_path / "corpus.jsonl"), tmp_path / "index", settings=changed)
    opened = open_index(tmp_path / "index")
    assert opened.search([passages[35].text], 1)[0][0].passage == passages[35]
    stored = IndexCard.read(tmp_path / "index").settings
    assert stored.items() >= changed.items()


def test_a_passage_that_only_moved_in_its_file_or_got_another_form_is_not_read_again(tmp_path: Path) -> None:
    path = saved([Passage("a", "Ada", "wrote"), Passage("b", "Bob", "sang")], tmp_path / "corpus.jsonl")
    build_index(path, "bm25", tmp_path / "index")
    path.write_text('\n{"id": "b", "contents": "\\"Bob\\"\\nsang"}\n  \n{"text": "wrote", "id": "a", "title": "Ada"}')
    assert str(update_index(path, tmp_path / "index")) == "0 new, 0 changed, 0 removed, 2 kept"
    assert [hit.passage.id for hit in open_index(tmp_path / "index").search(["ada sang"], 2)[0]] == ["b", "a"]


def test_what_an_update_cannot_start_from_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = saved([Passage("a", "Ada", "wrote")], tmp_path / "corpus.jsonl")
    with pytest.raises(DataError, match="there is no index"):
        update_index(path, tmp_path / "index")
    build_index(path, "bm25", tmp_path / "index")
    with pytest.raises(SettingError, match="an index of 'bm25', not of 'dense'"):
        update_index(path, tmp_path / "index", "dense")
    with pytest.raises(SettingError, match="'k1' is fixed"):
        update_index(path, tmp_path / "index", settings={"k1": 0.5})
    (tmp_path / "index" / "digests.npy").unlink()
    with pytest.raises(DataError, match=r"digests\.npy.*rebuild"):
        update_index(path, tmp_path / "index")


@pytest.mark.parametrize("retriever", ["dense", "late-interaction"])
def test_an_index_whose_encoder_has_changed_is_not_mixed_from_two(tmp_path: Path, retriever: str) -> None:
    encoder = make_encoder(tmp_path / "encoder", seed=1)
    path = saved([Passage("a", "ba", "be"), Passage("b", "bi", "bo")], tmp_path / "corpus.jsonl")
    build_index(path, retriever, tmp_path / "index", {"encoder": str(encoder)})
    make_encoder(encoder, seed=2)
    saved([Passage("a", "ba", "be"), Passage("c", "da", "de")], path)
    before = digests(tmp_path / "index")
    with pytest.raises(IndexMismatch, match="other weights or files; rebuild it"):
        update_index(path, tmp_path / "index")
    assert digests(tmp_path / "index") == before


def test_a_changed_text_is_told_from_one_with_another_border_between_title_and_text(tmp_path: Path) -> None:
    first, other = Corpus([Passage("a", "Ada wrote", "it")]), Corpus([Passage("a", "Ada", " wroteit")])
    build_index(first, "bm25", tmp_path / "index")
    assert update_index(other, tmp_path / "index").changed == 1


# --- a damaged index, or one whose corpus changed, never returns hits


PASSAGES = list(sentences(40))
ASKED = ["ba be bi", "do du", "fa"]


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


# --- encoding a corpus


class Stopped(Exception):
    """Ends a build in these tests."""


class StopsAfter:
    """Reports progress, and stops the build at the `reports`-th report."""

    def __init__(self, reports: int) -> None:
        self.left = reports
        self.first: int | None = None

    def __call__(self, what: str, done: int, total: int) -> None:
        self.first = done if self.first is None else self.first
        self.left -= 1
        if not self.left:
            raise Stopped


@pytest.mark.slow
def test_a_build_that_is_stopped_anywhere_goes_on_to_the_same_bytes(
    tmp_path: Path, encoder: Path, corpus: Corpus
) -> None:
    settings = {"encoder": str(encoder), "batch_size": 8, "dtype": "float16", "search": "int8"}
    build_index(corpus, "dense", tmp_path / "whole" / "index", settings)
    target = tmp_path / "stopped" / "index"
    began: list[int | None] = []
    for reports in (3, 40, 9):
        report = StopsAfter(reports)
        with pytest.raises(Stopped):
            build_index(corpus, "dense", target, settings, report)
        assert not target.exists()
        began.append(report.first)
    build_index(corpus, "dense", target, settings)
    assert began == [0, 0, 256]
    assert digests(target) == digests(tmp_path / "whole" / "index")
    assert [path.name for path in target.parent.iterdir()] == ["index"]


@pytest.mark.slow
def test_processes_that_share_a_corpus_write_the_bytes_of_one(
    tmp_path: Path, encoder: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"encoder": str(encoder), "batch_size": 8, "device": "cpu"}
    build_index(corpus, "dense", tmp_path / "alone", settings)
    monkeypatch.setattr(device, "accelerators", lambda: (None, 0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # as set by torchrun
    assert DenseSettings.model_validate({**settings, "devices": "auto"}).spread == ["cpu", "cpu"]
    build_index(corpus, "dense", tmp_path / "together", {**settings, "devices": "auto"})
    assert digests(tmp_path / "together") == digests(tmp_path / "alone")


def test_devices_of_two_kinds_do_not_share_a_corpus(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    with pytest.raises(SettingError, match="differ in the last bits; use one kind"):
        build_index(corpus, "dense", tmp_path / "x", {"encoder": str(encoder), "devices": ["cpu", "cuda:0"]})
    assert not list(tmp_path.glob(".x*"))


@pytest.mark.medium
def test_a_stopped_build_with_other_settings_or_another_encoder_begins_anew(tmp_path: Path, corpus: Corpus) -> None:
    for seed, prompt in ((1, ""), (1, "ba "), (2, "ba ")):
        encoder = make_encoder(tmp_path / "encoder", seed=seed)
        settings, report = {"encoder": str(encoder), "batch_size": 8, "passage_prompt": prompt}, StopsAfter(40)
        with pytest.raises(Stopped):
            build_index(corpus, "dense", tmp_path / "index", settings, report)
        assert report.first == 0
