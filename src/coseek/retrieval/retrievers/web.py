"""Web: passages from a search engine of the web: its snippets, or the best stretches of the pages that it found.

    retriever: web
    engine: serper            # or google, brave, tavily
    fetch: pages

The engine's key comes from the environment and is written nowhere. The web changes: two runs need not find the same, so
put a cache around this retriever for a study.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, cast

from pydantic import Field

from coseek.core import registry
from coseek.core.errors import RetrieverError, SettingError
from coseek.core.fingerprint import digest_of
from coseek.core.http import HttpClient, HttpSettings, HttpStats, Retries, is_local, parse_base_url, read_key
from coseek.core.prompt_file import count_words
from coseek.core.settings import Settings
from coseek.data.passage import Corpus, Hit, Passage
from coseek.retrieval.factory import OpenContext, require_library
from coseek.retrieval.query import QueryLike, as_queries
from coseek.retrieval.retrievers.bm25 import Bm25
from coseek.retrieval.views import View, render_view
from coseek.retrieval.web.api import MOST_BYTES, SearchApi
from coseek.retrieval.web.fetch import Fetcher, PageLimits
from coseek.retrieval.web.pages import Page, cut, read
from coseek.retrieval.web.provider import SearchProvider, WebResult, distinct

ENGINES = "coseek.retrieval.web.providers"


class WebSettings(Settings):
    """Which engine is asked, and what is read."""

    engine: str
    """`serper`, `google`, `brave` or `tavily`."""
    fetch: Literal["none", "pages"] = "none"
    """`none`: passages are the engine's snippets. `pages`: the pages are fetched and read."""
    parameters: dict[str, str | int | bool] = Field(default={})
    """Added to every call of the engine: country, language, dates … by the engine's own names."""
    view: View = "query"
    """What the engine is asked of a search turn."""
    query_words: int = Field(default=40, ge=1)
    """The view is cut to this many words, never the query itself: engines refuse long ones (Brave takes 50)."""
    url: str | None = None
    """Where the engine answers, when not at its usual address."""
    key_env: str | None = None
    """The environment variable that holds the key, when not the engine's usual one."""
    passage_words: int = Field(default=150, ge=10)
    """`pages`: pages are cut into passages of so many words."""
    page_passages: int = Field(default=1, ge=1)
    """`pages`: the best passages (BM25, among those of the page) that a page gives."""
    limits: PageLimits = PageLimits()
    """`pages`: what a page may cost."""
    timeout_s: float = Field(default=20.0, gt=0)
    """For one call of the engine, from its beginning to the last byte of the answer."""
    retries: Retries = Retries()
    """How long an engine that does not answer is asked again."""
    at_once: int = Field(default=8, ge=1)
    """Calls and pages under way at the same time."""
    price_usd: float = Field(default=0.0, ge=0)
    """Of one call, for `stats.cost_usd`."""


_HITS_DEPEND_ON = {
    "engine",
    "url",
    "fetch",
    "parameters",
    "view",
    "query_words",
    "passage_words",
    "page_passages",
    "limits",
}
"""The settings that the identity covers; the others change only what a search costs."""

_SECRETS = {"key", "apikey", "token", "authorization", "secret"}
"""Parameters that would write a secret into settings, and these into every run."""


@dataclass
class WebStats:
    """What a web retriever has cost since it was opened."""

    service: HttpStats
    price_usd: float
    queries: int = 0
    """Queries put to the engine; the same query twice in a batch is put once."""
    pages: int = 0
    """Pages read."""
    page_faults: Counter[str] = field(default_factory=Counter)
    """Pages that could not be had, by reason; their snippets stood in."""

    @property
    def cost_usd(self) -> float:
        return self.service.answered * self.price_usd


