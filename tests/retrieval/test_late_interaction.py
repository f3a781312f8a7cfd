"""Late interaction: the scores are the library's, an index is an index, and no encoder is taken for another kind."""

import re
from pathlib import Path

import numpy as np
import pytest
from tests.retrieval.tiny_encoder import build_killed_once, make_encoder, sentences

from coseek.core.errors import DataError, SettingError, UserError
from coseek.core.files import JsonObject, read_json_object, write_json
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.query import Query
from coseek.retrieval.vectors.embedding_retriever import passage_text
from coseek.retrieval.vectors.encoder import EncoderCard
from coseek.training.encoder.laptop_encoder import make_token_encoder

CORPUS = sentences(150)
QUERIES = ["ba be", "do, go! ge", "gu"]


@pytest.fixture(scope="module")
def dense_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoders") / "dense")


@pytest.fixture(scope="module")
def folder(dense_folder: Path) -> Path:
    """An encoder of token vectors as ColBERT is: queries have ten tokens, punctuation in passages is not scored."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    body = Transformer(str(dense_folder), max_seq_length=64)
    body.query_length, body.document_length = 10, 20
    body.query_expansion = {"strategy": "fixed", "attend": False, "length": 10, "token": "[PAD]"}
    ends = [MultiVectorMask(skiplist_words=[","]), Normalize(module_input_name="token_embeddings")]
    model = MultiVectorEncoder(modules=[body, *ends], device="cpu", prompts={"query": "ba ", "document": "do "})
    model.save(str(dense_folder.parent / "tokens"), create_model_card=False)
    return dense_folder.parent / "tokens"


def reference(folder: Path, corpus: Corpus) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The library's own scores, Q × N."""
    from sentence_transformers import MultiVectorEncoder

    model = MultiVectorEncoder(str(folder), device="cpu", local_files_only=True)
    documents = model.encode_document([passage_text(passage) for passage in corpus])
    return model.similarity(model.encode_query(QUERIES), documents).numpy()


def test_scores_are_the_librarys_with_its_prompts_lengths_and_masks(folder: Path, tmp_path: Path) -> None:
    corpus = Corpus([*CORPUS, Passage("marks", "", "ba, be, bi, ba, be")])
    exact = {"encoder": str(folder), "precision": "float32"}
    retriever = build_index(corpus, "late-interaction", tmp_path / "index", exact)
    wanted_QN = reference(folder, corpus)
    for hits, wanted_N in zip(retriever.search(QUERIES, len(corpus)), wanted_QN, strict=True):
        found_N = [{hit.passage.id: hit.score for hit in hits}[passage.id] for passage in corpus]
        assert np.abs(np.array(found_N) - wanted_N).max() < 1e-5
    half = build_index(corpus, "late-interaction", tmp_path / "half", {**exact, "dtype": "float16"})
    best = half.search(QUERIES, 1)
    assert [hits[0].score for hits in best] == pytest.approx(wanted_QN.max(axis=1).tolist(), abs=5e-3)


def test_blocks_and_other_queries_change_nothing(
    dense_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"encoder": str(dense_folder), "view": "question+query"}
    build_index(CORPUS, "late-interaction", tmp_path / "index", settings)
    asked = [Query(query, "what is ba") for query in QUERIES]
    whole = open_index(tmp_path / "index", CORPUS).search(asked, 20)
    assert whole != open_index(tmp_path / "index", CORPUS).search(QUERIES, 20)  # the view is read
    opened = open_index(tmp_path / "index", CORPUS)
    assert [opened.search([query], 20)[0] for query in asked] == whole
    monkeypatch.setattr("coseek.retrieval.vectors.token_vectors.BLOCK_TOKENS", 37)
    apart = opened.search(asked, 20)
    assert [hit.score for hits in apart for hit in hits] == pytest.approx([hit.score for hits in whole for hit in hits])
    assert opened.search([" "], 3) == [[]]


def test_a_killed_build_goes_on_to_the_same_bytes(dense_folder: Path, tmp_path: Path) -> None:
    corpus: Corpus = sentences(300)
    settings: JsonObject = {"encoder": str(dense_folder), "batch_size": 2}

    build_index(corpus, "late-interaction", tmp_path / "whole", settings)
    build_killed_once(corpus, "late-interaction", tmp_path / "killed", settings)
    build_index(corpus, "late-interaction", tmp_path / "two", {**settings, "devices": ["cpu", "cpu"]})
    for name in ("ends.npy", "vectors/shard-00000.npy"):
        wanted = (tmp_path / "whole" / name).read_bytes()
        assert wanted == (tmp_path / "killed" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_an_untrained_layer_keeps_prompts_and_lengths(dense_folder: Path, tmp_path: Path) -> None:
    make_token_encoder(dense_folder, 8, tmp_path / "encoder", seed=0)
    card = EncoderCard.of(tmp_path / "encoder")
    assert (card.similarity, card.query_tokens) == ("maxsim", EncoderCard.of(dense_folder).query_tokens)
    build_index(CORPUS, "late-interaction", tmp_path / "index", {"encoder": str(tmp_path / "encoder")})
    assert read_json_object(tmp_path / "index" / "vectors" / "store.json")["dim"] == 8


def test_mistakes_are_sentences(folder: Path, dense_folder: Path, tmp_path: Path) -> None:
    def refused(expected: type[UserError], says: str, retriever: str, **settings: object) -> None:
        with pytest.raises(expected, match=re.escape(says)):
            build_index(CORPUS, retriever, tmp_path / "index", settings)

    refused(DataError, "--retriever late-interaction", "dense", encoder=str(folder))
    refused(SettingError, "neither `cluster`", "late-interaction", encoder=str(dense_folder), cluster="local")
    old = read_json_object(folder / "config_sentence_transformers.json") | {"model_type": "ColBERT"}
    for name in ("modules.json", "sentence_bert_config.json"):
        (tmp_path / "old").mkdir(exist_ok=True)
        (tmp_path / "old" / name).write_bytes((folder / name).read_bytes())
    write_json(tmp_path / "old" / "config_sentence_transformers.json", old)
    refused(DataError, "MultiVectorEncoder('FOLDER').save('NEW')", "late-interaction", encoder=str(tmp_path / "old"))
