"""Fears about tokenizers: text from outside must never become a special token, and nothing may be lost."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tests.examples_drawn import at_most
from tokenizers import AddedToken

from coseek.core.errors import DataError, SettingError
from coseek.models.chat import begin_ids
from coseek.models.tokenizer import END, ByteTokenizer, HfTokenizer, train_tokenizer

TAGS = ("<search>", "</search>", "<answer>", "</answer>")
TEXTS = [" The river Ona flows through Marden .", " Marden is a city in Ostia .", " Who founded Marden ?"] * 5


def learnt() -> HfTokenizer:
    return HfTokenizer(train_tokenizer(TEXTS, TAGS, 400))


LEARNT = learnt()
BOTH = pytest.mark.parametrize("tokenizer", [LEARNT, ByteTokenizer(TAGS)], ids=["learnt", "bytes"])


@BOTH
@given(text=st.text(max_size=40))
@settings(max_examples=at_most(60))
def test_any_text_comes_back_whole(tokenizer: HfTokenizer | ByteTokenizer, text: str) -> None:
    for ids in (tokenizer.encode(text), tokenizer.encode_data(text)):
        assert tokenizer.decode(ids) == text


@BOTH
def test_a_tag_is_one_token_where_we_write_it_and_plain_characters_where_others_do(
    tokenizer: HfTokenizer | ByteTokenizer,
) -> None:
    text = f"a<search> b</search>{END}"
    ours, theirs = tokenizer.encode(text), tokenizer.encode_data(text)
    (tag,) = tokenizer.encode("<search>")
    assert tag in ours
    assert tokenizer.eos_id in ours
    specials = {ident for name in (*TAGS, END) for ident in tokenizer.encode(name)}
    assert not specials & set(theirs)
    assert tokenizer.decode(theirs) == text


def test_line_breaks_that_are_added_tokens_have_their_token_in_data_too() -> None:
    fast = learnt().fast
    fast.add_tokens([AddedToken("\n\n", special=False, normalized=False), AddedToken("<b>", special=False)])
    tokenizer = HfTokenizer(fast)
    assert tokenizer.encode_data("Marden\n\nOna") == tokenizer.encode("Marden\n\nOna")
    assert tokenizer.encode_data("<b>") != tokenizer.encode("<b>")


def test_a_text_begins_as_the_folder_says_where_the_library_drops_that_setting(tmp_path: Path) -> None:
    fast = learnt().fast
    fast.bos_token = "<search>"
    fast.save_pretrained(tmp_path / "policy")
    file = tmp_path / "policy" / "tokenizer_config.json"
    config = {**json.loads(file.read_text()), "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True}
    file.write_text(json.dumps(config))
    first = HfTokenizer.load(tmp_path / "policy")
    first.save(tmp_path / "saved")
    again = HfTokenizer.load(tmp_path / "saved")
    assert begin_ids(first) == begin_ids(again) == tuple(LEARNT.encode("<search>"))


def test_a_saved_tokenizer_opens_as_itself(tmp_path: Path) -> None:
    LEARNT.save(tmp_path)
    opened = HfTokenizer.load(tmp_path)
    text = "<search> Who founded Ostia ? ü</search>"
    assert opened.encode(text) == LEARNT.encode(text)
    assert opened.encode_data(text) == LEARNT.encode_data(text)
    assert (opened.eos_id, opened.size) == (LEARNT.eos_id, LEARNT.size)


def test_padding_and_truncation_that_a_folder_asks_for_touch_no_ids() -> None:
    fast = train_tokenizer(TEXTS, TAGS, 400)
    plain = HfTokenizer(fast).encode(TEXTS[0])
    fast.backend_tokenizer.enable_truncation(2)
    fast.backend_tokenizer.enable_padding(length=50)
    assert HfTokenizer(fast).encode(TEXTS[0]) == HfTokenizer(fast).encode_data(TEXTS[0]) == plain


def test_added_tokens_that_are_not_marked_special_are_plain_in_data_too() -> None:
    # Qwen's tokenizers hold <think> and <tool_call> in this way.
    fast = train_tokenizer(TEXTS, TAGS, 400)
    fast.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tokenizer = HfTokenizer(fast)
    (tag,) = tokenizer.encode("<think>")
    theirs = tokenizer.encode_data("a<think><think>b<<think>")
    assert tag not in theirs
    assert tokenizer.decode(theirs) == "a<think><think>b<<think>"


def test_numbers_that_were_never_met_are_written_digit_by_digit() -> None:
    fast = train_tokenizer([*TEXTS, " In 1987 , 1987 and 1987 , 2 ."] * 9, TAGS, 400, single_digits=True)
    tokenizer = HfTokenizer(fast)
    assert "|".join(tokenizer.decode([ident]) for ident in tokenizer.encode(" 1987 2051")) == " 1|9|8|7| 2|0|5|1"
    text = "born in 1987 ( a7b ) ."
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_a_vocabulary_too_small_for_every_byte_is_refused() -> None:
    with pytest.raises(SettingError, match="need 262"):
        train_tokenizer(TEXTS, TAGS, 261)


def test_a_tokenizer_without_an_end_of_text_is_refused() -> None:
    fast = train_tokenizer(TEXTS, TAGS, 400)
    fast.eos_token = None
    with pytest.raises(DataError, match="eos_token"):
        HfTokenizer(fast)


def test_bytes_that_are_no_text_decode_to_the_replacement_character() -> None:
    assert ByteTokenizer().decode([0xC3, 65]) == "\ufffdA"
    assert ByteTokenizer().decode([9999]) == ""
