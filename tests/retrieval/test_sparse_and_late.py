"""Word weights and token vectors: scores equal the library's, and no encoder is mistaken for another kind."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.digests import digests
from tests.retrieval.tiny_encoder import build_killed_once, sentences

from coseek.cli.commands.serve import opened
from coseek.core.errors import DataError, IndexMismatch, SettingError, UserError
from coseek.core.files import JsonObject, read_json_object, write_json
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index, retriever_names, update_index
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.retrievers.hybrid import Hybrid, HybridSettings, corpus_weights
from coseek.retrieval.vectors.embedding_retriever import passage_text
from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.laptop_encoder import make_sparse_encoder, make_token_encoder

pytestmark = pytest.mark.medium

CORPUS = sentences(150)
QUERIES = ["ba be", "do, go! ge", "gu"]


@pytest.fixture(scope="module")
def folder(encoder: Path) -> Path:
    """A SPLADE-like encoder with prompts."""
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
        scores = {row[hit.passage.id]: hit.score for hit in hits}
        assert scores == pytest.approx({number: score for number, score in enumerate(wanted_N) if score > 0}, rel=1e-4)
        assert [hit.score for hit in hits] == sorted(scores.values(), reverse=True)
    assert retriever.search([" "], 3) == [[]]


def test_a_hybrid_weighs_it_by_its_corpus_as_it_does_other_indexes(folder: Path, tmp_path: Path) -> None:
    sparse = build_index(CORPUS, "sparse", tmp_path / "index", {"encoder": str(folder)})
    hybrid = Hybrid([Bm25.over(CORPUS), sparse], HybridSettings(parts=["bm25", "index"]))
    assert hybrid.weights == corpus_weights(hybrid.parts, CORPUS) != (1.0, 1.0)


@pytest.mark.parametrize("kind", ["sparse", "late-interaction"])
def test_a_killed_build_goes_on_to_the_same_bytes(
    kind: str, folder: Path, encoder: Path, corpus: Corpus, tmp_path: Path
) -> None:
    settings: JsonObject = {"encoder": str(folder if kind == "sparse" else encoder), "batch_size": 2}
    build_index(corpus, kind, tmp_path / "whole", settings)
    build_killed_once(corpus, kind, tmp_path / "killed", settings)
    assert digests(tmp_path / "whole") == digests(tmp_path / "killed")


@pytest.mark.parametrize("kind", ["sparse", "late-interaction", "ivf-pq"])
def test_an_update_takes_the_encoder_where_the_index_has_it(
    kind: str, folder: Path, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder if kind == "sparse" else encoder, tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)
    options: JsonObject = {"encoder": "encoder", **({"nbits": 4} if kind == "ivf-pq" else {})}
    Corpus(list(CORPUS)[:100]).save(tmp_path / "corpus.jsonl")
    build_index("corpus.jsonl", kind, "index", options)
    CORPUS.save(tmp_path / "corpus.jsonl")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    update_index(tmp_path / "corpus.jsonl", tmp_path / "index")
    assert len(open_index(tmp_path / "index").search(QUERIES, 3)) == len(QUERIES)


@pytest.mark.parametrize("kind", retriever_names())
def test_every_kind_of_index_is_served_and_none_takes_a_setting_that_does_nothing(
    kind: str, folder: Path, encoder: Path, tmp_path: Path
) -> None:
    options: JsonObject = {"nbits": 4} if kind == "ivf-pq" else {}
    if kind not in ("bm25", "random"):
        options["encoder"] = str(folder if kind == "sparse" else encoder)
    CORPUS.save(tmp_path / "corpus.jsonl")
    built = build_index(tmp_path / "corpus.jsonl", kind, tmp_path / "index", options)
    served = opened(str(tmp_path / "index"))
    lists = [[hit.passage.id for hit in hits] for hits in served.search(QUERIES, 3)]
    assert lists == [[hit.passage.id for hit in hits] for hits in built.search(QUERIES, 3)]
    if kind != "dense":
        with pytest.raises(SettingError, match="no dense index with exact search"):
            opened(str(tmp_path / "index"), ["cpu", "cpu"])
    if kind in ("hnsw", "ivf-pq", "late-interaction"):
        with pytest.raises(SettingError, match="'devices' has no effect on the search"):
            open_index(tmp_path / "index", overrides={"devices": ["cpu", "cpu"]})


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
    with pytest.raises(SettingError, match="leave `dtype` out"):
        build_index(CORPUS, "sparse", tmp_path / "index", {"encoder": str(folder), "dtype": "float16"})
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


# --- late interaction


@pytest.fixture(scope="module")
def tokens(encoder: Path) -> Path:
    """A ColBERT-like encoder: queries have ten tokens, punctuation in passages is not scored."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    body = Transformer(str(encoder), max_seq_length=64)
    body.query_length, body.document_length = 10, 20
    body.query_expansion = {"strategy": "fixed", "attend": False, "length": 10, "token": "[PAD]"}
    ends = [MultiVectorMask(skiplist_words=[","]), Normalize(module_input_name="token_embeddings")]
    model = MultiVectorEncoder(modules=[body, *ends], device="cpu", prompts={"query": "ba ", "document": "do "})
    model.save(str(encoder.parent / "tokens"), create_model_card=False)
    return encoder.parent / "tokens"


