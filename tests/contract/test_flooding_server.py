"""A server whose answer does not end, or that claims one of gigabytes: put to every target but those of HTTP."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest

from tests import services
from tests.contract import ways
from tests.contract.probes.base import Probe, attempt
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, NotAttempted, Unavailable

TAKEN = 100 << 20  # bytes of a connection that a client may take before it hangs up, with those in the system's buffers
_PIECE = b"x" * (1 << 20)


def endless(first: bytes) -> Iterator[bytes]:
    yield first
    yield from itertools.repeat(_PIECE)


def mysql_packets(number: int) -> Iterator[bytes]:
    """One answer in packets of the largest size."""
    while True:
        yield struct.pack("<HBB", 0xFFFF, 0xFF, number % 256) + b"x" * 0xFFFFFF
        number += 1


def amqp_message() -> Iterator[bytes]:
    """A message that the broker returns, in frames of the agreed size; it has more bytes than anybody could send."""
    method = struct.pack(">HH", 60, 50) + struct.pack(">H", 312) + b"\x00" * 3
    header = struct.pack(">HHQH", 60, 0, 1 << 62, 0)
    for kind, payload in ((1, method), (2, header)):
        yield struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"
    body = struct.pack(">BHI", 3, 1, 131_064) + b"x" * 131_064 + b"\xce"
    yield from itertools.repeat(body)


Flood = Callable[[], Iterator[bytes]]
FLOODS: dict[str, dict[str, Flood]] = {
    "amqp": {"frame": partial(endless, struct.pack(">BHI", 1, 0, 0x7FFFFFFF)), "message": amqp_message},
    "kafka": {"frame": partial(endless, b"\x7f\xff\xff\xff")},
    "mqtt": {
        "frame": partial(endless, b"\x40\xff\xff\xff\x7f"),
        "of a WebSocket": partial(endless, b"\x82\x7f" + struct.pack(">Q", 1 << 62)),
    },
    "mysql": {"at first": partial(mysql_packets, 0), "after a query": partial(mysql_packets, 1)},
    "nats": {
        "message": partial(endless, b"MSG a 1 2000000000\r\n"),
        "line": partial(endless, b"INFO {"),
        "words": partial(endless, b""),
    },
    "nsq": {
        "frame": partial(endless, struct.pack(">ll", 0x7FFFFFFF, 0)),
        "negative": partial(endless, struct.pack(">ll", -5, 0)),
    },
    "postgresql": {
        "error": partial(endless, b"E\x20\xff\xff\xf0SERROR\0"),
        "notice": partial(endless, b"N\x20\xff\xff\xf0SNOTICE\0"),
        "status": partial(endless, b"S\x20\xff\xff\xf0"),
    },
    "redis": {
        "text": partial(endless, b"$2000000000\r\n"),
        "line": partial(endless, b"+"),
        "list": partial(endless, b"*1\r\n$2000000000\r\n"),
    },
}


@pytest.fixture
def floods(probe: Probe) -> dict[str, Flood]:
    """What the server of the probe sends without end."""
    if probe.type not in FLOODS:
        pytest.skip("elsewhere, or not in our hands")
    return FLOODS[probe.type]


@ways.connecting
def test_opening_takes_no_more_than_a_limit(probe: Probe, floods: dict[str, Flood]) -> None:
    for name, flood in floods.items():
        with services.proxy(probe.port) as proxy, closing(probe.target(probe.in_clear(proxy.port))) as target:
            proxy.flood(flood())
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
            assert isinstance(outcome, Unavailable), (name, outcome)
            assert proxy.flooded < TAKEN, name


@ways.connecting
def test_a_delivery_takes_no_more_than_a_limit_and_says_so(probe: Probe, floods: dict[str, Flood]) -> None:
    if probe.type == "kafka":
        pytest.skip("its brokers name their own addresses")
    reasons = {}
    for name, flood in floods.items():
        with services.proxy(probe.port) as proxy, closing(probe.target(probe.in_clear(proxy.port))) as target:
            assert list(target.deliver([sample_events.put("before")], 1)) == [DELIVERED]
            proxy.flood(flood())
            outcomes = attempt(target, [sample_events.put("a"), sample_events.put("b")], 1)
            assert proxy.flooded < TAKEN, name
            assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes), outcomes
            reasons[name] = outcomes[0].reason if isinstance(outcomes[0], Unavailable) else ""
    if not getattr(probe, "websocket", False):  # paho reads its frames so slowly that the time is over before
        assert any("more than" in reason for reason in reasons.values()), reasons
