"""Events over HTTP: recorded once, counted, answered only then."""

from __future__ import annotations

import gzip
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import orjson
import pytest
import sqlalchemy as sa

from app.config import target_settings
from app.events.parsing import parse
from app.outbox import tables
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import Database
from tests import services
from tests.integration.api.conftest import Api, Start, keys, problem, records, url_of
from tests.support import sample_events
from tests.support.api_requests import body
from tests.support.builders import add_target, event, registry
from tests.support.hostile_names import BUCKETS, UNPOSTABLE
from workers.delivery.outcomes import DELIVERED
from workers.targets import create

FIXTURES = (Path(__file__).parents[2] / "fixtures/minio_webhook_events.jsonl").read_bytes().splitlines()


def test_what_minio_sends_is_recorded_byte_for_byte(api: Api, database: Database) -> None:
    for line in FIXTURES:
        answer = api.post(line, content_type="application/json")
        assert answer.status_code == 202, answer.text
    sent = [line[line.index(b'"Records":[') + len(b'"Records":[') : -len(b"]}")].decode() for line in FIXTURES]
    assert records(database) == list(dict.fromkeys(sent))


@pytest.mark.parametrize(
    ("payload", "events_per_post"), [("cloudevents", "1"), ("cloudevents", "9"), ("cloudevents-binary", "1")]
)
def test_cloud_events_of_another_bucketwire_are_recorded_as_the_events_that_it_has(
    plain: Api, plain_log: Database, payload: str, events_per_post: str
) -> None:
    odd = (*sample_events.ODD_KEYS, "\U0001f600" * 256, "\U0001f600" * 1000)
    sent = b'{"Records":[%s]}' % b",".join(sample_events.put(key).record.encode() for key in odd)
    made = parse(sent, {}, now_ms=0).events
    trace = f'{sample_events.TRACEPARENT} a= %41"'
    made[::2] = [event._replace(trace=trace) for event in made[::2]]
    place = {"endpoint": f"{plain.url}/v1/events", "allow_private": "on"}
    settings = place | {"payload": payload, "events_per_post": events_per_post}
    target = create("webhook", target_settings.load("webhook", settings))
    for _ in range(2):
        assert list(target.deliver(made, 1)) == [DELIVERED] * len(made)
    target.close()
    columns = [tables.events.c[name] for name in ("id", "name", "bucket", "key", "time", "record", "trace")]
    with plain_log.reading() as connection:
        rows = connection.execute(sa.select(*columns).order_by(tables.events.c.seq)).all()
    assert [tuple(row) for row in rows] == [
        (event.id, event.name, event.bucket, event.key, event.time, event.record, event.trace) for event in made
    ]


def test_the_same_body_again_is_recorded_once(api: Api, database: Database) -> None:
    sent = body("a", "b")
    assert api.post(sent).json() | {"matched": {}} == {
        "recorded": 2, "repeated": 0, "ignored": 0, "matched": {}, "discarded": {},
    }  # fmt: skip
    assert api.post(sent).json()["repeated"] == 2
    assert keys(database) == ["a", "b"]


def test_the_same_body_thirty_two_times_at_once_is_recorded_once(api: Api, database: Database) -> None:
    add_target(database)
    sent = body(*(f"k{number}" for number in range(20)))

    def post(_: int) -> httpx.Response:
        return httpx.post(f"{api.url}/v1/events", content=sent, timeout=60, trust_env=False)

    with ThreadPoolExecutor(32) as threads:
        answers = [answer.json() for answer in threads.map(post, range(32))]
    assert sum(answer["recorded"] for answer in answers) == 20
    assert sum(answer["repeated"] for answer in answers) == 31 * 20
    assert len(keys(database)) == 20


