"""Bodies as a whole: their forms, their limits, and what is said of those that cannot be taken."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.events.minio_json import encode_key
from app.events.parsing import BadEvents, Limits, Parsed, Refused, parse
from tests.support.captured import LINES, line, record
from tests.support.frontend_records import TEST_EVENT, aws, ceph, eventbridge, seaweed, sns
from tests.support.properties import thorough

NOW = 1_800_000_000_123
DEFAULT = Limits()
NDJSON = {"Content-Type": "application/x-ndjson; charset=utf-8"}


def take(body: Any, headers: dict[str, str] | None = None, limits: Limits = DEFAULT, partial: bool = False) -> Parsed:
    sent = body if isinstance(body, bytes) else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    return parse(sent, headers or {}, now_ms=NOW, limits=limits, partial=partial)


def refusal(
    body: Any, headers: dict[str, str] | None = None, limits: Limits = DEFAULT, partial: bool = False
) -> BadEvents:
    with pytest.raises(BadEvents) as caught:
        take(body, headers, limits, partial)
    return caught.value


def changed(path: str, value: Any) -> dict[str, Any]:
    """A captured record with one member another; `...` takes it away."""
    found = record(1)
    *outer, last = path.split(".")
    inner = found
    for step in outer:
        inner = inner[step]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return found


# ---------------------------------------------------------------- forms of a body

ALL = "\n".join(LINES)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (ALL, NDJSON),
        (ALL, {"content-type": "APPLICATION/JSONL"}),
        (ALL, {}),
        (ALL, {"Content-Type": "application/json"}),
        (ALL.replace("\n", "\r\n\r\n") + "\n", NDJSON),
        ("[" + ",".join(LINES) + "]", {}),
        ({"Records": [record(number) for number in range(1, 106)]}, {}),
        ([record(number) for number in range(1, 106)], {}),
        (json.dumps([json.loads(each) for each in LINES], indent=1), {}),
        ("\n".join(json.dumps([json.loads(each)]) for each in LINES), {}),
    ],
)
def test_many_records_in_any_form_are_the_same_events_in_order(body: Any, headers: dict[str, str]) -> None:
    assert take(body, headers).events == [event for each in LINES for event in take(each).events]


def test_everything_may_come_in_one_body() -> None:
    parsed = take([aws(), {"Records": [ceph(), record(1)]}, sns(TEST_EVENT), eventbridge(), seaweed("delete"), aws()])
    assert [event.bucket for event in parsed.events] == ["amzn", "mybucket1", "plain", "amzn", "photos", "amzn"]
    assert parsed.events[0] == parsed.events[-1]  # told twice, returned twice
    assert parsed.ignored == 1


@pytest.mark.parametrize("body", [{"Records": []}, []])
def test_a_body_of_no_records_is_no_fault(body: Any) -> None:
    assert take(body) == Parsed()


# ---------------------------------------------------------------- members of a record


def test_unknown_members_travel_on_in_their_place() -> None:
    sent = changed("s3.object.later", {"b": [1, None, "<"], "a": 2**70})
    event = take({"Records": [sent]}).events[0]
    assert event.record == json.dumps(sent, separators=(",", ":")).replace("<", "\\u003c")


def test_the_order_and_white_space_of_a_record_do_not_change_its_id() -> None:
    sent = record(1)
    assert take(json.dumps(sent, indent=3, sort_keys=True)).events[0].id == take(sent).events[0].id


def test_a_long_number_in_another_record_does_not_change_an_id() -> None:
    alone, beside = (
        take(changed("s3.object.ratio", 1e22)),
        take([changed("s3.object.ratio", 1e22), changed("x", 10**25)]),
    )
    assert beside.events[0] == alone.events[0]
    assert '"x":10000000000000000000000000' in beside.events[1].record


@pytest.mark.parametrize(
    ("moment", "expected"),
    [("2026-11-21T00:33:56Z", 1795221236000), (..., NOW), (None, NOW), (7, NOW), ("yesterday", NOW), ("", NOW)],
)
def test_an_event_without_a_time_that_can_be_read_has_that_of_its_arrival(moment: Any, expected: int) -> None:
    assert take(changed("eventTime", moment)).events[0].time == expected


@pytest.mark.parametrize("name", ["s3:BucketCreated:*", "s3:BucketRemoved:*", "s3:Scanner:BigPrefix", "s3:Later:Thing"])
@pytest.mark.parametrize("key", ["", ...])
def test_an_event_of_a_bucket_has_no_key(name: str, key: Any) -> None:
    event = take(changed("s3.object.key", key) | {"eventName": name}).events[0]
    assert (event.key, event.path) == ("", "plain/")


@pytest.mark.parametrize(("version", "expected"), [(..., ""), (None, ""), ("", ""), ("null", "null"), ("a31d", "a31d")])
def test_the_version_is_that_of_the_record(version: Any, expected: str) -> None:
    if version is ...:
        assert take(record(1)).events[0].version == expected
    else:
        assert take(changed("s3.object.versionId", version)).events[0].version == expected


@pytest.mark.parametrize("key", ["k" * 4096, "é" * 2048, "🎉" * 1024])
def test_a_key_may_have_four_thousand_bytes(key: str) -> None:
    assert take(changed("s3.object.key", encode_key(key))).events[0].key == key


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("eventName", ..., "eventName is missing"),
        ("eventName", "", 'is ""; it must be text'),
        ("eventName", 7, "is 7; it must be text"),
        ("eventName", "x" * 256, "at most 255 characters"),
        ("eventName", "a\0", "U+0000"),
        ("s3", 1, "s3 is 1; it must be an object"),
        ("s3.bucket", ..., "s3.bucket is missing"),
        ("s3.bucket", "plain", 's3.bucket is "plain"; it must be an object'),
        ("s3.bucket.name", ..., "s3.bucket.name is missing"),
        ("s3.bucket.name", "", "s3.bucket.name"),
        ("s3.bucket.name", ["plain"], "is an array; it must be the bucket's name"),
        ("s3.bucket.name", "b\0", "U+0000"),
        ("s3.bucket.name", "b" * 256, "at most 255"),
        ("s3.bucket.name", "plain ", "ends with a space"),
        ("s3.object", ..., "s3.object.key is missing"),
        ("s3.object", [], "s3.object is an array"),
        ("s3.object.key", ..., "s3.object.key is missing"),
        ("s3.object.key", "", "s3.object.key"),
        ("s3.object.key", {}, "is an object"),
        ("s3.object.key", "100%.txt", "stray %"),
        ("s3.object.key", "%FF", "does not decode to UTF-8"),
        ("s3.object.key", "a%00b", "U+0000"),
        ("s3.object.key", "a\0b", "U+0000"),
        ("s3.object.key", "k" * 4097, "4097 bytes"),
        ("s3.object.key", "é" * 2049, "4098 bytes"),
        ("s3.object.versionId", 1, "s3.object.versionId is 1"),
        ("s3.object.versionId", "v" * 1025, "at most 1024"),
        ("s3.object.sequencer", True, "s3.object.sequencer is true"),
        ("s3.object.sequencer", "A" * 65, "at most 64"),
    ],
)
def test_a_bad_member_is_named_with_what_is_wrong_and_what_would_be_right(path: str, value: Any, words: str) -> None:
    problem = refusal({"Records": [record(1), changed(path, value)]})
    assert words in problem.problem
    assert problem.problem.startswith(f"Record 1, at Records[1]: {path}")
    assert problem.problem.endswith(".")
    assert len(problem.problem) < 400
    assert (problem.status, problem.index, problem.offset) == (400, 1, None)
    assert problem.field is not None
    assert problem.field.startswith("Records[1].")


# ---------------------------------------------------------------- bodies that are no JSON


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b"", 0),
        (b" \r\n\t ", 0),
        (b"{", 1),
        (b"<xml/>", 0),
        (b'{"Records": [}', 13),
        ('{"é": x}'.encode(), 7),
        (b"\xff\xfe", 0),
        (b'{"a": "\xc3"}', 7),
        (b"\xef\xbb\xbf{", 4),
        (b'["\\ud800"]', 2),
        (b'{"a": NaN}', 6),
        (b"{\n}}", 3),
        (b"[" * 5000, 1025),
    ],
)
def test_a_body_that_is_no_json_is_refused_with_the_byte(body: bytes, offset: int) -> None:
    problem = refusal(body, partial=True)
    assert (problem.status, problem.offset, problem.index, problem.field) == (400, offset, None, None)


@pytest.mark.parametrize("headers", [NDJSON, {}])
def test_a_bad_line_is_refused_with_its_byte_in_the_body(headers: dict[str, str]) -> None:
    body = f"{line(1)}\n\n{line(22)}\n" + '{"é": x}\n' + line(3)
    problem = refusal(body, headers)
    offset = body.encode().index(b"x}\n")
    assert (problem.index, problem.field, problem.offset) == (2, "line 4", offset)
    assert f"Record 2, at line 4: it is not JSON: at byte {offset} of the body" in problem.problem


# ---------------------------------------------------------------- partial


def test_partial_takes_the_good_and_tells_of_the_bad() -> None:
    bodies = [
        line(1),
        "{",
        line(2),
        json.dumps({"Records": [record(3), changed("s3.object.key", "%"), record(4)]}),
        "7",
    ]
    parsed = take("\n".join(bodies), NDJSON, partial=True)
    assert [event.time for event in parsed.events] == [take(line(n)).events[0].time for n in (1, 2, 3, 4)]
    assert [(bad.index, bad.path) for bad in parsed.refused] == [
        (1, "line 2"),
        (4, "line 4 Records[1].s3.object.key"),
        (6, "line 5"),
    ]
    assert all(
        isinstance(bad, Refused) and bad.problem.startswith(f"Record {bad.index}, at ") for bad in parsed.refused
    )


def test_without_partial_one_bad_record_refuses_all() -> None:
    problem = refusal([record(1), changed("s3.object.key", "%"), record(2)])
    assert (problem.index, problem.field) == (1, "[1].s3.object.key")


def test_half_of_a_rename_is_never_taken() -> None:
    entry = {"name": "x\0y"}
    sent = seaweed("rename", old_entry=entry, new_entry=entry)
    parsed = take([sent, record(1)], partial=True)
    assert ([event.bucket for event in parsed.events], len(parsed.refused)) == (["plain"], 1)


# ---------------------------------------------------------------- limits


@pytest.mark.parametrize("partial", [False, True])
@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ([record(1)] * 5, {}),
        ({"Records": [record(1)] * 5}, {}),
        ("\n".join([line(1)] * 5), NDJSON),
        ([{"Records": [record(1)] * 3}, {"Records": [record(1)] * 2}], {}),
        ([TEST_EVENT] * 5, {}),
        ([{}] * 5, {}),
    ],
)
def test_more_records_than_allowed_are_refused_of_whatever_kind(
    body: Any, headers: dict[str, str], partial: bool
) -> None:
    five = take(body, headers, Limits(records=5), partial=True)
    assert len(five.events) + five.ignored + len(five.refused) == 5
    problem = refusal(body, headers, Limits(records=4), partial=partial)
    assert problem.status == 413
    assert "more than 4 records" in problem.problem


@pytest.mark.parametrize("opening", ['{"a":', "["])
@pytest.mark.parametrize("depth", [31, 32, 100, 220, 400, 1000])
def test_a_record_nested_too_deep_is_refused_before_anything_recurses(opening: str, depth: int) -> None:
    closing = "}" if opening[0] == "{" else "]"
    deep = opening * depth + "1" + closing * depth
    body = line(1)[:-3] + f',"later":{deep}}}]}}'
    if depth <= 31:
        assert len(take(body).events) == 1
    else:
        problem = refusal(body)
        assert "Record 0, at Records[0]: it is nested more than 32 deep" in problem.problem
    with_long_number = body.replace("1" + closing, "9" * 30 + closing, 1)
    if depth > 31:
        assert refusal(with_long_number).status == 400


def test_many_small_objects_are_not_nested_deep() -> None:
    sent = changed("later", [{"a": {}}] * 100)
    assert len(take(sent).events) == 1


# ---------------------------------------------------------------- whatever comes


def survives(body: bytes, headers: dict[str, str]) -> None:
    for partial in (False, True):
        with contextlib.suppress(BadEvents):
            for event in parse(body, headers, now_ms=NOW, limits=DEFAULT, partial=partial).events:
                assert json.loads(event.record)["s3"]["bucket"]["name"] == event.bucket
                event.path.encode()


HEADER_SETS = st.sampled_from([{}, NDJSON, {"x-amz-sns-message-type": "Notification"}])


@thorough(500)
@given(st.binary(max_size=200), HEADER_SETS)
def test_no_bytes_raise_anything_but_bad_events(body: bytes, headers: dict[str, str]) -> None:
    survives(body, headers)


MEMBERS = st.sampled_from(
    [
        "Records",
        "s3",
        "bucket",
        "object",
        "name",
        "key",
        "eventName",
        "eventSource",
        "EventSource",
        "body",
        "Sns",
        "Message",
        "Type",
        "TopicArn",
        "Token",
        "SubscribeURL",
        "detail-type",
        "source",
        "detail",
        "event_type",
        "message",
        "old_entry",
        "new_entry",
        "attributes",
        "mtime",
        "mtime_ns",
        "extended",
        "chunks",
        "content",
        "is_directory",
        "new_parent_path",
        "specversion",
        "data",
        "data_base64",
        "Event",
        "Service",
        "size",
        "metadata",
        "versionId",
        "sequencer",
        "eventTime",
    ]
)
VALUES = st.sampled_from(
    [
        "aws:s3",
        "minio:s3",
        "ceph:s3",
        "aws:sqs",
        "aws:sns",
        "s3:ObjectCreated:Put",
        "Notification",
        "SubscriptionConfirmation",
        "aws.s3",
        "create",
        "rename",
        "s3:TestEvent",
        "%",
        "a%2Fb",
        "é",
        "\0",
        "{}",
        "[]",
        "{{",
        "7",
        "null",
        "2026-11-21T00:33:56Z",
        "/buckets/b/k",
        "/buckets/b",
    ]
)
SHAPED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=5),
    max_leaves=20,
)


@thorough(1000)
@given(SHAPED, HEADER_SETS)
def test_no_json_raises_anything_but_bad_events(value: Any, headers: dict[str, str]) -> None:
    survives(json.dumps(value).encode(), headers)


@thorough(500)
@given(st.data())
def test_no_change_of_a_good_body_raises_anything_but_bad_events(data: st.DataObject) -> None:
    """One member of a real body, at any depth, becomes something else."""
    body = data.draw(
        st.sampled_from([{"Records": [aws()]}, {"Records": [ceph()]}, eventbridge(), json.loads(line(1)), sns(aws())])
    )
    body = json.loads(json.dumps(body))
    inner = body
    while True:
        step = data.draw(st.sampled_from(sorted(inner))) if isinstance(inner, dict) else 0
        if isinstance(inner[step], dict | list) and inner[step] and data.draw(st.booleans()):
            inner = inner[step]
            continue
        inner[step] = data.draw(SHAPED)
        break
    survives(json.dumps(body).encode(), {})


@thorough(200)
@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60))
def test_every_key_comes_through_every_sender(key: str) -> None:
    assert take(changed("s3.object.key", encode_key(key))).events[0].key == key
    assert take(aws(key=encode_key(key).replace("%2F", "/"))).events[0].key == key
    assert take(ceph(key=key)).events[0].key == key
    assert take(eventbridge(object={"key": key})).events[0].key == key
    if not key.startswith("/") and key.split("/", 1)[0] != ".uploads":
        assert take(seaweed("create", f"/buckets/b/{key}")).events[0].key == key


# --- trace context

PARENT, OTHER = (f"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b{last}-01" for last in "78")


def cloud(data: Any, **attributes: Any) -> dict[str, Any]:
    """A CloudEvent in structured mode."""
    return {"specversion": "1.0", "type": "t", "source": "s", "id": "1", "data": data} | attributes


def traces(body: Any, **headers: Any) -> list[str]:
    """The trace context of each event of a body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return [event.trace for event in take(body, named).events]


