"""Fears about the laptop policy: it must be an ordinary folder, and making it must disturb nothing."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.networks import SMALL, TEXTS, halve
from tests.retrieval.tiny_encoder import make_encoder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    BertModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from coseek.core.errors import DataError, SettingError
from coseek.hardware.placement import FLOAT32, Placement
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.model_folder import check_is_model, fetch_command, missing, model_path, shipped_models, way_out
from coseek.models.new_tokens import add_tokens, spelt_words
from coseek.models.pretrained import check_weights, load_model, save_model
from coseek.models.text_model import open_local_text_model
from coseek.models.tokenizer import HfTokenizer, train_tokenizer
from coseek.retrieval.retrievers.rerank import check_folder
from coseek.retrieval.vectors.encoder import encoder_folder
from coseek.training.learner.policy import Policy
from coseek.training.learner.settings import LearnerSettings


def test_the_folder_is_an_ordinary_hugging_face_folder(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer("<|user|> fish<|model|>", return_tensors="pt").input_ids
    assert ids.shape == (1, 3)
    assert model(ids).logits.shape == (1, 3, len(tokenizer))
    assert model.config.model_type == "lfm2"
    assert model.config.eos_token_id == tokenizer.eos_token_id != tokenizer.pad_token_id


def test_a_saved_policy_can_be_read_by_other_users_with_all_its_chat_templates(folder: Path, tmp_path: Path) -> None:
    tokenizer = HfTokenizer.load(folder)
    tokenizer.fast.chat_template = {"default": "{{ messages }}", "tool_use": "{{ tools }}"}
    save_model(load_model(folder, FLOAT32), tokenizer, tmp_path / "saved")
    paths = [*(tmp_path / "saved").rglob("*")]
    assert "tool_use.jinja" in [path.name for path in paths]
    for path in paths:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def test_the_same_seed_gives_the_same_weights_and_the_global_generator_is_left_alone(
    folder: Path, tmp_path: Path
) -> None:
    before = torch.get_rng_state()
    for seed in (3, 4):
        make_policy(SMALL, TEXTS, ["<|user|>", "<|model|>"], tmp_path / str(seed), seed)
    assert torch.equal(before, torch.get_rng_state())
    first = (folder / "model.safetensors").read_bytes()
    assert (tmp_path / "3" / "model.safetensors").read_bytes() == first
    assert (tmp_path / "4" / "model.safetensors").read_bytes() != first


def test_a_folder_that_is_no_model_is_named(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no model folder"):
        load_model(tmp_path / "none", FLOAT32)
    with pytest.raises(DataError, match=r"no config\.json"):
        load_model(tmp_path, FLOAT32)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(DataError, match="no language model that can be opened"):
        load_model(tmp_path, FLOAT32)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(DataError, match="no language model that can be opened"):
        load_model(tmp_path, FLOAT32)


# --- whole weights: no part of a model is ever filled with random numbers


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


def test_tied_embeddings_are_no_missing_weights_and_untied_ones_are(tmp_path: Path) -> None:
    load_model(saved(decoder(tied=True), tmp_path / "tied"), FLOAT32)
    folder = saved(decoder(), tmp_path / "untied")
    rewritten(folder, lambda weights: weights.__delitem__("lm_head.weight"))
    with pytest.raises(DataError, match=r"lacks the weights of lm_head\.weight"):
        load_model(folder, FLOAT32)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (BertModel, r"lacks the weights of cls\.predictions.*saved from BertModel"),
        (BertForTokenClassification, r"lacks the weights of cls\.predictions"),
        (BertForMaskedLM, r"holds an encoder \(bert\), which cannot write text"),
    ],
)
def test_an_encoder_never_plays_a_language_model(
    kind: Callable[[BertConfig], PreTrainedModel], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        load_model(saved(bert(kind), tmp_path), FLOAT32)


@pytest.mark.parametrize(
    ("name", "weight", "message"),
    [
        (UP, torch.zeros(8, 16), rf"{UP} \(8 × 16, 24 × 16\)"),
        (UP, torch.ones(24, 16).char(), rf"holds {UP} as integers, and its config\.json names no quantization"),
        ("model.layers.0.mlp.up_proj.bias", torch.ones(24), r"config\.json leaves out: model\.layers\.0\.mlp\.up_proj"),
        ("model.layers.0.mlp.up_proj.lora_A.default.weight", torch.ones(4, 16), "LoRA adapter beside .* merge it"),
    ],
    ids=["another shape", "integers without a scale", "a bias", "an adapter"],
)  # fmt: skip
def test_weights_that_the_model_would_not_use_as_they_are_stored_are_refused(
    name: str, weight: Tensor, message: str, tmp_path: Path
) -> None:
    folder = rewritten(saved(decoder(), tmp_path), lambda weights: weights.update({name: weight}))
    with pytest.raises(DataError, match=message):
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
    for token in ("<image_soft_token>", "<search>"):
        fast = train_tokenizer(["a b"], (), 300)
        fast.add_special_tokens({"additional_special_tokens": [token]})
        save_model(decoder(259), HfTokenizer(fast), tmp_path / token)
    HfTokenizer.load(tmp_path / "<image_soft_token>")
    with pytest.raises(DataError, match="its tokenizer has 260 tokens, and the model embeds 259"):
        HfTokenizer.load(tmp_path / "<search>")


def test_a_token_behind_a_gap_is_not_read_with_the_vector_of_another(tmp_path: Path) -> None:
    folder = saved(decoder(400), tmp_path)
    tree = json.loads((folder / "tokenizer.json").read_text())
    tree["added_tokens"].append({**tree["added_tokens"][-1], "id": 350, "content": "<gap>"})
    (folder / "tokenizer.json").write_text(json.dumps(tree))
    with pytest.raises(DataError, match="added token '<gap>' has the id 350, and would be loaded with 259"):
        HfTokenizer.load(folder)


# --- new tokens: tags and words as tokens of their own, for a model that was trained without them


FACTS = ["the mayor of Novinna is Ada Byron .", "the label of Silver Gate is Narrow Clover ."]
MARKS = ("<query>", "</query>", "<answer>")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    settings = LaptopSettings(hidden=16, layers=("conv", "full_attention"), heads=2, kv_heads=1, feed_forward=24)
    make_policy(settings.model_copy(update={"vocabulary": 300}), FACTS, ("<answer>",), tmp_path / "plain", 0)
    return tmp_path / "plain"


def test_a_tag_becomes_one_token_and_no_other_text_is_read_anew(plain: Path, tmp_path: Path) -> None:
    add_tokens(plain, MARKS, (), tmp_path / "marked", 0)
    before, after = HfTokenizer.load(plain), HfTokenizer.load(tmp_path / "marked")
    assert [len(after.encode(mark)) for mark in MARKS] == [1, 1, 1]
    assert after.encode("<answer>") == before.encode("<answer>")  # known already
    for text in FACTS:
        assert after.encode(text) == before.encode(text)
    assert after.decode(after.encode(" Ada<query>")) == " Ada<query>"
    assert len(after.encode_data("<query>")) > 1  # a passage cannot say it


def test_the_model_says_what_it_said_of_old_tokens(plain: Path, tmp_path: Path) -> None:
    add_tokens(plain, MARKS, (), tmp_path / "marked", 0)
    before, after = load_model(plain, FLOAT32), load_model(tmp_path / "marked", FLOAT32)
    ids_BT = torch.tensor([HfTokenizer.load(plain).encode(FACTS[0])])
    with torch.no_grad():
        old_BTV, new_BTV = before(ids_BT).logits, after(ids_BT).logits
    assert new_BTV.shape[-1] == old_BTV.shape[-1] + 2
    assert torch.equal(new_BTV[..., : old_BTV.shape[-1]], old_BTV)
    assert new_BTV.isfinite().all()


def test_tags_in_spare_rows_of_the_table_begin_at_the_mean_and_differ(plain: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(plain, FLOAT32), HfTokenizer.load(plain)
    model.resize_token_embeddings(tokenizer.size + 64, mean_resizing=False)
    model.get_parameter("model.embed_tokens.weight").detach()[tokenizer.size :] = 7.0
    save_model(model, tokenizer, tmp_path / "padded")
    add_tokens(tmp_path / "padded", MARKS, (), tmp_path / "marked", 0)
    vectors_VD = vectors(tmp_path / "marked")
    tags_VD, known_VD = vectors_VD[tokenizer.size : tokenizer.size + 2], vectors_VD[: tokenizer.size]
    assert len(vectors_VD) == tokenizer.size + 64
    assert ((tags_VD - known_VD.mean(0)).abs() < 0.01 * known_VD.std(0)).all()
    assert not torch.equal(tags_VD[0], tags_VD[1])


WORDS_OF = ["the mayor of Gelsin is Ora Nilson .", "Gelsin lies in Brelmark .", "Gelsin — naïve ."]


def test_words_that_were_spelt_become_one_token_each_the_most_frequent_first(plain: Path, tmp_path: Path) -> None:
    words = spelt_words(plain, WORDS_OF, 100)
    assert words[0] == "Gelsin"
    assert "ĠBrelmark" in words
    assert spelt_words(plain, WORDS_OF, 1) == ["Gelsin"]
    add_tokens(plain, MARKS, words, tmp_path / "more", 0)
    before, after = HfTokenizer.load(plain), HfTokenizer.load(tmp_path / "more")
    for text in WORDS_OF:
        assert after.decode(after.encode(text)) == text
        assert len(after.encode(text)) < len(before.encode(text))
    assert len(after.encode(" Brelmark")) == 1
    assert len(after.encode(" Brelmarks")) > 1
    assert [len(after.encode(mark)) for mark in MARKS] == [1, 1, 1]
    assert len(after.encode_data("<query>")) > 1  # a passage cannot say it
    for word in words:
        assert len(before.encode(before.fast.convert_tokens_to_string([word]))) > 1


def vectors(folder: Path) -> torch.Tensor:
    return load_model(folder, FLOAT32).get_parameter("model.embed_tokens.weight").detach()


def test_going_on_from_a_policy_adds_nothing_twice_and_moves_no_token(plain: Path, tmp_path: Path) -> None:
    one, two, three = tmp_path / "one", tmp_path / "two", tmp_path / "three"
    add_tokens(plain, MARKS, spelt_words(plain, WORDS_OF, 3), one, 0)
    assert spelt_words(one, WORDS_OF, 3) == []
    add_tokens(one, MARKS, spelt_words(one, WORDS_OF, 3), two, 1)
    assert torch.equal(vectors(one), vectors(two))
    assert HfTokenizer.load(one).fast.get_vocab() == HfTokenizer.load(two).fast.get_vocab()
    # More words and another protocol's tags follow the tokens that are there.
    words = spelt_words(two, [*WORDS_OF, "Ormel sits beside Ormel ."], 6)
    add_tokens(two, (*MARKS, "<think>"), words, three, 2)
    before, after = HfTokenizer.load(two), HfTokenizer.load(three)
    assert words and after.size == before.size + len(words) + 1
    assert after.fast.get_vocab().items() >= before.fast.get_vocab().items()
    assert torch.equal(vectors(three)[: before.size], vectors(two))
    for text in [f"{mark}Ada</query>" for mark in MARKS]:
        assert after.encode(text) == before.encode(text)
    assert len(after.encode_data("<query>")) > 1  # a passage cannot say it


def test_words_are_refused_where_the_tokenizer_is_no_bpe(tmp_path: Path) -> None:
    rust = Tokenizer(WordLevel({"[end]": 0, "a": 1}, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=rust, eos_token="[end]").save_pretrained(tmp_path)
    with pytest.raises(SettingError, match=r"policy\.add_word_tokens=0"):
        spelt_words(tmp_path, WORDS_OF, 10)


# --- models of the package: opened by a bare name, and never taken for a folder of the user's


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shipped policy with float16 weights."""
    root = tmp_path_factory.mktemp("weights")
    make_policy(SMALL, TEXTS, (), root / "policy" / "base", seed=1)
    halve(root / "policy" / "base" / "model.safetensors")
    return root


