"""Collection: a data set whose corpus is fetched from the web, as AgentIR's appendix B does for WebShaper.

Its pages are the gold pages of questions, results of searches for the questions, given addresses, and documents from
files, such as a sample of FineWeb. A page is one passage. Its id is the address after redirects; duplicates are
dropped. A page that cannot be fetched is counted and has no passage.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from pydantic import Field

from coseek.core.cache import TextCache
from coseek.core.concurrency import WorkAhead
from coseek.core.connections import canonical_url, is_url
from coseek.core.errors import DataError, ModelError, RetrieverError, RunError
from coseek.core.files import (
    Json,
    atomic_folder,
    check_output_folder,
    check_replaceable,
    json_line,
    parse_line,
    read_lines,
    write_json,
)
from coseek.core.lock import lock_beside
from coseek.core.prompt_file import PromptFile, fill_template, load_prompt, one_line
from coseek.core.record import Record
from coseek.core.settings import Settings, dump_settings
from coseek.core.strict_json import replace_surrogates
from coseek.data.corpus_file import CorpusFile
from coseek.data.dataset import Dataset
from coseek.data.imports._sources import SourceRow, kind_of, read_rows
from coseek.data.passage import Passage
from coseek.data.question import Question, load_questions, save_questions
from coseek.models.text_model import TextModel
from coseek.models.written import without_reasoning
from coseek.retrieval.factory import require_library
from coseek.retrieval.llm import PROMPTS
from coseek.retrieval.retriever import Retriever, search_each
from coseek.retrieval.retrievers.cached import CachedRetriever
from coseek.retrieval.web.pages import Fetcher, PageFault, PageLimits, read_page

RECORD = "collection.json"
UNCOLLECTED = "uncollected"
"""Key of a question's `meta`: the gold addresses whose pages are not in the corpus."""
_FILES = re.compile(r"collection\.json|corpus\.jsonl|questions\.[^/]*\.jsonl")
_BULLET = re.compile(r"^\s*+(?:[-*•]|[0-9]{1,3}[.)])?\s*+")
_MAX_TOKENS = 1000
_BATCH = 32
"""Questions that a generator gets at once."""
_PAGES_IN_MEMORY = 200
_MAX_TEXTS = 10**12
"""Texts to keep: all. An evicted page would be missing from the corpus."""

Tell: TypeAlias = Callable[[str, int, int], None]
"""(what is counted, count done, total)."""


class CollectionSettings(Settings):
    """How pages are searched for and fetched."""

    results: int = Field(default=100, ge=1)
    """Results of a search whose pages are fetched."""
    sub_queries: int = Field(default=6, ge=1)
    """Searches that a generator makes of each question, at most."""
    at_once: int = Field(default=16, ge=1)
    """Pages that are fetched at once."""
    retry: bool = False
    """Fetch the pages again that failed in an earlier start."""
    limits: PageLimits = PageLimits()
    """Limits on fetching a page."""


class SubQueryPrompt(PromptFile):
    """The prompt of a model that breaks a question into searches."""

    prompt: str
    """`{question}` and `{count}` are filled in."""


@dataclass(frozen=True, slots=True)
class CollectionSummary(Record):
    """The counts of a collection."""

    passages: int
    questions: dict[str, int]
    """By split."""
    lacking_gold: int
    """Questions without the page of one of their gold addresses."""
    pages: int
    """Addresses that were fetched; some lead to the same page."""
    failed_pages: dict[str, str]
    """Address → reason."""
    searches: int
    failed_searches: dict[str, str]
    """Query → reason."""


@dataclass(slots=True)
class CollectionSources:
    """The sources of a collection."""

    questions: dict[str, list[Question]] = field(default_factory=dict)
    """By split."""
    urls: dict[str, None] = field(default_factory=dict)
    """Addresses to fetch, in one spelling and in order."""
    documents: list[Path] = field(default_factory=list)
    """Files with the texts of pages."""

    @classmethod
    def read(cls, names: Iterable[str]) -> "CollectionSources":
        """Read data-set folders (their gold pages, or their corpus), addresses, `.txt` files with an address a line,
        and files of documents. Raises `DataError`."""
        sources = cls()
        for name in names:
            path = Path(name)
            if is_url(name):
                sources._add_url(name, "the sources")
            elif path.is_dir():
                sources._add_folder(Dataset(path))
            elif kind_of(path) == ".txt":
                for number, line in read_lines(path):
                    if line.strip():
                        sources._add_url(line, f"{path}, line {number}")
            elif (first := next(read_rows(path), None)) is None:
                raise DataError(f"{path} is empty; it needs at least one row")
            else:
                _read_document(first)  # raises for a file of another format, before anything is fetched
                sources.documents.append(path)
        return sources

    def _add_url(self, text: str, origin: str) -> None:
        if not (url := canonical_url(text)):
            raise DataError(f"{origin}: {text.strip()!r} is no web address; write https://HOST/PATH")
        self.urls[url] = None

    def _add_folder(self, dataset: Dataset) -> None:
        if has_corpus := dataset.corpus_path.exists():
            self.documents.append(dataset.corpus_path)
        elif not dataset.splits:
            raise DataError(f"{dataset.folder} has no questions and no corpus.jsonl; name a data set")
        for split in dataset.splits:
            if split in self.questions:
                raise DataError(f"two sources have questions of the split {split!r}; import one with another --split")
            self.questions[split] = load_questions(dataset.split_path(split))
            golds = (ident for question in self.questions[split] for ident in question.gold_ids)
            self.urls.update(dict.fromkeys(() if has_corpus else filter(is_url, golds)))