def test_events_have_the_trace_context_of_their_request_and_are_the_same_events() -> None:
    body = {"Records": [record(1), record(2)]}
    assert traces(body) == ["", ""]
    assert traces(body, Traceparent=PARENT, tracestate="a=1") == [f"{PARENT} a=1"] * 2
    traced = take(body, {"traceparent": PARENT}).events
    assert [event._replace(trace="") for event in traced] == take(body).events


def test_a_trace_context_that_is_not_valid_is_as_none() -> None:
    assert traces(record(1), Traceparent="00-what", Tracestate="a=1") == [""]
    assert traces(record(1), Tracestate="a=1") == [""]
    assert traces(cloud(record(1), traceparent=17, tracestate={})) == [""]


def test_a_cloud_events_own_trace_context_goes_before_that_of_the_request() -> None:
    mixed = [cloud(record(1), traceparent=OTHER, tracestate="b=2"), cloud(record(2)), cloud(record(3), traceparent="?")]
    assert traces(mixed, Traceparent=PARENT) == [f"{OTHER} b=2", PARENT, PARENT]
    assert traces(record(1), Ce_Traceparent=OTHER, Traceparent=PARENT, Tracestate="a=1") == [OTHER]
    assert traces(record(1), Ce_Traceparent=OTHER, Ce_Tracestate="a=%20%2541%22") == [f'{OTHER} a= %41"']
    assert traces(record(1), Ce_Traceparent=OTHER, Ce_Tracestate="a=%C0%A0") == [OTHER]
    assert traces(record(1), Traceparent=PARENT, Tracestate="a=%41") == [f"{PARENT} a=%41"]
    assert traces(cloud({"Records": [record(1), record(2)]}, traceparent=OTHER)) == [OTHER] * 2
    inner = cloud(record(1), traceparent=OTHER)
    assert traces(cloud(inner, traceparent=PARENT)) == [OTHER]
