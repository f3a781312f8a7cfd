"""The cache in front of a retriever: what it returns, what it forwards, and what it survives."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coseek.core.errors import RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.factory import open_retriever, plugin_files
from coseek.retrieval.index import build_index
from coseek.retrieval.query import Query, QueryLike
from coseek.retrieval.retrievers.bm25 import Bm25, Bm25Settings
from coseek.retrieval.retrievers.cached import CachedRetriever

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
