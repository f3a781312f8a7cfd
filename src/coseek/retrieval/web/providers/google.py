"""Google's Custom Search JSON API: GET with the search engine's id `cx`; `items` holds the pages, at most ten a call.

The key goes into the header that Google's interfaces take beside the `key` parameter: addresses end up in logs.
"""

import os

from coseek.core.errors import SettingError
from coseek.core.files import JsonObject
from coseek.retrieval.web.provider import Parameters, ProviderRequest, WebResult, listed, result

URL = "https://www.googleapis.com/customsearch/v1"
KEY = "GOOGLE_API_KEY"
CX = "GOOGLE_CSE_ID"
"""The environment variable with the id of the search engine, unless `parameters` has a `cx`."""
MOST = 10


def request(query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest:
    """`parameters`: `cx` the search engine, `gl` country, `lr` language, `dateRestrict` …"""
    cx = parameters.get("cx") or os.environ.get(CX)
    if not cx:
        raise SettingError(f"google searches with a search engine of yours: put its id into {CX}, or write it as cx")
    return ProviderRequest("GET", {"X-Goog-Api-Key": key}, {**parameters, "cx": cx, "q": query, "num": count})


def results(answer: JsonObject) -> list[WebResult]:
    return [result(row, "link", "title", "snippet") for row in listed(answer, "items")]
