from collections import Counter

from coseek.data.passage import Corpus, Passage
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings

CORPUS = Corpus(Passage(str(row), "", "") for row in range(20))
NOISE = RandomRetriever(CORPUS)


def ids(noise: RandomRetriever, query: str, k: int) -> list[str]:
    return [hit.passage.id for hit in noise.search([query], k)[0]]


def test_a_query_draws_the_same_alone_and_in_a_batch() -> None:
    assert NOISE.search(["a", "b", "a"], 3) == [NOISE.search([query], 3)[0] for query in ("a", "b", "a")]


def test_another_seed_or_query_draws_other_passages() -> None:
    assert ids(NOISE, "a", 5) != ids(NOISE, "b", 5)
    assert ids(NOISE, "a", 5) != ids(RandomRetriever(CORPUS, RandomSettings(seed=1)), "a", 5)


def test_a_longer_draw_begins_with_the_shorter_one_and_repeats_nothing() -> None:
    everything = ids(NOISE, "a", 100)
    assert sorted(everything) == sorted(passage.id for passage in CORPUS)
    assert everything[:4] == ids(NOISE, "a", 4)
    scores = [hit.score for hit in NOISE.search(["a"], 6)[0]]
    assert scores == sorted(scores, reverse=True)


def test_passages_are_drawn_evenly() -> None:
    drawn = Counter(ident for query in range(4_000) for ident in ids(NOISE, str(query), 2))
    assert max(abs(count - 400) for count in drawn.values()) < 100  # 5 standard deviations
