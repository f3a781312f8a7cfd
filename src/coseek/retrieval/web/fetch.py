"""Fetching: the bytes of a page, within limits. What cannot be had is a `PageFault`, not a crash.

Everything about a page comes from strangers: its address, its size, its packing, its kind, where it sends us on to.
"""

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from pydantic import Field

from coseek.core.errors import CoseekError
from coseek.core.settings import Settings
from coseek.retrieval.web.addresses import RefusedAddress
from coseek.retrieval.web.public_connections import Deadline, guarded_pool

if TYPE_CHECKING:
    import ssl

    from httpcore import ConnectionPool, Response

KINDS = ("text/html", "application/xhtml+xml", "text/plain")
_HEADERS = {
    "User-Agent": "coseek (reads pages to answer questions)",
    "Accept": ", ".join(KINDS),
    "Accept-Encoding": "gzip",
}


class PageFault(CoseekError):
    """A page that could not be had. Its reason is one of few words, so that reasons can be counted."""


class PageLimits(Settings):
    """What a page may cost."""

    max_bytes: int = Field(default=2_000_000, ge=1)
    """Longer pages are not read, whether packed or unpacked."""
    timeout_s: float = Field(default=10.0, gt=0)
    """For a page in all, redirects included."""
    redirects: int = Field(default=4, ge=0)
    """Each is checked as the first address was."""
    allow_private: bool = False
    """Also fetch from this machine and private networks. For tests, and for an intranet that you trust."""


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """What came back."""

    url: str
    """Where it was in the end."""
    body: bytes
    content_type: str


def _ssl_context() -> "ssl.SSLContext":
    import httpcore

    return httpcore.default_ssl_context()


@dataclass(frozen=True)
class Fetcher:
    """Fetches pages; any threads may use it at once."""

    limits: PageLimits
    ssl_context: "ssl.SSLContext" = field(default_factory=_ssl_context, repr=False)

    def fetch(self, url: str) -> FetchedPage:
        """The page at an address, or where it has moved to."""
        import httpcore
        import httpx

        deadline = Deadline.after(self.limits.timeout_s)
        try:
            with guarded_pool(deadline, self.limits.allow_private, self.ssl_context) as pool:
                for _ in range(self.limits.redirects + 1):
                    got = self._get(pool, url)
                    if isinstance(got, FetchedPage):
                        return got
                    url = urljoin(url, got)
        except httpcore.TimeoutException:
            raise PageFault("too slow") from None
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError):
            raise PageFault("not reached") from None
        # Refused and UnicodeError are ValueErrors, as is what urljoin says of an address that is none.
        except (ValueError, httpx.InvalidURL, httpcore.UnsupportedProtocol):
            raise PageFault("address refused") from None
        raise PageFault("too many redirects")

    def _get(self, pool: "ConnectionPool", url: str) -> FetchedPage | str:
        """One request: the page, or the address that it sends us on to."""
        import httpx  # reads addresses with letters of any language, which httpcore does not

        parts = httpx.URL(url)
        if parts.scheme not in ("http", "https") or parts.userinfo or not parts.host:
            raise RefusedAddress("only pages of http and https, without a user name")
        with pool.stream("GET", str(parts.copy_with(fragment=None)), headers=list(_HEADERS.items())) as response:
            headers = {name.lower().decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
            if response.status in (301, 302, 303, 307, 308) and "location" in headers:
                return headers["location"]
            if not 200 <= response.status < 300:
                raise PageFault(f"status {response.status}")
            kind = headers.get("content-type", "text/html")
            if kind.partition(";")[0].strip().lower() not in KINDS:
                raise PageFault("not a text")
            return FetchedPage(url, self._body(response, headers.get("content-encoding", "identity")), kind)

    def _body(self, response: "Response", packing: str) -> bytes:
        """The body, unpacked by hand: a packed page of a few bytes can unpack to gigabytes."""
        if packing.strip().lower() not in ("identity", "gzip", "x-gzip"):
            raise PageFault("packed unknown")
        packed = packing.strip().lower() != "identity"
        unpacker = zlib.decompressobj(wbits=31)
        body = bytearray()
        for chunk in response.iter_stream():
            try:
                body += unpacker.decompress(chunk, self.limits.max_bytes + 1) if packed else chunk
            except zlib.error:
                raise PageFault("packed badly") from None
            if len(body) > self.limits.max_bytes:
                raise PageFault("too long")
        return bytes(body)
