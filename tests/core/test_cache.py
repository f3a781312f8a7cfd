"""Fears about the store: a text under the wrong key, a file of somebody else's, a store that grows for ever."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coseek.core.cache import TextCache
from coseek.core.errors import DataError


def test_what_is_kept_is_found_by_a_later_store(tmp_path: Path) -> None:
    first = TextCache(tmp_path / "s" / "texts.sqlite")
    first.write({"a": "one", "b": "two\udcff".encode("utf-8", "replace").decode()})
    first.close()
    again = TextCache(tmp_path / "s" / "texts.sqlite")
    assert again.read(["a", "c"]) == {"a": "one"}
    again.close()


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text(max_size=5)), max_size=30))
@settings(max_examples=20)
def test_a_key_keeps_its_first_text(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]]) -> None:
    store = TextCache(tmp_path_factory.mktemp("store") / "texts.sqlite")
    told: dict[str, str] = {}
    for key, text in pairs:
        text = text.encode("utf-8", "replace").decode()
        store.write({key: text})
        told.setdefault(key, text)
    assert store.read(list("abcdef")) == told
    store.close()


def test_the_texts_unused_for_the_longest_make_room(tmp_path: Path) -> None:
    store = TextCache(tmp_path / "texts.sqlite", max_rows=4)
    for key in "abcd":
        store.write({key: key})
    assert store.read(["a"]) == {"a": "a"}  # used again, so it stays
    store.write({"e": "e", "f": "f"})
    kept = store.read(list("abcdef"))
    assert kept is not None
    assert set(kept) == {"a", "d", "e", "f"}
    store.close()


def test_a_link_to_nothing_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to("nowhere")
    with pytest.raises(DataError, match="a link to nothing"):
        TextCache(tmp_path / "cache")
    assert not (tmp_path / "nowhere").exists()
