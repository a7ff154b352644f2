"""An answer of another kind than a command has, or to something else, confirms nothing: put to the real servers."""

from __future__ import annotations

import re
import struct
from contextlib import closing
from functools import partial
from threading import Event as Flag

import pytest

from tests import services
from tests.contract.probes.base import Probe, attempt
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, NotAttempted, Unavailable

_AMQP_ACK = rb"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50.{8}."
_NSQ_OK = rb"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_STREAMING_ACK = rb"(MSG \S+ \S+ )(?:3\r\n\n\x01.|4\r\n\n\x02..)\r\n"
_REDIS_NUMBER = rb":\d+\r\n"
_REDIS_ID = rb"\$\d+\r\n\d+-\d+\r\n"

# What the server says (a pattern), and what comes in its place; by the type, or the way of using it.
UNTRUE: dict[str, list[tuple[bytes, bytes]]] = {
    "amqp": [(_AMQP_ACK, b"\x01\x00\x01" + struct.pack(">IHHQB", 13, 60, 80, 1 << 40, 1))],
    "mqtt": [  # the confirmation of the other quality of service, and one that is cut off
        (rb"^\x40\x02(..)", b"\x70\x02\\1"),
        (rb"^\x70\x02(..)", b"\x40\x02\\1"),
        (rb"^[\x40\x70]\x02.(.)", b"\x40\x01\\1"),
    ],
    "nats-jetstream": [
        (rb'"seq":(\d)', rb'"sEq":\1'),
        (rb'"seq":\d', b'"seq":0'),
        (rb'"stream":', rb'"strEam":'),
    ],
    "nats-streaming": [
        (_STREAMING_ACK, rb"\g<1>0\r\n\r\n"),
        (_STREAMING_ACK, rb"\g<1>3\r\n" + b"\n\x01x\r\n"),
        (_STREAMING_ACK, rb"\g<1>4\r\n" + b"\x32\x02\xff\xfe\r\n"),
    ],
    "nsq": [
        (_NSQ_OK, struct.pack(">ll", 15, 0) + b"_heartbeat_"),
        (_NSQ_OK, struct.pack(">ll", 6, 2) + b"OK"),
        (_NSQ_OK, struct.pack(">ll", 4, 0)),
    ],
    "redis": [
        (_REDIS_NUMBER, b"+OK\r\n"),
        (_REDIS_NUMBER, b"$-1\r\n"),
        (_REDIS_NUMBER, b"$1\r\n5\r\n"),
        (_REDIS_NUMBER, b":-1\r\n"),
        (_REDIS_NUMBER, b"*1\r\n:5\r\n"),
        (_REDIS_ID, b"$-1\r\n"),
        (_REDIS_ID, b":7\r\n"),
        (_REDIS_ID, b"+OK\r\n"),
    ],
}


def _changed(pattern: bytes, instead: bytes, untrue: Flag, used: Flag, answer: bytes) -> bytes:
    if not untrue.is_set() or not re.search(pattern, answer, re.DOTALL):
        return answer
    used.set()
    return re.sub(pattern, instead, answer, flags=re.DOTALL)


def test_an_answer_of_another_kind_confirms_nothing(probe: Probe, request: pytest.FixtureRequest) -> None:
    way = request.node.callspec.params["running"]
    answers = UNTRUE.get(way.removesuffix("-async"), UNTRUE.get(probe.type, []))
    seen = 0
    for pattern, instead in answers:
        untrue, used = Flag(), Flag()
        with (
            services.proxy(probe.port, partial(_changed, pattern, instead, untrue, used)) as proxy,
            closing(probe.target(probe.at_port(proxy.port))) as target,
        ):
            assert list(target.deliver([sample_events.put("before")], 1)) == [DELIVERED]
            untrue.set()
            batch = [sample_events.put(key) for key in ("a", "a", "b")]
            outcomes = attempt(target, batch, 1)
            untrue.clear()
            if used.is_set():
                seen += 1
                assert all(isinstance(one, Unavailable | NotAttempted) for one in outcomes), (instead, outcomes)
                assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    if not seen:
        pytest.skip("elsewhere, or no such answer")