def collect(
    names: Sequence[str], out: Path, settings: CollectionSettings, store: Path, search: Retriever | None = None,
    generator: TextModel | None = None, tell: Tell = lambda what, done, total: None,
) -> CollectionSummary:  # fmt: skip
    """Fetch pages and write the data set `out`: their corpus and the questions of the sources.

    `search` finds more pages for each question, and for the sub-queries that `generator` makes from it. Pages and
    results are stored in the SQLite file `store`, so the same call resumes after a kill and ends with the same files.
    Raises `DataError`, `InUse`, and `RunError` if all searches or the generator fail; nothing is written to `out` then.
    """
    require_library("httpx", "fetching pages", "web")
    require_library("trafilatura", "reading pages", "web")
    with lock_beside(out, again=False):
        check_output_folder(out, RECORD)
        check_replaceable(out, _FILES.fullmatch, "a collection")
        sources, pages = CollectionSources.read(names), PageStore(store, Fetcher(settings.limits), settings.at_once)
        queries: list[str] = []
        failed_searches: dict[str, str] = {}
        if search is not None:
            queries = [question.searched for questions in sources.questions.values() for question in questions]
            queries += [] if generator is None else sub_queries(generator, queries, settings.sub_queries, tell)
            queries = list(dict.fromkeys(queries))
            cached = CachedRetriever(search, store, _MAX_TEXTS)
            result_urls, failed_searches = _search(cached, queries, settings, tell)
            if queries and len(failed_searches) == len(queries):
                raise RunError(f"every search failed: {failed_searches[queries[0]]}")
            sources.urls.update(dict.fromkeys(result_urls))
        urls = [*sources.urls]
        pages.fetch(urls, settings.retry, tell)
        failed = {url: page.fault for url, page in pages.pages(urls) if page.fault}
        if len(failed) == len(urls) and not sources.documents:
            problem = f"no page could be fetched ({failed[urls[0]]}: {urls[0]})" if urls else "the sources name no page"
            raise DataError(f"{problem}; check the addresses and the network, then give retry=true")
        saved: list[CollectionSummary] = []

        def fill(folder: Path) -> None:
            resolved: dict[str, str] = {}
            passages = _passages(pages.pages(urls), sources.documents, resolved)
            corpus = CorpusFile.write(folder / "corpus.jsonl", passages, "what was collected")
            splits = {name: [_resolve(item, resolved) for item in items] for name, items in sources.questions.items()}
            for name, questions in splits.items():
                save_questions(folder / f"questions.{name}.jsonl", questions)
            summary = CollectionSummary(
                len(corpus), {name: len(questions) for name, questions in splits.items()},
                sum(UNCOLLECTED in question.meta for questions in splits.values() for question in questions),
                len(urls) - len(failed), failed, len(queries) - len(failed_searches), failed_searches,
            )  # fmt: skip
            write_json(folder / RECORD, {**summary.to_json(), "settings": dump_settings(settings)})
            saved.append(summary)

        atomic_folder(out, fill)
    return saved[0]


@dataclass(frozen=True, slots=True)
class StoredPage(Record):
    """A page as it was fetched, or why it could not be."""

    url: str
    """The address after redirects, in one spelling."""
    title: str = ""
    text: str = ""
    fault: str = ""
    """The reason why there is no text."""


