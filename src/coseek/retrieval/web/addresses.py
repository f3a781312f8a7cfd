"""Addresses: which places of the network a page may be fetched from. Not this machine, and not its neighbours.

A page's address comes from outside, from an engine or a redirect. Whoever could have us fetch `http://127.0.0.1/…`
or the metadata service of a cloud could read what is not meant for them.
"""

import ipaddress
import socket
from typing import TypeAlias

IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class RefusedAddress(ValueError):
    """A host that nothing is fetched from; the message says why."""


def public_address(host: str, port: int, allow_private: bool = False) -> str:
    """The IP address to connect to for this host, whose addresses must all be public ones.

    What was checked is what must be connected to: looked up again, the name might give another address.
    """
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise RefusedAddress("the host has no address") from None
    # A scope such as `%eth0` belongs to link-local addresses, which are refused with or without it.
    found = [ipaddress.ip_address(str(row[4][0]).partition("%")[0]) for row in rows]
    if not allow_private and not all(is_public(address) for address in found):
        raise RefusedAddress("the host is on this machine or in a private network")
    return str(found[0])


def is_public(address: IpAddress) -> bool:
    """Whether an address is one of the open internet, also where an IPv6 address only wraps an IPv4 one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner: list[IpAddress | None] = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
        if address in _NAT64:
            inner.append(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
        if address.is_site_local or not all(is_public(one) for one in inner if one is not None):
            return False
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # what is inside is public
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)
