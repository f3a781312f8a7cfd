"""Tavily: POST /search with a bearer key; results, with content passages, in `results`."""

from coseek.core.files import JsonObject
from coseek.retrieval.web.provider import Parameters, ProviderRequest, WebResult, listed, result

URL = "https://api.tavily.com/search"
KEY = "TAVILY_API_KEY"
MOST = 20


def request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `search_depth`, `topic`, `days` …"""
    return ProviderRequest(
        "POST", {"Authorization": f"Bearer {key}"}, body={**parameters, "query": query, "max_results": count}
    )


def results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "url", "title", "content") for row in listed(answer, "results")]
