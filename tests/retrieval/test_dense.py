import json
from pathlib import Path

import numpy as np
import pytest

from coseek.data.errors import DataError, IndexMismatch, UserError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.encoder import encoder_folder, fingerprint
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.retrievers.dense import Dense, DenseSettings

CORPUS = Corpus(
    [
        Passage("cook", "Ratatouille", "A stew of vegetables from Provence."),
        Passage("physics", "Marie Curie", "She received two Nobel prizes for her work on radioactivity."),
        Passage("again", "Marie Curie", "She received two Nobel prizes for her work on radioactivity."),
        Passage("sea", "Tide", "The rise and fall of the ocean, caused by the moon."),
    ]
)
QUERIES = ["who studied radium", "why does the water level at the beach change", "French food", " "]


@pytest.fixture(scope="module")
def dense() -> Dense:
    return Dense.over(CORPUS)


def test_meaning_is_found_without_a_common_word(dense: Dense) -> None:
    assert [hits[0].passage.id for hits in dense.search(QUERIES[:3], 1)] == ["physics", "sea", "cook"]


def test_a_query_finds_the_same_alone_and_in_a_batch_to_the_last_bit(dense: Dense) -> None:
    assert dense.search(QUERIES, 4) == [dense.search([query], 4)[0] for query in QUERIES]


def test_equal_passages_keep_corpus_order_and_scores_are_cosines(dense: Dense) -> None:
    first, second, *others = dense.search(["Nobel prizes"], 10)[0]
    assert (first.passage.id, second.passage.id) == ("physics", "again")
    assert first.score == second.score
    assert all(-1 <= hit.score < first.score <= 1 for hit in others)
    assert len(others) == 2


def test_a_blank_query_finds_nothing_and_k_counts_from_one(dense: Dense) -> None:
    assert dense.search([" "], 3) == [[]]
    with pytest.raises(ValueError, match="at least 1"):
        dense.search(["x"], 0)


def test_looking_block_by_block_finds_the_same(dense: Dense) -> None:
    blocks = Dense(CORPUS, DenseSettings(block_rows=1), encoder_folder("minilm"), dense._vectors_ND)
    found, expected = (each.search(QUERIES, 3) for each in (blocks, dense))
    assert [[hit.passage.id for hit in hits] for hits in found] == [
        [hit.passage.id for hit in hits] for hits in expected
    ]


def test_prompts_and_lengths_reach_the_encoder_and_are_kept_with_the_index(tmp_path: Path, dense: Dense) -> None:
    build_index(CORPUS, "dense", tmp_path / "index", {"query_prompt": "stew of vegetables ", "passage_tokens": 32})
    opened = open_index(tmp_path / "index", CORPUS)
    assert isinstance(opened, Dense)
    assert opened.settings.passage_tokens == 32
    assert opened.search(["moon"], 1)[0][0].passage.id == "cook"
    assert dense.search(["moon"], 1)[0][0].passage.id == "sea"


def test_an_index_on_disk_finds_what_the_one_in_memory_finds(tmp_path: Path, dense: Dense) -> None:
    build_index(CORPUS, "dense", tmp_path / "index", {"batch_size": 1})
    opened = open_index(tmp_path / "index", CORPUS)
    assert isinstance(opened, Dense)
    assert np.allclose(opened._vectors_ND, dense._vectors_ND, atol=1e-5)
    assert [hits[0].passage.id for hits in opened.search(QUERIES[:3], 1)] == ["physics", "sea", "cook"]


def test_an_index_of_another_encoder_is_refused(tmp_path: Path) -> None:
    build_index(CORPUS, "dense", tmp_path / "index")
    card = json.loads((tmp_path / "index" / "encoder.json").read_text())
    (tmp_path / "index" / "encoder.json").write_text(json.dumps({**card, "fingerprint": "0" * 64}))
    with pytest.raises(IndexMismatch, match="another version of the encoder minilm"):
        open_index(tmp_path / "index", CORPUS)


def test_an_encoder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no encoder 'minilmm'; did you mean 'minilm'"):
        encoder_folder("minilmm")
    with pytest.raises(DataError, match=r"no modules\.json"):
        encoder_folder(str(tmp_path))


def test_a_change_deep_inside_the_weights_changes_the_fingerprint(tmp_path: Path) -> None:
    weights = np.zeros(300_000, dtype=np.uint8)
    (tmp_path / "model.safetensors").write_bytes(weights.tobytes())
    before = fingerprint(tmp_path)
    weights[150_000] = 1
    (tmp_path / "model.safetensors").write_bytes(weights.tobytes())
    assert fingerprint(tmp_path) != before
