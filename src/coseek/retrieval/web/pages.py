"""Web pages: fetches pages from public addresses within limits, extracts their text and splits it into passages."""

import asyncio
import ipaddress
import socket
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urljoin

from pydantic import Field

from coseek.core.errors import CoseekError
from coseek.core.settings import Settings
from coseek.core.text import WORD, decode

if TYPE_CHECKING:
    import httpx

# Public addresses. A page's URL comes from a provider or a redirect. An attacker could make it point at
# `http://127.0.0.1/…` or at the metadata service of a cloud.

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class PageFault(CoseekError):
    """A page that could not be fetched. The message is one of a few reasons, for counting."""


def public_address(host: str, port: int, allow_private: bool = False) -> str:
    """Resolve a host to the IP address to connect to; all must be public. A second lookup might return another one."""
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise PageFault("address refused") from None
    # A scope such as `%eth0` belongs to link-local addresses, which are refused anyway.
    addresses = [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
    if not allow_private and not all(map(is_public, addresses)):
        raise PageFault("address refused")
    return str(addresses[0])


def is_public(address: IpAddress) -> bool:
    """Whether an address is public, including an IPv4 address embedded in an IPv6 one."""
    if isinstance(address, ipaddress.IPv6Address):
        embedded: list[IpAddress | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            embedded.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address.is_site_local or not all(is_public(inner) for inner in embedded if inner is not None):
            return False
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # the embedded address is public
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


# Fetch: downloads the bytes of a page within limits. A failure is a `PageFault`.
#
# URL, size, encoding, type and redirects of a page are untrusted.

KINDS = ("text/html", "application/xhtml+xml", "text/plain")
_HEADERS = {
    "User-Agent": "coseek (reads pages to answer questions)",
    "Accept": ", ".join(KINDS),
    "Accept-Encoding": "gzip",
}


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


def _ssl_context() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


@dataclass(frozen=True)
class Fetcher:
    """Fetches pages. Thread-safe."""

    limits: PageLimits
    ssl_context: ssl.SSLContext = field(default_factory=_ssl_context, repr=False)

    def fetch(self, url: str) -> FetchedPage:
        """Fetch the page at a URL, following redirects."""
        import httpx

        try:
            return asyncio.run(self._follow(url))
        except TimeoutError:
            raise PageFault("too slow") from None
        # UnicodeError is a ValueError, as are urljoin's errors.
        except (ValueError, httpx.InvalidURL, httpx.UnsupportedProtocol):
            raise PageFault("address refused") from None
        except httpx.DecodingError:
            raise PageFault("broken compression") from None
        except (httpx.TransportError, OSError):
            raise PageFault("not reached") from None

    async def _follow(self, url: str) -> FetchedPage:
        import httpx

        # One deadline: timeouts of single reads would never end a server that sends one byte a second. No proxy, which
        # would resolve names without the check.
        async with (
            asyncio.timeout(self.limits.timeout_s),
            httpx.AsyncClient(verify=self.ssl_context, trust_env=False, headers=_HEADERS, timeout=None) as client,
        ):
            for _ in range(self.limits.redirects + 1):
                page_or_target = await self._get_page(client, httpx.URL(url))
                if isinstance(page_or_target, FetchedPage):
                    return page_or_target
                url = urljoin(url, page_or_target)
        raise PageFault("too many redirects")

    async def _get_page(self, client: "httpx.AsyncClient", url: "httpx.URL") -> FetchedPage | str:
        """Send one request. Returns the page, or the target of a redirect."""
        if url.scheme not in ("http", "https") or url.userinfo or not url.host:
            raise PageFault("address refused")
        port = url.port or (443 if url.scheme == "https" else 80)
        address = await asyncio.to_thread(public_address, url.host, port, self.limits.allow_private)
        # Connects to the checked address; a certificate is verified against the host's name.
        async with client.stream(
            "GET",
            url.copy_with(host=address, fragment=None),
            headers={"Host": url.netloc.decode("ascii")},
            extensions={"sni_hostname": url.raw_host.decode("ascii")},
        ) as response:
            if response.status_code in (301, 302, 303, 307, 308) and "location" in response.headers:
                return response.headers["location"]
            if not response.is_success:
                raise PageFault(f"status {response.status_code}")
            kind = response.headers.get("content-type", "text/html")
            if kind.partition(";")[0].strip().lower() not in KINDS:
                raise PageFault("not a text")
            if response.headers.get("content-encoding", "identity").strip().lower() not in ("identity", "gzip"):
                raise PageFault("unknown compression")
            body = bytearray()
            async for chunk in response.aiter_bytes():
                body += chunk
                if len(body) > self.limits.max_bytes:
                    raise PageFault("too long")
            return FetchedPage(str(url), bytes(body), kind)


# Pages: extracts the text of web pages and splits it into passages.

MAX_TAGS = 40_000
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

    if text.count("<") > MAX_TAGS:
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
    tokens = WORD.findall(text)
    passages = ("".join(tokens[start : start + words]) for start in range(0, len(tokens), words))
    return [" ".join(passage.split()) for passage in passages]
