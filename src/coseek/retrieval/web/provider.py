"""Engine: what a web search API is asked, and what its answer says. Knows nothing of networks: see `calls`.

A module of `coseek.retrieval.web.providers` offers

    URL                                    where it answers
    KEY                                    the environment variable that its key is in by custom
    MOST                                   the most results of one call
    request(query, count, key, parameters) an `Ask`
    results(answer)                        what an answer holds, best first
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from coseek.core.files import Json, JsonObject
from coseek.core.strict_json import replace_surrogates

Parameters: TypeAlias = Mapping[str, str | int | bool]
"""What a user adds to every call: country, language, dates …"""

_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_NO_CHARACTER = re.compile("&#[0-9]{100,}+;?")
"""A number that is no character. Python refuses to read one of thousands of digits."""


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One call of an API."""

    method: Literal["GET", "POST"]
    headers: Mapping[str, str] = field(repr=False)  # they hold the key
    parameters: Parameters = field(default_factory=dict)
    body: JsonObject | None = None


@dataclass(frozen=True, slots=True)
class WebResult:
    """A page that an engine found."""

    url: str
    title: str
    snippet: str


class SearchProvider(Protocol):
    """What a module of `coseek.retrieval.web.providers` offers."""

    URL: str
    KEY: str
    MOST: int

    def request(self, query: str, count: int, key: str, parameters: Parameters) -> ProviderRequest: ...
    def results(self, answer: JsonObject) -> list[WebResult]: ...


def listed(answer: Json, *path: str) -> list[JsonObject]:
    """The objects of a list inside an answer; nothing where an engine has left it out, as they do when they find
    nothing. A value of another kind is a `ValueError`."""
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
    """Read one result by the names that an engine gives its fields; a page may lack title and snippet."""
    address = row.get(url)
    if not isinstance(address, str):
        raise ValueError(f"a result without {url!r}")
    return WebResult(address, plain(row.get(title)), plain(row.get(snippet)))


def distinct(found: Sequence[WebResult]) -> list[WebResult]:
    """Every address once, where it stands first; only pages of the web."""
    seen: dict[str, WebResult] = {}
    for page in found:
        address = page.url.partition("#")[0].strip()
        # Blanks, controls and lone surrogates (which JSON can hold and no file can) are in no address.
        if address.startswith(("http://", "https://")) and address.isprintable() and " " not in address:
            seen.setdefault(address, WebResult(address, page.title, page.snippet))
    return list(seen.values())


def plain(text: Json) -> str:
    """A title or snippet as plain text: mark-up and entities undone, white space squeezed."""
    if not isinstance(text, str):
        return ""
    return " ".join(html.unescape(_NO_CHARACTER.sub("\ufffd", _TAG.sub("", replace_surrogates(text)))).split())
