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
    most: int
    """The maximum number of results per call."""
    request: Callable[[str, int, str, Parameters], ProviderRequest]
    """The call of a query, a number of results, a key and parameters."""
    results: Callable[[JsonObject], list[WebResult]]
    """The results of an answer, best first. Another form is a `ValueError`."""


def listed(answer: Json, *path: str) -> list[JsonObject]:
    """The objects of the list at a path of keys, empty if a key is missing. Another type is a `ValueError`."""
    value: Json = answer
    for name in path:
        if not isinstance(value, dict):
            raise ValueError(f"no object around {name!r}")
        value = value.get(name)
        if value is None:
            return []
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ValueError(f"{'.'.join(path)!r} is not a list of objects")
    return [row for row in value if isinstance(row, dict)]


def result(row: JsonObject, url: str, title: str, snippet: str) -> WebResult:
    """Read a result by the provider's field names. Title and snippet may be missing."""
    address = row.get(url)
    if not isinstance(address, str):
        raise ValueError(f"a result without {url!r}")
    return WebResult(address, plain(row.get(title)), plain(row.get(snippet)))


def distinct(found: Sequence[WebResult]) -> list[WebResult]:
    """Keep the first result of every http(s) URL."""
    seen: dict[str, WebResult] = {}
    for page in found:
        address = page.url.partition("#")[0].strip()
        # Valid URLs contain no blanks, control characters or lone surrogates.
        if address.startswith(("http://", "https://")) and address.isprintable() and " " not in address:
            seen.setdefault(address, WebResult(address, page.title, page.snippet))
    return list(seen.values())


def plain(text: Json) -> str:
    """Convert a title or snippet to plain text: removes tags, decodes entities, collapses white space."""
    if not isinstance(text, str):
        return ""
    return " ".join(html.unescape(_NO_CHARACTER.sub("\ufffd", _TAG.sub("", replace_surrogates(text)))).split())


# Brave Search: GET with the key in a header; results in `web.results`, at most twenty per call.


def _brave_request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `country`, `search_lang`, `freshness` …"""
    # Undecorated descriptions contain no <strong>.
    asked = {"text_decorations": False, **parameters, "q": query, "count": count}
    return ProviderRequest("GET", {"X-Subscription-Token": key, "Accept": "application/json"}, asked)


def _brave_results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "url", "title", "description") for row in listed(answer, "web", "results")]


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


def _google_results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "link", "title", "snippet") for row in listed(answer, "items")]


# Serper (serper.dev): Google's results. POST /search with the key in a header; results in `organic`.


def _serper_request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `gl` country, `hl` language, `tbs` date range …"""
    return ProviderRequest("POST", {"X-API-KEY": key}, body={**parameters, "q": query, "num": count})


def _serper_results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "link", "title", "snippet") for row in listed(answer, "organic")]


# Tavily: POST /search with a bearer key; results, with content passages, in `results`.


def _tavily_request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `search_depth`, `topic`, `days` …"""
    return ProviderRequest(
        "POST", {"Authorization": f"Bearer {key}"}, body={**parameters, "query": query, "max_results": count}
    )


def _tavily_results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "url", "title", "content") for row in listed(answer, "results")]


PROVIDERS: Mapping[str, SearchProvider] = {
    "brave": SearchProvider(
        "https://api.search.brave.com/res/v1/web/search", "BRAVE_API_KEY", 20, _brave_request, _brave_results
    ),
    "google": SearchProvider(
        "https://www.googleapis.com/customsearch/v1", "GOOGLE_API_KEY", 10, _google_request, _google_results
    ),
    "serper": SearchProvider(
        "https://google.serper.dev/search", "SERPER_API_KEY", 100, _serper_request, _serper_results
    ),
    "tavily": SearchProvider("https://api.tavily.com/search", "TAVILY_API_KEY", 20, _tavily_request, _tavily_results),
}
"""Name → provider."""


def find_provider(name: str) -> SearchProvider:
    """Raises `UnknownName`."""
    if name not in PROVIDERS:
        raise UnknownName("search provider", name, PROVIDERS)
    return PROVIDERS[name]
