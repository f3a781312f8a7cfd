"""Fears about reranking: scores that depend on the batch, passages that forge separators, a model that changed."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

from coseek.core.errors import DataError, IndexMismatch, RetrieverError, SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.hardware.placement import FLOAT32
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.rerank import CrossEncoder, Reranker, RerankSettings

WORDS = [*"abcdefghijklmnopqrstuvwxyz", "fish", "cat", "mat", "one", "two", "red", "blue"]
CORPUS = Corpus(
    Passage(f"p{row}", WORDS[row % len(WORDS)], " ".join(WORDS[row % 7 : row % 7 + 1 + row % 13])) for row in range(30)
)
CANDIDATES = FixedRetriever(CORPUS, {"cat": [passage.id for passage in CORPUS], "one fish": ["p3", "p9", "p4"]})


def make_cross_encoder(folder: Path, labels: int = 1, seed: int = 0) -> Path:
    """A tiny random BERT that reads pairs."""
    folder.mkdir(parents=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"[]"]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(vocabulary)})
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    config.num_labels = labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertForSequenceClassification(config)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(std=0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cross_encoder(tmp_path_factory.mktemp("rerank") / "model")


def test_more_tokens_than_the_model_has_positions_are_refused(folder: Path) -> None:
    with pytest.raises(SettingError, match=r"max_tokens=65: .* reads at most 64 tokens"):
        rerank(folder, max_tokens=65)


@pytest.fixture(scope="module")
def model(folder: Path) -> CrossEncoder:
    return CrossEncoder.open(folder, FLOAT32, 48)


def rerank(folder: Path, **given: object) -> Reranker:
    return Reranker(CANDIDATES, make_settings(RerankSettings, {"over": "-", "model": str(folder), **given}), folder)


def test_the_order_is_that_of_the_pairs_read_one_by_one(folder: Path, model: CrossEncoder) -> None:
    hits = rerank(folder, max_tokens=48, precision="float32").search(["cat"], 30)[0]
    alone = {passage.id: model.scores("cat", [f"{passage.title} {passage.text}"], 1)[0] for passage in CORPUS}
    for hit in hits:
        assert hit.score == pytest.approx(alone[hit.passage.id], abs=1e-5)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len({round(hit.score, 6) for hit in hits}) > 10


def test_a_query_has_the_same_hits_alone_and_in_a_batch(folder: Path) -> None:
    reranked = rerank(folder, batch_size=4)
    together = reranked.search(["one fish", "cat", "nothing", "one fish"], 3)
    assert together == [reranked.search([query], 3)[0] for query in ("one fish", "cat", "nothing", "one fish")]
    assert together[2] == []


def test_only_the_first_candidates_are_reranked(folder: Path) -> None:
    hits = rerank(folder, depth=5).search(["cat"], 3)[0]
    assert {hit.passage.id for hit in hits} < {"p0", "p1", "p2", "p3", "p4"}
    assert len(rerank(folder, depth=5).search(["cat"], 9)[0]) == 9


def test_equal_scores_keep_the_order_of_the_candidates(folder: Path) -> None:
    same = Corpus(Passage(ident, "cat", "mat") for ident in "zyx")
    over = FixedRetriever(same, {"cat": ["x", "z", "y"]})
    settings = make_settings(RerankSettings, {"over": "-", "model": "-"})
    assert [hit.passage.id for hit in Reranker(over, settings, folder).search(["cat"], 3)[0]] == ["x", "z", "y"]


def test_a_separator_typed_into_a_passage_is_ordinary_characters(model: CrossEncoder) -> None:
    typed, spaced = model.scores("cat", ["one [SEP] two", "one [ SEP] two"], 2)
    assert typed == spaced
    assert model.separator == "[SEP]"


def test_a_score_that_is_not_a_number_is_a_fault(tmp_path: Path, folder: Path) -> None:
    broken = CrossEncoder.open(make_cross_encoder(tmp_path / "broken"), FLOAT32)
    with torch.no_grad():
        for weight in broken.model.parameters():
            weight.fill_(float("nan"))
    with pytest.raises(RetrieverError, match="not finite"):
        broken.scores("cat", ["mat"], 1)


def test_an_embedding_model_and_a_language_model_are_no_cross_encoders(tmp_path: Path) -> None:
    encoder = make_cross_encoder(tmp_path / "encoder")
    BertModel.from_pretrained(encoder).save_pretrained(encoder)
    with pytest.raises(DataError, match=r"no weights for its score \(classifier\.weight, classifier\.bias\)"):
        CrossEncoder.open(encoder, FLOAT32)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}')
    with pytest.raises(DataError, match=r"holds a language model \(Qwen2ForCausalLM\) and no cross-encoder"):
        rerank(model)


def test_a_classifier_with_several_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has 3 outputs per pair"):
        CrossEncoder.open(make_cross_encoder(tmp_path / "classes", labels=3), FLOAT32)


def test_a_model_that_changed_since_it_was_named_is_refused(tmp_path: Path) -> None:
    folder = make_cross_encoder(tmp_path / "model")
    reranked = rerank(folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    with pytest.raises(IndexMismatch, match="has changed"):
        reranked.search(["cat"], 1)


def test_weights_and_settings_are_in_the_identity(tmp_path: Path, folder: Path) -> None:
    other = make_cross_encoder(tmp_path / "other", seed=1)
    assert len({rerank(folder).identity, rerank(folder, depth=3).identity, rerank(other).identity}) == 3
    moved = make_cross_encoder(tmp_path / "elsewhere" / "model")
    assert rerank(moved).identity == rerank(folder).identity
