import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import DataError, IndexMismatch, RetrieverError, SettingError
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.dense import Dense, DenseSettings
from coseek.retrieval.vectors.encoder import EncoderCard

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
    return Dense.over(CORPUS, DenseSettings(precision="float32"))


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_encoder(tmp_path / "tiny")


@pytest.mark.slow
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


def test_lengths_of_queries_and_passages_are_kept_apart(tmp_path: Path, tiny: Path) -> None:
    EncoderCard(query_tokens=3, passage_tokens=64).save(tiny)  # a query is its first word
    corpus = sentences(60)
    build_index(corpus, "dense", tmp_path / "index", {"encoder": str(tiny)})
    opened = open_index(tmp_path / "index", corpus)
    assert opened.search(["ba be bi"], 5) == opened.search(["ba"], 5)
    whole = build_index(corpus, "dense", tmp_path / "longer", {"encoder": str(tiny), "query_tokens": 64})
    assert whole.search(["ba be bi"], 5) != whole.search(["ba"], 5)


def test_a_view_is_kept_with_the_index_and_applied(tmp_path: Path, tiny: Path) -> None:
    EncoderCard(view="question+query", query_tokens=64, passage_tokens=64).save(tiny)
    corpus = sentences(60)
    build_index(corpus, "dense", tmp_path / "index", {"encoder": str(tiny)})
    assert json.loads((tmp_path / "index" / "index.json").read_text())["settings"]["view"] == "question+query"
    opened = open_index(tmp_path / "index", corpus)
    asked = Query("ba be", question="do da")
    assert opened.seen(asked) == "do da [SEP] ba be"
    assert opened.search([asked], 5) != opened.search(["ba be"], 5)
    assert opened.search([Query(" ", question="do da")], 5) == [[]]


def test_another_view_than_the_encoder_was_trained_with_is_refused(tmp_path: Path, tiny: Path) -> None:
    EncoderCard(view="question+query").save(tiny)
    with pytest.raises(SettingError, match="trained with the view 'question\\+query', not 'query'; leave `view` out"):
        build_index(CORPUS, "dense", tmp_path / "index", {"encoder": str(tiny), "view": "query"})
    EncoderCard().save(tiny)  # trained without a view
    build_index(CORPUS, "dense", tmp_path / "index", {"encoder": str(tiny), "view": "prior-queries"})


CHANGES: list[tuple[dict[str, object], str]] = [
    ({"query_prompt": "query: "}, "query_prompt 'query: ' instead of ''"),
    ({"query_tokens": 12}, "query_tokens 12 instead of 512"),
    ({"similarity": "dot"}, "similarity 'dot' instead of 'cosine'"),
]


@pytest.mark.parametrize(("change", "sentence"), CHANGES)
def test_an_encoder_whose_card_changed_is_refused_with_what_differs(
    tmp_path: Path, tiny: Path, change: dict[str, object], sentence: str
) -> None:
    EncoderCard().save(tiny)
    build_index(CORPUS, "dense", tmp_path / "index", {"encoder": str(tiny)})
    EncoderCard.model_validate(change).save(tiny)
    with pytest.raises(IndexMismatch, match=sentence):
        open_index(tmp_path / "index", CORPUS)


def test_an_encoder_that_was_trained_on_is_refused(tmp_path: Path, tiny: Path) -> None:
    settings: dict[str, object] = {"encoder": str(tiny)}
    plain = build_index(CORPUS, "dense", tmp_path / "index", settings).identity
    assert open_index(tmp_path / "index", CORPUS).identity == plain
    assert build_index(CORPUS, "dense", tmp_path / "other", {**settings, "query_prompt": "ba "}).identity != plain
    make_encoder(tiny, seed=7)
    assert build_index(CORPUS, "dense", tmp_path / "other", settings).identity != plain
    with pytest.raises(IndexMismatch, match="other weights or files"):
        open_index(tmp_path / "index", CORPUS)
    make_encoder(tiny, pooling="cls")
    with pytest.raises(IndexMismatch, match="pooling 'cls' instead of 'mean'"):
        open_index(tmp_path / "index", CORPUS)


def test_an_index_and_its_encoder_may_move_together(tmp_path: Path) -> None:
    make_encoder(tmp_path / "here" / "encoder")
    build_index(CORPUS, "dense", tmp_path / "here" / "index", {"encoder": str(tmp_path / "here" / "encoder")})
    (tmp_path / "here").rename(tmp_path / "there")
    assert open_index(tmp_path / "there" / "index", CORPUS).search(["ba"], 1)[0]
    (tmp_path / "there" / "encoder").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"there/index was made with the encoder .*, which is gone; put it back"):
        open_index(tmp_path / "there" / "index", CORPUS)


def test_what_matters_only_when_searching_can_be_chosen_when_opening(tmp_path: Path, tiny: Path) -> None:
    build_index(CORPUS, "dense", tmp_path / "index", {"encoder": str(tiny)})
    opened = open_index(tmp_path / "index", CORPUS, {"queries_together": 16, "block_rows": 2})
    assert isinstance(opened, Dense)
    assert opened.settings.queries_together == 16
    with pytest.raises(
        SettingError, match=r"'query_prompt' is fixed .* when opening it: attention, block_rows, cluster, dev"
    ):
        open_index(tmp_path / "index", CORPUS, {"query_prompt": "query: "})
    with pytest.raises(SettingError, match="without an int8 copy"):
        open_index(tmp_path / "index", CORPUS, {"search": "int8"})
    with pytest.raises(SettingError, match="did you mean 'queries_together'"):
        open_index(tmp_path / "index", CORPUS, {"querys_together": 2})


def test_a_vector_that_is_no_number_is_a_fault_of_the_search_and_stops_a_build(tmp_path: Path, tiny: Path) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(tiny / "model.safetensors")
    words = weights["embeddings.word_embeddings.weight"]
    tokens = json.loads((tiny / "tokenizer.json").read_text())["model"]["vocab"]
    words[tokens["fu"]] = np.nan
    save_file(weights, tiny / "model.safetensors", metadata={"format": "pt"})
    dense = Dense.over(Corpus([Passage("1", "", "ba be")]), DenseSettings(encoder=str(tiny)))
    assert dense.search(["ba"], 1)[0]
    with pytest.raises(RetrieverError, match="not finite for 'ba fu'"):
        dense.search(["ba fu"], 1)
    with pytest.raises(DataError, match="not finite for the passage 'bad'"):
        build_index(Corpus([Passage("bad", "", "fu")]), "dense", tmp_path / "index", {"encoder": str(tiny)})
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


@pytest.mark.slow
def test_opening_an_index_wakes_no_torch(tmp_path: Path, tiny: Path) -> None:
    CORPUS.save(tmp_path / "corpus.jsonl")
    EncoderCard(view="question+query").save(tiny)
    build_index(tmp_path / "corpus.jsonl", "dense", tmp_path / "index", {"encoder": str(tiny)})
    lines = [
        "import sys",
        "from pathlib import Path",
        "from coseek.retrieval.index import open_index",
        "from coseek.retrieval.query import Query",
        "retriever = open_index(Path(sys.argv[1]))",
        "print(retriever.identity[:0] + retriever.seen(Query('ba', question='do')))",
        "assert not {'torch', 'faiss', 'transformers', 'sentence_transformers'} & set(sys.modules)",
    ]
    command = [sys.executable, "-c", "\n".join(lines), str(tmp_path / "index")]
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert outcome.stdout == "do [SEP] ba\n", outcome.stderr
