"""Calls: a service that we pay for, asked as its engine says.

The key is in the request's headers and nowhere else: not in an address, an error or a log. What a service wrote into
an error is not repeated either, since some repeat the key there. An answer is paid for, whatever is in it, so what
cannot be read is not asked for again.
"""

from dataclasses import dataclass

from coseek.core.errors import RetrieverError
from coseek.core.files import JsonObject
from coseek.core.http import HttpClient, HttpFailure
from coseek.core.strict_json import InvalidJson, parse_lenient
from coseek.retrieval.web.provider import ProviderRequest

MOST_BYTES = 8_000_000
"""Longest answer of a service that is read."""
_NOT_PAID = 402


@dataclass(frozen=True)
class SearchApi:
    """One service."""

    name: str
    calls: HttpClient
    """Without quotes, and by the same name."""

    def ask(self, ask: ProviderRequest) -> JsonObject:
        """The answer as a JSON object; a `RetrieverError` when there is none."""
        import httpx  # writes `true` for True, as services expect it

        query = f"?{httpx.QueryParams(dict(ask.parameters))}" if ask.parameters else ""
        try:
            answer = parse_lenient(self.calls.fetch(ask.method, query, ask.body, ask.headers))
        except HttpFailure as error:
            why = "; its credit is used up" if error.status == _NOT_PAID else ""
            raise RetrieverError(f"{error}{why}") from None
        except InvalidJson:
            raise RetrieverError(f"{self.name} answered with something that is not JSON") from None
        if not isinstance(answer, dict):
            raise RetrieverError(f"{self.name} answered with JSON that is no object")
        return answer
