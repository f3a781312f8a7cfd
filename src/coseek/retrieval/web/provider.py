"""Provider: the interface of a web search API: its requests and its answers. Sends nothing itself.

A module of `coseek.retrieval.web.providers` defines

    URL                                    the address of the API
    KEY                                    the usual environment variable of its key
    MOST                                   the maximum number of results per call
    request(query, count, key, parameters) a `ProviderRequest`
    results(answer)                        the results of an answer, best first
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

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


class SearchProvider(Protocol):
    """The interface of a provider module."""

    URL: str
    KEY: str
    MOST: int

    def request(self, query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest: ...
    def results(self, answer: JsonObject) -> list[WebResult]: ...


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
