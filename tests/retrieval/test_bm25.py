from collections.abc import Sequence

import bm25s  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples_drawn import at_most

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings, build_postings

VOCABULARY = ["ada", "bob", "cat", "dog", "elm", "fig"]
TEXTS = st.lists(st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=8), min_size=1, max_size=12)
QUERY = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=5)


def corpus_of(texts: Sequence[str]) -> Corpus:
    return Corpus(Passage(str(row), "", text) for row, text in enumerate(texts))


def ids(retriever: Bm25, query: QueryLike, k: int = 10) -> list[str]:
    return [hit.passage.id for hit in retriever.search([query], k)[0]]


ZOO = corpus_of(["the cat sat", "a dog sat on the dog", "the cat saw the dog", "fig trees", ""])


@given(TEXTS, QUERY, st.floats(0, 3), st.floats(0, 1))
def test_scores_are_those_of_bm25s_to_the_last_bit(
    texts: list[list[str]], query: list[str], k1: float, b: float
) -> None:
    ours = Bm25.over(corpus_of([" ".join(text) for text in texts]), Bm25Settings(k1=k1, b=b))
    theirs = bm25s.BM25(k1=k1, b=b, method="lucene", backend="numpy")
    theirs.index(texts, show_progress=False)
    assert np.array_equal(ours.scores(query), theirs.get_scores(query))


@settings(max_examples=at_most(50))
@given(TEXTS, st.lists(QUERY, min_size=1, max_size=4))
def test_a_query_finds_the_same_alone_and_in_a_batch(texts: list[list[str]], queries: list[list[str]]) -> None:
    retriever = Bm25.over(corpus_of([" ".join(text) for text in texts]))
    lines = [" ".join(query) for query in queries]
    assert retriever.search(lines, 3) == [retriever.search([line], 3)[0] for line in lines]


@given(st.lists(QUERY, min_size=1, max_size=60), st.lists(st.integers(0, 4), max_size=8), st.integers(1, 30))
def test_looking_at_few_passages_finds_what_looking_at_all_finds(
    texts: list[list[str]], query: list[int], k: int
) -> None:
    postings, vocabulary = build_postings(corpus_of([" ".join(text) for text in texts]), Bm25Settings())
    words = [word for word in query if word < len(vocabulary)]
    few_rows, few_scores = postings.best(words, k, few_rows=0)
    rows, scores = postings.best(words, k)
    assert np.array_equal(few_rows, rows) and np.array_equal(few_scores, scores)


@pytest.mark.parametrize("k", [1, 10, 1000])
def test_words_in_many_passages_and_rare_ones_are_ranked_alike_either_way(k: int) -> None:
    rng = np.random.default_rng(0)
    texts = (np.minimum(rng.zipf(1.3, size=(4000, 12)), 3000)).astype(str)
    postings, vocabulary = build_postings(corpus_of([" ".join(text) for text in texts]), Bm25Settings())
    pruned: list[bool] = []
    for _ in range(40):
        words = [vocabulary[word] for word in texts[rng.integers(4000), : rng.integers(1, 12)]]
        rows, scores = postings.best(words, k)
        few_rows, few_scores = postings.best(words, k, few_rows=0)
        assert np.array_equal(few_rows, rows) and np.array_equal(few_scores, scores)
        pruned.append(len(postings._candidates(words, k)) < int(np.count_nonzero(postings.scores(words))))
    assert sum(pruned) > 20 or k == 1000


@settings(max_examples=at_most(50))
@given(TEXTS, st.integers(1, 5))
def test_an_index_made_in_small_chunks_is_the_same(texts: list[list[str]], chunk_rows: int) -> None:
    corpus = corpus_of([" ".join(text) for text in texts])
    (whole, words), (parts, same) = (
        build_postings(corpus, Bm25Settings()),
        build_postings(corpus, Bm25Settings(), chunk_rows),
    )
    assert words == same and all(
        np.array_equal(getattr(whole, name), getattr(parts, name))
        for name in ("weights_P", "rows_P", "starts_V1", "maxima_V")
    )


def test_a_title_that_counts_three_times_is_a_title_written_three_times() -> None:
    thrice = Corpus([Passage("1", "", "ada ada ada cat"), Passage("2", "", "bob bob bob ada")])
    once = Corpus([Passage("1", "Ada", "cat"), Passage("2", "Bob", "ada")])
    weighted = Bm25.over(once, Bm25Settings(title_weight=3))
    assert np.array_equal(weighted.scores(["ada", "cat"]), Bm25.over(thrice).scores(["ada", "cat"]))
    assert ids(Bm25.over(once, Bm25Settings(title_weight=0)), "ada") == ["2"]
    assert ids(Bm25.over(once, Bm25Settings(text_weight=0)), "ada") == ["1"]
    with pytest.raises(SettingError, match="both 0"):
        make_settings(Bm25Settings, {"title_weight": 0, "text_weight": 0})


def test_equal_scores_keep_corpus_order_even_at_the_cut() -> None:
    retriever = Bm25.over(corpus_of(["cat"] * 40))
    assert ids(retriever, "cat", 7) == [str(row) for row in range(7)]


@pytest.mark.parametrize("query", ["", "  ", "?!", "unheard"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert ids(Bm25.over(ZOO), query) == []


def test_stop_words_and_plurals_can_be_dropped() -> None:
    retriever = Bm25.over(ZOO, Bm25Settings(stop_words=True, stem="plural"))
    assert ids(retriever, "the on a") == []
    assert ids(retriever, "cats tree") == ["3", "0", "2"]


def test_a_stop_word_is_known_as_it_is_written_whatever_the_stemmer_would_make_of_it() -> None:
    for stem in ("plural", "english"):
        assert Bm25Settings(stop_words=True, stem=stem).tokenize("this was the cities") in (["city"], ["citi"])


def test_a_view_gives_words_to_look_up_and_none_of_its_labels() -> None:
    corpus = corpus_of(["query reasoning empty sep turn", "ada", "cat"])
    query = Query("cat", question="ada", reasoning="ada")
    for view in ("question+query", "question+history", "reasoning+query", "last-3-turns"):
        assert sorted(ids(Bm25.over(corpus, Bm25Settings(view=view)), query)) == ["1", "2"]
