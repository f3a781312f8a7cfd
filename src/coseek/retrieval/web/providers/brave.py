"""Brave Search: GET with the key in a header; results in `web.results`, at most twenty per call."""

from coseek.core.files import JsonObject
from coseek.retrieval.web.provider import Parameters, ProviderRequest, WebResult, listed, result

URL = "https://api.search.brave.com/res/v1/web/search"
KEY = "BRAVE_API_KEY"
MOST = 20


def request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `country`, `search_lang`, `freshness` …"""
    # Undecorated descriptions contain no <strong>.
    asked = {"text_decorations": False, **parameters, "q": query, "count": count}
    return ProviderRequest("GET", {"X-Subscription-Token": key, "Accept": "application/json"}, asked)


def results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "url", "title", "description") for row in listed(answer, "web", "results")]
