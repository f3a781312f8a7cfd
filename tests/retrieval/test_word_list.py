"""Words are found and edited in the bytes of their file as they would be in a list."""

import json
from bisect import bisect_left
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coseek.core.errors import DataError
from coseek.retrieval.lexical.analyzer import words
from coseek.retrieval.lexical.word_counts import WordList

# Beginnings of eight bytes and more are shared, within a character, too.
WORDS = st.sets(
    st.text("az9é月𐐨", min_size=1, max_size=3)
    | st.sampled_from(["abcdefg", "abcdefgh", "abcdefghi", "abcdefgé", "月月月"])
    | st.text("ab", max_size=2).map("internat".__add__),
    max_size=12,
).map(sorted)  # fmt: skip


@given(WORDS)
def test_a_word_list_is_the_json_of_its_words(listed: list[str]) -> None:
    found = WordList.of(listed)
    assert found.data.decode() == json.dumps(listed, ensure_ascii=False)
    assert found.strings() == listed == [word.decode() for word in found]


@given(WORDS, WORDS)
def test_words_are_found_where_a_search_in_a_list_finds_them(listed: list[str], asked: list[str]) -> None:
    at_U, known_U = WordList.of(listed).places(WordList.of(asked))
    assert at_U.tolist() == [bisect_left(listed, word) for word in asked]
    assert known_U.tolist() == [word in listed for word in asked]


@given(WORDS, WORDS, st.data())
def test_words_come_and_go_without_a_trace(before: list[str], more: list[str], data: st.DataObject) -> None:
    old, new = WordList.of(before), WordList.of(more)
    at_U, known_U = old.places(new)
    gone = [place for place in range(len(before)) if data.draw(st.booleans())]
    inserted = [new[number] for number in np.flatnonzero(~known_U).tolist()]
    kept = {word for place, word in enumerate(before) if place not in gone} | {word.decode() for word in inserted}
    assert old.edited(at_U[~known_U], inserted, np.array(gone, dtype=np.int64)) == WordList.of(sorted(kept)).data


@given(st.text())
def test_no_word_holds_what_json_escapes(text: str) -> None:
    cut = words(text)
    assert json.dumps(cut, ensure_ascii=False) == WordList.of(cut).data.decode()


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b'["a"', b'["a", "b]', b'["a", "b", "c", "d]', b'["a","b"]', b'["a"; "b"]', b'["a", 1, "b"]',
        b'["a\\n"]', b'["\xff"]', b'["a"] ', b'"a"',
    ],
)  # fmt: skip
def test_another_file_is_refused_as_a_word_list(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "words.json").write_bytes(data)
    with pytest.raises(DataError, match="rebuild the index"):
        WordList.read(tmp_path / "words.json")
