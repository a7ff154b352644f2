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
_MYSQL_OK = rb"^\x07\x00\x00\x01\x00.{6}$"
_MYSQL_COLUMN = b"\x03def\x00\x00\x00\x01a\x00\x0c\x2d\x00\x01\x00\x00\x00\x08\x00\x00\x00\x00\x00"
_MYSQL_END = b"\xfe\x00\x00\x02\x00"
_MYSQL_ROWS = b"".join(
    struct.pack("<HBB", len(packet), 0, number) + packet
    for number, packet in enumerate((b"\x01", _MYSQL_COLUMN, _MYSQL_END, b"\x011", _MYSQL_END), 1)
)
_MYSQL_INSERTED = rb"(\x00\x00\x01\x00)\x03(.+Records: 3)"
_NSQ_OK = rb"\x00\x00\x00\x06\x00\x00\x00\x00OK"
_STREAMING_ACK = rb"(MSG \S+ \S+ )(?:3\r\n\n\x01.|4\r\n\n\x02..)\r\n"
_SQS_DIGEST = rb'("MD5OfMessageBody":\s*)"[0-9a-f]{32}"'
_REDIS_NUMBER = rb":\d+\r\n"
_REDIS_ID = rb"\$\d+\r\n\d+-\d+\r\n"

# What the server says (a pattern), and what comes in its place; by the type, or the way of using it.
UNTRUE: dict[str, list[tuple[bytes, bytes]]] = {
    "amqp": [
        (_AMQP_ACK, b"\x01\x00\x01" + struct.pack(">IHHQB", 13, 60, 80, 1 << 40, 1)),
        (_AMQP_ACK, b"\x01\x00\x01" + struct.pack(">IHHHB", 6, 60, 80, 1, 0xCE)),  # cut off
        (_AMQP_ACK + rb"\xce", b"\x01\x00\x07" + struct.pack(">IHHQBB", 13, 60, 80, 1, 0, 0xCE)),
    ],
    "mqtt": [  # the confirmation of the other quality of service, and one that is cut off
        (rb"^\x40\x02(..)", b"\x70\x02\\1"),
        (rb"^\x70\x02(..)", b"\x40\x02\\1"),
        (rb"^\x50\x02(..)", b"\x70\x02\\1"),  # the end of a handshake that has not begun
        (rb"^\x40\x02(..)", b"\x50\x02\\1"),
        (rb"^[\x40\x70]\x02.(.)", b"\x40\x01\\1"),
    ],
    "mysql": [
        (_MYSQL_OK, b"\x00\x00\x00\x01"),
        (_MYSQL_OK, b"\x03\x00\x00\x01\xff\x01\x02"),
        (_MYSQL_OK, b"\x06\x00\x00\x01\xfb/file"),  # send this file
        (_MYSQL_OK, _MYSQL_ROWS),
    ],
    "mysql-access": [(_MYSQL_INSERTED, b"\\1\x00\\2")],
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
        (rb":[01]\r\n", b":1000\r\n"),  # RPUSH answers with the length of the list
        (_REDIS_NUMBER, b"*1\r\n:5\r\n"),
        (_REDIS_ID, b"$-1\r\n"),
        (_REDIS_ID, b":7\r\n"),
        (_REDIS_ID, b"+OK\r\n"),
        (_REDIS_NUMBER, b"*five\r\n"),
        (_REDIS_NUMBER, b"-MOVED\r\n"),
    ],
    "postgresql-access": [(rb"COPY \d", b"COPY 0")],
    "sqs": [(_SQS_DIGEST, rb'\g<1>"' + b"0" * 32 + b'"'), (_SQS_DIGEST, rb"\g<1>" + b"7".ljust(34))],
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
            closing(probe.target(probe.in_clear(proxy.port))) as target,
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


# The answer that comes again and again, and what the server does not get then, by the type.
AGAIN = {"mysql": (_MYSQL_OK, b"INSERT"), "nsq": (_NSQ_OK, b"images/second")}


def test_an_answer_that_comes_again_confirms_nothing_that_follows(probe: Probe) -> None:
    if probe.type not in AGAIN:
        pytest.skip("elsewhere, or each answer names what it confirms")
    pattern, held = AGAIN[probe.type]
    untrue, used = Flag(), Flag()
    with (
        services.proxy(probe.port, partial(_changed, pattern, rb"\g<0>" * 3, untrue, used)) as proxy,
        closing(probe.target(probe.in_clear(proxy.port))) as target,
    ):
        assert list(target.deliver([sample_events.put("before")], 1)) == [DELIVERED]
        untrue.set()
        proxy.hold_next(held)
        outcomes = attempt(target, [sample_events.put(key, metadata="x" * 600_000) for key in ("first", "second")], 1)
        untrue.clear()
        proxy.release()
        assert used.is_set()
        assert isinstance(outcomes[1], Unavailable | NotAttempted)
        assert list(target.deliver([sample_events.put("second")], 1)) == [DELIVERED]


# What no server says, of itself or to a first message: a pattern, and what comes in its place.
IMPOSSIBLE: dict[str, list[tuple[bytes, bytes]]] = {
    "mqtt": [
        (rb"^[\x40\x50\xb0].+", b"\xf0\x00"),  # a packet that a broker may not send now
        (rb"^\x40.(..).*", b"\x40\x05\\1\x87\x01\x7f"),  # with a reason that cannot be read
    ],
    "mysql": [(rb"(max_allowed_packet\x08)\d{8}", rb"\g<1>00000000")],
    "nats": [(rb'"max_payload":\d+', b'"max_payload":' + said) for said in (b"0", b"-1", b"200", b"null", b'"big"')]
    + [(rb"INFO [^\r]+", b"INFO []")],
}


def test_no_event_is_to_blame_for_what_no_server_says(probe: Probe) -> None:
    if probe.type not in IMPOSSIBLE:
        pytest.skip("elsewhere")
    for pattern, instead in IMPOSSIBLE[probe.type]:
        untrue, used = Flag(), Flag()
        untrue.set()
        with (
            services.proxy(probe.port, partial(_changed, pattern, instead, untrue, used)) as proxy,
            closing(probe.target(probe.in_clear(proxy.port))) as target,
        ):
            outcomes = attempt(target, [sample_events.put(key) for key in ("a", "a", "b")], 1)
            untrue.clear()
            if used.is_set():
                assert all(isinstance(one, Unavailable | NotAttempted) for one in outcomes), (instead, outcomes)
            assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
