"""Fears about noise: a sibling in the batch that changes a query's fate, noise that never comes."""

from collections import Counter

import pytest
from tests.retrieval.test_hybrid import Far

from coseek.core.errors import SettingError
from coseek.core.settings import make_settings
from coseek.data.passage import Corpus, Passage
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.noisy import NoisyRetriever, NoisySettings
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings

CORPUS = Corpus(Passage(str(row), "", f"text {row}") for row in range(200))
QUERIES = [f"query {number}" for number in range(60)]
RIGHT = FixedRetriever(CORPUS, {query: ["0", "1"] for query in QUERIES})


def noisy(**noise: object) -> NoisyRetriever:
    return NoisyRetriever(RIGHT, make_settings(NoisySettings, {"over": "-", "noise": noise}))


def wrong(retriever: NoisyRetriever, queries: list[str]) -> list[bool]:
    return [[hit.passage.id for hit in hits] != ["0", "1"] for hits in retriever.search(queries, 2)]


def test_without_noise_nothing_changes_and_with_all_of_it_everything_does() -> None:
    assert noisy().search(QUERIES, 2) == RIGHT.search(QUERIES, 2)
    assert all(wrong(noisy(start=1, end=1), QUERIES))


def test_a_query_meets_its_fate_whoever_else_is_in_the_batch() -> None:
    half = noisy(start=0.5, end=0.5)
    fates = wrong(half, QUERIES)
    assert 10 < sum(fates) < 50
    assert fates == [wrong(half, [query])[0] for query in QUERIES]
    assert half.search(QUERIES, 2) == half.search(QUERIES, 2)
    assert wrong(noisy(start=0.5, end=0.5, seed=1), QUERIES) != fates


def test_noise_grows_as_training_goes_on_and_is_counted() -> None:
    growing = noisy(start=0, end=1)
    identities = set()
    counts = []
    for step in (0, 6, 10):
        growing.progress(step, 10)
        identities.add(growing.identity)
        counts.append(sum(wrong(growing, QUERIES)))
    assert counts[0] == 0 < counts[1] < counts[2] == 60
    assert len(identities) == 3
    assert (growing.stats.searches, growing.stats.noisy) == (180, sum(counts))


def test_noise_may_be_no_passage_and_is_then_another_retriever() -> None:
    silent = NoisyRetriever(
        RIGHT, NoisySettings.model_validate({"over": "-", "noise": {"start": 0.5, "end": 0.5}, "shows": "nothing"})
    )
    hit_lists = silent.search(QUERIES, 2)
    assert [hits == [] for hits in hit_lists] == wrong(noisy(start=0.5, end=0.5), QUERIES)
    assert silent.identity != noisy(start=0.5, end=0.5).identity


def test_an_empty_batch_finds_nothing() -> None:
    assert noisy(start=1, end=1).search([], 2) == []


def test_noise_needs_a_corpus_to_be_drawn_from() -> None:
    with pytest.raises(SettingError, match="far has no local one"):
        NoisyRetriever(Far([]), make_settings(NoisySettings, {"over": "-"}))


# --- random passages


DRAWN = Corpus(Passage(str(row), "", "") for row in range(20))
NOISE = RandomRetriever(DRAWN)


def drawn_ids(noise: RandomRetriever, query: str, k: int) -> list[str]:
    return [hit.passage.id for hit in noise.search([query], k)[0]]


def test_a_query_draws_the_same_alone_and_in_a_batch() -> None:
    assert NOISE.search(["a", "b", "a"], 3) == [NOISE.search([query], 3)[0] for query in ("a", "b", "a")]


def test_another_seed_or_query_draws_other_passages() -> None:
    assert drawn_ids(NOISE, "a", 5) != drawn_ids(NOISE, "b", 5)
    assert drawn_ids(NOISE, "a", 5) != drawn_ids(RandomRetriever(DRAWN, RandomSettings(seed=1)), "a", 5)


def test_a_longer_draw_begins_with_the_shorter_one_and_repeats_nothing() -> None:
    everything = drawn_ids(NOISE, "a", 100)
    assert sorted(everything) == sorted(passage.id for passage in DRAWN)
    assert everything[:4] == drawn_ids(NOISE, "a", 4)
    scores = [hit.score for hit in NOISE.search(["a"], 6)[0]]
    assert scores == sorted(scores, reverse=True)


def test_passages_are_drawn_evenly() -> None:
    drawn = Counter(ident for query in range(4_000) for ident in drawn_ids(NOISE, str(query), 2))
    assert max(abs(count - 400) for count in drawn.values()) < 100  # 5 standard deviations
