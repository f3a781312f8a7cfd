"""Pages of the web: fetched from public addresses within limits, their text extracted and split into passages."""

import ipaddress
import socket
import ssl
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast
from urllib.parse import urljoin

from pydantic import Field

from coseek.core.errors import CoseekError
from coseek.core.settings import Settings
from coseek.core.text import WORD, decode

if TYPE_CHECKING:
    import ssl

    from httpcore import ConnectionPool, NetworkBackend, NetworkStream, Response


# Public connections: HTTP connections to public addresses only, each with one deadline for all its operations.
#
# A page's URL comes from a provider or a redirect. An attacker could make it point at `http://127.0.0.1/…` or at the
# metadata service of a cloud. The deadline is needed because the transport's timeouts apply per read, so that a server
# sending one byte per second would never time out.

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class RefusedAddress(ValueError):
    """A host that must not be fetched from; the message says why."""


def public_address(host: str, port: int, allow_private: bool = False) -> str:
    """Resolve a host to the IP address to connect to; all must be public. A second lookup might return another one."""
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise RefusedAddress("the host has no address") from None
    # A scope such as `%eth0` belongs to link-local addresses, which are refused anyway.
    found = [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
    if not allow_private and not all(is_public(address) for address in found):
        raise RefusedAddress("the host is on this machine or in a private network")
    return str(found[0])


def is_public(address: IpAddress) -> bool:
    """Whether an address is public, including an IPv4 address embedded in an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner: list[IpAddress | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address.is_site_local or not all(is_public(one) for one in inner if one is not None):
            return False
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # the embedded address is public
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


@dataclass(frozen=True)
class Deadline:
    """A point in time after which operations fail."""

    end: float
    """On the clock `time.monotonic`."""

    def left_s(self) -> float:
        """The remaining seconds. Raises `httpcore.ReadTimeout` after the deadline."""
        from httpcore import ReadTimeout

        left = self.end - time.monotonic()
        if left <= 0:
            raise ReadTimeout("the deadline has passed")
        return left


@dataclass(frozen=True)
class _Stream:
    """An `httpcore.NetworkStream` whose operations all use the deadline."""

    stream: "NetworkStream"
    deadline: Deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self.stream.read(max_bytes, self.deadline.left_s())

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self.stream.write(buffer, self.deadline.left_s())

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "NetworkStream":
        stream = self.stream.start_tls(ssl_context, server_hostname, self.deadline.left_s())
        return cast("NetworkStream", _Stream(stream, self.deadline))

    def get_extra_info(self, info: str) -> object:
        return self.stream.get_extra_info(info)


@dataclass(frozen=True)
class _Backend:
    """An `httpcore.NetworkBackend` that resolves a host once, checks all its addresses, and connects to a checked one.
    TLS still verifies the certificate against the host's name."""

    backend: "NetworkBackend"
    deadline: Deadline
    allow_private: bool

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[tuple[int, int, int]] | None = None,
    ) -> "NetworkStream":
        address = public_address(host, port, self.allow_private)
        stream = self.backend.connect_tcp(address, port, self.deadline.left_s(), local_address, socket_options)
        return cast("NetworkStream", _Stream(stream, self.deadline))


def guarded_pool(deadline: Deadline, allow_private: bool, ssl_context: ssl.SSLContext) -> "ConnectionPool":
    """A pool for one page and its redirects. It uses no proxy, which would resolve names without the check."""
    from httpcore import ConnectionPool, SyncBackend

    backend = _Backend(SyncBackend(), deadline, allow_private)
    return ConnectionPool(
        ssl_context=ssl_context, max_keepalive_connections=0, network_backend=cast("NetworkBackend", backend)
    )


# Fetch: downloads the bytes of a page within limits. A failure is a `PageFault`.
#
# URL, size, encoding, type and redirects of a page are untrusted.

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


# Pages: extracts the text of web pages and splits it into passages.

MOST_TAGS = 40_000
"""With more tags, the parser may take over two seconds, depending on their nesting."""
# Errors of the parsers for malformed pages: endless nesting, invalid character references.
_UNREADABLE = (AssertionError, AttributeError, IndexError, KeyError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a page."""

    title: str
    text: str


def read(fetcher: Fetcher, url: str) -> Page | PageFault:
    """Fetch and read a page; returns the fault if that fails."""
    try:
        return read_page(fetcher.fetch(url))
    except PageFault as fault:
        return fault


def read_page(fetched: FetchedPage) -> Page:
    """The article of a page, without navigation and scripts; a plain text unchanged."""
    text = decode(fetched.body, fetched.content_type)
    if fetched.content_type.partition(";")[0].strip().lower() == "text/plain":
        return _page("", text)
    import trafilatura
    from trafilatura.metadata import extract_title

    if text.count("<") > MOST_TAGS:
        raise PageFault("too long")
    try:
        tree = trafilatura.load_html(text)
        title = None if tree is None else extract_title(tree)
        article = trafilatura.extract(text, include_comments=False, include_tables=True)
    except _UNREADABLE:
        raise PageFault("unreadable") from None
    return _page(title or "", article or "")


def _page(title: str, text: str) -> Page:
    # Control characters break files and terminals.
    text = "".join(letter for letter in text if letter.isprintable() or letter.isspace()).strip()
    title = " ".join(title.split())
    text = text.removeprefix(f"{title}\n")  # the article often starts with its title
    if not text:
        raise PageFault("no text")
    return Page(title, text)


def cut(text: str, words: int) -> list[str]:
    """Split text into passages of at most `words` words (`WORD`); white space is collapsed."""
    found = WORD.findall(text)
    stretches = ("".join(found[start : start + words]) for start in range(0, len(found), words))
    return [" ".join(stretch.split()) for stretch in stretches]
