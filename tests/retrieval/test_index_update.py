"""An index that is brought up to date is the one that a rebuild gives."""

import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.digests import digests
from tests.retrieval.tiny_encoder import WORDS, make_encoder

from coseek.core.errors import DataError, IndexMismatch, SettingError
from coseek.data.corpus_file import first_rows
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index, update_index
from coseek.retrieval.retrievers.dense import Dense

TEXTS = st.lists(st.sampled_from(["ada", "bob", "cat", "dog", "Ärger", "月が海"]), max_size=6).map(" ".join)
CORPORA = st.lists(
    st.builds(Passage, st.integers(0, 9).map(str), TEXTS, TEXTS), min_size=1, max_size=10, unique_by=lambda one: one.id
)
ENCODED: dict[str, tuple[str, dict[str, object]]] = {
    "exact": ("dense", {"search": "exact"}),
    "int8": ("dense", {"search": "int8", "dtype": "float16", "batch_size": 3}),
    "hnsw": ("hnsw", {"m": 8}),
}


def made_up(rng: random.Random, ident: int) -> Passage:
    return Passage(f"p{ident}", rng.choice(WORDS), " ".join(rng.choices(WORDS, k=rng.randint(0, 30))))


def edited(passages: list[Passage], rng: random.Random, edits: int, next_id: int) -> list[Passage]:
    """So many random additions, changes and removals, and a few texts that change places."""
    found = list(passages)
    for edit in range(edits):
        at, kind = rng.randrange(len(found)), rng.choice(["add", "change", "remove", "move", "twice"])
        fresh = made_up(rng, next_id + edit)
        if kind == "add":
            found.insert(at, fresh)
        elif kind == "change":
            found[at] = replace(fresh, id=found[at].id)
        elif kind == "remove" and len(found) > 1:
            del found[at]
        elif kind == "move":
            found.insert(rng.randrange(len(found)), found.pop(at))
        else:
            found.insert(at, replace(found[at], id=fresh.id))
    return found


class Totals(list[int]):
    """A report that keeps how many passages are to be encoded."""

    def __call__(self, what: str, done: int, total: int) -> None:
        if what == "passages encoded":
            self.append(total)


def saved(passages: list[Passage], path: Path) -> Path:
    """The corpus file, written long enough ago that its scan is trusted."""
    Corpus(passages).save(path)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
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
    ids, texts = {one.id for one in before}, {one.id: (one.title, one.text) for one in before}
    assert change.added == sum(one.id not in ids for one in after)
    assert change.changed == sum(one.id in ids and texts[one.id] != (one.title, one.text) for one in after)
    assert change.removed == len(ids - {one.id for one in after})
    assert change.added + change.changed + change.kept == len(after)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.lists(st.integers(0, 5), max_size=9))
def test_a_digest_is_found_in_its_first_row(old: list[int], new: list[int]) -> None:
    old_N2, new_M2 = (np.array([(one, -one) for one in some], dtype=np.int64).reshape(-1, 2) for some in (old, new))
    rows = [old.index(one) if one in old else -1 for one in new]
    assert first_rows(old_N2, new_M2).tolist() == rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(ENCODED))
def test_an_updated_index_of_vectors_has_the_bytes_of_a_rebuilt_one(tmp_path: Path, kind: str) -> None:
    rng = random.Random(kind)
    passages = [made_up(rng, row) for row in range(300)]
    encoder = make_encoder(tmp_path / "encoder", normalise=kind != "hnsw")
    retriever, options = ENCODED[kind]
    options = {"encoder": str(encoder), "device": "cpu", **options}
    build_index(saved(passages, tmp_path / "corpus.jsonl"), retriever, tmp_path / "updated", options)
    for batch in range(2):
        passages = edited(passages, rng, 60, 1_000 * (batch + 1))
        path = saved(passages, tmp_path / "corpus.jsonl")
        encoded = Totals()
        change = update_index(path, tmp_path / "updated", report=encoded)
        assert 0 < max(encoded) < 120 and change.kept > 150
        build_index(path, retriever, tmp_path / "rebuilt", options)
        assert digests(tmp_path / "updated") == digests(tmp_path / "rebuilt")
        found, rebuilt = (open_index(tmp_path / name) for name in ("updated", "rebuilt"))
        assert not isinstance(found, Dense) or found.method == kind
        queries = [passage.text for passage in rng.sample(passages, 20)]
        assert found.search(queries, 10) == rebuilt.search(queries, 10)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["corpus.jsonl", "encoder", "rebuilt", "updated"]


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


def test_an_index_whose_encoder_has_changed_is_not_mixed_from_two(tmp_path: Path) -> None:
    encoder = make_encoder(tmp_path / "encoder", seed=1)
    path = saved([Passage("a", "ba", "be"), Passage("b", "bi", "bo")], tmp_path / "corpus.jsonl")
    build_index(path, "dense", tmp_path / "index", {"encoder": str(encoder)})
    make_encoder(encoder, seed=2)
    saved([Passage("a", "ba", "be"), Passage("c", "da", "de")], path)
    before = digests(tmp_path / "index")
    with pytest.raises(IndexMismatch, match="other weights or files; rebuild it"):
        update_index(path, tmp_path / "index")
    assert digests(tmp_path / "index") == before


def test_a_changed_text_is_told_from_one_with_another_border_between_title_and_text(tmp_path: Path) -> None:
    one, other = Corpus([Passage("a", "Ada wrote", "it")]), Corpus([Passage("a", "Ada", " wroteit")])
    build_index(one, "bm25", tmp_path / "index")
    assert update_index(other, tmp_path / "index").changed == 1
