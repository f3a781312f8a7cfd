"""Web: passages from a web search provider: its snippets, or the best passages of the pages.

The provider's key is read from the environment and stored nowhere. Web results change, so put a cache around this
retriever in a study.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal

from pydantic import Field

from coseek.core.connections import is_local, parse_base_url
from coseek.core.errors import RetrieverError, SettingError
from coseek.core.files import JsonObject
from coseek.core.fingerprint import digest_of
from coseek.core.http import HttpClient, HttpFailure, HttpSettings, HttpStats, Retries, read_key
from coseek.core.prompt_file import count_words
from coseek.core.settings import Settings, VariableName
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.factory import OpenContext, require_library
from coseek.retrieval.query import ContextFields, QueryLike, as_queries
from coseek.retrieval.ranking import rank_hits
from coseek.retrieval.retriever import Shortfall
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.views import View, find_view, render_view
from coseek.retrieval.web.pages import Fetcher, Page, PageLimits, cut, read
from coseek.retrieval.web.providers import ProviderRequest, SearchProvider, WebResult, distinct, find_provider

MOST_BYTES = 8_000_000
"""The longest response of a provider that is read."""
_PAYMENT_REQUIRED = 402
_MAX_UNRETURNED = 10_000
"""Queries whose results are kept after another query of their batch failed."""


class WebSettings(Settings):
    """The search provider, and how its results are read."""

    provider: str
    """`serper`, `google`, `brave` or `tavily`."""
    fetch: Literal["none", "pages"] = "none"
    """`none`: passages are the provider's snippets. `pages`: pages are fetched and read."""
    parameters: dict[str, str | int | bool] = Field(default={})
    """Added to every call, by the provider's names: country, language, dates, …"""
    view: View = "query"
    """The view of a search turn."""
    query_words: int = Field(default=40, ge=1)
    """The view is truncated to this many words, but never the query itself. Brave accepts 50."""
    url: str | None = None
    """The provider's URL, if not the usual one."""
    key_env: VariableName | None = None
    """The environment variable with the key, if not the usual one."""
    passage_words: int = Field(default=150, ge=10)
    """`pages`: words per passage of a page."""
    page_passages: int = Field(default=1, ge=1)
    """`pages`: passages per page, the best by BM25 within the page."""
    limits: PageLimits = PageLimits()
    """`pages`: limits on fetching a page."""
    timeout_s: float = Field(default=20.0, gt=0)
    """Seconds for one call of the provider, including the whole answer."""
    retries: Retries = Retries()
    """Retries of calls of the provider."""
    at_once: int = Field(default=8, ge=1)
    """Concurrent calls and page fetches."""
    price_usd: float = Field(default=0.0, ge=0)
    """The price of one call, for `stats.cost_usd`."""


_IDENTITY_SETTINGS = {
    *("provider", "url", "fetch", "parameters", "view"),
    *("query_words", "passage_words", "page_passages", "limits"),
}
"""The settings in the identity; the others change only what a search costs."""

_SECRETS = {"key", "apikey", "token", "authorization", "secret"}
"""Parameter names of secrets, which would be stored with the settings of every run."""


@dataclass
class WebStats:
    """Costs since the retriever was opened."""

    service: HttpStats
    price_usd: float
    queries: int = 0
    """Queries sent to the provider; equal queries of a batch are sent once."""
    pages: int = 0
    page_faults: Counter[str] = field(default_factory=Counter)
    """Failed pages by reason; their snippets were used instead."""

    @property
    def cost_usd(self) -> float:
        return self.service.answered * self.price_usd