class Web:
    """A retriever over the web. Scores are 1, 1/2, 1/3, …: engines give an order only."""

    name = "web"
    corpus: Corpus | None = None

    def __init__(
        self, settings: WebSettings, engine: SearchProvider, service: SearchApi, fetcher: Fetcher | None
    ) -> None:
        self.settings = settings
        self.stats = WebStats(service.calls.stats, settings.price_usd)
        self._engine = engine
        self._service = service
        self._fetcher = fetcher

    @property
    def identity(self) -> str:
        return digest_of(self.name, self.settings.model_dump_json(include=_HITS_DEPEND_ON))

    def seen(self, query: QueryLike) -> str:
        return render_view(self.settings.view, query, limit=self.settings.query_words, count=count_words)

    def search(self, queries: Sequence[QueryLike], k: int) -> list[list[Hit]]:
        """At most as many results as the engine gives in one call. An empty query finds nothing and costs nothing."""
        queries = as_queries(queries, k)
        seen = [self.seen(query).strip() for query in queries]
        asked = list(dict.fromkeys(query for query in seen if query))
        with ThreadPoolExecutor(self.settings.at_once, thread_name_prefix="coseek-web") as pool:
            found = dict(zip(asked, pool.map(lambda query: self._ask(query, k), asked), strict=True))
            self.stats.queries += len(asked)
            pages = self._read(pool, [page.url for results in found.values() for page in results])
        hits = {query: _ranked(self._passages(query, results, pages), k) for query, results in found.items()}
        return [hits.get(query, []) for query in seen]

    def _ask(self, query: str, k: int) -> list[WebResult]:
        count = min(k, self._engine.MOST)
        key = read_key(_key_name(self.settings, self._engine))  # read at every call and never kept
        answer = self._service.ask(self._engine.request(query, count, key, self.settings.parameters))
        try:
            return distinct(self._engine.results(answer))[:count]
        except ValueError as error:
            raise RetrieverError(f"{self._service.name} answered in a form that is not its own: {error}") from None

    def _read(self, pool: Executor, urls: Iterable[str]) -> dict[str, Page]:
        """The pages that could be had, each fetched once; the others are counted."""
        if self._fetcher is None:
            return {}
        fetcher = self._fetcher
        addresses = list(dict.fromkeys(urls))
        pages: dict[str, Page] = {}
        for url, page in zip(addresses, pool.map(lambda url: read(fetcher, url), addresses), strict=True):
            if isinstance(page, Page):
                pages[url] = page
            else:
                self.stats.page_faults[str(page)] += 1
        self.stats.pages += len(pages)
        return pages

    def _passages(self, query: str, results: Sequence[WebResult], pages: Mapping[str, Page]) -> Iterator[Passage]:
        for found in results:
            if found.url in pages:
                yield from self._best(query, found, pages[found.url])
            elif found.title or found.snippet:
                yield Passage(found.url, found.title, found.snippet)

    def _best(self, query: str, found: WebResult, page: Page) -> list[Passage]:
        """The passages of a page that fit the query best; its first ones where no word of the query occurs."""
        pieces = [
            Passage(f"{found.url}#{number}", page.title or found.title, text)
            for number, text in enumerate(cut(page.text, self.settings.passage_words), start=1)
        ]
        best = [hit.passage for hit in Bm25.over(Corpus(pieces)).search([query], self.settings.page_passages)[0]]
        return best or pieces[: self.settings.page_passages]


def _ranked(passages: Iterable[Passage], k: int) -> list[Hit]:
    return [Hit(passage, 1.0 / rank) for rank, passage in enumerate(islice(passages, k), start=1)]


def _key_name(settings: WebSettings, engine: SearchProvider) -> str:
    return settings.key_env or engine.KEY


def _address(url: str) -> str:
    """Keys are sent to addresses that nobody on the way can read, and that hold no secret themselves."""
    base = parse_base_url(url)
    if not (base.startswith("https:") or is_local(base)):
        raise SettingError(f"the url {url!r} of a search engine must begin with https://, since the key is sent there")
    return url.strip()


SETTINGS = WebSettings


def open(settings: WebSettings, opening: OpenContext) -> Web:
    """Ready to ask; nothing is sent yet. A missing key is refused here."""
    require_library("httpx", "web search", "web")
    engine = cast(SearchProvider, registry.find_plugin("search engine", ENGINES, settings.engine))
    for name in settings.parameters:
        if name.lower().replace("_", "").replace("-", "") in _SECRETS:
            raise SettingError(f"the parameter {name!r} of a search engine is a secret; put it into the environment")
    engine.request("", 1, read_key(_key_name(settings, engine)), settings.parameters)  # refuses what it lacks
    if settings.fetch == "pages":
        require_library("trafilatura", "reading the pages of a web search", "web")
    patience = HttpSettings(
        **settings.retries.model_dump(),
        concurrency=settings.at_once,
        connect_s=settings.timeout_s,
        timeout_s=settings.timeout_s,
    )
    name, url = settings.engine, _address(settings.url or engine.URL)
    calls = HttpClient(url, patience, name=name, quotes=False, most_bytes=MOST_BYTES)
    return Web(
        settings, engine, SearchApi(name, calls), Fetcher(settings.limits) if settings.fetch == "pages" else None
    )
