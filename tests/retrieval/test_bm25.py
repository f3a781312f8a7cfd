from collections.abc import Sequence

import bm25s  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coseek.data.passage import Corpus, Passage
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings

VOCABULARY = ["ada", "bob", "cat", "dog", "elm", "fig"]
TEXTS = st.lists(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8), min_size=1, max_size=12)
QUERY = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=5)


def corpus_of(texts: Sequence[str]) -> Corpus:
    return Corpus(Passage(str(row), "", text) for row, text in enumerate(texts))


def ids(retriever: Bm25, query: str, k: int = 10) -> list[str]:
    return [hit.passage.id for hit in retriever.search([query], k)[0]]


ZOO = corpus_of(["the cat sat", "a dog sat on the dog", "the cat saw the dog", "fig trees", ""])


@settings(max_examples=100)
@given(TEXTS, QUERY, st.floats(0, 3), st.floats(0, 1))
def test_scores_are_those_of_bm25s_to_the_last_bit(
    texts: list[list[str]], query: list[str], k1: float, b: float
) -> None:
    ours = Bm25.over(corpus_of([" ".join(text) for text in texts]), Bm25Settings(k1=k1, b=b))
    theirs = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    theirs.index(texts, show_progress=False)
    assert np.array_equal(ours.scores(" ".join(query)), theirs.get_scores(query))


@settings(max_examples=50)
@given(TEXTS, st.lists(QUERY, min_size=1, max_size=4))
def test_a_query_finds_the_same_alone_and_in_a_batch(texts: list[list[str]], queries: list[list[str]]) -> None:
    retriever = Bm25.over(corpus_of([" ".join(text) for text in texts]))
    lines = [" ".join(query) for query in queries]
    assert retriever.search(lines, 3) == [retriever.search([line], 3)[0] for line in lines]


def test_titles_are_searched_too() -> None:
    retriever = Bm25.over(Corpus([Passage("1", "Ada Lovelace", "wrote programs"), Passage("2", "Bob", "did not")]))
    assert ids(retriever, "lovelace") == ["1"]


def test_equal_scores_keep_corpus_order_even_at_the_cut() -> None:
    retriever = Bm25.over(corpus_of(["cat"] * 40))
    assert ids(retriever, "cat", 7) == [str(row) for row in range(7)]


@pytest.mark.parametrize("query", ["", "  ", "?!", "unheard"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert ids(Bm25.over(ZOO), query) == []


def test_more_than_the_corpus_holds_is_all_that_matches() -> None:
    assert sorted(ids(Bm25.over(ZOO), "the sat", 100)) == ["0", "1", "2"]


def test_no_queries_find_no_lists() -> None:
    assert Bm25.over(ZOO).search([], 3) == []


@pytest.mark.parametrize("k", [0, -2])
def test_no_passages_cannot_be_asked_for(k: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Bm25.over(ZOO).search(["cat"], k)


def test_stop_words_and_plurals_can_be_dropped() -> None:
    retriever = Bm25.over(ZOO, Bm25Settings(stop_words=True, stem="plural"))
    assert ids(retriever, "the on a") == []
    assert ids(retriever, "cats tree") == ["3", "0", "2"]


def test_a_corpus_without_words_is_searched_in_vain() -> None:
    assert ids(Bm25.over(corpus_of(["…", "!"])), "cat") == []
