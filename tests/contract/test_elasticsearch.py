"""What is Elasticsearch's own: ids, indices, aliases, data streams, bulk answers, versions of documents, logins."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import urllib3

from app.events.highwayhash import document_ids
from app.events.model import Event
from tests import services
from tests.contract.probes.base import attempt
from tests.contract.probes.elasticsearch import Access, Namespace
from tests.support import sample_events
from tests.support.names import unused
from tests.support.properties import times
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.systems.elasticsearch import bulk
from workers.systems.elasticsearch.cluster import HttpNode
from workers.targets import payloads
from workers.targets.base import Target, TargetUnavailable

NIGHTLY = pytest.mark.nightly(
    "up to 100 at a time: a template is filled before anything is sent", when=lambda window: window == 1
)

WINDOWS = pytest.mark.parametrize("window", [1, 100])


@pytest.fixture
def mirror(elastic: services.Elasticsearch) -> Namespace:
    """An index of its own for each test would cost a second; it is emptied instead."""
    probe = Namespace(elastic)
    probe.renew()
    return probe


@pytest.fixture
def journal(mirror: Namespace) -> Access:
    """The same server, used event by event."""
    return Access(mirror.server)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bytes | None]]:
    """Every request as it goes out."""
    found: list[tuple[str, str, bytes | None]] = []
    usual = HttpNode.perform_request

    def request(self: HttpNode, method: str, target: str, body: bytes | None = None, **options: Any) -> Any:
        found.append((method, target.partition("?")[0], body))
        return usual(self, method, target, body, **options)

    monkeypatch.setattr(HttpNode, "perform_request", request)
    return found


def deliver(probe: Namespace | Access, made: list[Event], window: int = 100, **settings: str) -> list[Outcome]:
    """The outcomes of one call to a target of its own."""
    target = probe.target(probe.values(), **settings)
    try:
        return list(attempt(target, made, window))
    finally:
        target.close()


def raw(probe: Namespace, path: str) -> bytes:
    """What a GET answers, untouched by any client."""
    headers = urllib3.make_headers(basic_auth=f"{probe.server.user_name}:{services.PASSWORD}")
    with urllib3.PoolManager() as pool:
        return bytes(pool.request("GET", f"{probe.server.url}/{path}", headers=headers).data)


# --- documents and ids


def test_the_document_is_stored_byte_for_byte_under_the_id_that_minio_would_make(mirror: Namespace) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    assert set(deliver(mirror, made)) == {DELIVERED}
    for event, id_ in zip(made, document_ids([event.path for event in made]), strict=True):
        assert raw(mirror, f"{mirror.index}/_source/{id_}").decode() == payloads.records(event)


def test_the_vector_of_the_reference_is_an_id(mirror: Namespace) -> None:
    assert deliver(mirror, [sample_events.put("zero.bin")]) == [DELIVERED]
    (document,) = mirror.documents()
    assert document["_id"] == "K_CIkX7mqe_SQzyFmq8jruSjiN7Mv5tq4PLgBBZqBwc="


def test_a_document_is_sent_as_a_line_of_its_own(
    mirror: Namespace, requests: list[tuple[str, str, bytes | None]]
) -> None:
    event = sample_events.put("a")
    assert deliver(mirror, [event]) == [DELIVERED]
    (body,) = [body for _, path, body in requests if path.endswith("/_bulk")]
    assert body is not None
    assert body.endswith(payloads.line(event).encode())
    assert body.endswith(b"\n")


def test_plain_ids_are_the_path_and_are_taken_away_by_it(mirror: Namespace) -> None:
    kept = [key for key in sample_events.ODD_KEYS if len(f"images/{key}".encode()) <= 512]
    made = [sample_events.put(key) for key in kept]
    assert set(deliver(mirror, made, id_style="plain")) == {DELIVERED}
    assert {document["_id"] for document in mirror.documents()} == {event.path for event in made}
    gone = [sample_events.delete(key) for key in kept]
    assert set(deliver(mirror, gone, id_style="plain")) == {DELIVERED}
    assert mirror.documents() == []


def test_a_path_too_long_for_a_plain_id_is_rejected_alone(mirror: Namespace) -> None:
    longest = "é" * 252 + "x"  # with images/ 512 bytes
    batch = [
        sample_events.put("a"),
        sample_events.put(longest),
        sample_events.put(longest + "x"),
        sample_events.put("b"),
    ]
    outcomes = deliver(mirror, batch, id_style="plain")
    assert [type(outcome).__name__ for outcome in outcomes] == ["Delivered", "Delivered", "Rejected", "Delivered"]
    assert "513 of at most 512 bytes" in getattr(outcomes[2], "reason", "")
    assert deliver(mirror, [batch[2]]) == [DELIVERED]


def test_an_event_of_the_access_format_gets_an_id_from_the_server(journal: Access) -> None:
    event = sample_events.put("a")
    assert deliver(journal, [event, event]) == [DELIVERED] * 2
    first, second = (document["_id"] for document in journal.documents())
    assert first != second
    assert len(first) == 20


# --- what a batch becomes


@pytest.mark.parametrize(("window", "needed"), [(1, 50), (100, 1)])
def test_a_batch_is_one_request_and_in_sync_mode_one_for_each_document(
    mirror: Namespace, window: int, needed: int, requests: list[tuple[str, str, bytes | None]]
) -> None:
    with mirror.opened() as target:
        requests.clear()
        batch = [sample_events.put(f"object-{number % 50}") for number in range(300)] + [
            sample_events.delete("object-1")
        ]
        assert set(target.deliver(batch, window)) == {DELIVERED}
    assert [path for _, path, _ in requests] == [f"/{mirror.index}/_bulk"] * needed
    assert len(mirror.documents()) == 49


@pytest.mark.parametrize(("window", "needed"), [(1, 9), (100, 4)])
def test_an_object_is_in_a_request_of_the_access_format_only_once(
    journal: Access, window: int, needed: int, requests: list[tuple[str, str, bytes | None]]
) -> None:
    with journal.opened() as target:
        requests.clear()
        batch = [sample_events.put(key, number=number) for number, key in enumerate("abcabcaaz", 1)]
        assert set(target.deliver(batch, window)) == {DELIVERED}
    assert len(requests) == needed
    held = {path: [number for each, number in numbers(journal) if each == path] for path, _ in numbers(journal)}
    assert held == {"images/a": [1, 4, 7, 8], "images/b": [2, 5], "images/c": [3, 6], "images/z": [9]}


def numbers(probe: Access) -> list[tuple[str, int]]:
    return [(path, sample_events.number_of(text)) for path, text in probe.held()]


def test_a_large_batch_goes_in_portions(
    mirror: Namespace, requests: list[tuple[str, str, bytes | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    most = times(bulk.BATCH_BYTES // 10, bulk.BATCH_BYTES)
    monkeypatch.setattr(bulk, "BATCH_BYTES", most)
    batch = [sample_events.put(f"object-{number}", metadata="x y " * (most // 20)) for number in range(7)]
    assert set(deliver(mirror, batch, timeout="30s")) == {DELIVERED}
    sizes = [len(body) for _, path, body in requests if path.endswith("/_bulk") and body]
    assert len(sizes) == 2
    assert max(sizes) <= most


def test_deleting_what_is_not_there_is_delivered_with_and_without_an_index(mirror: Namespace) -> None:
    with mirror.opened() as target:
        assert list(target.deliver([sample_events.delete("absent")], 1)) == [DELIVERED]
        with mirror.client() as client:
            client.indices.delete(index=mirror.index)
        assert (
            list(target.deliver([sample_events.delete("absent"), sample_events.delete_version("absent", "v1")], 1))
            == [DELIVERED] * 2
        )


def test_what_a_head_does_to_a_mirror_is_nothing(mirror: Namespace) -> None:
    put = sample_events.put("a")
    assert deliver(mirror, [put, sample_events.head("a"), sample_events.head("b")]) == [DELIVERED] * 3
    assert [path for path, _ in mirror.held()] == ["images/a"]


@WINDOWS
def test_a_rejected_document_gives_way_to_the_one_before_it(mirror: Namespace, window: int) -> None:
    """A mirror sends the last document of an object only, until the server will not have it."""
    first, poison, second = sample_events.put("a"), mirror.poison("a"), mirror.poison("a")
    only, gone = mirror.poison("b"), sample_events.delete("c")
    outcomes = deliver(
        mirror, [first, poison, only, sample_events.put("c"), second, gone, sample_events.head("a")], window
    )
    kinds = [type(outcome).__name__ for outcome in outcomes]
    assert kinds == ["Delivered", "Rejected", "Rejected", "Delivered", "Rejected", "Delivered", "Delivered"]
    assert "document_parsing_exception" in getattr(outcomes[1], "reason", "")
    assert [sample_events.number_of(text) for _, text in mirror.held()] == [
        sample_events.number_of(payloads.records(first))
    ]


def test_more_fields_than_an_index_may_have_are_rejected_with_the_limit(mirror: Namespace) -> None:
    event = sample_events.put("a", metadata="many")
    fields = ",".join(f'"f{number}":1' for number in range(1100))
    many = event._replace(record=event.record.replace('"note":"many"', f'"userMetadata":{{{fields}}}'))
    outcomes = deliver(mirror, [many, sample_events.put("b")])
    assert isinstance(outcomes[0], Rejected)
    assert "Limit of total fields [1000]" in outcomes[0].reason
    assert outcomes[1] == DELIVERED


def test_user_metadata_as_one_field_takes_any_names(mirror: Namespace) -> None:
    """What the reference page advises."""
    names = {"type": "flattened"}
    for level in ("userMetadata", "object", "s3", "Records"):
        names = {"properties": {level: names}}
    with mirror.client() as client:
        client.indices.create(index=mirror.index, mappings=names)
    event = sample_events.put("a", metadata="many")
    fields = ",".join(f'"f{number}":"1"' for number in range(1100))
    many = event._replace(record=event.record.replace('"note":"many"', f'"userMetadata":{{{fields}}}'))
    assert deliver(mirror, [many, mirror.poison("b")]) == [DELIVERED, DELIVERED]


# --- versions


@WINDOWS
@pytest.mark.parametrize("id_style", ["hash", "plain"])
def test_a_version_is_removed_only_while_the_document_describes_it(
    mirror: Namespace, window: int, id_style: str
) -> None:
    with mirror.opened(id_style=id_style) as target:
        rows = [
            sample_events.put("versioned", version="v2"),
            sample_events.put("plain"),
            sample_events.put("null", version="null"),
        ]
        assert set(target.deliver(rows, window)) == {DELIVERED}
        foreign = "images/not-ours"
        with mirror.client() as client:
            id_ = foreign if id_style == "plain" else document_ids([foreign])[0]
            client.index(index=mirror.index, id=id_, document={"something": "else"}, refresh=True)

        others = [("versioned", "v1"), ("plain", "v1"), ("null", "v1"), ("not-ours", "v1"), ("absent", "v1")]
        assert set(target.deliver([sample_events.delete_version(*each) for each in others], window)) == {DELIVERED}
        assert len(mirror.documents()) == 4

        same = [("versioned", "v1"), ("versioned", "v2"), ("plain", ""), ("null", "null"), ("not-ours", "null")]
        assert set(target.deliver([sample_events.delete_version(*each) for each in same], window)) == {DELIVERED}
    assert [document["_source"] for document in mirror.documents()] == [{"something": "else"}]


def meddled(
    mirror: Namespace, monkeypatch: pytest.MonkeyPatch, change: Callable[[], Event], times: int
) -> list[Outcome]:
    """The outcomes of removing version v1 while, between reading and removing, another writes what `change` makes."""
    target = mirror.target()
    other = mirror.target()
    assert list(target.deliver([sample_events.put("a", version="v1")], 1)) == [DELIVERED]
    usual = HttpNode.perform_request
    left = iter(range(times))

    def request(self: HttpNode, method: str, target: str, body: bytes | None = None, **options: Any) -> Any:
        answer = usual(self, method, target, body, **options)
        if "/_mget" in target and next(left, None) is not None:
            assert list(other.deliver([change()], 1)) == [DELIVERED]
        return answer

    monkeypatch.setattr(HttpNode, "perform_request", request)
    outcomes = list(target.deliver([sample_events.delete_version("a", "v1"), sample_events.put("b")], 100))
    for each in (target, other):
        each.close()
    return outcomes


def test_a_document_that_changes_while_its_version_is_looked_at_stays(
    mirror: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = sample_events.put("a", version="v2")
    assert meddled(mirror, monkeypatch, lambda: newer, 1) == [DELIVERED, DELIVERED]
    assert {path for path, _ in mirror.held()} == {"images/a", "images/b"}


def test_a_document_that_is_written_again_is_looked_at_again(
    mirror: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert meddled(mirror, monkeypatch, lambda: sample_events.put("a", version="v1"), 2) == [DELIVERED, DELIVERED]
    assert {path for path, _ in mirror.held()} == {"images/b"}


def test_a_document_that_never_stands_still_fails_for_this_time(
    mirror: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = meddled(mirror, monkeypatch, lambda: sample_events.put("a", version="v1"), 100)
    assert isinstance(outcomes[0], Failed)
    assert outcomes[1] == DELIVERED


# --- the state of the index


@pytest.mark.parametrize(
    ("block", "word"), [("read_only_allow_delete", "TOO_MANY_REQUESTS"), ("write", "FORBIDDEN/8"), ("closed", "closed")]
)
def test_an_index_that_takes_nothing_is_unavailable_until_it_does(mirror: Namespace, block: str, word: str) -> None:
    with closing(mirror.target()) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        with mirror.client() as client:
            if block == "closed":
                client.indices.close(index=mirror.index)
            else:
                client.indices.put_settings(index=mirror.index, settings={f"index.blocks.{block}": True})
            outcomes = attempt(target, [sample_events.put("b"), sample_events.put("b")], 1)
            if block == "closed":
                client.indices.open(index=mirror.index)
            else:
                client.indices.put_settings(index=mirror.index, settings={f"index.blocks.{block}": None})
            client.cluster.health(index=mirror.index, wait_for_status="yellow")
        assert isinstance(outcomes[0], Unavailable)
        assert word in outcomes[0].reason
        assert outcomes[1] == NOT_ATTEMPTED
        assert list(target.deliver([sample_events.put("b")], 1)) == [DELIVERED]


def test_an_index_without_a_shard_to_write_to_is_unavailable_with_the_servers_words(mirror: Namespace) -> None:
    with mirror.client() as client:
        nowhere = {"index.routing.allocation.require._name": "another-node"}
        client.indices.create(index=mirror.index, settings=nowhere, wait_for_active_shards=0)
    outcomes = deliver(mirror, [sample_events.put("a"), sample_events.delete_version("b", "v1")])
    assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes)
    assert "primary shard is not active" in str(outcomes) or "no_shard_available" in str(outcomes)


def test_the_index_is_made_once_with_the_defaults(mirror: Namespace) -> None:
    for _ in range(2):
        target = mirror.target()
        target.open()
        target.close()
    with mirror.client() as client:
        settings = client.indices.get(index=mirror.index)[mirror.index]["settings"]["index"]
    assert (settings["number_of_shards"], settings["number_of_replicas"]) == ("1", "1")


def aliased(mirror: Namespace, *indices: str, write: str = "") -> str:
    """An alias of these indices, which are made where they are not there."""
    with mirror.client() as client:
        for name in indices:
            client.options(ignore_status=400).indices.create(index=name)
            client.indices.put_alias(index=name, name="an-alias", is_write_index=True if name == write else None)
    return "an-alias"


@pytest.fixture
def tidy(mirror: Namespace) -> Iterator[None]:
    """Whatever these tests leave behind."""
    yield
    with mirror.client() as client:
        client.options(ignore_status=404).indices.delete(index="one,two", ignore_unavailable=True)


@pytest.mark.usefixtures("tidy")
def test_an_alias_of_one_index_counts_as_being_there(mirror: Namespace) -> None:
    alias = aliased(mirror, "one")
    assert deliver(mirror, [sample_events.put("a")], index=alias) == [DELIVERED]
    assert len(mirror.documents("one")) == 1
    assert deliver(mirror, [sample_events.delete("a")], index=alias) == [DELIVERED]
    assert mirror.documents("one") == []


@pytest.mark.usefixtures("tidy")
def test_an_alias_of_several_indices_takes_events_where_it_can_be_written_to(mirror: Namespace) -> None:
    journal = Access(mirror.server)
    alias = aliased(mirror, "one", "two")
    with pytest.raises(TargetUnavailable, match="2 indices, none of them to write to"):
        journal.target(index=alias).open()
    aliased(mirror, "one", "two", write="two")
    assert deliver(journal, [sample_events.put("a")], index=alias) == [DELIVERED]
    assert len(journal.documents("two")) == 1
    with pytest.raises(TargetUnavailable, match="format namespace needs an alias of one"):
        mirror.target(index=alias).open()


@pytest.mark.usefixtures("tidy")
def test_an_alias_that_loses_its_write_index_blames_no_event(mirror: Namespace) -> None:
    journal = Access(mirror.server)
    alias = aliased(mirror, "one")
    with closing(journal.target(index=alias)) as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        aliased(mirror, "two")
        (outcome,) = attempt(target, [sample_events.put("b")], 1)
    assert isinstance(outcome, Unavailable)
    assert "no write index" in outcome.reason


@pytest.fixture
def stream(mirror: Namespace) -> str:
    """A name that a template makes a data stream of; its documents get their time from the record."""
    time = {"type": "date", "copy_to": "@timestamp"}
    mappings = {"properties": {"Records": {"properties": {"eventTime": time}}}}
    with mirror.client() as client:
        client.indices.put_index_template(
            name="streams", index_patterns=["stream-*"], data_stream={}, template={"mappings": mappings}
        )
    return unused("stream-events")


def test_a_data_stream_takes_events_but_is_no_mirror(mirror: Namespace, stream: str) -> None:
    journal = Access(mirror.server)
    for number in (1, 2):  # the first makes it, the second finds it
        assert deliver(journal, [sample_events.put("a")], index=stream) == [DELIVERED]
        assert len(journal.documents(stream)) == number
        with pytest.raises(TargetUnavailable, match="data stream, in which nothing can be replaced"):
            mirror.target(index=stream).open()


def test_documents_in_the_guides_shape_have_the_time_of_their_event(journal: Access) -> None:
    event = sample_events.put("a")
    time = payloads.timestamp(event)
    with journal.client() as client:
        client.indices.put_index_template(name="times", index_patterns=["times-*"], data_stream={}, priority=7)
    for index in (journal.index, "times-events"):  # a data stream takes only documents that have it
        assert deliver(journal, [event], index=index, access_shape="guide") == [DELIVERED]
        with journal.client() as client:
            client.indices.refresh(index=index)
            found = client.search(index=index, query={"range": {"@timestamp": {"gte": time, "lte": time}}})
            assert client.field_caps(index=index, fields="@timestamp")["fields"]["@timestamp"].keys() == {"date"}
        (hit,) = found["hits"]["hits"]
        assert hit["_source"] == {"@timestamp": time, **json.loads(payloads.records(event))}


# --- logins


def api_key(mirror: Namespace, **role: Any) -> Any:
    """A key with these rights only, as it was handed out."""
    with mirror.client() as client:
        return client.security.create_api_key(name="events", role_descriptors={"events": role})


@pytest.mark.parametrize("form", ["encoded", "id:key"])
def test_an_api_key_needs_only_the_documented_rights(mirror: Namespace, form: str) -> None:
    rights = ["create_index", "write", "read"]
    key = api_key(mirror, cluster=["monitor"], indices=[{"names": [mirror.index], "privileges": rights}])
    text = key["encoded"] if form == "encoded" else f"{key['id']}:{key['api_key']}"
    with mirror.opened(username="", password="", api_key=text) as target:
        batch = [
            sample_events.put("a", version="v1"),
            sample_events.put("b"),
            sample_events.delete("c"),
            sample_events.delete_version("d", "v1"),
        ]
        assert set(target.deliver(batch, 100)) == {DELIVERED}
        assert list(target.deliver([sample_events.delete_version("a", "v1")], 1)) == [DELIVERED]
    assert {path for path, _ in mirror.held()} == {"images/b"}


@pytest.mark.parametrize(
    ("missing", "word"), [("read", "read or view_index_metadata"), ("create_index", "create_index")]
)
def test_a_missing_right_is_named_when_opening(mirror: Namespace, missing: str, word: str) -> None:
    rights = {"create_index", "write", "read"} - {missing}
    key = api_key(mirror, cluster=["monitor"], indices=[{"names": [mirror.index], "privileges": [*rights]}])
    with pytest.raises(TargetUnavailable, match=f"privilege {word}") as caught:
        mirror.target(username="", password="", api_key=key["encoded"]).open()
    assert key["api_key"] not in caught.value.reason


def test_a_right_that_is_missing_while_delivering_is_unavailable(mirror: Namespace) -> None:
    deliver(mirror, [sample_events.put("a", version="v1")])
    rights = ["view_index_metadata", "read"]
    key = api_key(mirror, cluster=["monitor"], indices=[{"names": [mirror.index], "privileges": rights}])
    login = {"username": "", "password": "", "api_key": key["encoded"]}
    (outcome,) = deliver(mirror, [sample_events.put("b")], **login)
    assert isinstance(outcome, Unavailable)
    assert "unauthorized" in outcome.reason
    rights = ["view_index_metadata", "write"]
    key = api_key(mirror, cluster=["monitor"], indices=[{"names": [mirror.index], "privileges": rights}])
    (outcome,) = deliver(mirror, [sample_events.delete_version("a", "v1")], **login | {"api_key": key["encoded"]})
    assert isinstance(outcome, Unavailable)
    assert "the privilege read of the index is needed" in outcome.reason


def test_a_wrong_api_key_is_unavailable_and_not_told(mirror: Namespace) -> None:
    (outcome,) = deliver(mirror, [sample_events.put("a")], username="", password="", api_key="wrong:s3cret")
    assert isinstance(outcome, Unavailable)
    assert "check the login" in outcome.reason
    assert "s3cret" not in outcome.reason


def test_a_login_in_the_url_is_used_and_not_told(mirror: Namespace) -> None:
    with mirror.client() as client:
        client.security.put_user(username="a b", password="p@ss:/word%", roles=["superuser"])
    login = {"username": "", "password": ""}
    good = mirror.server.url.replace("://", "://a%20b:p%40ss%3A%2Fword%25@")
    assert mirror.delivered([sample_events.put("a")], 1, mirror.values() | login | {"url": good}) == [DELIVERED]
    bad = mirror.server.url.replace("://", "://elastic:wr0ng@")
    with pytest.raises(TargetUnavailable) as caught:
        mirror.target(mirror.values() | login | {"url": bad}).open()
    assert "wr0ng" not in caught.value.reason


# --- what stands at the address


def at(receiver: services.Receiver) -> Target:
    """A target whose URL is that of a web server that is no Elasticsearch."""
    probe = Namespace.__new__(Namespace)
    probe.index, probe.server = "events", receiver  # type: ignore[assignment]  # only its URL is looked at
    return probe.target({"url": receiver.url, "index": "events"})


@pytest.mark.parametrize("body", ["", "hello", "[]", '{"version": 8}', '{"version": {}}', '{"version":{"number":""}}'])
def test_something_else_at_the_address_is_named_so(receiver: services.Receiver, body: str) -> None:
    receiver.set(body=body)
    with pytest.raises(TargetUnavailable, match="is not Elasticsearch"):
        at(receiver).open()


@pytest.mark.parametrize(
    ("version", "product", "why"),
    [
        ({"number": "6.8.23"}, "Elasticsearch", "version 6.8.23 is too old; 7 or later"),
        ({"number": "7.10.2"}, "", "set opensearch=on"),
        ({"number": "2.19.5", "distribution": "opensearch"}, "", "this is OpenSearch 2.19.5; set opensearch=on"),
    ],
)
def test_a_server_that_is_not_wanted_says_so_itself(
    receiver: services.Receiver, version: dict[str, str], product: str, why: str
) -> None:
    receiver.set(body=json.dumps({"version": version}), headers={"X-Elastic-Product": product} if product else {})
    with pytest.raises(TargetUnavailable, match=why):
        at(receiver).open()


def test_a_proxy_that_asks_for_patience_gets_it(receiver: services.Receiver) -> None:
    receiver.set(status=429, headers={"Retry-After": "7"}, body='{"error":"slow down"}')
    (outcome,) = attempt(at(receiver), [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert outcome.retry_after == 7
    assert "slow down" in outcome.reason


@pytest.mark.parametrize("kind", ["application/json", "application/problem+json", "text/html", ""])
def test_an_error_that_is_not_json_is_judged_by_its_status(receiver: services.Receiver, kind: str) -> None:
    warning = '299 Elasticsearch-8.19.3 "this is deprecated"'
    receiver.set(status=503, headers={"Retry-After": "7", "Content-Type": kind, "Warning": warning}, body="<html>")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (outcome,) = attempt(at(receiver), [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert outcome.retry_after == 7
    assert "answered 503: Service Unavailable" in outcome.reason


def test_the_proxy_of_the_environment_is_used(receiver: services.Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", receiver.url)
    probe = Namespace.__new__(Namespace)
    target = probe.target({"url": "http://me:s3cret@elastic.test/behind", "index": "events"})
    with pytest.raises(TargetUnavailable, match=r"http://elastic\.test:80"):
        target.open()
    (request,) = receiver.requests()
    assert request.path == "http://elastic.test/behind/"
    assert request.headers["authorization"] == "Basic bWU6czNjcmV0"
    target.close()
    with pytest.raises(TargetUnavailable):
        target.open()
    assert receiver.requests()[1].path == request.path


def test_a_path_in_the_url_stands_before_every_request(receiver: services.Receiver) -> None:
    probe = Namespace.__new__(Namespace)
    target = probe.target({"url": f"{receiver.url}behind/a/proxy/", "index": "events"})
    with pytest.raises(TargetUnavailable):
        target.open()
    assert [request.path for request in receiver.requests()] == ["/behind/a/proxy/"]


def test_a_redirect_is_not_followed(receiver: services.Receiver) -> None:
    receiver.set(status=302, headers={"Location": "http://localhost/"})
    with pytest.raises(TargetUnavailable, match="302"):
        at(receiver).open()


# --- a template


def documents(mirror: Namespace, index: str) -> list[str]:
    """The documents of an index, in any order."""
    raw(mirror, f"{index}/_refresh")
    found = json.loads(raw(mirror, f"{index}/_search?size=100"))["hits"]["hits"]
    return sorted(hit["_source"]["Records"][0]["s3"]["object"]["key"] for hit in found)


@NIGHTLY
@WINDOWS
def test_a_template_gives_each_event_its_index(mirror: Namespace, window: int) -> None:
    made = [sample_events.put("Photos/a"), sample_events.put("a:b,c/d"), sample_events.delete("Photos/a")]
    start = unused("template")
    index = start + "-{prefix:1}-{kind}"
    assert deliver(mirror, made, window, index=index, format="access") == [DELIVERED] * 3
    for name in ("photos-objectcreated", "photos-objectremoved"):
        assert documents(mirror, f"{start}-{name}") == ["Photos%2Fa"]
    assert documents(mirror, f"{start}-a_b_c-objectcreated") == ["a%3Ab%2Cc%2Fd"]


@NIGHTLY
@WINDOWS
def test_an_index_of_a_template_that_cannot_be_used_fails_its_events_alone(mirror: Namespace, window: int) -> None:
    start = unused("template")
    rights = ["create_index", "write", "read"]
    key = api_key(mirror, cluster=["monitor"], indices=[{"names": [f"{start}-ok"], "privileges": rights}])
    made = [sample_events.put(key) for key in ("ok/a", "no/a", "no/a", "ok/b", "k" * 300 + "/a")]
    login = {"username": "", "password": "", "api_key": key["encoded"], "format": "access"}
    first, refused, later, last, long = deliver(mirror, made, window, index=f"{start}-{{prefix:1}}", **login)
    assert (first, later, last) == (DELIVERED, NOT_ATTEMPTED, DELIVERED)
    assert isinstance(refused, Failed)
    assert "unauthorized" in refused.reason
    assert isinstance(long, Rejected)
    assert long.reason == "index of this event is longer than the 255 bytes that an index name can have"
