"""Faiss indexes: graphs, cells and codes, and published files."""

from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import DataError, SettingError, UserError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index, update_index
from coseek.retrieval.retrievers import hnsw, ivf_pq
from coseek.retrieval.retrievers.hnsw import GRAPH, HnswSearch, HnswSettings, build_graph
from coseek.retrieval.retrievers.ivf_pq import IvfPqSearch, IvfPqSettings, fill_cells
from coseek.retrieval.vectors.corpus_encoding import window_encoder
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, fill_from_card, passage_text
from coseek.retrieval.vectors.encoder import Vectors
from coseek.retrieval.vectors.exact import ExactSearch
from coseek.retrieval.vectors.faiss_index import Lift, write_file
from coseek.retrieval.vectors.store import Rows, VectorStore

pytestmark = pytest.mark.medium

QUERIES = ["ba be", "gu go ge", " ", "do"]
EF_SEARCH = 64


def clustered(rows: int, dim: int, seed: int, *, unit: bool, spread: float = 0.4) -> Vectors:
    """Vectors around a hundred centres, of different lengths unless `unit`."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((100, dim))
    vectors = centres[rng.integers(0, 100, rows)] + spread * rng.standard_normal((rows, dim))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if unit else rng.uniform(0.5, 2.0, (rows, 1))
    return (vectors / lengths).astype(np.float32)


def recall(rows: Rows, expected: Rows) -> float:
    pairs = zip(rows.tolist(), expected.tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(theirs)) / len(theirs) for mine, theirs in pairs]))


@pytest.mark.slow
@pytest.mark.parametrize("unit", [True, False])
def test_the_graph_finds_what_looking_at_everything_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: bool
) -> None:
    # Added to faiss in several blocks, like a large corpus.
    monkeypatch.setattr("coseek.retrieval.vectors.faiss_index.BLOCK_ROWS", 700)
    both = clustered(4_100, 32, 0, unit=unit)
    store, queries = VectorStore.of(both[:4_000]), both[4_000:]
    write_file(build_graph(store, HnswSettings(m=16), normalised=unit), tmp_path / "graph")
    rows, scores = HnswSearch(tmp_path / "graph", EF_SEARCH).search(queries, 10)
    expected, right = ExactSearch(store).search(queries, 10)
    reached = recall(rows, expected)
    print(f"recall@10 {reached:.3f} at ef_search={EF_SEARCH}")
    assert reached >= 0.95
    same = rows == expected
    assert np.allclose(scores[same], right[same], rtol=1e-5)


def test_a_graph_that_is_opened_again_finds_the_same_and_is_the_same_when_made_again(
    tmp_path: Path, encoder: Path, corpus: Corpus
) -> None:
    built = build_index(corpus, "hnsw", tmp_path / "one", {"encoder": str(encoder)})
    opened = open_index(tmp_path / "one", corpus)
    assert opened.search(QUERIES, 7) == built.search(QUERIES, 7)
    assert opened.identity == built.identity
    build_index(corpus, "hnsw", tmp_path / "two", {"encoder": str(encoder)})
    graphs = [(tmp_path / name / hnsw.GRAPH).read_bytes() for name in ("one", "two")]
    assert graphs[0] == graphs[1]
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["checksums.json", "digests.npy", "encoder.json", "graph.faiss", "index.json"]


def test_a_query_finds_the_same_alone_and_in_a_batch_and_never_a_passage_that_is_not_there(
    tmp_path: Path, encoder: Path
) -> None:
    corpus = sentences(12)
    opened = build_index(corpus, "hnsw", tmp_path / "index", {"encoder": str(encoder)})
    many = [*QUERIES, *(passage.text for passage in corpus)] * 2
    hit_lists = opened.search(many, 50)
    assert hit_lists == [opened.search([query], 50)[0] for query in many]
    assert [len(hits) for hits in hit_lists[:4]] == [12, 12, 0, 12]
    for hits in hit_lists:
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)


def test_equal_passages_keep_corpus_order(tmp_path: Path, encoder: Path) -> None:
    twins = Corpus(Passage(f"{passage.id}{twin}", "", passage.text) for passage in sentences(40) for twin in "ba")
    opened = build_index(twins, "hnsw", tmp_path / "index", {"encoder": str(encoder)})
    rank = {passage.id: row for row, passage in enumerate(twins)}
    for hits in opened.search(["ba", "do du"], 80):
        pairs = [(-hit.score, rank[hit.passage.id]) for hit in hits]
        assert pairs == sorted(pairs)


def test_vectors_of_many_lengths_become_equally_long_without_changing_a_product() -> None:
    vectors = clustered(50, 8, 0, unit=False)
    store, query = VectorStore.of(vectors), clustered(1, 8, 1, unit=False)
    lift = Lift(store, normalised=False, multiple=4)
    lifted = lift.rows(np.arange(50))
    assert lifted.shape == (50, 12)
    assert np.allclose(np.linalg.norm(lifted, axis=1), np.linalg.norm(vectors, axis=1).max(), rtol=1e-5)
    assert np.allclose(lifted[:, :8] @ query[0], vectors @ query[0])
    unit = Lift(store, normalised=False, unit=True).rows(np.arange(50))
    assert np.allclose(np.linalg.norm(unit, axis=1), 1.0, rtol=1e-5)
    assert Lift(store, normalised=True).dim == 8


# --- cells and codes


@pytest.mark.parametrize("unit", [True, False])
def test_cells_and_codes_find_most_of_what_looking_at_everything_finds(tmp_path: Path, unit: bool) -> None:
    both = clustered(4_100, 32, 0, unit=unit)
    store, queries = VectorStore.of(both[:4_000]), both[4_000:]
    settings = IvfPqSettings(nlist=40, nprobe=10, m=8, nbits=6)
    write_file(fill_cells(store, settings, normalised=unit), tmp_path / "cells")
    rows, scores = IvfPqSearch(tmp_path / "cells", settings, store).search(queries, 10)
    expected, right = ExactSearch(store).search(queries, 10)
    refined = recall(rows, expected)
    assert refined >= 0.9
    same = rows == expected
    assert same.any() and (scores[same] == right[same]).all()  # refined rows have exact scores
    coarse, _ = IvfPqSearch(tmp_path / "cells", settings, None).search(queries, 10)
    assert 0.3 < recall(coarse, expected) < refined


@pytest.mark.slow
def test_cells_that_are_opened_again_find_the_same_and_are_the_same_when_made_again(
    tmp_path: Path, encoder: Path, corpus: Corpus
) -> None:
    settings: dict[str, object] = {"encoder": str(encoder), "seed": 3}
    built = build_index(corpus, "ivf-pq", tmp_path / "one", settings)
    assert open_index(tmp_path / "one", corpus).search(QUERIES, 7) == built.search(QUERIES, 7)
    build_index(corpus, "ivf-pq", tmp_path / "two", settings)
    build_index(corpus, "ivf-pq", tmp_path / "three", {**settings, "seed": 4})
    one, two, three = ((tmp_path / name / ivf_pq.CELLS).read_bytes() for name in ("one", "two", "three"))
    assert one == two != three


def test_without_refining_no_vectors_are_kept(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    build_index(corpus, "ivf-pq", tmp_path / "index", {"encoder": str(encoder), "refine": 0})
    files = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert files == ["cells.faiss", "checksums.json", "digests.npy", "encoder.json", "index.json"]
    assert len(open_index(tmp_path / "index", corpus, {"nprobe": 99}).search(["ba"], 5)[0]) == 5
    with pytest.raises(SettingError, match=r"refine=4: .* without vectors"):
        open_index(tmp_path / "index", corpus, {"refine": 4})


@pytest.mark.parametrize("pieces", [1, 5, 32, 40])
def test_a_vector_may_be_cut_into_any_number_of_pieces(pieces: int) -> None:
    store = VectorStore.of(clustered(300, 32, 0, unit=True))
    index = fill_cells(store, IvfPqSettings(m=pieces, nbits=4, nlist=2), normalised=True)
    assert index.ntotal == 300 and index.d % pieces == 0
    assert np.isfinite(index.search(np.zeros((1, index.d), dtype=np.float32), 3)[0]).all()


# --- published files: only vectors of this corpus and encoder are imported


Text = Callable[[Passage], str]


def quoted(passage: Passage) -> str:
    """A passage as Search-R1's program encodes it."""
    return f'"{passage.title}"\n{passage.text}'


