"""Fetch: downloads the bytes of a page within limits. A failure is a `PageFault`.

URL, size, encoding, type and redirects of a page are untrusted.
"""

import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from pydantic import Field

from coseek.core.errors import CoseekError
from coseek.core.settings import Settings
from coseek.retrieval.web.public_connections import Deadline, RefusedAddress, guarded_pool

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
    """A page that could not be fetched. The message is one of a few reasons, for counting."""


class PageLimits(Settings):
    """Limits on fetching a page."""

    max_bytes: int = Field(default=2_000_000, ge=1)
    """The maximum size of a page, compressed and uncompressed."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Seconds for a page, redirects included."""
    redirects: int = Field(default=4, ge=0)
    """The maximum number of redirects. Each target is checked like the first URL."""
    allow_private: bool = False
    """Also fetch from this machine and private networks: for tests and trusted intranets."""


@dataclass(frozen=True, slots=True)
class FetchedPage:
    """A downloaded page."""

    url: str
    body: bytes
    content_type: str


def _ssl_context() -> "ssl.SSLContext":
    import httpcore

    return httpcore.default_ssl_context()


@dataclass(frozen=True)
class Fetcher:
    """Fetches pages. Thread-safe."""

    limits: PageLimits
    ssl_context: "ssl.SSLContext" = field(default_factory=_ssl_context, repr=False)

    def fetch(self, url: str) -> FetchedPage:
        """Fetch the page at a URL, following redirects."""
        import httpcore
        import httpx

        deadline = Deadline(time.monotonic() + self.limits.timeout_s)
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
        # RefusedAddress and UnicodeError are ValueErrors, as are urljoin's errors.
        except (ValueError, httpx.InvalidURL, httpcore.UnsupportedProtocol):
            raise PageFault("address refused") from None
        raise PageFault("too many redirects")

    def _get(self, pool: "ConnectionPool", url: str) -> FetchedPage | str:
        """Send one request. Returns the page, or the target of a redirect."""
        import httpx  # parses internationalised URLs, unlike httpcore

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
        """The body, decompressed with a limit, since a few bytes can decompress to gigabytes."""
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
