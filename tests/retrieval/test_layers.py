"""Layers over a retriever: fears about the cache, the ceiling and the noise, and random passages."""

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from tests.retrieval.test_hybrid import Far

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.settings import make_settings
from coseek.data.dataset import Dataset
from coseek.data.passage import Corpus, Hit, Passage
from coseek.data.question import Question, save_questions
from coseek.retrieval.factory import open_retriever, plugin_files
from coseek.retrieval.index import build_index
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retriever import FixedRetriever
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings
from coseek.retrieval.retrievers.cached import CachedRetriever
from coseek.retrieval.retrievers.gold import GoldRetriever
from coseek.retrieval.retrievers.noisy import NoisyRetriever, NoisySettings
from coseek.retrieval.retrievers.random import RandomRetriever, RandomSettings

# --- the cache

CORPUS = Corpus(
    [Passage("1", "Ada", "wrote \x00 programs"), Passage("2", "Bob", "wrote songs"), Passage("3", "Cy", "")]
)


class Engine:
    """BM25 that records its queries and fails for a query with `bad` in it."""

    name = "engine"

    def __init__(self, view: str = "query", corpus: Corpus = CORPUS) -> None:
        self.inner = Bm25.over(corpus, Bm25Settings(view=view))
        self.corpus = corpus
        self.asked: list[list[QueryLike]] = []

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.inner.identity)

    def seen(self, query: QueryLike) -> str:
        return self.inner.seen(query)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        self.asked.append(list(queries))
        if any("bad" in self.seen(query) for query in queries):
            raise RetrieverError("the disk is gone")
        return self.inner.search(queries, k)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "cache.sqlite"


@contextmanager
def cached(path: Path, engine: Engine, max_lists: int = 1000) -> Iterator[CachedRetriever]:
    with closing(CachedRetriever(engine, path, max_lists)) as retriever:
        yield retriever


def test_a_search_is_made_once_in_all_lives_of_the_cache(path: Path) -> None:
    engine = Engine()
    expected = engine.inner.search(["ada", "wrote", "nobody"], 2)
    for _ in range(3):
        with cached(path, engine) as retriever:
            assert retriever.search(["ada", "wrote", "nobody"], 2) == expected
    assert engine.asked == [["ada", "wrote", "nobody"]]


def test_only_what_is_missing_goes_to_the_engine_in_one_batch_and_equal_queries_once(path: Path) -> None:
    engine = Engine()
    with cached(path, engine) as retriever:
        retriever.search(["ada"], 2)
        hit_lists = retriever.search(["songs", "ada", "cy", "songs", "ada"], 2)
        assert hit_lists == engine.inner.search(["songs", "ada", "cy", "songs", "ada"], 2)
        assert engine.asked == [["ada"], ["songs", "cy"]]


def test_more_or_fewer_passages_another_view_and_another_corpus_are_other_searches(path: Path) -> None:
    query = Query("songs", question="ada")
    for engine in (Engine(), Engine(view="question+query"), Engine(corpus=Corpus(CORPUS[:2]))):
        with cached(path, engine) as retriever:
            for k in (1, 2, 1):
                assert retriever.search([query], k) == engine.inner.search([query], k)
            assert len(engine.asked) == 2 and retriever.identity == engine.identity


def test_a_search_that_failed_is_not_remembered(path: Path) -> None:
    engine = Engine()
    with cached(path, engine) as retriever:
        for _ in range(2):
            with pytest.raises(RetrieverError, match="the disk is gone"):
                retriever.search(["ada", "bad"], 1)
        assert len(engine.asked) == 2


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.text(max_size=3) | st.just("ada \ud800"), max_size=4), max_size=5), st.integers(1, 3))
def test_the_cache_changes_no_hit_whatever_is_asked(tmp_path: Path, batches: list[list[str]], k: int) -> None:
    engine = Engine()
    with cached(tmp_path / "cache.sqlite", engine, max_lists=3) as retriever:
        for batch in batches:
            assert retriever.search(batch, k) == engine.inner.search(batch, k)


def test_threads_share_one_cache(path: Path) -> None:
    engine = Engine()
    with cached(path, engine) as retriever, ThreadPoolExecutor(6) as pool:
        expected = engine.inner.search(["ada", "wrote"], 2)
        queries = [["ada", f"filler {number % 40}", "wrote"] for number in range(180)]
        for hit_lists in pool.map(lambda batch: retriever.search(batch, 2), queries):
            assert [hit_lists[0], hit_lists[2]] == expected


DEEP = "retriever: noisy\nover: {retriever: noisy, over: c.yaml}"


@pytest.mark.parametrize(
    "files",
    [
        {"c.yaml": "retriever: cached\nover: c.yaml\npath: c.db"},
        {"c.yaml": "retriever: hybrid\nparts: [d.yaml, e.yaml]", "d.yaml": DEEP},
        {"c.yaml": "retriever: noisy\nover: ../deep/c.yaml"},
    ],
)
def test_a_retriever_that_is_composed_of_itself_is_a_sentence(tmp_path: Path, files: dict[str, str]) -> None:
    (tmp_path / "deep").mkdir()
    for name, text in files.items():
        (tmp_path / "deep" / name).write_text(text)
    for opens in (open_retriever, plugin_files):
        with pytest.raises(SettingError, match=r"is composed of itself \(c\.yaml → "):
            opens(tmp_path / "deep" / "c.yaml")
    assert not (tmp_path / "deep" / "c.db").exists()


