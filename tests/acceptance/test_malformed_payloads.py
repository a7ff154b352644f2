"""Payloads that are wrong in every way: refused by name or delivered as they are, nothing by half, nobody held up."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import httpx
import orjson
import pytest

from tests import services
from tests.services import until
from tests.support.builders import event
from tests.support.service_processes import System, system
from tests.support.target_readers import Expected, Record, listed, path, posted, rows

Change = Callable[[dict[str, Any]], object]
MILLION = "x" * 1_000_000


def record(key: str, change: Change = lambda _: None) -> dict[str, Any]:
    """A good record, changed."""
    made: dict[str, Any] = orjson.loads(event(key, bucket="poison").record)
    change(made)
    return made


def body(*records: dict[str, Any] | bytes) -> bytes:
    """The records as MinIO wraps them; one that is bytes goes in as it is."""
    texts = [one if isinstance(one, bytes) else orjson.dumps(one) for one in records]
    return b'{"Records":[' + b",".join(texts) + b"]}"


def spelt(member: bytes, value: bytes) -> bytes:
    """A good record with one member more, whose value is spelt so in JSON."""
    return orjson.dumps(record("spelt"))[:-1] + b',"' + member + b'":' + value + b"}"


def keyed(value: bytes) -> bytes:
    """A record with a key that is spelt so in JSON."""
    return orjson.dumps(record("KEY")).replace(b'"KEY"', value)


def s3(member: str, value: object) -> Change:
    return lambda made: made["s3"].update({member: value})


def thing(member: str, value: object) -> Change:
    return lambda made: made["s3"]["object"].update({member: value})


# What must be refused, each beside a good record: the record, and what the answer's `field` or `detail` has to name.
REFUSED: dict[str, tuple[dict[str, Any] | bytes, str]] = {
    "no record at all": (b"7", "Record 1"),
    "an array for a record": (b"[[]]", "Record 1"),
    "broken off": (b'{"eventName":', "byte"),
    "a comma too many": (spelt(b"more", b"[1,]"), "byte"),
    "no JSON": (b"<xml/>", "byte"),
    "not a number": (spelt(b"size", b"NaN"), "byte"),
    "a number of four hundred digits": (spelt(b"size", b"9" * 400), "byte"),
    "nested without end": (spelt(b"deep", b"[" * 100_000 + b"]" * 100_000), "depth"),
    "nested a little too deep": (spelt(b"deep", b'{"a":' * 40 + b"1" + b"}" * 40), "nested"),
    "bytes that are no UTF-8": (keyed(b'"\xff\xfe"'), "byte"),
    "an overlong zero": (keyed(b'"\xc0\x80"'), "byte"),
    "half of a surrogate pair in the key": (keyed(b'"\\ud800"'), ""),
    "half of a surrogate pair anywhere": (spelt(b"more", b'"\\udfff"'), ""),
    "a zero byte in the key": (keyed(b'"a\\u0000b"'), "s3.object.key"),
    "an encoded zero byte in the key": (keyed(b'"a%00b"'), "s3.object.key"),
    "a key of a million": (record(MILLION), "s3.object.key"),
    "a key that is a number": (record("a", thing("key", 7)), "s3.object.key"),
    "a key that does not decode": (record("%ff"), "s3.object.key"),
    "no key": (record("a", lambda made: made["s3"]["object"].clear()), "s3.object.key"),
    "no bucket": (record("a", s3("bucket", None)), "s3.bucket"),
    "a bucket of a million": (record("a", s3("bucket", {"name": MILLION})), "s3.bucket.name"),
    "a bucket with a zero byte": (record("a", s3("bucket", {"name": "a\0"})), "s3.bucket.name"),
    "s3 that is a list": (record("a", lambda made: made.update(s3=[])), "s3"),
    "a name that is an object": (record("a", lambda made: made.update(eventName={})), "eventName"),
    "a name of a million": (record("a", lambda made: made.update(eventName=MILLION)), "eventName"),
    "a version of a million": (record("a", thing("versionId", MILLION)), "s3.object.versionId"),
    "a sequencer that is a list": (record("a", thing("sequencer", [])), "s3.object.sequencer"),
}

# What is odd, and taken and delivered as it came.
TAKEN: dict[str, dict[str, Any] | bytes] = {
    "a number of three hundred digits": spelt(b"size", b"9" * 300),
    "a fraction beyond all floats": spelt(b"size", b"1.5e-400"),
    "a million characters": record("million", lambda made: made.update(more=MILLION)),
    "ten thousand members": record("members", lambda made: made.update(more={str(n): n for n in range(10_000)})),
    "a pair of surrogates": spelt(b"more", b'"\\ud83d\\ude00"'),
    "a member twice": spelt(b"eventVersion", b'"2.0"'),
    "quotes and backslashes": record("';--\"\\ \n\t{}%25s$1"),
    "no text at all": record("empty", lambda made: made.update({"": "", "null": None, "list": [], "object": {}})),
}


@pytest.fixture(scope="module")
def whole(postgres_server: services.Postgres) -> Iterator[System]:
    url = postgres_server.create_database(f"poison_{uuid4().hex[:12]}")
    with services.redis() as broker, system(url, broker.url) as running:
        yield running


@pytest.fixture(scope="module")
def target(postgres_server: services.Postgres, whole: System) -> str:
    """A PostgreSQL namespace and a webhook, whose events fail at neither unless a test says so; the database's name."""
    name = f"target_{uuid4().hex[:12]}"
    postgres_server.create_database(name)
    whole.add_target("postgresql:rows", connection_string=postgres_server.dsn(name), table="rows")
    return name