def test_the_answer_counts_for_each_target(api: Api, database: Database) -> None:
    everything = add_target(database, "all")
    small = add_target(database, "small", queue_limit=1, bucket="images")
    answer = api.post(body("a", "b", "c")).json()
    assert answer == {
        "recorded": 3,
        "repeated": 0,
        "ignored": 0,
        "matched": {everything.arn(): 3, small.arn(): 3},
        "discarded": {small.arn(): 2},
    }


def test_a_body_may_be_lines_an_array_a_bare_record_or_packed(plain: Api, plain_log: Database) -> None:
    lines = b"\n".join(event(f"line {number}").record.encode() for number in range(1000))
    assert plain.post(lines, content_type="application/x-ndjson").json()["recorded"] == 1000
    assert plain.post(b"[%s]" % event("array").record.encode()).json()["recorded"] == 1
    assert plain.post(event("bare").record.encode()).json()["recorded"] == 1
    packed = gzip.compress(body("packed")) + gzip.compress(b"  ")
    assert plain.post(packed, content_encoding="gzip").json()["recorded"] == 1
    assert keys(plain_log)[-3:] == ["array", "bare", "packed"]


def test_senders_that_only_take_a_host_can_probe_and_post(plain: Api) -> None:
    for path in ("/", "/v1/events", "/v1/events/"):
        assert plain.client.head(path).status_code == 200
        assert plain.client.get(path).status_code == 200
    assert plain.client.post("/v1/events/", content=body("a")).status_code == 202
    problem(plain.client.post("/", content=body("b")), 405, "wrong-method")


def test_a_test_event_is_ignored_and_counted(plain: Api) -> None:
    sent = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2026-11-21T00:00:00.000Z", "Bucket": "images"}
    assert plain.post(orjson.dumps(sent)).json()["ignored"] == 1


def test_a_request_to_confirm_a_topic_calls_nobody_and_tells_the_operator(
    plain: Api, receiver: services.Receiver
) -> None:
    sent = {
        "Type": "SubscriptionConfirmation",
        "MessageId": "1",
        "Token": "abc",
        "TopicArn": "arn:aws:sns:eu-west-1:1:images",
        "Message": "You have chosen to subscribe",
        "SubscribeURL": f"{receiver.url}/confirm?Token=abc",
        "Timestamp": "2026-11-21T00:00:00.000Z",
        "SignatureVersion": "1",
        "Signature": "x",
        "SigningCertURL": "https://sns.eu-west-1.amazonaws.com/x.pem",
    }
    headers = {"x_amz_sns_message_type": "SubscriptionConfirmation", "content_type": "text/plain; charset=UTF-8"}
    answer = plain.post(orjson.dumps(sent), **headers)
    assert answer.status_code == 202
    assert answer.json()["topic"] == sent["TopicArn"]
    services.until(lambda: f"{receiver.url}/confirm?Token=abc" in plain.log.read_text())
    assert receiver.requests() == []


def test_a_request_may_name_its_frontend(plain: Api, plain_log: Database) -> None:
    record = orjson.loads(event("a%2Bb").record) | {"eventSource": "my-gateway:s3", "eventName": "ObjectCreated:Put"}
    assert plain.post(orjson.dumps({"Records": [record]})).status_code == 202
    assert plain.post(orjson.dumps({"Records": [record]}), query="?frontend=versity").status_code == 202
    assert sorted(keys(plain_log)) == ["a%2Bb", "a+b"]
    found = problem(plain.post(orjson.dumps({"Records": [record]}), query="?frontend=cep"), 400, "bad-value")
    assert found["field"] == "frontend"
    assert "did you mean ceph?" in found["detail"]


# --- what is refused


def test_a_bad_record_refuses_the_whole_body_and_is_named(plain: Api, plain_log: Database) -> None:
    good, bad = orjson.loads(event("good").record), orjson.loads(event("bad").record)
    del bad["s3"]["bucket"]
    sent = orjson.dumps({"Records": [good, bad]})
    found = problem(plain.post(sent), 400, "bad-events")
    assert found["index"] == 1
    assert "bucket" in found["field"]
    assert keys(plain_log) == []
    answer = plain.post(sent, query="?partial=true")
    assert answer.status_code == 202
    assert answer.json()["recorded"] == 1
    assert [refused["index"] for refused in answer.json()["refused"]] == [1]
    assert keys(plain_log) == ["good"]


