"""Fears about stop strings: one that spans tokens, or ends inside one, must be seen, at that token and no other."""

from hypothesis import given
from hypothesis import strategies as st

from coseek.models.tokenizer import ByteTokenizer, HfTokenizer, StopStrings, train_tokenizer

# Without special tokens the closings are written in pieces, and "></" is common enough to become one token.
TEXTS = ["<search> a</search><search> b</search><answer> c</answer>"] * 20
PIECES = HfTokenizer(train_tokenizer(["x></y>", "></", " a></b", ".</", "</s", "earch"] * 50, (), 300))
STOPS = ("</search>", "</answer>")


def first_stop(stops: StopStrings, ids: list[int]) -> int | None:
    """Where a sampler would halt, in tokens."""
    return next((end for end in range(1, len(ids) + 1) if stops.completed(ids[:end])), None)


def test_a_stop_string_of_several_tokens_ends_at_its_last() -> None:
    ids = PIECES.encode(" ab</search> more")
    assert len(PIECES.encode("</search>")) > 3
    end = first_stop(StopStrings(STOPS, PIECES, PIECES.size), ids)
    assert end is not None
    assert PIECES.decode(ids[:end]) == " ab</search>"


def test_a_stop_string_that_ends_inside_a_token_keeps_the_token_whole() -> None:
    ids = PIECES.encode("</search></answer")
    end = first_stop(StopStrings(STOPS, PIECES, PIECES.size), ids)
    assert end is not None
    assert PIECES.decode(ids[:end]) == "</search></"


def test_a_special_token_that_is_a_stop_string_is_known_at_once() -> None:
    tokenizer = HfTokenizer(train_tokenizer(TEXTS, STOPS, 300))
    stops = StopStrings(STOPS, tokenizer, tokenizer.size)
    assert [tokenizer.decode([ident]) for ident in stops.at_once.nonzero()[0].tolist()] == list(STOPS)


def test_stops_that_end_in_part_of_a_character_are_seen() -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("so。")
    assert first_stop(StopStrings(["。"], tokenizer, tokenizer.size), ids) == len(ids)


@given(text=st.lists(st.sampled_from(["</", "search", ">", "<", "></", "answer", " a", "/", "x"]), max_size=12))
def test_the_first_token_after_which_the_text_holds_a_stop_string_is_where_it_halts(text: list[str]) -> None:
    ids = PIECES.encode("".join(text))
    stops = StopStrings(STOPS, PIECES, PIECES.size)
    truth = (end for end in range(1, len(ids) + 1) if any(stop in PIECES.decode(ids[:end]) for stop in STOPS))
    assert first_stop(stops, ids) == next(truth, None)