class PageStore:
    """Fetches pages, each once, into an SQLite file, as they arrive."""

    def __init__(self, path: Path, fetcher: Fetcher, at_once: int) -> None:
        self.path = path
        self._texts = TextCache(path, _MAX_TEXTS)
        self._fetcher, self._at_once = fetcher, at_once

    def fetch(self, urls: Sequence[str], retry: bool, tell: Tell) -> None:
        """Fetch the pages that are not stored yet; with `retry` also those that failed."""
        stored_urls = {url for url, page in self.pages(urls) if not (retry and page.fault)}
        missing_urls = [url for url in urls if url not in stored_urls]
        tell("pages", len(stored_urls), len(urls))
        with WorkAhead(self._fetch, missing_urls, self._at_once) as ahead:
            for done_count, _ in enumerate(ahead, start=len(stored_urls) + 1):
                tell("pages", done_count, len(urls))

    def pages(self, urls: Sequence[str]) -> Iterator[tuple[str, StoredPage]]:
        """The stored pages among these addresses, in order."""
        for start in range(0, len(urls), _PAGES_IN_MEMORY):
            batch = urls[start : start + _PAGES_IN_MEMORY]
            stored_texts = self._texts.read([f"{kind} {url}" for url in batch for kind in ("page", "fault")])
            for url in batch:
                if (text := stored_texts.get(f"page {url}", stored_texts.get(f"fault {url}"))) is not None:
                    yield url, StoredPage.from_json(parse_line(text, f"{self.path}, {url}"))

    def _fetch(self, url: str) -> None:
        try:
            fetched = self._fetcher.fetch(url)
            content = read_page(fetched)
            page = StoredPage(canonical_url(fetched.url) or url, replace_surrogates(content.title), content.text)
        except PageFault as fault:
            page = StoredPage(url, fault=str(fault))
        # The cache never replaces a text, so a fault has a key of its own; a later page takes precedence over it.
        self._texts.write({f"{'fault' if page.fault else 'page'} {url}": json_line(page.to_json())})


def _search(
    retriever: Retriever, queries: Sequence[str], settings: CollectionSettings, tell: Tell
) -> tuple[list[str], dict[str, str]]:
    """The distinct addresses of the hits, and the queries whose search failed, with the reason."""
    urls, faults = dict[str, None](), dict[str, str]()
    for start in range(0, len(queries), settings.at_once):
        batch = queries[start : start + settings.at_once]
        for query, hits in zip(batch, search_each(retriever, batch, settings.results), strict=True):
            if isinstance(hits, RetrieverError):
                faults[query] = str(hits)
            else:
                urls.update(dict.fromkeys(filter(None, (canonical_url(hit.passage.url) for hit in hits))))
        tell("searches", start + len(batch), len(queries))
    return list(urls), faults


def sub_queries(generator: TextModel, questions: Sequence[str], count: int, tell: Tell) -> list[str]:
    """Up to `count` searches for each question, one per line of the generator's response. Raises `RunError` if the
    generator fails."""
    prompt = load_prompt(SubQueryPrompt, "sub-queries", Path(), {"prompt": {"question", "count"}}, PROMPTS)
    prompts = [fill_template(prompt.prompt, question=one_line(question), count=str(count)) for question in questions]
    queries: list[str] = []
    for start in range(0, len(prompts), _BATCH):
        try:
            texts = generator.write(prompts[start : start + _BATCH], _MAX_TOKENS)
        except ModelError as error:
            raise RunError(f"the generator failed ({error}); the same command goes on") from None
        for text in texts:
            lines = (_BULLET.sub("", line).strip() for line in without_reasoning(text).splitlines())
            queries += list(filter(None, lines))[:count]
        tell("questions", start + len(texts), len(prompts))
    return queries


def _passages(
    pages: Iterable[tuple[str, StoredPage]], documents: Iterable[Path], passage_ids: dict[str, str]
) -> Iterator[Passage]:
    """Every page and document once; fills `passage_ids`: address or id → passage id."""
    given_ids: dict[str, str] = {}  # id of a row, in place of which the passage has the row's address → passage id
    for url, page in pages:
        if not page.fault:
            if page.url not in passage_ids:
                passage_ids[page.url] = page.url
                yield Passage(page.url, page.title, page.text)
            passage_ids[url] = passage_ids[page.url]
    for path in documents:
        for row in read_rows(path):
            passage = _read_document(row)
            if passage.id not in passage_ids:
                passage_ids[passage.id] = passage.id
                yield passage
            if row.has("url") and isinstance(ident := row.value.get("id"), str | int):
                given_ids.setdefault(str(ident), passage_ids[passage.id])
    for ident, passage_id in given_ids.items():
        passage_ids.setdefault(ident, passage_id)


def _read_document(row: SourceRow) -> Passage:
    """The passage of a row with `text` (or `contents`); its id is its `url` if it has one."""
    url = canonical_url(row.text("url")) if row.has("url") else ""
    with row.placed():
        return Passage.from_json({**row.value, "id": url} if url else row.value)


def _resolve(question: Question, passage_ids: dict[str, str]) -> Question:
    """The question with the gold ids that the corpus has."""
    absent_ids: list[Json] = [ident for ident in question.gold_ids if ident not in passage_ids]
    gold_ids = tuple(dict.fromkeys(passage_ids[ident] for ident in question.gold_ids if ident in passage_ids))
    meta = {**question.meta, UNCOLLECTED: absent_ids} if absent_ids else question.meta
    return replace(question, gold_ids=gold_ids, meta=meta)
