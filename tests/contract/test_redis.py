"""What is Redis's own: its answers, logins, databases and scripts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from app.config.target_settings import load
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import attempt
from tests.contract.probes.redis import Access, Namespace, Stream
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Delivered, Failed, NotAttempted, Rejected, Unavailable
from workers.targets import messages, payloads
from workers.targets.base import TargetUnavailable

WINDOWS = pytest.mark.parametrize("window", [1, 100])
ACL = ("+type", "+hset", "+hdel", "+hget", "+eval", "+rpush", "+xadd", "+multi", "+exec", "+client|setname")


running = fixtures.running(Namespace)
redis = fixtures.renewed()


@pytest.fixture
def journal(redis: Namespace) -> Access:
    """The same server, used as a list."""
    access = Access.__new__(Access)
    access.server = redis.server
    return access


@pytest.fixture
def stream(redis: Namespace) -> Stream:
    """The same server, used as a stream."""
    probe = Stream.__new__(Stream)
    probe.server = redis.server
    return probe


def calls(redis: Namespace, command: str) -> int:
    """How often a command has run since CONFIG RESETSTAT."""
    text: str = redis.ask("INFO", "commandstats").decode()
    found = [line for line in text.splitlines() if line.startswith(f"cmdstat_{command}:")]
    return int(found[0].partition("calls=")[2].partition(",")[0]) if found else 0


def test_the_connection_has_our_name(redis: Namespace) -> None:
    with redis.opened():
        assert b"name=Bucketwire" in redis.ask("CLIENT", "LIST")
    services.until(lambda: b"name=Bucketwire" not in redis.ask("CLIENT", "LIST"))


@WINDOWS
def test_a_batch_is_one_command_of_each_kind_and_in_window_1_one_transaction(redis: Namespace, window: int) -> None:
    with redis.opened() as target:
        redis.ask("CONFIG", "RESETSTAT")
        made = [sample_events.put(f"object-{number % 50}") for number in range(300)]
        mixed = [*made, sample_events.delete("object-1"), sample_events.delete_version("object-x", "v1")]
        assert set(target.deliver(mixed, window)) == {DELIVERED}
    assert [calls(redis, name) for name in ("hset", "hdel", "eval")] == [1, 1, 1]
    assert calls(redis, "exec") == (1 if window == 1 else 0)


def test_a_call_larger_than_a_portion_keeps_its_order(journal: Access) -> None:
    made = [sample_events.put(f"object-{number % 3}", number=number + 1) for number in range(12_000)]
    assert set(journal.delivered(made)) == {DELIVERED}
    assert [sample_events.number_of(document) for _, document in journal.held()] == list(range(1, 12_001))


def test_an_entry_of_a_stream_has_the_documented_fields(stream: Stream) -> None:
    event = sample_events.put("photos/a b.jpg")
    assert stream.delivered([event]) == [DELIVERED]
    assert stream.delivered([event], payload="cloudevents") == [DELIVERED]
    (_, first), (_, second) = stream.entries()
    assert list(first.items()) == [
        ("id", event.id), ("event", "s3:ObjectCreated:Put"), ("bucket", "images"), ("key", "photos/a b.jpg"),
        ("body", payloads.log(event)),
    ]  # fmt: skip
    assert second == first | {"body": messages.structured(event)}


@WINDOWS
def test_a_batch_of_a_stream_is_one_transaction(stream: Stream, window: int) -> None:
    with stream.opened() as target:
        stream.ask("CONFIG", "RESETSTAT")
        assert set(target.deliver([sample_events.put(f"object-{n % 9}") for n in range(300)], window)) == {DELIVERED}
    assert [calls(stream, name) for name in ("exec", "xadd")] == [1, 300]


@WINDOWS
def test_a_full_memory_leaves_nothing_of_a_batch_in_a_stream(stream: Stream, window: int) -> None:
    batch = [sample_events.put("a"), sample_events.put("b"), sample_events.put("a")]
    with stream.opened() as target:
        stream.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            outcomes = attempt(target, batch, window)
        finally:
            stream.ask("CONFIG", "SET", "maxmemory", "0")
        assert [type(outcome) for outcome in outcomes] == [Unavailable, Unavailable, type(NOT_ATTEMPTED)]
        assert stream.held() == []
        assert list(target.deliver(batch, window)) == [DELIVERED] * 3


def test_a_stream_is_trimmed_to_about_so_many_entries(stream: Stream) -> None:
    made = [sample_events.put("a", number=number + 1) for number in range(1000)]
    stream.ask("CONFIG", "SET", "stream-node-max-entries", "10")
    try:
        with stream.opened(max_entries="50") as target:
            for start in range(0, 1000, 100):
                assert set(target.deliver(made[start : start + 100], 100)) == {DELIVERED}
    finally:
        stream.ask("CONFIG", "SET", "stream-node-max-entries", "100")
    kept = [sample_events.number_of(document) for _, document in stream.held()]
    assert 50 <= len(kept) <= 60
    assert kept == list(range(1001 - len(kept), 1001))


@pytest.mark.parametrize("taken", ["SET", "RPUSH"])
def test_a_key_of_another_type_is_refused_when_opening(redis: Namespace, taken: str) -> None:
    redis.ask(taken, "bucketevents", "x")
    with pytest.raises(TargetUnavailable, match=r"holds a (string|list), but format namespace needs a hash"):
        redis.target().open()


def test_a_key_that_becomes_another_type_is_unavailable(redis: Namespace) -> None:
    with redis.opened() as target:
        redis.ask("SET", "bucketevents", "x")
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        assert isinstance(outcome, Unavailable)
        assert "WRONGTYPE" in outcome.reason
        redis.ask("DEL", "bucketevents")
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


@WINDOWS
def test_a_full_memory_is_unavailable_until_there_is_room(redis: Namespace, window: int) -> None:
    with redis.opened() as target:
        batch = [sample_events.put("a"), sample_events.put("a"), sample_events.delete("b")]
        redis.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            outcomes = attempt(target, batch, window)
        finally:
            redis.ask("CONFIG", "SET", "maxmemory", "0")
        assert isinstance(outcomes[0], Unavailable)
        assert "maxmemory" in outcomes[0].reason
        assert outcomes[1] == NOT_ATTEMPTED
        assert redis.held() == []
        assert list(target.deliver(batch, window)) == [DELIVERED] * 3


def test_a_replica_is_unavailable(redis: Namespace) -> None:
    with redis.opened() as target:
        redis.ask("REPLICAOF", services.LOOPBACK, str(services.free_port()))
        try:
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
        finally:
            redis.ask("REPLICAOF", "NO", "ONE")
        assert isinstance(outcome, Unavailable)
        assert "replica" in outcome.reason


def test_a_replica_that_takes_writes_costs_no_attempts_where_replicas_are_waited_for(redis: Namespace) -> None:
    with redis.opened(wait_replicas="1") as target:
        redis.ask("CONFIG", "SET", "replica-read-only", "no")
        redis.ask("REPLICAOF", services.LOOPBACK, str(services.free_port()))
        try:
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
        finally:
            redis.ask("REPLICAOF", "NO", "ONE")
            redis.ask("CONFIG", "SET", "replica-read-only", "yes")
        assert isinstance(outcome, Unavailable)
        assert "WAIT cannot be used with replica instances" in outcome.reason


def test_a_server_without_the_command_is_unavailable() -> None:
    with services.redis(extra=("--rename-command", "HSET", "")) as server:
        redis = Namespace.__new__(Namespace)
        redis.server = server
        with redis.opened(password="") as target:
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "unknown command" in outcome.reason


@WINDOWS
def test_a_user_needs_only_the_documented_rights(redis: Namespace, window: int) -> None:
    redis.ask("ACL", "SETUSER", "events", "reset", "on", ">pass word", "~bucketevents", *ACL)
    with redis.opened(user="events", password="pass word") as target:
        batch = [sample_events.put("a"), sample_events.delete("b"), sample_events.delete_version("c", "v1")]
        assert set(target.deliver(batch, window)) == {DELIVERED}
        redis.ask("ACL", "SETUSER", "events", "-hset")
        (outcome,) = attempt(target, [sample_events.put("a")], window)
    redis.ask("DEL", "bucketevents")
    with redis.opened(user="events", password="pass word", format="stream", max_entries="9") as target:
        assert list(target.deliver(batch, window)) == [DELIVERED] * 3
    redis.ask("ACL", "DELUSER", "events")
    assert isinstance(outcome, Unavailable)
    assert "+hset" in outcome.reason
    assert "pass word" not in outcome.reason


def test_a_script_that_may_not_run_its_commands_is_unavailable(redis: Namespace) -> None:
    rights = [right for right in ACL if right != "+hget"]
    redis.ask("ACL", "SETUSER", "events", "reset", "on", ">pass word", "~bucketevents", *rights)
    with redis.opened(user="events", password="pass word") as target:
        (outcome,) = attempt(target, [sample_events.delete_version("a", "v1")], 1)
    redis.ask("ACL", "DELUSER", "events")
    assert isinstance(outcome, Unavailable)


def test_a_missing_password_is_unavailable(redis: Namespace) -> None:
    with pytest.raises(TargetUnavailable, match="Authentication required"):
        redis.target(password="").open()


def test_the_database_number_is_used(redis: Namespace) -> None:
    assert redis.delivered([sample_events.put("a")], db="3") == [DELIVERED]
    assert redis.held() == []
    assert b"db3:keys=1" in redis.ask("INFO", "keyspace")


def test_a_unix_socket_is_an_address() -> None:
    with services.redis(extra=("--unixsocket", "redis.sock")) as server:
        redis = Namespace.__new__(Namespace)
        redis.server = server
        assert redis.delivered([sample_events.put("a")], address=str(server.folder / "redis.sock"), password="") == [
            DELIVERED
        ]
        with server.client() as client:
            assert client.hlen("bucketevents") == 1


def test_the_time_limit_is_the_settings(redis: Namespace) -> None:
    with redis.opened(timeout="300ms") as target:
        redis.server.freeze()
        began = time.monotonic()
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        took = time.monotonic() - began
        redis.server.thaw()
    assert isinstance(outcome, Unavailable)
    assert 0.3 <= took < 2


@WINDOWS
def test_a_version_is_removed_only_while_the_row_describes_it(redis: Namespace, window: int) -> None:
    with redis.opened() as target:
        rows = [
            sample_events.put("versioned", version="v2"),
            sample_events.put("plain"),
            sample_events.put("null", version="null"),
        ]
        assert set(target.deliver(rows, window)) == {DELIVERED}
        redis.ask("HSET", "bucketevents", "images/not-ours", "no json")

        others = [("versioned", "v1"), ("plain", "v1"), ("null", "v1"), ("not-ours", "v1"), ("absent", "v1")]
        assert set(target.deliver([sample_events.delete_version(*each) for each in others], window)) == {DELIVERED}
        assert {path for path, _ in redis.held()} == {
            f"images/{key}" for key in ("versioned", "plain", "null", "not-ours")
        }

        same = [("versioned", "v2"), ("plain", ""), ("null", "null"), ("not-ours", "null")]
        assert set(target.deliver([sample_events.delete_version(*each) for each in same], window)) == {DELIVERED}
        assert redis.held() == [("images/not-ours", "no json")]


def test_a_mirror_whose_reading_does_not_end_is_not_read_for_ever(redis: Namespace) -> None:
    from spark_jobs.stores import CannotRead
    from spark_jobs.stores import redis as store

    assert redis.delivered([sample_events.put("a")]) == [DELIVERED]
    goes_round = services.proxy(
        redis.server.port, lambda answer: answer.replace(b"*2\r\n$1\r\n0\r\n", b"*2\r\n$1\r\n7\r\n")
    )
    with goes_round as proxy:
        settings: Any = load("redis", redis.at_port(proxy.port))
        with pytest.raises(CannotRead, match="does not end"):
            list(store._fields(settings, "images"))


def test_what_a_head_does_to_a_mirror_is_nothing(redis: Namespace) -> None:
    put = sample_events.put("a")
    assert redis.delivered([put, sample_events.head("a"), sample_events.head("b")]) == [DELIVERED] * 3
    assert redis.held() == [("images/a", payloads.records(put))]


def test_a_connection_that_the_server_closed_meanwhile_costs_nothing(redis: Namespace) -> None:
    with redis.opened() as target:
        (ours,) = [line for line in redis.ask("CLIENT", "LIST").decode().splitlines() if "name=Bucketwire" in line]
        assert redis.ask("CLIENT", "KILL", "ID", ours.split()[0].removeprefix("id=")) == 1
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_client_certificate_is_shown(redis: Namespace, certificates: services.Certificates) -> None:
    values = redis.by_tls(certificates.ca)
    redis.ask("CONFIG", "SET", "tls-auth-clients", "yes")
    try:
        (refused,) = attempt(redis.target(values), [sample_events.put("a")], 1)
        assert redis.delivered(
            [sample_events.put("a")],
            1,
            values,
            client_cert=str(certificates.client_cert),
            client_key=str(certificates.client_key),
        ) == [DELIVERED]
    finally:
        redis.ask("CONFIG", "SET", "tls-auth-clients", "optional")
    assert isinstance(refused, Unavailable)


def test_an_address_with_the_scheme_rediss_is_reached_by_tls(
    redis: Namespace, certificates: services.Certificates
) -> None:
    values = redis.by_tls(certificates.ca)
    assert redis.delivered(
        [sample_events.put("a")], 1, values | {"tls": "off", "address": f"rediss://{values['address']}"}
    ) == [DELIVERED]


def test_verification_can_be_waived(redis: Namespace, certificates: services.Certificates) -> None:
    target = redis.target(redis.by_tls(certificates.other_ca), tls_skip_verify="on")
    target.open()
    target.close()


@pytest.mark.parametrize("name", ["tls_ca", "client_cert"])
def test_a_certificate_file_that_cannot_be_read_is_named(
    redis: Namespace, certificates: services.Certificates, tmp_path: Path, name: str
) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for file in (tmp_path / "absent.pem", empty):
        changes = {name: str(file)} | ({"client_key": str(file)} if name == "client_cert" else {})
        with pytest.raises(TargetUnavailable, match=name) as caught:
            redis.target(redis.by_tls(certificates.ca) | changes).open()
        assert str(file) in caught.value.reason


# --- a template

FORMATS = pytest.mark.parametrize("format_", ["access", "stream"])


def entries(redis: Namespace, key: str) -> list[str]:
    """The bodies that a list or a stream has."""
    if redis.ask("TYPE", key) == b"list":
        return [entry.decode() for entry in redis.ask("LRANGE", key, "0", "-1")]
    return [words[words.index(b"body") + 1].decode() for _, words in redis.ask("XRANGE", key, "-", "+")]


@WINDOWS
@FORMATS
def test_a_template_gives_each_event_its_key(redis: Namespace, format_: str, window: int) -> None:
    made = [
        sample_events.put("photos/cat.jpg"), sample_events.put("docs/50%/a"), sample_events.delete("photos/cat.jpg"),
        sample_events.put("photos/dog.jpg"), sample_events.put("photos/cat.jpg"),
    ]  # fmt: skip
    assert redis.delivered(made, window, key="{bucket}:{prefix:2}:{kind}", format=format_) == [DELIVERED] * 5
    body = payloads.redis_access if format_ == "access" else payloads.log
    put = [body(event) for event in made]
    assert {key.decode(): entries(redis, key.decode()) for key in redis.ask("KEYS", "*")} == {
        "images:photos:ObjectCreated": [put[0], put[3], put[4]],
        "images:docs/50%25:ObjectCreated": [put[1]],
        "images:photos:ObjectRemoved": [put[2]],
    }


@WINDOWS
@FORMATS
def test_any_key_is_part_of_a_key(redis: Namespace, format_: str, window: int) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    assert redis.delivered(made, window, key="log:{key}", format=format_) == [DELIVERED] * len(made)
    assert sorted(unquote(key.decode()) for key in redis.ask("KEYS", "*")) == sorted(f"log:{e.key}" for e in made)


@WINDOWS
@FORMATS
def test_a_key_of_a_template_that_cannot_be_used_fails_its_events_alone(
    redis: Namespace, format_: str, window: int
) -> None:
    redis.ask("SET", "log:taken", "x")
    rights = (*ACL, "+ping", "~log:ok", "~log:taken")
    redis.ask("ACL", "SETUSER", "events", "reset", "on", ">pass word", *rights)
    made = [sample_events.put(key) for key in ("ok/a", "taken/a", "taken/a", "other/a", "ok/b")]
    with redis.opened(user="events", password="pass word", key="log:{prefix:1}", format=format_) as target:
        outcomes = list(target.deliver(made, window))
    redis.ask("ACL", "DELUSER", "events")
    assert [type(each) for each in outcomes] == [Delivered, Failed, NotAttempted, Failed, Delivered]
    assert "WRONGTYPE" in str(outcomes[1])
    assert "key 'log:other'" in str(outcomes[3])
    assert len(entries(redis, "log:ok")) == 2


@FORMATS
def test_an_object_goes_on_elsewhere_only_after_its_event_before(redis: Namespace, format_: str) -> None:
    redis.ask("SET", "ObjectCreated", "x")
    made = [sample_events.delete("b"), sample_events.put("a"), sample_events.delete("a"), sample_events.delete("c")]
    with redis.opened(key="{kind}", format=format_) as target:
        outcomes = list(target.deliver(made, 100))
        assert [type(each) for each in outcomes] == [Delivered, Failed, NotAttempted, Delivered]
        redis.ask("DEL", "ObjectCreated")
        assert list(target.deliver(made[1:3], 100)) == [DELIVERED] * 2


@FORMATS
def test_a_batch_for_some_keys_is_one_round_trip(redis: Namespace, format_: str) -> None:
    with redis.opened(key="log:{prefix:1}", format=format_) as target:
        redis.ask("CONFIG", "RESETSTAT")
        made = [sample_events.put(f"folder-{number % 7}/{number}") for number in range(300)]
        assert set(target.deliver(made, 100)) == {DELIVERED}
    command, runs = ("rpush", 7) if format_ == "access" else ("exec", 7)
    assert calls(redis, command) == runs


@WINDOWS
@FORMATS
def test_an_event_without_a_key_is_rejected_alone(redis: Namespace, format_: str, window: int) -> None:
    made = [sample_events.put("a"), sample_events.put("bucketwire-broker:x"), sample_events.put("b")]
    first, refused, last = redis.delivered(made, window, key="{key}", format=format_)
    assert (first, last) == (DELIVERED, DELIVERED)
    assert refused == Rejected("key of this event is among the keys of the task broker")