def test_what_is_no_json_is_refused_with_the_byte_where_it_breaks_off(plain: Api) -> None:
    assert problem(plain.post(b'{"Records":[}'), 400, "bad-events")["offset"] == 12
    assert problem(plain.post(b""), 400, "bad-events")["offset"] == 0


def test_a_large_body_is_refused_before_it_is_read_and_while_it_is_unpacked(log: Database, start: Start) -> None:
    api = start(url_of(log), body_limit="64KiB")
    limit = problem(api.post(b" " * 65537), 413, "too-large")["limit"]
    assert limit == 65536
    problem(api.client.post("/v1/events", content=iter([b" " * 8192] * 9)), 413, "too-large")  # chunked
    bomb = gzip.compress(b" " * 30_000_000)
    assert len(bomb) < limit
    problem(api.post(bomb, content_encoding="gzip"), 413, "too-large")
    problem(api.post(gzip.compress(b" " * 60_000) * 2, content_encoding="gzip"), 413, "too-large")
    assert api.post(body("a")).status_code == 202
    assert keys(log) == ["a"]


def test_a_body_that_is_no_gzip_or_half_of_one_is_refused(plain: Api) -> None:
    problem(plain.post(body("a"), content_encoding="gzip"), 400, "bad-request")
    problem(plain.post(gzip.compress(body("a"))[:-9], content_encoding="gzip"), 400, "bad-request")
    members = problem(plain.post(gzip.compress(b"") * 10_001, content_encoding="gzip"), 400, "bad-request")
    assert "more than 10,000 members" in members["detail"]
    answer = plain.post(body("a"), content_encoding="br")
    problem(answer, 415, "unknown-encoding")
    assert "gzip" in answer.headers["accept-encoding"]


def test_too_many_records_and_too_deep_ones_are_refused(log: Database, start: Start) -> None:
    api = start(url_of(log), record_limit=3)
    problem(api.post(body("a", "b", "c", "d")), 413, "bad-events")
    deep = event("deep").record[:-1].encode() + b',"x":' + b"[" * 200 + b"]" * 200 + b"}"
    problem(api.post(deep), 400, "bad-events")
    problem(api.post(b"[" * 100_000), 400, "bad-events")
    assert keys(log) == []


ODD = (
    ({"key": "zero\0byte"}, 400),
    ({"key": "x" * 5000}, 400),
    ({"versionId": "v" * 5000}, 400),
    ({"sequencer": "A" * 500}, 400),
    ({"key": "\U0010ffff\ufffe \\ \\. \t\r\n"}, 202),
)


def test_an_odd_value_is_taken_or_refused_and_harms_nobody_else(api: Api, database: Database) -> None:
    for number, (member, status) in enumerate(ODD):
        record = orjson.loads(event("odd").record)
        record["s3"]["object"] |= member
        sent = [body(f"{number}-{each}") for each in range(16)]
        sent[7] = orjson.dumps(record)
        before = len(keys(database))
        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(api.post, sent))
        assert answers.pop(7).status_code == status
        assert [answer.status_code for answer in answers] == [202] * 15
        assert len(keys(database)) == before + 15 + (status == 202)
    assert api.post(body("after")).status_code == 202


def test_a_full_queue_that_refuses_takes_nothing_and_names_the_target(api: Api, database: Database) -> None:
    target = add_target(database, queue_limit=2, queue_full="reject")
    other = add_target(database, "other")
    assert api.post(body("a")).json()["matched"] == {target.arn(): 1, other.arn(): 1}
    answer = api.post(body("b", "c"))
    found = problem(answer, 503, "queue-full")
    assert found["targets"] == [target.arn()]
    assert int(answer.headers["retry-after"]) > 0
    assert keys(database) == ["a"]
    assert api.post(body("b")).json()["matched"] == {target.arn(): 1, other.arn(): 1}