def test_it_is_opened_from_a_file_with_paths_as_seen_from_it(tmp_path: Path) -> None:
    CORPUS.save(tmp_path / "corpus.jsonl")
    build_index(tmp_path, "bm25", tmp_path / "index")
    (tmp_path / "fast.yaml").write_text("retriever: cached\nover: index\npath: kept/searches.sqlite\n")
    retriever = open_retriever(tmp_path / "fast.yaml")
    assert [hit.passage.id for hit in retriever.search(["songs"], 3)[0]] == ["2"]
    assert (tmp_path / "kept" / "searches.sqlite").is_file() and retriever.corpus is not None
    (tmp_path / "wrong.yaml").write_text("retriever: cached\nover: index\n")
    with pytest.raises(SettingError, match="path"):
        open_retriever(tmp_path / "wrong.yaml")


# --- gold passages: one not first, one twice, an unknown question that is not reported

NUMBERED = Corpus(Passage(str(row), "", f"text {row}") for row in range(9))


def over_gold(tmp_path: Path, *questions: Question, within: int | None = None) -> GoldRetriever:
    NUMBERED.save(tmp_path / "corpus.jsonl")
    save_questions(tmp_path / "questions.test.jsonl", questions)
    fixed = FixedRetriever(NUMBERED, {"q": ["5", "2", "6"], "later": ["7", "1"]})
    return GoldRetriever(fixed, Dataset(tmp_path), within)


def gold_first(retriever: GoldRetriever, query: str | Query, k: int) -> list[str]:
    return [hit.passage.id for hit in retriever.search([query], k)[0]]


def test_gold_passages_come_first_and_once(tmp_path: Path) -> None:
    gold = over_gold(tmp_path, Question("1", "q", ("a",), ("1", "2")))
    assert gold_first(gold, "q", 1) == ["1"]
    assert gold_first(gold, "q", 3) == ["1", "2", "5"]
    assert gold_first(gold, Query("later", question="q"), 3) == ["1", "2", "7"]
    assert gold.seen(Query("later", question="q")) != gold.seen("later")
    assert gold.shortfalls[0].count == 0


def test_a_perfect_ranker_shows_no_passage_that_the_first_stage_missed(tmp_path: Path) -> None:
    gold = over_gold(tmp_path, Question("1", "q", ("a",), ("1", "2", "6")), within=2)
    assert gold_first(gold, "q", 1) == ["2"]
    assert gold_first(gold, "q", 3) == ["2", "5", "6"]
    assert gold.identity != over_gold(tmp_path, Question("1", "q", ("a",), ("1", "2", "6"))).identity


def test_settings_in_braces_open_it_over_an_index(tmp_path: Path) -> None:
    over_gold(tmp_path, Question("1", "q", ("a",), ("1",)))
    build_index(tmp_path, "bm25", tmp_path / "bm25")
    typed = f"{{retriever: gold, over: {tmp_path / 'bm25'}, data: {tmp_path}, within: 9}}"
    assert open_retriever(typed).search([Query("text 4", question="q")], 1)[0][0].passage.id == "1"


def test_a_question_that_is_not_known_is_counted(tmp_path: Path) -> None:
    gold = over_gold(tmp_path, Question("1", "q", ("a",), ("1",)))
    assert gold_first(gold, "later", 2) == ["7", "1"]
    assert (gold.shortfalls[0].count, gold.shortfalls[0].total) == (1, 1)


def test_questions_without_gold_passages_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no question of"):
        over_gold(tmp_path, Question("1", "q", ("a",)))


# --- noise: a sibling in the batch that changes a query's fate, noise that never comes

MANY = Corpus(Passage(str(row), "", f"text {row}") for row in range(200))
ASKED = [f"query {number}" for number in range(60)]
RIGHT = FixedRetriever(MANY, {query: ["0", "1"] for query in ASKED})


def noisy(**noise: object) -> NoisyRetriever:
    return NoisyRetriever(RIGHT, make_settings(NoisySettings, {"over": "-", "noise": noise}))


def wrong(retriever: NoisyRetriever, queries: list[str]) -> list[bool]:
    return [[hit.passage.id for hit in hits] != ["0", "1"] for hits in retriever.search(queries, 2)]


def test_without_noise_nothing_changes_and_with_all_of_it_everything_does() -> None:
    assert noisy().search(ASKED, 2) == RIGHT.search(ASKED, 2)
    assert all(wrong(noisy(start=1, end=1), ASKED))


def test_a_query_meets_its_fate_whoever_else_is_in_the_batch() -> None:
    half = noisy(start=0.5, end=0.5)
    fates = wrong(half, ASKED)
    assert 10 < sum(fates) < 50
    assert fates == [wrong(half, [query])[0] for query in ASKED]
    assert half.search(ASKED, 2) == half.search(ASKED, 2)
    assert wrong(noisy(start=0.5, end=0.5, seed=1), ASKED) != fates


def test_noise_grows_as_training_goes_on_and_is_counted() -> None:
    growing = noisy(start=0, end=1)
    identities = set()
    counts = []
    for step in (0, 6, 10):
        growing.progress(step, 10)
        identities.add(growing.identity)
        counts.append(sum(wrong(growing, ASKED)))
    assert counts[0] == 0 < counts[1] < counts[2] == 60
    assert len(identities) == 3
    assert (growing.stats.searches, growing.stats.noisy) == (180, sum(counts))


def test_noise_may_be_no_passage_and_is_then_another_retriever() -> None:
    silent = NoisyRetriever(
        RIGHT, NoisySettings.model_validate({"over": "-", "noise": {"start": 0.5, "end": 0.5}, "shows": "nothing"})
    )
    hit_lists = silent.search(ASKED, 2)
    assert [hits == [] for hits in hit_lists] == wrong(noisy(start=0.5, end=0.5), ASKED)
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