def reference(tokens: Path, corpus: Corpus) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The library's own scores, Q × N."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(tokens), device="cpu", local_files_only=True)
    documents = model.encode_document([passage_text(passage) for passage in corpus])
    return model.similarity(model.encode_query(QUERIES), documents).numpy()


def test_scores_of_token_vectors_are_the_librarys_with_its_prompts_and_masks(tokens: Path, tmp_path: Path) -> None:
    corpus = Corpus([*CORPUS, Passage("marks", "", "ba, be, bi, ba, be")])
    exact = {"encoder": str(tokens), "precision": "float32"}
    retriever = build_index(corpus, "late-interaction", tmp_path / "index", exact)
    wanted_QN = reference(tokens, corpus)
    for hits, wanted_N in zip(retriever.search(QUERIES, len(corpus)), wanted_QN, strict=True):
        found_N = [{hit.passage.id: hit.score for hit in hits}[passage.id] for passage in corpus]
        assert np.abs(np.array(found_N) - wanted_N).max() < 1e-5
    half = build_index(corpus, "late-interaction", tmp_path / "half", {**exact, "dtype": "float16"})
    best = half.search(QUERIES, 1)
    assert [hits[0].score for hits in best] == pytest.approx(wanted_QN.max(axis=1).tolist(), abs=5e-3)


def test_blocks_and_other_queries_change_nothing(
    encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"encoder": str(encoder), "view": "question+query"}
    build_index(CORPUS, "late-interaction", tmp_path / "index", settings)
    queries = [Query(query, "what is ba") for query in QUERIES]
    whole = open_index(tmp_path / "index", CORPUS).search(queries, 20)
    assert whole != open_index(tmp_path / "index", CORPUS).search(QUERIES, 20)  # the view is read
    opened = open_index(tmp_path / "index", CORPUS)
    assert [opened.search([query], 20)[0] for query in queries] == whole
    monkeypatch.setattr("coseek.retrieval.retrievers.late_interaction.BLOCK_TOKENS", 37)
    apart = opened.search(queries, 20)
    assert [hit.score for hits in apart for hit in hits] == pytest.approx([hit.score for hits in whole for hit in hits])
    assert opened.search([" "], 3) == [[]]


def test_an_untrained_layer_keeps_prompts_and_lengths(encoder: Path, tmp_path: Path) -> None:
    make_token_encoder(encoder, 8, tmp_path / "encoder", seed=0)
    card = EncoderCard.of(tmp_path / "encoder")
    assert (card.similarity, card.query_tokens) == ("maxsim", EncoderCard.of(encoder).query_tokens)
    build_index(CORPUS, "late-interaction", tmp_path / "index", {"encoder": str(tmp_path / "encoder")})
    assert read_json_object(tmp_path / "index" / "vectors" / "store.json")["dim"] == 8


def test_mistakes_are_sentences(tokens: Path, encoder: Path, tmp_path: Path) -> None:
    def refused(expected: type[UserError], says: str, retriever: str, **settings: object) -> None:
        with pytest.raises(expected, match=re.escape(says)):
            build_index(CORPUS, retriever, tmp_path / "index", settings)

    refused(DataError, "--retriever late-interaction", "dense", encoder=str(tokens))
    refused(SettingError, "neither `cluster`", "late-interaction", encoder=str(encoder), cluster="local")
    old = read_json_object(tokens / "config_sentence_transformers.json") | {"model_type": "ColBERT"}
    for name in ("modules.json", "sentence_bert_config.json"):
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / name).write_bytes((tokens / name).read_bytes())
    write_json(tmp_path / "old" / "config_sentence_transformers.json", old)
    refused(DataError, "MultiVectorEncoder('FOLDER').save('NEW')", "late-interaction", encoder=str(tmp_path / "old"))
