"""Google's Custom Search JSON API: GET with the search engine's id `cx`; results in `items`, at most ten per call.

The key is sent in a header rather than the `key` parameter, since URLs are logged.
"""

import os

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.retrieval.web.provider import Parameters, ProviderRequest, WebResult, listed, result

URL = "https://www.googleapis.com/customsearch/v1"
KEY = "GOOGLE_API_KEY"
CX = "GOOGLE_CSE_ID"
"""The environment variable with the search engine's id, used unless `parameters` has `cx`."""
MOST = 10


def request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `cx` the search engine, `gl` country, `lr` language, `dateRestrict` …"""
    cx = parameters.get("cx") or os.environ.get(CX)
    if not cx:
        raise SettingError(f"google needs the id of your search engine: put it into {CX}, or into parameters as cx")
    return ProviderRequest("GET", {"X-Goog-Api-Key": key}, {**parameters, "cx": cx, "q": query, "num": count})


def results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "link", "title", "snippet") for row in listed(answer, "items")]
