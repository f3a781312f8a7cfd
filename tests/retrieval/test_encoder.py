"""Encoders, their cards, and the dense retriever over them."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.retrieval.tiny_encoder import make_encoder, sentences

from coseek.core.errors import DataError, IndexMismatch, RetrieverError, SettingError, UserError
from coseek.core.files import Json
from coseek.data.passage import Corpus, Passage
from coseek.hardware.placement import FLOAT32, Placement
from coseek.retrieval.index import build_index, open_index
from coseek.retrieval.query import Query
from coseek.retrieval.retrievers.dense import Dense, DenseSettings
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, fill_from_card, view_renderer
from coseek.retrieval.vectors.encoder import Encoder, EncoderCard, check_prompts, encoder_folder, most_read

BFLOAT16 = Placement(precision="bfloat16")
TEXTS = ["ba be bi", "do", "fa fe fi fo fu ga ge gi go gu", ""]


@pytest.fixture(scope="module")
def mean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_encoder(tmp_path_factory.mktemp("encoders") / "mean")


def test_an_encoder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no encoder 'minilmm'; did you mean 'minilm'"):
        encoder_folder("minilmm")
    with pytest.raises(DataError, match=r"no modules\.json"):
        encoder_folder(str(tmp_path))


def without(folder: Path, left_out: str) -> Path:
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if left_out not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.medium
def test_an_encoder_without_a_tensor_is_refused(tmp_path: Path) -> None:
    folder = without(make_encoder(tmp_path / "encoder"), "encoder.layer.0.output.dense.weight")
    with pytest.raises(
        DataError, match=r"encoder lacks the weights of encoder\.layer\.0\.output\.dense\.weight; fetch"
    ):
        Encoder.open(folder, FLOAT32)


@pytest.mark.medium
def test_a_missing_pooler_that_no_vector_depends_on_is_accepted_and_the_same_in_every_process(tmp_path: Path) -> None:
    whole = make_encoder(tmp_path / "whole")
    vectors = Encoder.open(whole, FLOAT32).encode(TEXTS, "", 64, 4)
    encoder = Encoder.open(without(make_encoder(tmp_path / "masked"), "pooler"), FLOAT32)
    assert np.array_equal(encoder.encode(TEXTS, "", 64, 4), vectors)
    pooler = {name: weight for name, weight in encoder.model.state_dict().items() if "pooler" in name}
    assert pooler and not any(weight.any() for weight in pooler.values())


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_every_pooling_gives_what_its_name_says(tmp_path: Path, pooling: str) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = make_encoder(tmp_path / pooling, pooling, normalise=False)
    assert EncoderCard.of(folder).pooling == pooling
    vectors = Encoder.open(folder, FLOAT32).encode(TEXTS, "", 64, 4, normalise=False)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for text, vector in zip(TEXTS, vectors, strict=True):  # one by one: nothing is padded
        with torch.inference_mode():
            states_TD = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        expected = {"mean": states_TD.mean(dim=0), "cls": states_TD[0], "lasttoken": states_TD[-1]}[pooling]
        assert np.allclose(vector, expected.numpy(), atol=1e-5)


def test_vectors_are_unit_ones_only_where_that_is_asked_for(tmp_path: Path) -> None:
    encoder = Encoder.open(make_encoder(tmp_path / "e", normalise=False), FLOAT32)
    assert np.allclose(np.linalg.norm(encoder.encode(TEXTS, "", 64, 2), axis=1), 1, atol=1e-6)
    assert not np.allclose(np.linalg.norm(encoder.encode(TEXTS, "", 64, 2, normalise=False), axis=1), 1, atol=1e-2)


def test_prompt_and_length_are_those_of_the_call(mean: Path) -> None:
    encoder = Encoder.open(mean, FLOAT32)
    assert np.array_equal(encoder.encode(["do"], "ba ", 64, 1), encoder.encode(["ba do"], "", 64, 1))
    cut = encoder.encode(["ba be bi bo bu"], "", 4, 1)  # [CLS] ba be [SEP]
    assert np.array_equal(cut, encoder.encode(["ba be"], "", 64, 1))
    assert not np.array_equal(cut, encoder.encode(["ba be bi bo bu"], "", 64, 1))


def test_a_loaded_encoder_is_shared_until_its_folder_changes(tmp_path: Path) -> None:
    folder = make_encoder(tmp_path / "e", seed=1)
    first = Encoder.open(folder, FLOAT32)
    assert Encoder.open(folder, FLOAT32) is first
    assert Encoder.open(folder, BFLOAT16) is not first
    make_encoder(folder, seed=2)
    second = Encoder.open(folder, FLOAT32)
    assert not np.array_equal(first.encode(TEXTS, "", 64, 4), second.encode(TEXTS, "", 64, 4))


def test_a_reader_counts_as_the_encoder_does_and_leaves_room_for_the_prompt(mean: Path) -> None:
    reads = view_renderer(mean, "ba be ", 10).keywords
    assert reads["separator"] == "[SEP]"
    assert reads["count"]("do da [SEP] du") == 4
    assert reads["limit"] == 10 - 2 - 2


# --- encoder cards


Settings = dict[str, Json] | None


def folder_of(folder: Path, *, pooling: Settings = None, normalise: bool = True, config: Settings = None) -> Path:
    """An encoder folder without weights."""
    kinds = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
    kinds += ["base.modules.normalize.Normalize"] if normalise else []
    modules = [
        {"idx": at, "name": str(at), "path": f"{at}_" if at else "", "type": f"sentence_transformers.{kind}"}
        for at, kind in enumerate(kinds)
    ]
    (folder / "1_").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_" / "config.json").write_text(json.dumps(pooling or {"pooling_mode": "mean"}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config or {}))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 100}')
    return folder


def test_a_folder_without_a_card_speaks_for_itself(tmp_path: Path) -> None:
    config: dict[str, Json] = {"prompts": {"query": "query: ", "document": "", "passage": "passage: "}}
    card = EncoderCard.of(folder_of(tmp_path, config={**config, "similarity_fn_name": "dot"}, normalise=False))
    prompts = {"query_prompt": "query: ", "passage_prompt": "passage: "}
    assert card == EncoderCard(**prompts, query_tokens=100, passage_tokens=100, normalise=False, similarity="dot")


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode": "lasttoken"}, "lasttoken"),
        ({"pooling_mode": ["cls", "mean"]}, "cls+mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "lasttoken"),
        ({"word_embedding_dimension": 8}, "mean"),
    ],
)
def test_old_and_new_ways_to_say_pooling_are_read(tmp_path: Path, config: dict[str, Json], pooling: str) -> None:
    assert EncoderCard.of(folder_of(tmp_path, pooling=config)).pooling == pooling


def test_what_a_card_says_comes_back(tmp_path: Path) -> None:
    folder = folder_of(tmp_path)
    card = EncoderCard(
        view="question+query", query_prompt="Frage: ", passage_prompt="", query_tokens=32, passage_tokens=180
    )
    card.save(folder)
    assert EncoderCard.of(folder) == card
    assert yaml.safe_load((folder / "coseek.yaml").read_text())["view"] == "question+query"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("pooling: cls", "says pooling 'cls', its modules do 'mean'"),
        ("normalise: false", "says normalise: false, its modules do normalise"),
        ("query_token: 3", "did you mean 'query_tokens'"),
        ("view: question-query", "did you mean 'question"),
        ("similarity: manhattan", "only cosine and dot"),
    ],
)
def test_a_card_that_is_wrong_is_refused(tmp_path: Path, line: str, sentence: str) -> None:
    folder = folder_of(tmp_path)
    (folder / "coseek.yaml").write_text(line)
    with pytest.raises(DataError, match=sentence):
        EncoderCard.of(folder)


def test_what_an_encoder_can_read_is_not_what_it_is_meant_to_read(tmp_path: Path) -> None:
    assert most_read(folder_of(tmp_path)) is None
    assert most_read(encoder_folder("minilm")) == 512 > EncoderCard.of(encoder_folder("minilm")).query_tokens
    # Saving a sentence-transformers folder writes the intended length into the tokenizer, too.
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 100}')
    (tmp_path / "config.json").write_text('{"model_type": "bert", "max_position_embeddings": 514, "pad_token_id": 1}')
    assert most_read(tmp_path) == 514
    (tmp_path / "config.json").write_text('{"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1}')
    assert most_read(tmp_path) == 512


@pytest.mark.parametrize(
    ("prompts", "default", "query", "passage"),
    [
        ({"retrieval.query": "Q: ", "retrieval.passage": "P: ", "text-matching": "T: "}, None, "Q: ", "P: "),
        ({"search_query": "q: ", "search_document": "d: ", "clustering": "c: "}, None, "q: ", "d: "),
        ({"s2p_query": "find: ", "s2s_query": "alike: "}, "s2p_query", "find: ", ""),
        ({"query": "", "document": "", "instruct": "I: "}, "instruct", "I: ", "I: "),
        ({"query": "q: ", "s2p_query": "find: "}, None, "q: ", ""),
        ({"question": "q: ", "doc": "d: "}, None, "q: ", "d: "),
    ],
)
def test_prompts_of_other_names_are_used(
    tmp_path: Path, prompts: dict[str, Json], default: str | None, query: str, passage: str
) -> None:
    folder = folder_of(tmp_path, config={"prompts": prompts, "default_prompt_name": default})
    check_prompts(folder, {})
    card = EncoderCard.of(folder)
    assert (card.query_prompt, card.passage_prompt) == (query, passage)


def test_of_several_prompts_for_a_query_none_is_taken_until_one_is_chosen(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, config={"prompts": {"s2p_query": "find: ", "s2s_query": "alike: "}})
    settings = EmbeddingSettings(precision="float32", encoder=str(folder))
    with pytest.raises(DataError, match=r"for a query: s2p_query 'find: ', s2s_query 'alike: '; .*query_prompt='…'"):
        fill_from_card(settings)
    assert fill_from_card(settings.model_copy(update={"query_prompt": "find: "})).query_prompt == "find: "
    (folder / "coseek.yaml").write_text("query_prompt: ''\n", encoding="utf-8")
    assert fill_from_card(settings).query_prompt == ""


def test_prompts_for_other_tasks_alone_are_said_to_be_unused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    check_prompts(folder_of(tmp_path, config={"prompts": {"clustering": "c: ", "STS": "s: "}}), {})
    assert "clustering, STS" in caplog.text and "query_prompt" in caplog.text
    check_prompts(folder_of(tmp_path / "half", config={"prompts": {"query": "q: ", "text": "t: "}}), {})
    assert "names prompts (text) but none for a passage, so no prompt is used; set passage_prompt" in caplog.text


def test_a_cross_encoder_is_not_taken_for_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a CrossEncoder .*`rerank`"):
        EncoderCard.of(folder_of(tmp_path, config={"model_type": "CrossEncoder"}))


# --- the dense retriever


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


@pytest.mark.medium
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
    with pytest.raises(SettingError, match="at least 1"):
        dense.search(["x"], 0)


@pytest.mark.medium
def test_lengths_of_queries_and_passages_are_kept_apart(tmp_path: Path, tiny: Path) -> None:
    EncoderCard(query_tokens=3, passage_tokens=64).save(tiny)  # a query is its first word
    corpus = sentences(60)
    build_index(corpus, "dense", tmp_path / "index", {"encoder": str(tiny)})
    opened = open_index(tmp_path / "index", corpus)
    assert opened.search(["ba be bi"], 5) == opened.search(["ba"], 5)
    for name in ("query_tokens", "passage_tokens"):
        with pytest.raises(SettingError, match=f"{name}=129: .* reads at most 128 tokens"):
            build_index(corpus, "dense", tmp_path / "too-long", {"encoder": str(tiny), name: 129})
    whole = build_index(corpus, "dense", tmp_path / "longer", {"encoder": str(tiny), "query_tokens": 64})
    assert whole.search(["ba be bi"], 5) != whole.search(["ba"], 5)


@pytest.mark.medium
def test_a_view_is_kept_with_the_index_and_applied(tmp_path: Path, tiny: Path) -> None:
    EncoderCard(view="question+query", query_tokens=64, passage_tokens=64).save(tiny)
    corpus = sentences(60)
    build_index(corpus, "dense", tmp_path / "index", {"encoder": str(tiny)})
    assert json.loads((tmp_path / "index" / "index.json").read_text())["settings"]["view"] == "question+query"
    opened = open_index(tmp_path / "index", corpus)
    query = Query("ba be", question="do da")
    assert opened.seen(query) == "do da [SEP] ba be"
    assert opened.search([query], 5) != opened.search(["ba be"], 5)
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


@pytest.mark.medium
@pytest.mark.parametrize(("change", "sentence"), CHANGES)
def test_an_encoder_whose_card_changed_is_refused_with_what_differs(
    tmp_path: Path, tiny: Path, change: dict[str, object], sentence: str
) -> None:
    EncoderCard().save(tiny)
    build_index(CORPUS, "dense", tmp_path / "index", {"encoder": str(tiny)})
    EncoderCard.model_validate(change).save(tiny)
    with pytest.raises(IndexMismatch, match=sentence):
        open_index(tmp_path / "index", CORPUS)


@pytest.mark.medium
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


@pytest.mark.medium
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


@pytest.mark.medium
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
