from pathlib import Path

import numpy as np
import pytest
from tests.retrieval.tiny_encoder import sentences

from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retrievers import hnsw
from coseek.retrieval.retrievers.hnsw import Hnsw, HnswSearch, HnswSettings, build_graph
from coseek.retrieval.vectors.embedding_retriever import Rows
from coseek.retrieval.vectors.encoder import Vectors
from coseek.retrieval.vectors.exact import ExactSearch
from coseek.retrieval.vectors.faiss_index import Lift, write_file
from coseek.retrieval.vectors.store import VectorStore

QUERIES = ["ba be", "gu go ge", " ", "do"]
EF_SEARCH = 64


def clustered(rows: int, dim: int, seed: int, *, unit: bool, spread: float = 0.4) -> Vectors:
    """Vectors around a hundred centres, as those of texts about a hundred things; of many lengths unless `unit`."""
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((100, dim))
    vectors = centres[rng.integers(0, 100, rows)] + spread * rng.standard_normal((rows, dim))
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True) if unit else rng.uniform(0.5, 2.0, (rows, 1))
    return (vectors / lengths).astype(np.float32)


def recall(found: Rows, expected: Rows) -> float:
    pairs = zip(found.tolist(), expected.tolist(), strict=True)
    return float(np.mean([len(set(mine) & set(theirs)) / len(theirs) for mine, theirs in pairs]))


@pytest.mark.slow
@pytest.mark.parametrize("unit", [True, False])
def test_the_graph_finds_what_looking_at_everything_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: bool
) -> None:
    # Given to faiss in several blocks, as a large corpus is.
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
    assert isinstance(built, Hnsw)
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
    found = opened.search(many, 50)
    assert found == [opened.search([query], 50)[0] for query in many]
    assert [len(hits) for hits in found[:4]] == [12, 12, 0, 12]
    for hits in found:
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
