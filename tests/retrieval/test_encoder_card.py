import json
from pathlib import Path

import pytest
import yaml

from coseek.core.errors import DataError
from coseek.core.files import Json
from coseek.retrieval.vectors.embedding_retriever import EmbeddingSettings, fill_from_card
from coseek.retrieval.vectors.encoder import EncoderCard, check_prompts, encoder_folder, most_read


def folder_of(
    folder: Path,
    *,
    pooling: dict[str, Json] | None = None,
    normalise: bool = True,
    config: dict[str, Json] | None = None,
    length: int | None = 100,
) -> Path:
    """The files that say how an encoder is used, without weights."""
    kinds = ["base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling"]
    kinds += ["base.modules.normalize.Normalize"] if normalise else []
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": f"{place}_" if place else "",
            "type": f"sentence_transformers.{kind}",
        }
        for place, kind in enumerate(kinds)
    ]
    (folder / "1_").mkdir(parents=True)
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_" / "config.json").write_text(json.dumps(pooling or {"pooling_mode": "mean"}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config or {}))
    if length:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
    return folder


def test_a_folder_without_a_card_speaks_for_itself(tmp_path: Path) -> None:
    config: dict[str, Json] = {"prompts": {"query": "query: ", "document": "", "passage": "passage: "}}
    card = EncoderCard.of(folder_of(tmp_path, config={**config, "similarity_fn_name": "dot"}, normalise=False))
    assert card == EncoderCard(
        query_prompt="query: ",
        passage_prompt="passage: ",
        query_tokens=100,
        passage_tokens=100,
        normalise=False,
        similarity="dot",
    )
    assert card.view is None


def test_the_shipped_encoder_has_a_card() -> None:
    card = EncoderCard.of(encoder_folder("minilm"))
    assert (card.pooling, card.normalise, card.similarity) == ("mean", True, "cosine")
    assert (card.query_tokens, card.passage_tokens) == (256, 256)


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
    assert "names prompts (text), and none for a passage: none is used; set passage_prompt" in caplog.text


def test_a_cross_encoder_is_not_taken_for_an_encoder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is a CrossEncoder .*`rerank`"):
        EncoderCard.of(folder_of(tmp_path, config={"model_type": "CrossEncoder"}))
