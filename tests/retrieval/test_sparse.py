"""Sparse retrieval: the scores are the library's, an index is an index, and no encoder is taken for another kind."""

from pathlib import Path

import pytest
from tests.retrieval.tiny_encoder import build_killed_once, sentences

from coseek.core.errors import DataError, IndexMismatch, SettingError
from coseek.core.files import JsonObject
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings, corpus_weights
from coseek.retrieval.vectors.embedding_retriever import passage_text
from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.laptop_encoder import make_sparse_encoder

CORPUS = sentences(150)
QUERIES = ["ba be", "do go! ge", "gu"]


@pytest.fixture(scope="module")
def folder(encoder: Path) -> Path:
    """An encoder of word weights as SPLADE is, with prompts."""
    from sentence_transformers import SparseEncoder

    make_sparse_encoder(encoder, encoder.parent / "plain", seed=0)
    model = SparseEncoder(str(encoder.parent / "plain"), device="cpu", prompts={"query": "ba ", "document": "do "})
    model.save(str(encoder.parent / "sparse"), create_model_card=False)
    return encoder.parent / "sparse"


def test_scores_are_the_librarys_and_a_passage_without_a_shared_word_is_no_hit(folder: Path, tmp_path: Path) -> None:
    from sentence_transformers import SparseEncoder

    model = SparseEncoder(str(folder), device="cpu", local_files_only=True)
    documents = model.encode_document([passage_text(passage) for passage in CORPUS], convert_to_sparse_tensor=False)
    wanted_QN = (model.encode_query(QUERIES, convert_to_sparse_tensor=False) @ documents.T).numpy()
    retriever = build_index(CORPUS, "sparse", tmp_path / "index", {"encoder": str(folder), "precision": "float32"})
    row = {passage.id: number for number, passage in enumerate(CORPUS)}
    for hits, wanted_N in zip(retriever.search(QUERIES, len(CORPUS)), wanted_QN, strict=True):
        found = {row[hit.passage.id]: hit.score for hit in hits}
        assert found == pytest.approx({number: score for number, score in enumerate(wanted_N) if score > 0}, rel=1e-4)
        assert [hit.score for hit in hits] == sorted(found.values(), reverse=True)
    assert retriever.search([" "], 3) == [[]]


def test_a_hybrid_weighs_it_by_its_corpus_as_it_does_other_indexes(folder: Path, tmp_path: Path) -> None:
    sparse = build_index(CORPUS, "sparse", tmp_path / "index", {"encoder": str(folder)})
    hybrid = Hybrid([Bm25.over(CORPUS), sparse], HybridSettings(parts=["bm25", "index"]))
    assert hybrid.weights == corpus_weights(hybrid.parts, CORPUS) != (1.0, 1.0)


def test_a_killed_build_goes_on_to_the_same_bytes(folder: Path, corpus: Corpus, tmp_path: Path) -> None:
    settings: JsonObject = {"encoder": str(folder), "batch_size": 2}
    build_index(corpus, "sparse", tmp_path / "whole", settings)
    build_killed_once(corpus, "sparse", tmp_path / "killed", settings)
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole" / "weights").iterdir())
    assert len(files) > 1
    assert all((tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes() for name in files)


def test_an_encoder_of_another_kind_or_with_another_card_is_refused(
    folder: Path, encoder: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="take an encoder for sparse"):
        build_index(CORPUS, "sparse", tmp_path / "index", {"encoder": str(encoder)})
    for retriever in ("dense", "late-interaction"):
        with pytest.raises(DataError, match="--retriever sparse"):
            build_index(CORPUS, retriever, tmp_path / "index", {"encoder": str(folder)})
    with pytest.raises(SettingError, match="none of `cluster`"):
        build_index(CORPUS, "sparse", tmp_path / "index", {"encoder": str(folder), "devices": ["cpu", "cpu"]})
    make_sparse_encoder(encoder, tmp_path / "encoder", seed=0)
    build_index(CORPUS, "sparse", tmp_path / "index", {"encoder": str(tmp_path / "encoder")})
    EncoderCard.of(tmp_path / "encoder").model_copy(update={"query_tokens": 7}).save(tmp_path / "encoder")
    with pytest.raises(IndexMismatch, match="query_tokens"):
        open_index(tmp_path / "index", CORPUS)


def test_an_untrained_encoder_weighs_the_words_of_its_text_most(encoder: Path, tmp_path: Path) -> None:
    make_sparse_encoder(encoder, tmp_path / "encoder", seed=0)
    corpus = Corpus([Passage(word, "", f"{word} {word}") for word in ("ba", "do", "ge", "fu")])
    retriever = build_index(corpus, "sparse", tmp_path / "index", {"encoder": str(tmp_path / "encoder")})
    assert [hits[0].passage.id for hits in retriever.search(["ge ge", "ba ba"], 1)] == ["ge", "ba"]
