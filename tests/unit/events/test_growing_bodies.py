"""The limits hold for what is written: a text may have six times its length once it is stored."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
from typing import Any

import pytest

from app.events.errors import BadEvents
from app.events.frontends import S3_FRONTENDS
from app.events.frontends.envelopes import sns_call
from app.events.frontends.frontend import Frontend
from app.events.limits import MAX_EVENT_BYTES, Limits
from app.events.parsing import KEY_HEADER, Message, Parsed, parse, read_message
from tests.support.captured import record
from tests.support.frontend_records import sns

_SIXTH = MAX_EVENT_BYTES // 6


def holding(text: str, **members: Any) -> dict[str, Any]:
    """A record that holds a text."""
    one = record(1)
    one["s3"]["object"] |= {"userMetadata": {"x-amz-meta-note": text, "other": "short"}} | members
    return one


def of(text: str) -> bytes:
    """A body of a usual record and one that holds the text."""
    return json.dumps({"Records": [record(1), holding(text)]}, ensure_ascii=False).encode()


def refusal(body: bytes, **options: Any) -> BadEvents:
    with pytest.raises(BadEvents) as caught:
        parse(body, {}, now_ms=1, **options)
    return caught.value


@pytest.mark.parametrize("letter", ["<", ">", "&", "\u2028", "\u2029"])
def test_a_text_that_is_too_long_once_it_is_written_is_refused_by_its_member(letter: str) -> None:
    body = of(letter * _SIXTH)
    assert len(body) < 0.6 * MAX_EVENT_BYTES
    refused = refusal(body)
    assert (refused.status, refused.index, refused.limit) == (413, 1, MAX_EVENT_BYTES)
    assert refused.field == "Records[1].s3.object.userMetadata.x-amz-meta-note"
    assert str(MAX_EVENT_BYTES) in refused.problem
    partial = parse(body, {}, now_ms=1, partial=True)
    assert (len(partial.events), [one.index for one in partial.refused]) == (1, [1])


@pytest.mark.parametrize("wide", [False, True])
def test_an_event_may_have_as_many_bytes_as_the_limit_says_and_not_one_more(wide: bool) -> None:
    letter = "\N{GRINNING FACE}" if wide else "x"

    def written(size: int) -> Parsed:
        rest = size - sizes - (len(letter.encode()) if wide else 0)
        return parse(json.dumps(holding("x" * rest + letter * wide), ensure_ascii=False).encode(), {}, now_ms=1)

    sizes = len(parse(json.dumps(holding("")).encode(), {}, now_ms=1).events[0].record.encode())
    [kept] = written(MAX_EVENT_BYTES).events
    assert len(kept.record.encode()) == MAX_EVENT_BYTES
    with pytest.raises(BadEvents) as caught:
        written(MAX_EVENT_BYTES + 1)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    ("added", "field"),
    [
        ({"x" * 500: "<" * _SIXTH}, f"s3.object.{'x' * 100}…"),
        ({"many": ["<" * 1000] * (_SIXTH // 1000 + 1)}, "s3.object.many"),
        ({f"m{number}": "<" * (_SIXTH // 4) for number in range(5)}, "s3.object"),
        ({"deep": {"deeper": [{"a": "<" * _SIXTH}]}}, "s3.object.deep.deeper"),
        ({"<" * _SIXTH: ""}, "s3.object"),
    ],
)
def test_the_field_is_the_member_that_has_most_of_the_record(added: dict[str, Any], field: str) -> None:
    assert refusal(json.dumps(holding("", **added)).encode()).field == field


def test_the_limit_holds_in_every_envelope_and_for_every_frontend() -> None:
    one = holding("<" * _SIXTH)
    text = json.dumps({"Records": [one]})
    cloud_event = {"specversion": "1.0", "data": text}
    for whole in (
        one,
        [one],
        {"Records": [one]},
        sns(text),
        cloud_event,
        {"Records": [{"eventSource": "aws:sqs", "body": text}]},
    ):
        refused = refusal(json.dumps(whole).encode())
        assert (refused.status, refused.limit) == (413, MAX_EVENT_BYTES)
    lines = json.dumps(record(1)) + "\n" + json.dumps(one)
    assert refusal(lines.encode()).index == 1
    for frontend in S3_FRONTENDS.values():
        assert refusal(json.dumps(one).encode(), sender=frontend).status == 413


@pytest.mark.parametrize("frontend", S3_FRONTENDS.values(), ids=lambda one: one.name)
@pytest.mark.parametrize("part", ["<", "%3C"])
def test_a_key_that_is_far_too_long_is_refused_before_it_is_decoded_or_encoded(frontend: Frontend, part: str) -> None:
    """The parts between 20 million `%` took 3 GB, and most of a minute."""
    body = json.dumps(holding("", key=part * 300_000)).encode()
    tracemalloc.start()
    try:
        refused = refusal(body, sender=frontend)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert refused.field is not None
    assert refused.field.endswith("s3.object.key")
    assert "4096" in refused.problem
    assert peak < 20 * len(body)


def test_a_key_of_which_each_byte_is_encoded_may_be_as_long_as_any() -> None:
    [event] = parse(json.dumps(holding("", key="%3C" * 4096)).encode(), {}, now_ms=1).events
    assert event.key == "<" * 4096


def test_all_events_of_a_body_have_a_limit_together() -> None:
    records = [holding("<" * 1000) for _ in range(20)]
    body = json.dumps({"Records": records}).encode()
    most = len(body)
    assert len(parse(body, {}, now_ms=1, limits=Limits(written_bytes=10 * most)).events) == 20
    for partial in (False, True):
        refused = refusal(body, limits=Limits(written_bytes=most), partial=partial)
        assert (refused.status, refused.limit) == (413, most)
        assert "BUCKETWIRE_BODY_LIMIT" in refused.problem


def test_a_message_with_such_an_event_is_rejected() -> None:
    read = read_message(Message(of("<" * _SIXTH)), Limits(), None)
    assert read.events == ()
    assert str(MAX_EVENT_BYTES) in read.problem
    assert len(read.problem) < 500


@pytest.mark.parametrize(
    "body",
    [
        b'["\xf0\x9f\x98\x80' + b"x" * 200_000 + b'", x]',
        b'["' + "中".encode() * 50_000 + b'", \xff]',
        b'["' + b"x" * 65_533 + "中".encode()[:1] + b'"]',
        b'["' + b"x" * 65_533 + "中".encode()[:2],
        b"x",
    ],
)
def test_the_byte_at_which_a_body_breaks_off_is_exact_wherever_it_is(body: bytes) -> None:
    offset = refusal(body).offset
    assert offset is not None
    body[:offset].decode()  # all before it is text
    assert offset in (0, body.find(b"x]"), body.find(b"\xff"), 65_535)


def test_a_form_of_escapes_takes_a_few_times_its_size() -> None:
    message = json.dumps({"Event": "s3:TestEvent", "Bucket": "b", "Note": "+ %41 中 %"})
    escaped = "".join(f"%{byte:02X}" for byte in message.encode() + b" " * 1_000_000)
    body = b"Action=Publish&Empty=&Message=" + escaped.encode()
    # In a process of its own, because threads that other tests have left allocate here, too.
    script = (
        "import sys, tracemalloc; from app.events.frontends.envelopes import sns_call; body = sys.stdin.buffer.read();"
        "tracemalloc.start(); sns_call(body); print(tracemalloc.get_traced_memory()[1])"
    )
    peak = int(subprocess.run([sys.executable, "-c", script], input=body, stdout=subprocess.PIPE, check=True).stdout)
    call = sns_call(body)
    assert (call.fields["Message"].rstrip(" "), "Empty" in call.fields) == (message, False)
    assert peak < 5 * len(body)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\0" * 2_000_000, "is not JSON"),
        (b"\x0a\x00" * 2_000_000, "more than 500,000 fields"),
        (b"\x12\x80\x89\x7a" + b"\x1a\x00" * 1_000_000, "more than 500,000 fields"),
    ],
    ids=["nothing", "entries", "chunks"],
)
def test_a_body_of_many_small_fields_is_refused_before_it_keeps_its_reader_busy(body: bytes, problem: str) -> None:
    started = time.process_time()
    refusal(body)
    assert problem in read_message(Message(body, headers={KEY_HEADER: "/a"}), Limits(), None).problem
    assert time.process_time() - started < 6
