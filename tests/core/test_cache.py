"""Fears about the store: a text under the wrong key, a file of somebody else's, a store that grows for ever."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coseek.core.cache import TextCache
from coseek.core.errors import DataError


def test_what_is_kept_is_found_by_a_later_store(tmp_path: Path) -> None:
    first = TextCache(tmp_path / "s" / "texts.sqlite")
    assert first.write({"a": "one", "b": "two\udcff".encode("utf-8", "replace").decode()})
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


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes " * 1000)
    with pytest.raises(DataError, match="delete it, or choose another"):
        TextCache(tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "my notes " * 1000


def test_a_link_to_nothing_is_not_filled(tmp_path: Path) -> None:
    (tmp_path / "cache").symlink_to("nowhere")
    with pytest.raises(DataError, match="a link to nothing"):
        TextCache(tmp_path / "cache")
    assert not (tmp_path / "nowhere").exists()


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = TextCache(tmp_path / "texts.sqlite")

    def write(number: int) -> None:
        for row in range(20):
            store.write({f"{number}/{row}": str(row)})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.read([f"{number}/{row}" for number in range(4) for row in range(20)]) or {}) == 80
    store.close()


@pytest.mark.slow
def test_a_kill_in_the_middle_of_writing_loses_no_earlier_text(tmp_path: Path) -> None:
    path = tmp_path / "texts.sqlite"
    code = (
        "import sys\nfrom pathlib import Path\nfrom coseek.core.cache import TextCache\n"
        "store = TextCache(Path(sys.argv[1]))\n"
        "for row in range(10**6):\n    store.write({str(row): str(row)})\n    print(row, flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(50)]
        process.kill()
    store = TextCache(path)
    assert store.read([str(row) for row in told]) == {str(row): str(row) for row in told}
    store.close()
