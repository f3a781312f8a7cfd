"""Providers: web search APIs, their requests and their answers. Sends nothing itself."""

import html
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from coseek.core.errors import SettingError, UnknownName
from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import replace_surrogates

Parameters: TypeAlias = Mapping[str, str | int | bool]
"""The user's additions to every call: country, language, dates, …"""

_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_NO_CHARACTER = re.compile("&#[0-9]{100,}+;?")
"""A numeric character reference that is too long for Python to parse."""


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One call of an API."""

    method: Literal["GET", "POST"]
    headers: Mapping[str, str] = field(repr=False)  # contain the key
    parameters: Parameters = field(default_factory=dict)
    body: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class WebResult:
    """A search result."""

    url: str
    title: str
    snippet: str


@dataclass(frozen=True, slots=True)
class SearchProvider:
    """The API of a provider."""

    url: str
    """The address of the API."""
    key: str
    """The usual environment variable of its key."""
    max_results: int
    """The maximum number of results per call."""
    request: Callable[[str, int, str, Parameters], ProviderRequest]
    """The call of a query, a number of results, a key and parameters."""
    path: tuple[str, ...]
    """The keys that lead to the list of results in an answer."""
    fields: tuple[str, str, str]
    """The fields of a result with its URL, title and snippet. The last two may be missing."""

    def results(self, answer: JsonObject) -> list[WebResult]:
        """Parse the results of an answer, best first. Raises `ValueError` for another form."""
        rows: Json = answer
        for key in self.path:
            if not isinstance(rows, dict):
                raise ValueError(f"no object around {key!r}")
            rows = rows.get(key)
            if rows is None:
                return []
        if not isinstance(rows, list):
            raise ValueError(f"{'.'.join(self.path)!r} is not a list of objects")
        return [self._result(row) for row in rows]

    def _result(self, row: Json) -> WebResult:
        if not isinstance(row, dict):
            raise ValueError(f"{'.'.join(self.path)!r} is not a list of objects")
        url, title, snippet = map(row.get, self.fields)
        if not isinstance(url, str):
            raise ValueError(f"a result without {self.fields[0]!r}")
        return WebResult(url, plain(title), plain(snippet))


def distinct(results: Sequence[WebResult]) -> list[WebResult]:
    """Keep the first result of every http(s) URL."""
    first: dict[str, WebResult] = {}
    for result in results:
        url = result.url.partition("#")[0].strip()
        # Valid URLs contain no blanks, control characters or lone surrogates.
        if url.startswith(("http://", "https://")) and url.isprintable() and " " not in url:
            first.setdefault(url, WebResult(url, result.title, result.snippet))
    return list(first.values())


def plain(text: Json) -> str:
    """Convert a title or snippet to plain text: removes tags, decodes entities, collapses white space."""
    if not isinstance(text, str):
        return ""
    return " ".join(html.unescape(_NO_CHARACTER.sub("\ufffd", _TAG.sub("", replace_surrogates(text)))).split())


# Brave Search: GET with the key in a header; results in `web.results`, at most twenty per call.


def _brave_request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `country`, `search_lang`, `freshness` …"""
    # Undecorated descriptions contain no <strong>.
    fields = {"text_decorations": False, **parameters, "q": query, "count": count}
    return ProviderRequest("GET", {"X-Subscription-Token": key, "Accept": "application/json"}, fields)


# Google's Custom Search JSON API: GET with the search engine's id `cx`; results in `items`, at most ten per call.
#
# The key is sent in a header rather than the `key` parameter, since URLs are logged.

CX = "GOOGLE_CSE_ID"
"""The environment variable with the id of Google's search engine, used unless `parameters` has `cx`."""


def _google_request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `cx` the search engine, `gl` country, `lr` language, `dateRestrict` …"""
    cx = parameters.get("cx") or os.environ.get(CX)
    if not cx:
        raise SettingError(f"google needs the id of your search engine: put it into {CX}, or into parameters as cx")
    return ProviderRequest("GET", {"X-Goog-Api-Key": key}, {**parameters, "cx": cx, "q": query, "num": count})


# Serper (serper.dev): Google's results. POST /search with the key in a header; results in `organic`.


def _serper_request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `gl` country, `hl` language, `tbs` date range …"""
    return ProviderRequest("POST", {"X-API-KEY": key}, body={**parameters, "q": query, "num": count})


# Tavily: POST /search with a bearer key; results, with content passages, in `results`.


def _tavily_request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `search_depth`, `topic`, `days` …"""
    return ProviderRequest(
        "POST", {"Authorization": f"Bearer {key}"}, body={**parameters, "query": query, "max_results": count}
    )


PROVIDERS: Mapping[str, SearchProvider] = {
    "brave": SearchProvider(
        "https://api.search.brave.com/res/v1/web/search", "BRAVE_API_KEY", 20, _brave_request,
        ("web", "results"), ("url", "title", "description"),
    ),
    "google": SearchProvider(
        "https://www.googleapis.com/customsearch/v1", "GOOGLE_API_KEY", 10, _google_request,
        ("items",), ("link", "title", "snippet"),
    ),
    "serper": SearchProvider(
        "https://google.serper.dev/search", "SERPER_API_KEY", 100, _serper_request,
        ("organic",), ("link", "title", "snippet"),
    ),
    "tavily": SearchProvider(
        "https://api.tavily.com/search", "TAVILY_API_KEY", 20, _tavily_request,
        ("results",), ("url", "title", "content"),
    ),
}  # fmt: skip
"""Name → provider."""


def find_provider(name: str) -> SearchProvider:
    """Raises `UnknownName`."""
    if name not in PROVIDERS:
        raise UnknownName("search provider", name, PROVIDERS)
    return PROVIDERS[name]
