"""New tokens: tags and words as tokens of their own, for a model that was trained without them."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from coseek.core.errors import SettingError
from coseek.hardware.placement import FLOAT32, Placement
from coseek.models.laptop import LaptopSettings, make_policy
from coseek.models.new_tokens import add_tokens, spelt_words
from coseek.models.pretrained import load_model, save_model
from coseek.models.tokenizer import HfTokenizer

TEXTS = ["the mayor of Novinna is Ada Byron .", "the label of Silver Gate is Narrow Clover ."]
MARKS = ("<query>", "</query>", "<answer>")


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    settings = LaptopSettings(hidden=16, layers=("conv", "full_attention"), heads=2, kv_heads=1, feed_forward=24)
    make_policy(settings.model_copy(update={"vocabulary": 300}), TEXTS, ("<answer>",), tmp_path / "plain", 0)
    return tmp_path / "plain"


def test_a_tag_becomes_one_token_and_no_other_text_is_read_anew(plain: Path, tmp_path: Path) -> None:
    add_tokens(plain, MARKS, (), tmp_path / "marked", 0)
    before, after = HfTokenizer.load(plain), HfTokenizer.load(tmp_path / "marked")
    assert [len(after.encode(mark)) for mark in MARKS] == [1, 1, 1]
    assert after.encode("<answer>") == before.encode("<answer>")  # known already
    for text in TEXTS:
        assert after.encode(text) == before.encode(text)
    assert after.decode(after.encode(" Ada<query>")) == " Ada<query>"
    assert len(after.encode_data("<query>")) > 1  # a passage cannot say it


def test_the_model_says_what_it_said_of_old_tokens(plain: Path, tmp_path: Path) -> None:
    add_tokens(plain, MARKS, (), tmp_path / "marked", 0)
    here = Placement(device="cpu", precision="float32")
    before, after = load_model(plain, here), load_model(tmp_path / "marked", here)
    ids_BT = torch.tensor([HfTokenizer.load(plain).encode(TEXTS[0])])
    with torch.no_grad():
        old_BTV, new_BTV = before(ids_BT).logits, after(ids_BT).logits
    assert new_BTV.shape[-1] == old_BTV.shape[-1] + 2
    assert torch.equal(new_BTV[..., : old_BTV.shape[-1]], old_BTV)
    assert new_BTV.isfinite().all()


def test_tags_in_spare_rows_of_the_table_begin_at_the_mean_and_differ(plain: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(plain, FLOAT32), HfTokenizer.load(plain)
    model.resize_token_embeddings(tokenizer.size + 64, mean_resizing=False)
    with torch.no_grad():
        model.get_parameter("model.embed_tokens.weight")[tokenizer.size :] = 7.0
    save_model(model, tokenizer, tmp_path / "padded")
    add_tokens(tmp_path / "padded", MARKS, (), tmp_path / "marked", 0)
    vectors_VD = load_model(tmp_path / "marked", FLOAT32).get_parameter("model.embed_tokens.weight").detach()
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