def test_a_request_with_more_events_than_a_target_ever_takes_is_too_large(api: Api, database: Database) -> None:
    """A sender would repeat a 503 for ever; one that is told the limit can send the events in parts."""
    target = add_target(database, queue_limit=2, queue_full="reject")
    other = add_target(database, "other", queue_limit=1, queue_full="reject", bucket="elsewhere")
    found = problem(api.post(body("a", "b", "c")), 413, "too-large")
    assert (found["targets"], found["limit"], found["events"]) == ([target.arn()], 2, 3)
    assert "queue_limit" in found["detail"]
    assert keys(database) == []
    assert other.arn() not in found["detail"]
    api.post(body("a", "b"))
    problem(api.post(body("c", "d", "e")), 413, "too-large")
    problem(api.post(body("c", "d")), 503, "queue-full")


def test_what_is_recorded_of_a_request_already_does_not_make_it_too_large(api: Api, database: Database) -> None:
    target = add_target(database, queue_limit=2, queue_full="reject")
    first, second, third = body("a"), body("b"), body("c")
    api.post(first)
    problem(api.post(b"\n".join([first, second, third])), 503, "queue-full")
    assert api.post(b"\n".join([first, second, second])).json()["matched"] == {target.arn(): 1}


def test_a_rule_counts_from_the_request_after_it(plain: Api, plain_log: Database) -> None:
    assert plain.post(body("before")).json()["matched"] == {}
    target = add_target(plain_log)
    assert plain.post(body("with")).json()["matched"] == {target.arn(): 1}
    registry(plain_log).remove(target, force=True)
    with pytest.raises(UnknownTarget):
        registry(plain_log).target(target)
    assert plain.post(body("after")).json()["matched"] == {}


# --- an object's history


def test_an_objects_history_tells_where_each_event_stands(api: Api, database: Database) -> None:
    target = add_target(database)
    for key in ("a b/ü", "other", "a b/ü"):
        api.post(body(key))
    answer = api.client.get("/v1/events", params={"bucket": "images", "key": "a b/ü"})
    found = answer.json()["events"]
    assert [one["seq"] for one in found] == [1, 3]
    assert [one["delivery_states"] for one in found] == [
        [{"target": target.arn(), "state": "pending", "reason": ""}]
    ] * 2
    assert found[0]["record"] == orjson.loads(records(database)[0])
    assert [
        one["seq"] for one in api.client.get("/v1/events?bucket=images&key=a%20b/%C3%BC&limit=1").json()["events"]
    ] == [3]
    assert api.client.get("/v1/events?bucket=images&key=none").json()["events"] == []
    longest = "\U0001f600" * 256
    api.post(body(longest))
    found = api.client.get("/v1/events", params={"bucket": "images", "key": longest}).json()["events"]
    assert [one["seq"] for one in found] == [4]
    problem(api.client.get("/v1/events?key=a"), 400, "bad-value")
    problem(api.client.get("/v1/events?bucket=images&kye=a"), 400, "bad-value")


def test_a_hostile_name_of_a_bucket_is_kept_as_it_came_or_refused(api: Api, database: Database) -> None:
    for name in BUCKETS:
        answer = api.post(b'{"Records":[%s]}' % event("k", bucket=name).record.encode())
        assert answer.status_code == 202, (name, answer.text)
    with database.reading() as connection:
        found = connection.execute(sa.select(tables.events.c.bucket).order_by(tables.events.c.seq)).scalars().all()
    assert found == BUCKETS
    for name in UNPOSTABLE:
        assert problem(api.post(b'{"Records":[%s]}' % event("k", bucket=name).record.encode()), 400, "bad-events")
