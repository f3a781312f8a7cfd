"""Published faiss files: what was made from this corpus by this encoder is taken over, and nothing else."""

from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import DataError, SettingError, UserError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index, update_index
from coseek.retrieval.retrievers.hnsw import GRAPH
from coseek.retrieval.vectors.corpus_encoding import window_encoder
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, fill_from_card, passage_text
from coseek.retrieval.vectors.encoder import Vectors

QUERIES = ["ba be", "gu go ge", "do", "bo ga"]
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
    found = open_index(tmp_path / "taken", corpus).search(QUERIES, 9)
    assert found == taken.search(QUERIES, 9)
    if text is passage_text:
        built = build_index(corpus, retriever, tmp_path / "built", settings)
        assert found == built.search(QUERIES, 9) and taken.identity == built.identity
        files = [
            {path.name: path.read_bytes() for path in (tmp_path / one).rglob("*.npy")} for one in ("taken", "built")
        ]
        assert files[0] == files[1]


def test_a_published_graph_is_taken_as_it_is_and_its_index_can_be_updated(tmp_path: Path, encoder: Path) -> None:
    corpus, settings = sentences(40), {"encoder": str(encoder), "m": 8, "device": "cpu"}
    file = written(tmp_path / "e5_HNSW8.index", encoded(corpus, encoder), "HNSW8,Flat")
    taken = build_index(corpus, "hnsw", tmp_path / "taken", {**settings, "vectors": file})
    assert (tmp_path / "taken" / GRAPH).read_bytes() == Path(file).read_bytes()
    exact = build_index(corpus, "dense", tmp_path / "exact", {"encoder": str(encoder), "device": "cpu"})
    ids = [[[hit.passage.id for hit in hits] for hits in one.search(QUERIES, 5)] for one in (taken, exact)]
    assert ids[0] == ids[1]
    assert update_index(Corpus(list(corpus)[:30]), tmp_path / "taken").removed == 10
    with pytest.raises(SettingError, match="a graph of m=8, not 64; say m=8"):
        build_index(corpus, "hnsw", tmp_path / "other", {"encoder": str(encoder), "vectors": file})


def test_half_precision_is_no_other_vector(tmp_path: Path, encoder: Path, corpus: Corpus) -> None:
    rounded = encoded(corpus, encoder).astype(np.float16).astype(np.float32)
    file = written(tmp_path / "e5_Flat.index", rounded)
    taken = build_index(corpus, "dense", tmp_path / "index", {"encoder": str(encoder), "vectors": file})
    assert [len(hits) for hits in taken.search(QUERIES, 9)] == [9] * len(QUERIES)


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
