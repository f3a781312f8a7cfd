"""Page store: pages and search results in one SQLite file, written as they arrive, so that a collection can resume.

A page that failed is stored with its reason and no text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from coseek.core.cache import TextCache
from coseek.core.concurrency import WorkAhead
from coseek.core.connections import canonical_url
from coseek.core.errors import RetrieverError
from coseek.core.files import json_line, parse_line
from coseek.core.fingerprint import digest_of
from coseek.core.record import Record
from coseek.core.strict_json import replace_surrogates
from coseek.retrieval.retriever import Retriever, search_each
from coseek.retrieval.web.pages import Fetcher, PageFault, read_page

Tell: TypeAlias = Callable[[str, int, int], None]
"""(what is counted, count done, total)."""
_PAGES_IN_MEMORY = 200
_MAX_TEXTS = 10**12
"""Texts to keep: all. An evicted page would be missing from the corpus."""


@dataclass(frozen=True, slots=True)
class StoredPage(Record):
    """A page as it was fetched, or why it could not be."""

    url: str
    """The address after redirects, in one spelling."""
    title: str = ""
    text: str = ""
    fault: str = ""


class PageStore:
    """Fetches pages and searches, each once."""

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
        for batch in _batches(urls, _PAGES_IN_MEMORY):
            stored_texts = self._texts.read([f"{kind} {url}" for url in batch for kind in ("page", "fault")])
            for url in batch:
                if (text := stored_texts.get(f"page {url}", stored_texts.get(f"fault {url}"))) is not None:
                    yield url, StoredPage.from_json(parse_line(text, f"{self.path}, {url}"))

    def search(
        self, retriever: Retriever, queries: Sequence[str], k: int, tell: Tell
    ) -> tuple[list[str], dict[str, str]]:
        """The distinct addresses of the first `k` hits of each query, and the queries whose search failed, with the
        reason. A failed search is not stored."""
        urls, faults, done_count = dict[str, None](), dict[str, str](), 0
        for batch in _batches(queries, self._at_once):
            keys = {query: f"search {digest_of(retriever.identity, query, str(k))}" for query in batch}
            stored = self._texts.read([*keys.values()])
            missing_queries = [query for query in batch if keys[query] not in stored]
            for query, hits in zip(missing_queries, search_each(retriever, missing_queries, k), strict=True):
                if isinstance(hits, RetrieverError):
                    faults[query] = str(hits)
                else:
                    stored[keys[query]] = "\n".join(filter(None, (canonical_url(hit.passage.url) for hit in hits)))
            self._texts.write({keys[query]: stored[keys[query]] for query in missing_queries if query not in faults})
            urls.update(dict.fromkeys(url for query in batch for url in stored.get(keys[query], "").split()))
            done_count += len(batch)
            tell("searches", done_count, len(queries))
        return list(urls), faults

    def _fetch(self, url: str) -> None:
        try:
            fetched = self._fetcher.fetch(url)
            content = read_page(fetched)
            page = StoredPage(canonical_url(fetched.url) or url, replace_surrogates(content.title), content.text)
        except PageFault as fault:
            page = StoredPage(url, fault=str(fault))
        # The cache never replaces a text, so a fault has a key of its own; a later page takes precedence over it.
        self._texts.write({f"{'fault' if page.fault else 'page'} {url}": json_line(page.to_json())})


def _batches(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