@pytest.fixture(scope="module")
def listener(whole: System) -> Iterator[services.Receiver]:
    with services.receiver() as running:
        whole.add_target("webhook:all", endpoint=running.url)
        yield running


def send(whole: System, content: bytes, **headers: str) -> httpx.Response:
    """Post it, to be refused or not; never a 5xx, never a trace."""
    with whole.client() as client:
        answer = client.post("/v1/events", content=content, headers=headers)
    assert answer.status_code < 500, answer.text
    assert "Traceback" not in answer.text
    assert len(answer.content) < 2000
    return answer


def refused(whole: System, content: bytes, status: int = 400, **headers: str) -> dict[str, Any]:
    """The problem it is refused with; nothing of it is recorded."""
    before = {name: counters.recorded for name, counters in whole.counters().items()}
    answer = send(whole, content, **headers)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert {name: counters.recorded for name, counters in whole.counters().items()} == before
    found: dict[str, Any] = answer.json()
    return found


def silent(whole: System) -> None:
    """Nothing of it was unexpected to anybody."""
    said = whole.logs()
    assert "Traceback" not in said, said[-5000:]
    assert "unexpected error" not in said


def test_a_bad_record_is_refused_by_name_with_the_good_ones_beside_it(
    whole: System, target: str, postgres_server: services.Postgres
) -> None:
    for name, (poison, wanted) in REFUSED.items():
        found = refused(whole, body(record("good"), poison, record("good too")))
        told = f"{found.get('field') or ''} {found['detail']}"
        assert wanted in told, f"{name}: {told}"
        assert found.get("index") == 1 or "offset" in found, f"{name}: {found}"
    sent = record("after")
    whole.post(body(sent))
    until(lambda: whole.settled("postgresql:rows"), 60, what="the event after all of it delivered")
    assert rows(postgres_server, target, "rows").keys() >= {path(sent)}
    assert "poison/good" not in rows(postgres_server, target, "rows")
    silent(whole)


def test_a_body_that_is_no_events_is_refused_whole(whole: System, target: str) -> None:
    assert target
    for content in (b"", b"\0", b"\xff\xfe\0\0", b'"text"', b"7", b'{"Records":{}}', b"{" * 1000, b"\x1f\x8b"):
        assert refused(whole, content)["detail"], content
    for content in (b"[]", b'{"Records":[]}'):
        assert send(whole, content).json()["recorded"] == 0, content
    bomb = gzip.compress(b"[" + b" " * 100_000_000, 9)
    assert len(bomb) < 200_000
    encoding = {"Content-Encoding": "gzip"}
    assert "BUCKETWIRE_BODY_LIMIT" in refused(whole, bomb, 413, **encoding)["detail"]
    nested = gzip.compress(gzip.compress(body(record("a"))))
    assert refused(whole, nested, **encoding)["detail"]
    assert refused(whole, gzip.compress(body(record("a")))[:-5], **encoding)["detail"]
    silent(whole)


def test_what_is_only_odd_goes_through_as_it_came(
    whole: System, target: str, listener: services.Receiver, postgres_server: services.Postgres
) -> None:
    assert target
    for name, odd in TAKEN.items():
        answer = send(whole, body(odd))
        assert answer.json().get("recorded") == 1, f"{name}: {answer.text}"
    until(lambda: whole.settled("webhook:all", "postgresql:rows"), 60, what="the odd ones delivered")
    wanted: list[Record] = [orjson.loads(one) if isinstance(one, bytes) else one for one in TAKEN.values()]
    assert Expected.of(wanted).check(posted(listener), "webhook") == 0
    silent(whole)


def test_events_that_a_target_refuses_die_with_a_reason_and_hold_nobody_up(
    whole: System,
    target: str,
    listener: services.Receiver,
    postgres_server: services.Postgres,
    redis_server: services.Redis,
) -> None:
    """PostgreSQL's jsonb holds no zero byte; the receiver says 400 to some; the Redis list takes everything."""
    place, key = f"{services.LOOPBACK}:{redis_server.port}", uuid4().hex
    whole.add_target("redis:all", address=place, key=key, format="access")
    listener.set(status=400, containing="unwanted", body="no such thing here")
    sent = []
    for number in range(60):
        made = record(f"object-{number % 7}")
        if poison := {0: ("zero", "a\0b"), 20: ("unwanted", "unwanted"), 40: ("zero too", "\0")}.get(number):
            key_of, made["more"] = poison
            made["s3"]["object"]["key"] = key_of
        sent.append(made)
    before = {name: counters.dead for name, counters in whole.counters().items()}
    whole.post(body(*sent))
    until(whole.settled, 60, what="everything delivered or dead")
    dead = {name: counters.dead - before[name] for name, counters in whole.counters().items()}
    assert dead == {"webhook:all": 1, "postgresql:rows": 2, "redis:all": 0}
    assert Expected.of(sent).check(listed(redis_server, key), "Redis") == 0
    found = whole.ask("GET", "/v1/dead-letters").json()
    assert all(letter["reason"] for letter in found["dead_letters"])
    assert {entry.difference for entry in whole.audits()} == {0}
    silent(whole)