class Web:
    """A retriever over the web. Scores are 1, 1/2, 1/3, …, since providers give an order only.

    The key is sent in a header and appears in no URL, error or log. Error texts of the provider are not repeated, since
    some contain the key. Responses cost money, so an unreadable one is not retried.
    """

    name = "web"
    corpus: Corpus | None = None

    def __init__(
        self, settings: WebSettings, provider: SearchProvider, calls: HttpClient, fetcher: Fetcher | None
    ) -> None:
        """`calls` is a client with `quotes=False`."""
        self.settings = settings
        self.stats = WebStats(calls.stats, settings.price_usd)
        self._provider = provider
        self._calls = calls
        self._unreturned: dict[tuple[str, int], list[WebResult]] = {}
        self._fetcher = fetcher

    @property
    def reads(self) -> ContextFields:
        return find_view(self.settings.view).fields

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.model_dump_json(include=_IDENTITY_SETTINGS), "bare")

    def seen(self, query: QueryLike) -> str:
        text = render_view(self.settings.view, query, limit=self.settings.query_words, count=count_words, bare=True)
        return text.replace("\n", " ")  # labels and separators would be words to the provider

    @property
    def shortfalls(self) -> tuple[Shortfall, ...]:
        failed = self.stats.page_faults.total()
        return (Shortfall(failed, self.stats.pages + failed, "pages could not be read"),)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """Up to `k` passages per query, limited by the provider's maximum per call. An empty query costs nothing."""
        queries = as_queries(queries, k)
        texts = [self.seen(query).strip() for query in queries]
        unique_texts = list(dict.fromkeys(text for text in texts if text))
        with ThreadPoolExecutor(self.settings.at_once, thread_name_prefix="coseek-web") as pool:
            results = self._call_all(pool, unique_texts, k)
            pages = self._read_pages(pool, [result.url for group in results.values() for result in group])
        hits = {query: rank_hits(islice(self._passages(query, group, pages), k)) for query, group in results.items()}
        return [hits.get(text, []) for text in texts]

    def _call_all(self, pool: Executor, queries: Sequence[str], k: int) -> dict[str, list[WebResult]]:
        """The results of each query. If one fails, those of the others are kept until the next search for them, so that
        no call is paid for twice."""
        results = {query: self._unreturned.pop((query, k)) for query in queries if (query, k) in self._unreturned}
        calls = {query: pool.submit(self._call, query, k) for query in queries if query not in results}
        faults: list[RetrieverError] = []
        for query, call in calls.items():
            try:
                results[query] = call.result()
                self.stats.queries += 1
            except RetrieverError as error:
                faults.append(error)
        if faults:
            unreturned = self._unreturned | {(query, k): group for query, group in results.items()}
            self._unreturned = dict(list(unreturned.items())[-_MAX_UNRETURNED:])
            raise faults[0]
        return results

    def _call(self, query: str, k: int) -> list[WebResult]:
        count = min(k, self._provider.max_results)
        key = read_key(self.settings.key_env or self._provider.key)  # read at every call, never stored
        answer = self._send(self._provider.request(query, count, key, self.settings.parameters))
        try:
            return distinct(self._provider.results(answer))[:count]
        except ValueError as error:
            name = self.settings.provider
            raise RetrieverError(f"{name} answered in a form that is not its own: {error}") from None

    def _send(self, request: ProviderRequest) -> JsonObject:
        """Send a request and return the response. Raises `RetrieverError`, also for a response without hits that holds
        an error."""
        import httpx  # encodes True as `true`, which providers expect

        query = f"?{httpx.QueryParams(dict(request.parameters))}" if request.parameters else ""
        results = self._provider.path[:1]
        try:
            answer = parse_lenient(self._calls.fetch(request.method, query, request.body, request.headers, results))
        except HttpFailure as error:
            reason = "; its credit is used up" if error.status == _PAYMENT_REQUIRED else ""
            raise RetrieverError(f"{error}{reason}") from None
        except InvalidJson:
            raise RetrieverError(f"{self.settings.provider} answered with something that is not JSON") from None
        if not isinstance(answer, dict):
            raise RetrieverError(f"{self.settings.provider} answered with JSON that is not an object")
        return answer

    def _read_pages(self, pool: Executor, urls: Iterable[str]) -> dict[str, Page]:
        """Fetch each page once; failures are counted."""
        if self._fetcher is None:
            return {}
        fetcher = self._fetcher
        unique_urls = list(dict.fromkeys(urls))
        pages: dict[str, Page] = {}
        for url, page in zip(unique_urls, pool.map(lambda url: read(fetcher, url), unique_urls), strict=True):
            if isinstance(page, Page):
                pages[url] = page
            else:
                self.stats.page_faults[str(page)] += 1
        self.stats.pages += len(pages)
        return pages

    def _passages(self, query: str, results: Sequence[WebResult], pages: Mapping[str, Page]) -> Iterator[Passage]:
        for result in results:
            if result.url in pages:
                yield from self._best_passages(query, result, pages[result.url])
            elif result.title or result.snippet:
                yield Passage(result.url, result.title, result.snippet)

    def _best_passages(self, query: str, result: WebResult, page: Page) -> list[Passage]:
        """The best passages of a page; its first ones if no query word occurs."""
        passages = [
            Passage(f"{result.url}#{number}", page.title or result.title, text)
            for number, text in enumerate(cut(page.text, self.settings.passage_words), start=1)
        ]
        best = [hit.passage for hit in Bm25.over(Corpus(passages)).search([query], self.settings.page_passages)[0]]
        return best or passages[: self.settings.page_passages]


SETTINGS = WebSettings


def open(settings: WebSettings, opening: OpenContext) -> Web:
    """Open the client; nothing is sent yet. A missing key is a `SettingError`."""
    require_library("httpx", "web search", "web")
    provider = find_provider(settings.provider)
    for name in settings.parameters:
        if name.lower().replace("_", "").replace("-", "") in _SECRETS:
            raise SettingError(f"the parameter {name!r} of a search provider is a secret; put it into the environment")
    key = read_key(settings.key_env or provider.key)
    provider.request("", 1, key, settings.parameters)  # raises for missing parameters
    if settings.fetch == "pages":
        require_library("trafilatura", "reading the pages of a web search", "web")
    name, url, seconds = settings.provider, (settings.url or provider.url).strip(), settings.timeout_s
    base = parse_base_url(url)  # refuses passwords
    if not (base.startswith("https:") or is_local(base)):
        raise SettingError(f"the url {url!r} of a search provider gets the key, so it must begin with https://")
    retries = settings.retries.model_dump()
    patience = HttpSettings(**retries, concurrency=settings.at_once, connect_s=seconds, timeout_s=seconds)
    calls = HttpClient(url, patience, name=name, quotes=False, most_bytes=MOST_BYTES)
    fetcher = Fetcher(settings.limits) if settings.fetch == "pages" else None
    return Web(settings, provider, calls, fetcher)