def test_a_bare_name_is_the_shipped_model_and_a_path_is_not(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base").mkdir()
    assert model_path("base", "policy", root) == root / "policy" / "base"
    for own in ("./base", "base/", str(tmp_path / "base"), Path("base")):
        assert model_path(own, "policy", root).resolve() == tmp_path / "base"
    assert model_path("~/base", "policy", root) == Path.home() / "base"
    assert model_path("~nobody-here/base", "policy", root) == Path("~nobody-here/base")


def test_a_name_of_one_kind_names_no_model_of_the_other(root: Path) -> None:
    assert shipped_models("policy", root) == ["base"] and shipped_models("encoder", root) == []
    assert model_path("base", "encoder", root) == Path("base")


def test_a_misspelt_name_is_told_the_nearest_shipped_model(root: Path) -> None:
    known = shipped_models("policy", root)
    sentence = missing("model folder", Path("bse"), known=known)
    assert sentence == "there is no model folder bse; did you mean 'base', which coseek ships? Else check the path"
    for other in ("./bases", "a/b/base", "quickstart"):
        assert missing("model folder", other, known=known).endswith("; check the path")


def test_float16_weights_are_trained_and_sampled_in_float32(root: Path, tmp_path: Path) -> None:
    folder = model_path("base", "policy", root)
    stored = load_file(folder / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.float16}
    add_tokens(folder, ["<search>"], (), tmp_path / "tagged", seed=0)
    trained = Policy(load_model(folder, FLOAT32), LearnerSettings(), 0).model
    for model in (trained, load_model(folder, FLOAT32), load_model(tmp_path / "tagged", FLOAT32)):
        loaded = model.state_dict()
        assert {weight.dtype for weight in loaded.values() if weight.is_floating_point()} == {torch.float32}
        assert all(torch.equal(loaded[name][: len(weight)].cpu(), weight.float()) for name, weight in stored.items())
    assert load_file(tmp_path / "tagged" / "model.safetensors")["model.embed_tokens.weight"].dtype == torch.float32
    assert load_model(folder, Placement(precision="bfloat16")).dtype == torch.bfloat16


def test_a_float16_encoder_gives_the_vectors_of_its_weights_in_float32(tmp_path: Path) -> None:
    from coseek.retrieval.vectors.encoder import load_encoder

    folder = make_encoder(tmp_path / "encoder")
    halve(folder / "model.safetensors")
    stored = load_file(folder / "model.safetensors")
    loaded = load_encoder(folder, FLOAT32, "float32").state_dict()
    assert {weight.dtype for weight in loaded.values() if weight.is_floating_point()} == {torch.float32}
    by_name = {name.split("auto_model.")[-1].removeprefix("0.model."): weight for name, weight in loaded.items()}
    assert all(torch.equal(by_name[name].cpu(), weight.float()) for name, weight in stored.items())


# --- hub: the name of a model on a hub, given where a folder is needed, is answered with the line that fetches it


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("BAAI/bge-small-en-v1.5", ("BAAI/bge-small-en-v1.5", "models/bge-small-en-v1.5")),
        ("Qwen/Qwen2.5-7B-Instruct", ("Qwen/Qwen2.5-7B-Instruct", "models/Qwen2.5-7B-Instruct")),
        ("models/Qwen2.5-7B", ("Qwen/Qwen2.5-7B", "models/Qwen2.5-7B")),
        ("/big disk/e5-base-v2", ("intfloat/e5-base-v2", "/big disk/e5-base-v2")),
        ("Qwen2.5-3B", ("Qwen/Qwen2.5-3B", "models/Qwen2.5-3B")),
        ("somebody/their_model.v2", ("somebody/their_model.v2", "models/their_model.v2")),
        ("models", None), ("nowhere", None), ("a/b/c", None), ("../up", None), ("./here", None), ("/abs/path", None),
        ("a/b; rm -rf x", None), ("owner/", None), ("", None), (".", None), ("~/model", None),
    ],
)  # fmt: skip
def test_what_may_be_on_a_hub_is_told_from_a_path(
    name: str, command: tuple[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fetch_command(name) == command
    assert ("hf download" in way_out(name)) == (command is not None)


def test_a_path_below_a_folder_that_is_there_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert fetch_command("runs/policy") is None and way_out("runs/policy") == "check the path"


def test_every_place_that_needs_a_folder_says_how_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "BAAI/bge-small-en-v1.5"
    line = "hf download BAAI/bge-small-en-v1.5 --local-dir models/bge-small-en-v1.5, then name models/bge-small-en-v1.5"
    for refuse in (
        lambda: HfTokenizer.load(Path(name)), lambda: encoder_folder(name), lambda: check_folder(Path(name)),
    ):  # fmt: skip
        with pytest.raises(DataError, match=line):
            refuse()
