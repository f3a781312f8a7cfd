"""Whole weights: no part of a model is ever filled with random numbers."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    BertModel,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from coseek.core.errors import DataError
from coseek.hardware.placement import FLOAT32
from coseek.models.model_folder import check_is_model
from coseek.models.pretrained import check_weights, load_model, save_model
from coseek.models.text_model import open_local_text_model
from coseek.models.tokenizer import HfTokenizer, train_tokenizer

UP = "model.layers.1.mlp.up_proj.weight"


def saved(model: PreTrainedModel, folder: Path) -> Path:
    save_model(model, HfTokenizer(train_tokenizer(["a b"], (), 300)), folder)
    return folder


def decoder(vocabulary: int = 300, *, tied: bool = False) -> PreTrainedModel:
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, eos_token_id=1, pad_token_id=0, tie_word_embeddings=tied,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def bert(kind: Callable[[BertConfig], PreTrainedModel]) -> PreTrainedModel:
    return kind(
        BertConfig(vocab_size=300, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2)
    )


def rewritten(folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_policy_without_a_tensor_is_refused_wherever_it_is_opened(tmp_path: Path) -> None:
    folder = rewritten(saved(decoder(), tmp_path / "policy"), lambda weights: weights.__delitem__(UP))
    openers: list[Callable[[Path], object]] = [
        lambda path: load_model(path, FLOAT32), check_weights, open_local_text_model,
    ]  # fmt: skip
    for opener in openers:
        with pytest.raises(DataError, match=rf"policy lacks the weights of {UP}; fetch or save it again"):
            opener(folder)


def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    folder = rewritten(saved(decoder(), tmp_path), lambda weights: weights.update({UP: torch.zeros(8, 16)}))
    with pytest.raises(DataError, match=rf"{UP} \(8 × 16, 24 × 16\)"):
        load_model(folder, FLOAT32)


def test_tied_embeddings_are_no_missing_weights_and_untied_ones_are(tmp_path: Path) -> None:
    load_model(saved(decoder(tied=True), tmp_path / "tied"), FLOAT32)
    folder = saved(decoder(), tmp_path / "untied")
    rewritten(folder, lambda weights: weights.__delitem__("lm_head.weight"))
    with pytest.raises(DataError, match=r"lacks the weights of lm_head\.weight"):
        load_model(folder, FLOAT32)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (BertModel, r"lacks the weights of cls\.predictions.*saved from BertModel"),
        (BertForTokenClassification, r"lacks the weights of cls\.predictions"),
        (BertForMaskedLM, r"holds an encoder \(bert\), which cannot write text"),
    ],
)
def test_an_encoder_never_plays_a_language_model(
    kind: Callable[[BertConfig], PreTrainedModel], said: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=said):
        load_model(saved(bert(kind), tmp_path), FLOAT32)


def test_weights_that_were_left_out_of_a_layer_are_refused(tmp_path: Path) -> None:
    extra = "model.layers.0.mlp.up_proj.bias"
    folder = rewritten(saved(decoder(), tmp_path / "bias"), lambda weights: weights.update({extra: torch.ones(24)}))
    with pytest.raises(DataError, match=rf"config\.json leaves out: {extra}"):
        load_model(folder, FLOAT32)
    inside = "model.layers.0.self_attn.q_proj.lora_A.default.weight"
    folder = rewritten(saved(decoder(), tmp_path / "lora"), lambda weights: weights.update({inside: torch.ones(4, 16)}))
    with pytest.raises(DataError, match=r"LoRA adapter beside its weights .* merge it"):
        load_model(folder, FLOAT32)


def test_a_head_of_another_task_beside_a_whole_model_is_no_mistake(tmp_path: Path) -> None:
    more = {"v_head.summary.weight": torch.ones(1, 16), "visual.patch.weight": torch.ones(3, 3)}
    load_model(rewritten(saved(decoder(), tmp_path), lambda weights: weights.update(more)), FLOAT32)


def test_an_adapter_and_a_gguf_file_say_what_to_do_with_them(tmp_path: Path) -> None:
    adapter, gguf = tmp_path / "adapter", tmp_path / "gguf"
    for folder in (adapter, gguf):
        folder.mkdir()
    (adapter / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "Qwen/Qwen3-4B"}')
    (gguf / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(DataError, match=r"LoRA adapter of Qwen/Qwen3-4B; merge it .*merge_and_unload\(\)"):
        check_is_model(adapter)
    for path in (gguf, gguf / "m.gguf"):
        with pytest.raises(DataError, match=r"GGUF file.* serve it \(llama-server"):
            check_is_model(path)


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused_before_a_lookup_fails(tmp_path: Path) -> None:
    folder = saved(decoder(200), tmp_path)
    with pytest.raises(DataError, match=r"its tokenizer has 259 tokens, and the model embeds 200; resize"):
        HfTokenizer.load(folder)


def test_a_placeholder_of_images_may_lie_beyond_the_embedding_of_a_text_model(tmp_path: Path) -> None:
    for token, fits in (("<image_soft_token>", True), ("<search>", False)):
        fast = train_tokenizer(["a b"], (), 300)
        fast.add_special_tokens({"additional_special_tokens": [token]})
        folder = tmp_path / token.strip("<>")
        save_model(decoder(259), HfTokenizer(fast), folder)
        if fits:
            HfTokenizer.load(folder)
            continue
        with pytest.raises(DataError, match="its tokenizer has 260 tokens, and the model embeds 259"):
            HfTokenizer.load(folder)


def test_integers_without_a_scale_are_not_taken_for_weights(tmp_path: Path) -> None:
    folder = rewritten(saved(decoder(), tmp_path), lambda weights: weights.update({UP: torch.ones(24, 16).char()}))
    with pytest.raises(DataError, match=rf"holds {UP} as integers, and its config\.json names no quantization"):
        load_model(folder, FLOAT32)


def test_a_token_behind_a_gap_is_not_read_with_the_vector_of_another(tmp_path: Path) -> None:
    folder = saved(decoder(400), tmp_path)
    tree = json.loads((folder / "tokenizer.json").read_text())
    tree["added_tokens"].append({**tree["added_tokens"][-1], "id": 350, "content": "<gap>"})
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match="added token '<gap>' has the id 350, and would be loaded with 259"):
        HfTokenizer.load(folder)