def encoded(corpus: Corpus, encoder: Path, text: Text = passage_text, prompt: str | None = None) -> Vectors:
    given = fill_from_card(EmbeddingSettings(encoder=str(encoder), device="cpu", passage_prompt=prompt))
    return window_encoder(given)([text(passage) for passage in corpus])


def written(path: Path, vectors: Vectors, kind: str = "Flat") -> str:
    index = faiss.index_factory(vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT)
    if not index.is_trained:
        index.train(vectors)
    index.add(vectors)
    faiss.write_index(index, str(path))
    return str(path)


@pytest.mark.parametrize("text", [passage_text, quoted])
@pytest.mark.parametrize("retriever", ["dense", "hnsw"])
def test_a_flat_file_gives_the_ids_of_our_own_build(
    tmp_path: Path, encoder: Path, corpus: Corpus, retriever: str, text: Text
) -> None:
    settings = {"encoder": str(encoder), "device": "cpu"}
    file = written(tmp_path / "e5_Flat.index", encoded(corpus, encoder, text))
    taken = build_index(corpus, retriever, tmp_path / "taken", {**settings, "vectors": file})
    Path(file).unlink()  # the index stands alone
    hit_lists = open_index(tmp_path / "taken", corpus).search(QUERIES, 9)
    assert hit_lists == taken.search(QUERIES, 9)
    if text is quoted:
        with pytest.raises(DataError, match="quoted titles, unlike new ones; rebuild"):
            update_index(corpus, tmp_path / "taken")
    else:
        built = build_index(corpus, retriever, tmp_path / "built", settings)
        assert hit_lists == built.search(QUERIES, 9) and taken.identity == built.identity
        files = [
            {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*.npy")} for name in ("taken", "built")
        ]
        assert files[0] == files[1]


def test_a_published_graph_is_taken_as_it_is_and_its_index_can_be_updated(tmp_path: Path, encoder: Path) -> None:
    corpus, settings = sentences(40), {"encoder": str(encoder), "m": 8, "device": "cpu"}
    file = written(tmp_path / "e5_HNSW8.index", encoded(corpus, encoder), "HNSW8,Flat")
    taken = build_index(corpus, "hnsw", tmp_path / "taken", {**settings, "vectors": file})
    assert (tmp_path / "taken" / GRAPH).read_bytes() == Path(file).read_bytes()
    exact = build_index(corpus, "dense", tmp_path / "exact", {"encoder": str(encoder), "device": "cpu"})
    ids = [[[hit.passage.id for hit in hits] for hits in index.search(QUERIES, 5)] for index in (taken, exact)]
    assert ids[0] == ids[1]
    assert update_index(Corpus(list(corpus)[:30]), tmp_path / "taken").removed == 10
    with pytest.raises(SettingError, match="a graph of m=8, not 64; say m=8"):
        build_index(corpus, "hnsw", tmp_path / "other", {"encoder": str(encoder), "vectors": file})


def test_half_precision_is_no_other_vector(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    rounded = encoded(corpus, encoder).astype(np.float16).astype(np.float32)
    file = written(tmp_path / "e5_Flat.index", rounded)
    taken = build_index(corpus, "dense", tmp_path / "index", {"encoder": str(encoder), "vectors": file})
    assert [len(hits) for hits in taken.search(QUERIES, 9)] == [9, 9, 0, 9]


WRONG: dict[str, tuple[Callable[[Corpus, Path, Path], Vectors], str]] = {
    "order": (lambda corpus, encoder, _: np.roll(encoded(corpus, encoder), 1, axis=0), "check the order of the corpus"),
    "prompt": (lambda corpus, encoder, _: encoded(corpus, encoder, prompt="do do "), "passage_prompt=''"),
    "encoder": (lambda corpus, _, other: encoded(corpus, other), "has other vectors than"),
    "rows": (lambda corpus, encoder, _: encoded(corpus, encoder)[:-1], "take the corpus that it was made from"),
    "width": (lambda corpus, encoder, _: encoded(corpus, encoder)[:, :16].copy(), "name the encoder that made them"),
}


@pytest.mark.parametrize("what", WRONG)
def test_vectors_of_another_corpus_encoder_or_prompt_are_refused_and_nothing_is_written(
    tmp_path: Path, encoder: Path, corpus: Corpus, what: str
) -> None:
    other = make_encoder(tmp_path / "other", seed=1) if what == "encoder" else encoder
    make, why = WRONG[what]
    file = written(tmp_path / "e5_Flat.index", make(corpus, encoder, other))
    with pytest.raises(DataError, match=why):
        build_index(corpus, "dense", tmp_path / "index", {"encoder": str(encoder), "vectors": file})
    assert not (tmp_path / "index").exists() and not (tmp_path / ".index.building").exists()


def test_what_is_no_file_of_whole_vectors_is_refused(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    (tmp_path / "part").write_bytes(b"half of a file")
    coded = written(tmp_path / "coded", encoded(corpus, encoder), "PQ4x4")
    for file, why in [("nothing", "there is no file"), ("part", "is no index that faiss"), (coded, "other vectors")]:
        settings = {"encoder": str(encoder), "vectors": str(tmp_path / file)}
        with pytest.raises(UserError, match=why):
            build_index(corpus, "dense", tmp_path / "index", settings)
