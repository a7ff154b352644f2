"""Classify IP addresses as loopback or public, by explicit tables.

`ipaddress.is_global` changes with Python's patch level. These tables follow IANA's special-purpose registries
(iana.org/assignments/iana-ipv4-special-registry, iana-ipv6-special-registry) as of 2026, and are stricter where an
address that the registry calls global is one that only a network's own machines answer.
"""

import ipaddress
import re
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from socket import inet_aton


def _ipv4(*networks: str) -> tuple[IPv4Network, ...]:
    return tuple(map(IPv4Network, networks))


def _ipv6(*networks: str) -> tuple[IPv6Network, ...]:
    return tuple(map(IPv6Network, networks))


_LOOPBACK = IPv4Network("127.0.0.0/8")
_LOOPBACK_IPV6 = IPv6Address("::1")

# IPv4: every address is public except these.
_NOT_PUBLIC_IPV4 = _ipv4(
    "0.0.0.0/8",  # this network
    "10.0.0.0/8",  # private use
    "100.64.0.0/10",  # shared address space (carrier-grade NAT); 100.100.100.200 is Alibaba's metadata service
    "127.0.0.0/8",  # loopback
    "168.63.129.16/32",  # Azure's platform service, answered within a virtual network only
    "169.254.0.0/16",  # link-local; 169.254.169.254 is most clouds' metadata service
    "172.16.0.0/12",  # private use
    "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle's metadata service, .9 and .10 are the local NAT's
    "192.0.2.0/24",  # documentation
    "192.88.99.0/24",  # 6to4 relays, withdrawn
    "192.168.0.0/16",  # private use
    "198.18.0.0/15",  # benchmarks
    "198.51.100.0/24",  # documentation
    "203.0.113.0/24",  # documentation
    "224.0.0.0/4",  # multicast
    "240.0.0.0/4",  # reserved, and the limited broadcast
)

# IPv6: only global unicast without these networks, and what wraps a public IPv4 address (below), is public. So ::/96
# (IPv4-compatible), ::ffff:0:0:0/96 (translated), 64:ff9b:1::/48 (local NAT64), 100::/64, 5f00::/16 (segment routing),
# fc00::/7 (unique local), fe80::/10 (link-local), fec0::/10 (site-local, withdrawn) and ff00::/8 (multicast) are not.
_GLOBAL_UNICAST = IPv6Network("2000::/3")
_NOT_PUBLIC_IPV6 = _ipv6(
    "2001::/23",  # protocol assignments: Teredo (2001::/32), benchmarks, ORCHID, anycast services
    "2001:db8::/32",  # documentation
    "3ffe::/16",  # 6bone, withdrawn
    "3fff::/20",  # documentation
)

# Networks whose addresses embed an IPv4 address, and the number of bits to the right of it. The IPv4 address decides.
_WRAPPING = (
    (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64, the well-known prefix
    (IPv6Network("2002::/16"), 80),  # 6to4
)
# For what must not be reached at all, also networks whose addresses are never public.
_LOCAL_NAT64, _TEREDO = IPv6Network("64:ff9b:1::/48"), IPv6Network("2001::/32")
_WRAPPING_ANY = (
    *_WRAPPING,
    (IPv6Network("::/96"), 0),  # IPv4-compatible
    (IPv6Network("::ffff:0:0:0/96"), 0),  # translated
    (_LOCAL_NAT64, 0),  # with a longer prefix
)
_LINK_LOCAL_IPV4 = _ipv4("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32")
_LINK_LOCAL_IPV6 = _ipv6("fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128")  # the latter of Amazon and of Google
_WRITTEN_ADDRESS = re.compile(r"[0-9A-Fa-f:][0-9A-Fa-fXx:.]+")
_ISATAP = (0x00005EFE, 0x02005EFE)  # the upper half of an interface identifier whose lower half is an IPv4 address


def is_public(address: str) -> bool:
    """Return whether an address is on the public internet, also if IPv6 wraps an IPv4 address.

    A network's own NAT64 prefix cannot be distinguished from other global addresses. Raises `ValueError` for a text
    that is not an address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, IPv4Address):
        return not _within(ip, _NOT_PUBLIC_IPV4)
    wrapped = _wrapped(ip)
    if wrapped is not None:
        return not _within(wrapped, _NOT_PUBLIC_IPV4)
    if ip not in _GLOBAL_UNICAST or _within(ip, _NOT_PUBLIC_IPV6):
        return False
    identifier = int(ip) & 0xFFFF_FFFF_FFFF_FFFF
    return identifier >> 32 not in _ISATAP or not _within(_lowest_ipv4(identifier), _NOT_PUBLIC_IPV4)


def is_link_local(address: str) -> bool:
    """Return whether an address is only of this link, or of a cloud's metadata service, also if IPv6 wraps it.

    Raises `ValueError` for a text that is not an address.
    """
    ip = ipaddress.ip_address(address)
    if isinstance(ip, IPv4Address):
        return _within(ip, _LINK_LOCAL_IPV4)
    if _within(ip, _LINK_LOCAL_IPV6):
        return True
    bits = int(ip)
    wrapped = [(bits >> shift) & 0xFFFF_FFFF for network, shift in _WRAPPING_ANY if ip in network]
    wrapped += [bits ^ 0xFFFF_FFFF] if ip in _TEREDO else []
    # By RFC 6052 a prefix of 48 bits is followed by half of the IPv4 address, eight bits, and the other half.
    wrapped += [(bits >> 64 & 0xFFFF) << 16 | bits >> 40 & 0xFFFF] if ip in _LOCAL_NAT64 else []
    wrapped += [bits] if bits >> 32 & 0xFFFF_FFFF in _ISATAP else []
    return any(_within(_lowest_ipv4(one), _LINK_LOCAL_IPV4) for one in wrapped)


def link_local_addresses(text: str) -> set[str]:
    """Return the link-local addresses, as `is_link_local` knows them, that a text has in any of their notations."""
    found = set[str]()
    for written in _WRITTEN_ADDRESS.findall(text):
        for candidate in {written, written.rpartition(":")[0], written.strip(".:")}:
            with suppress(ValueError, OSError):
                address = candidate if ":" in candidate else str(IPv4Address(inet_aton(candidate)))
                if is_link_local(address):
                    found.add(address)
    return found


def is_loopback(host: str) -> bool:
    """Return whether a host (a name, or an address with or without brackets) can only be this machine."""
    try:
        ip = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower().removesuffix(".") == "localhost"
    if isinstance(ip, IPv6Address):
        return ip == _LOOPBACK_IPV6 or (ip in _WRAPPING[0][0] and _lowest_ipv4(int(ip)) in _LOOPBACK)
    return ip in _LOOPBACK


def _wrapped(ip: IPv6Address) -> IPv4Address | None:
    return next((_lowest_ipv4(int(ip) >> shift) for network, shift in _WRAPPING if ip in network), None)


def _lowest_ipv4(bits: int) -> IPv4Address:
    return IPv4Address(bits & 0xFFFF_FFFF)


def _within(ip: IPv4Address | IPv6Address, networks: Iterable[IPv4Network | IPv6Network]) -> bool:
    return any(ip in network for network in networks)
