from pathlib import Path

import numpy as np
import pytest
from tests.retrieval.test_hnsw import clustered, recall

from coseek.core.errors import SettingError
from coseek.data.passage import Corpus
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retrievers import ivf_pq
from coseek.retrieval.retrievers.ivf_pq import IvfPq, IvfPqSearch, IvfPqSettings, cells_for, fill_cells
from coseek.retrieval.vectors.exact import ExactSearch
from coseek.retrieval.vectors.faiss_index import write_file
from coseek.retrieval.vectors.store import VectorStore

QUERIES = ["ba be", "gu go ge", " ", "do"]


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
    assert same.any() and (scores[same] == right[same]).all()  # what is refined has its real score
    coarse, _ = IvfPqSearch(tmp_path / "cells", settings, None).search(queries, 10)
    assert 0.3 < recall(coarse, expected) < refined


@pytest.mark.slow
def test_an_index_that_is_opened_again_finds_the_same_and_is_the_same_when_made_again(
    tmp_path: Path, encoder: Path, corpus: Corpus
) -> None:
    settings: dict[str, object] = {"encoder": str(encoder), "seed": 3}
    built = build_index(corpus, "ivf-pq", tmp_path / "one", settings)
    assert isinstance(built, IvfPq)
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


def test_the_number_of_cells_grows_with_the_root_of_the_corpus() -> None:
    settings = IvfPqSettings()
    assert [cells_for(count, settings) for count in (256, 4_000, 1_000_000, 21_015_324)] == [6, 102, 4_000, 18_337]
    assert cells_for(256, IvfPqSettings(nlist=7)) == 7


@pytest.mark.parametrize("pieces", [1, 5, 32, 40])
def test_a_vector_may_be_cut_into_any_number_of_pieces(pieces: int) -> None:
    store = VectorStore.of(clustered(300, 32, 0, unit=True))
    index = fill_cells(store, IvfPqSettings(m=pieces, nbits=4, nlist=2), normalised=True)
    assert index.ntotal == 300 and index.d % pieces == 0
    assert np.isfinite(index.search(np.zeros((1, index.d), dtype=np.float32), 3)[0]).all()
