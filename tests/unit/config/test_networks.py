"""Which addresses are public: first and last of each special-purpose network, and their public neighbours."""

from __future__ import annotations

import ipaddress

import pytest

from app.config.networks import is_link_local, is_loopback, is_public, link_local_addresses

# IANA's registries as of 2026: what is not globally reachable, and what is reachable within a network only.
NOT_PUBLIC = [
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.0.0.192/32", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
    "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32",
    "::/128", "::1/128", "::10.0.0.1/128", "::8.8.8.8/128", "::/96", "::ffff:0:10.0.0.1/128", "::ffff:0:0:0/96",
    "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23", "2001::/32", "2001:2::/48", "2001:10::/28",
    "2001:20::/28", "2001:db8::/32", "3ffe::/16", "3fff::/20", "5f00::/16", "fc00::/7", "fe80::/10", "fec0::/10",
    "ff00::/8",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "192.0.1.0",
    "192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255",
    "2000::", "2001:200::", "2001:4860:4860::8888", "2001:db7:ffff::", "2001:db9::", "2003::1", "2606:4700:4700::1111",
    "2a00::1", "3ffd:ffff::", "3fff:1000::", "3fff:ffff::",
]  # fmt: skip
# How IPv6 wraps an IPv4 address: as public as that is.
WRAPPINGS = ["::ffff:{}", "64:ff9b::{}", "2002:{:hex}::1", "2a00::5efe:{}", "2a00::200:5efe:{}"]


def wrap(form: str, address: str) -> str:
    words = f"{int(ipaddress.IPv4Address(address)):08x}"
    return form.replace("{:hex}", f"{words[:4]}:{words[4:]}").replace("{}", address)


@pytest.mark.parametrize("network", NOT_PUBLIC)
def test_no_address_of_a_special_network_is_public(network: str) -> None:
    found = ipaddress.ip_network(network)
    for address in (found[0], found[-1], found[found.num_addresses // 2]):
        assert not is_public(str(address)), address
        if address.version == 4:
            for form in WRAPPINGS:
                assert not is_public(wrap(form, str(address))), wrap(form, str(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_its_neighbours_are(address: str) -> None:
    assert is_public(address)
    if "." in address:
        for form in WRAPPINGS:
            assert is_public(wrap(form, address)), wrap(form, address)


def test_an_address_with_a_zone_is_judged_without_it() -> None:
    assert not is_public("fe80::1%eth0")
    assert is_public("2a00::1%1")
    with pytest.raises(ValueError, match="address"):
        is_public("example.com")


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.255.255.255", True), ("::1", True), ("[::1]", True), ("::ffff:127.0.0.1", True),
        ("localhost", True), ("LOCALHOST.", True), ("128.0.0.1", False), ("0.0.0.0", False), ("::", False),
        ("::ffff:10.0.0.1", False), ("::127.0.0.1", False), ("localhost.example", False), ("127.1.example", False),
        ("", False),
    ],
)  # fmt: skip
def test_only_this_machine_is_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


LINK_LOCAL = [
    "169.254.0.0", "169.254.169.254", "169.254.255.255", "fe80::1", "fe80::1%eth0", "febf:ffff::1",
    "::ffff:169.254.1.1", "::ffff:a9fe:101", "64:ff9b::169.254.1.1", "64:ff9b:1::a9fe:101", "64:ff9b:1:a9fe:1:100::",
    "2002:a9fe:a9fe::", "2002:a9fe:101:1::2", "::169.254.1.1", "::ffff:0:169.254.1.1", "2001:db8::5efe:169.254.1.1",
    "2001::5601:fefe", "fd00:ec2::254", "100.100.100.200", "::ffff:100.100.100.200",
]  # fmt: skip
ELSEWHERE = [
    "169.253.255.255", "169.255.0.0", "127.0.0.1", "10.0.0.1", "::1", "fe7f::1", "fec0::1", "fd00::1", "8.8.8.8",
    "2606:4700::1111", "::ffff:10.0.0.1", "64:ff9b::8.8.8.8", "2002:808:808::1",
]  # fmt: skip


@pytest.mark.parametrize("address", LINK_LOCAL)
def test_a_link_local_address_is_known_in_whatever_it_is_wrapped(address: str) -> None:
    assert is_link_local(address)


@pytest.mark.parametrize("address", ELSEWHERE)
def test_its_neighbours_and_private_addresses_are_not_link_local(address: str) -> None:
    assert not is_link_local(address)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("http://169.254.169.254/x", {"169.254.169.254"}),
        ("http://2852039166/", {"169.254.169.254"}),
        ("http://0xa9fea9fe:80", {"169.254.169.254"}),
        ("http://0251.0376.0251.0376/", {"169.254.169.254"}),
        ("http://[fe80::1]:9/", {"fe80::1"}),
        ("host=169.254.1.1,10.0.0.1 dbname=d", {"169.254.1.1"}),
        ("u:p@tcp(169.254.1.1:3306)/d", {"169.254.1.1"}),
        ("10.0.0.1:9092,169.254.1.1:9092", {"169.254.1.1"}),
        ("http://10.0.0.1:9092/a1b2", set()),
        ("nothing here", set()),
    ],
)
def test_link_local_addresses_are_found_in_settings(text: str, found: set[str]) -> None:
    assert link_local_addresses(text) == found
