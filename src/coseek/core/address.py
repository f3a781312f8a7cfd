"""Addresses: which names are addresses of servers, and the base of their paths."""

from typing import TypeGuard
from urllib.parse import urlsplit

from coseek.core.errors import SettingError


def is_url(name: object) -> TypeGuard[str]:
    """Whether a name is the address of a server, and no folder, file or part."""
    return isinstance(name, str) and name.startswith(("http://", "https://"))


def parse_base_url(url: str, ends: tuple[str, ...] = ()) -> str:
    """Check a server's address and remove any of `ends` from its end. Raises `SettingError`."""
    wrong = SettingError(f"{url!r} is not a server address; write http://HOST:PORT")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        raise wrong from None
    if parts.username is not None or parts.password is not None:
        raise SettingError("the address of a server must not hold a password; put a key into an environment variable")
    holes = url.split() != [url.strip()] or not url.strip().isprintable()
    scheme = parts.scheme in ("http", "https")
    if not scheme or not parts.hostname or parts.query or parts.fragment or port == 0 or holes:
        raise wrong
    base = url.strip().rstrip("/")
    for end in ends:
        base = base.removesuffix(end)
    return base.rstrip("/")
