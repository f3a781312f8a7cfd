"""Serper (serper.dev): Google's results. POST /search with the key in a header; results in `organic`."""

from coseek.core.files import JsonObject
from coseek.retrieval.web.provider import Parameters, ProviderRequest, WebResult, listed, result

URL = "https://google.serper.dev/search"
KEY = "SERPER_API_KEY"
MOST = 100


def request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `gl` country, `hl` language, `tbs` date range …"""
    return ProviderRequest("POST", {"X-API-KEY": key}, body={**parameters, "q": query, "num": count})


def results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "link", "title", "snippet") for row in listed(answer, "organic")]
