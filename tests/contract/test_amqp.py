"""What is AMQP's own: exchanges as they are declared, messages, and what RabbitMQ says no to."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import amqp as py_amqp
import pytest
from pika.exceptions import ChannelClosedByBroker

from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.amqp import QUEUE, Queue
from tests.contract.probes.base import LIMIT, assert_no_socket_is_left, attempt, unavailable
from tests.support import cloud_events, sample_events
from tests.support.doc_consumers import consumers, output
from tests.support.rabbitmq import evaluated
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Rejected, Unavailable
from workers.targets import payloads
from workers.targets.base import TargetUnavailable

WINDOWS = pytest.mark.parametrize("window", [1, 100])
TYPES = ["direct", "fanout", "topic", "headers"]
USERS, US = "rabbit_auth_backend_internal", "tests"  # who changes a user is written into the server's log


running = fixtures.running(Queue)


@pytest.fixture
def rabbit(running: Queue) -> Queue:
    running.renew()
    with running.channel() as channel:
        channel.exchange_delete("minio")
    return running


def call(server: services.RabbitMQ, function: str, *words: str) -> None:
    """Have the server change something, as rabbitmqctl would."""
    texts = ", ".join(f'<<"{word}">>' for word in words)
    assert evaluated(server, f"{function}({texts})") == "ok"


@contextlib.contextmanager
def user(server: services.RabbitMQ, name: str, password: str, *rights: str, vhost: str = "/") -> Iterator[None]:
    """A user with rights to configure, write and read what these patterns match."""
    call(server, f"{USERS}:add_user", name, password, US)
    call(server, f"{USERS}:set_permissions", name, vhost, *rights, US)
    try:
        yield
    finally:
        call(server, f"{USERS}:delete_user", name, US)


def connections(server: services.RabbitMQ) -> str:
    """What the clients say of themselves."""
    told = "rabbit_networking:connection_info_all([client_properties])"
    return evaluated(server, f'lists:flatten(io_lib:format("~p", [{told}]))')


def bound(rabbit: Queue, exchange: str = "minio", routing_key: str = "") -> None:
    with rabbit.channel() as channel:
        channel.queue_bind(QUEUE, exchange, routing_key)


# --- exchanges


@pytest.mark.nightly(
    "each type, and each flag for one of them",
    when=lambda type_, flag: type_ != "fanout" and flag in {"durable", "auto_deleted", "internal"},
)
@pytest.mark.parametrize("type_", TYPES)
@pytest.mark.parametrize("flag", ["", "durable", "auto_deleted", "internal"])
def test_a_missing_exchange_is_declared_with_its_type_and_flags(rabbit: Queue, type_: str, flag: str) -> None:
    flags = {flag: "on"} if flag else {}
    target = rabbit.target(exchange="minio", exchange_type=type_, **flags)
    target.open()
    target.close()
    asked = {"durable": flag == "durable", "auto_delete": flag == "auto_deleted", "internal": flag == "internal"}
    with rabbit.channel() as channel:
        channel.exchange_declare("minio", type_, **asked)  # the server says no to anything but the same
    with rabbit.channel() as channel, pytest.raises(ChannelClosedByBroker):
        channel.exchange_declare("minio", type_, **{**asked, "durable": not asked["durable"]})


@pytest.mark.parametrize("type_", ["direct", "fanout", "topic"])
def test_events_go_to_the_exchange_with_the_routing_key(rabbit: Queue, type_: str) -> None:
    with rabbit.opened(exchange="minio", exchange_type=type_, routing_key="bucket.events") as target:
        bound(rabbit, routing_key="bucket.*" if type_ == "topic" else "bucket.events")
        event = sample_events.put("a")
        assert list(target.deliver([event], 1)) == [DELIVERED]
    assert rabbit.held() == [("images/a", payloads.log(event))]


def test_the_message_is_minios_and_has_the_events_id(rabbit: Queue) -> None:
    for mode in ("0", "1", "2"):
        rabbit.renew()
        event = sample_events.put("a")
        assert rabbit.delivered([event], delivery_mode=mode) == [DELIVERED]
        ((properties, body),) = rabbit.messages()
        assert body == payloads.log(event).encode()
        given = {name: value for name, value in vars(properties).items() if value is not None}
        assert given == {
            "content_type": "application/json",
            "headers": {"minio-bucket": "images", "minio-event": "s3:ObjectCreated:Put"},
            "message_id": event.id,
        } | ({"delivery_mode": int(mode)} if mode != "0" else {})


def test_a_trace_context_is_two_headers_more(rabbit: Queue) -> None:
    assert (
        rabbit.delivered([sample_events.traced(sample_events.put("a")), sample_events.put("b")], 100) == [DELIVERED] * 2
    )
    minios = {"minio-bucket": "images", "minio-event": "s3:ObjectCreated:Put"}
    assert [properties.headers for properties, _ in rabbit.messages()] == [minios | sample_events.TRACE, minios]


@pytest.mark.parametrize("payload", ["cloudevents", "cloudevents-binary"])
def test_a_cloud_event_is_read_by_the_sdk_beside_minios_headers(rabbit: Queue, payload: str) -> None:
    made = [sample_events.put(key) for key in sample_events.ODD_KEYS]
    made.append(sample_events.traced(sample_events.put("traced")))
    assert rabbit.delivered(made, payload=payload) == [DELIVERED] * len(made)
    for event, (properties, body) in zip(made, rabbit.messages(), strict=True):
        assert properties.message_id == event.id
        assert properties.headers["minio-event"] == event.name
        found = cloud_events.of_amqp(properties.content_type, properties.headers, body)
        cloud_events.assert_is(found, event)
        if payload == "cloudevents-binary":
            assert body == payloads.log(event).encode()
            assert properties.headers["cloudEvents_time"] == payloads.timestamp(event)


@pytest.mark.parametrize("no_wait", ["off", "on"])
def test_an_exchange_that_is_there_with_other_flags_is_unavailable(rabbit: Queue, no_wait: str) -> None:
    with rabbit.channel() as channel:
        channel.exchange_declare("minio", "fanout", durable=True)
    target = rabbit.target(exchange="minio", exchange_type="fanout", no_wait=no_wait)
    with pytest.raises(TargetUnavailable, match=r"inequivalent arg 'durable' for exchange 'minio'.*\(406\)"):
        target.open()


def test_declaring_without_waiting_works_too(rabbit: Queue) -> None:
    with rabbit.opened(exchange="minio", exchange_type="fanout", no_wait="on") as target:
        bound(rabbit)
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    assert len(rabbit.held()) == 1


def test_a_type_that_the_server_does_not_know_is_unavailable(rabbit: Queue) -> None:
    with pytest.raises(TargetUnavailable, match="COMMAND_INVALID - unknown exchange type 'x-nothing'"):
        rabbit.target(exchange="minio", exchange_type="x-nothing").open()


def test_an_exchange_without_a_type_is_taken_as_it_is_and_has_to_be_there(rabbit: Queue) -> None:
    target = rabbit.target(exchange="minio")
    with pytest.raises(TargetUnavailable, match="NOT_FOUND - no exchange 'minio'"):
        target.open()
    with rabbit.channel() as channel:
        channel.exchange_declare("minio", "fanout", durable=True, auto_delete=True)
    bound(rabbit)
    assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    target.close()
    assert len(rabbit.held()) == 1


def test_an_exchange_that_vanished_is_unavailable_once_and_then_declared_again(rabbit: Queue) -> None:
    with rabbit.opened(exchange="minio", exchange_type="fanout") as target:
        with rabbit.channel() as channel:
            channel.exchange_delete("minio")
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        assert isinstance(outcome, Unavailable)
        assert "NOT_FOUND - no exchange 'minio'" in outcome.reason
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_an_internal_exchange_refuses_events(rabbit: Queue) -> None:
    with rabbit.opened(exchange="minio", exchange_type="fanout", internal="on") as target:
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "ACCESS_REFUSED - cannot publish to internal exchange 'minio'" in outcome.reason


# --- what is said no to


@WINDOWS
def test_a_mandatory_event_without_a_queue_is_rejected_with_the_servers_words(rabbit: Queue, window: int) -> None:
    with rabbit.opened(exchange="minio", exchange_type="direct", routing_key="nobody", mandatory="on") as target:
        batch = [sample_events.put(f"object-{number % 3}") for number in range(10)]
        words = "NO_ROUTE (312): exchange 'minio' with routing key 'nobody'"
        assert list(target.deliver(batch, window)) == [Rejected(words)] * 10
        bound(rabbit, routing_key="nobody")
        assert list(target.deliver(batch, window)) == [DELIVERED] * 10
    assert (
        rabbit.delivered(batch, window, exchange="minio", exchange_type="direct", routing_key="elsewhere")
        == [DELIVERED] * 10
    )
    assert len(rabbit.held()) == 10


@WINDOWS
def test_immediate_is_unavailable_on_this_server(rabbit: Queue, window: int) -> None:
    with rabbit.opened(immediate="on") as target:
        outcomes = attempt(target, [sample_events.put("a"), sample_events.put("b")], window)
    refused = [outcome.reason for outcome in outcomes if isinstance(outcome, Unavailable)]
    assert len(refused) == min(window, 2)
    assert all("NOT_IMPLEMENTED" in reason for reason in refused)
    assert outcomes.count(NOT_ATTEMPTED) == 2 - len(refused)


@WINDOWS
def test_a_full_queue_that_refuses_makes_events_fail_and_the_next_of_an_object_wait(rabbit: Queue, window: int) -> None:
    with rabbit.channel() as channel:
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    with closing(rabbit.target()) as target:
        first, second, third = sample_events.put("a"), sample_events.put("b"), sample_events.put("b")
        outcomes = list(target.deliver([first, second, third], window))
        assert outcomes[0] == DELIVERED
        assert isinstance(outcomes[1], Failed)
        assert "basic.nack" in outcomes[1].reason
        assert outcomes[2] == NOT_ATTEMPTED
        with rabbit.channel() as channel:
            channel.queue_purge(QUEUE)
        assert list(target.deliver([second], window)) == [DELIVERED]
    assert rabbit.held() == [("images/b", payloads.log(second))]


@WINDOWS
def test_an_event_larger_than_the_server_takes_is_rejected_and_the_rest_goes_on(rabbit: Queue, window: int) -> None:
    batch = [sample_events.put(f"object-{number}") for number in range(20)]
    large = sample_events.put("large", metadata="x" * 5000)
    evaluated(rabbit.server, "application:set_env(rabbit, max_message_size, 4000)")
    try:
        with closing(rabbit.target()) as target:
            outcomes = attempt(target, [*batch[:10], large, *batch[10:]], window)
            assert isinstance(outcomes[10], Rejected)
            assert "larger than configured max size 4000" in outcomes[10].reason
            left = [
                event
                for event, outcome in zip(batch, outcomes[:10] + outcomes[11:], strict=True)
                if outcome != DELIVERED
            ]
            assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes[11:])
            assert list(target.deliver(left, window)) == [DELIVERED] * len(left)
    finally:
        evaluated(rabbit.server, "application:set_env(rabbit, max_message_size, 134217728)")
    assert {path for path, _ in rabbit.held()} == {event.path for event in batch}


@WINDOWS
def test_a_server_that_takes_no_event_at_all_blames_none(rabbit: Queue, window: int) -> None:
    batch = [sample_events.put(f"object-{number}") for number in range(3)]
    evaluated(rabbit.server, "application:set_env(rabbit, max_message_size, 200)")
    try:
        with closing(rabbit.target()) as target:
            outcomes = attempt(target, batch, window)
            assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes), outcomes
            assert "larger than configured max size 200" in unavailable(outcomes[0])
    finally:
        evaluated(rabbit.server, "application:set_env(rabbit, max_message_size, 134217728)")


def test_who_may_only_write_can_use_an_exchange_that_is_there(rabbit: Queue) -> None:
    url = f"amqp://writer:pass@127.0.0.1:{rabbit.server.port}"
    with user(rabbit.server, "writer", "pass", "^$", "^minio$", "^$"):
        target = rabbit.target(url=url, exchange="minio", exchange_type="fanout", durable="on")
        with pytest.raises(TargetUnavailable, match="ACCESS_REFUSED - access to exchange 'minio'"):
            target.open()
        with rabbit.channel() as channel:
            channel.exchange_declare("minio", "fanout", durable=True)
        bound(rabbit)
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        call(rabbit.server, f"{USERS}:set_permissions", "writer", "/", "^$", "^$", "^$", US)
        target.close()  # RabbitMQ remembers for a while what a channel may do
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
        assert isinstance(outcome, Unavailable)
        assert "ACCESS_REFUSED" in outcome.reason
        target.close()
    assert len(rabbit.held()) == 1


# --- URLs


def test_escapes_in_the_url_and_a_password_of_its_own_are_understood(rabbit: Queue) -> None:
    name, password, vhost = "us/er@x", "p:a/s%s?#", "a/b c"
    call(rabbit.server, "rabbit_vhost:add", vhost, US)
    login, path = f"{quote(name, safe='')}:{quote(password, safe='')}", quote(vhost, safe="")
    try:
        with user(rabbit.server, name, password, ".*", ".*", ".*", vhost=vhost):
            place = f"127.0.0.1:{rabbit.server.port}/{path}"
            for changes in ({"url": f"amqp://{login}@{place}"},
                            {"url": f"amqp://{quote(name, safe='')}@{place}", "password": password}):  # fmt: skip
                with closing(rabbit.target(**changes, mandatory="on")) as target:
                    assert [type(outcome) for outcome in target.deliver([sample_events.put("a")], 1)] == [Rejected]
    finally:
        call(rabbit.server, "rabbit_vhost:delete", vhost, US)
    with pytest.raises(TargetUnavailable, match="vhost a/b c not found"):
        rabbit.target(url=f"amqp://alice:{services.PASSWORD}@{place}").open()


# --- the connection


def test_the_connection_has_our_name(rabbit: Queue) -> None:
    with rabbit.opened():
        assert "Bucketwire" in connections(rabbit.server)
    services.until(lambda: "Bucketwire" not in connections(rabbit.server))


def test_a_connection_that_the_server_closed_meanwhile_costs_nothing(rabbit: Queue) -> None:
    with rabbit.opened() as target:
        close = 'rabbit_networking:close_connection(Connection, "maintenance")'
        evaluated(rabbit.server, f"[{close} || Connection <- rabbit_networking:connections()]")
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]


def test_a_connection_idle_for_longer_than_its_heartbeat_costs_nothing(rabbit: Queue) -> None:
    with rabbit.opened(url=f"{rabbit.server.url}?heartbeat=1") as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        services.until(lambda: "missed heartbeats from client" in rabbit.server.tail(), what="the server gives us up")
        assert list(target.deliver([sample_events.put("b")], 100)) == [DELIVERED]
    assert [path for path, _ in rabbit.held()] == ["images/a", "images/b"]


def test_a_server_that_falls_silent_is_found_out_by_its_heartbeat(rabbit: Queue) -> None:
    with services.proxy(rabbit.server.port) as wire:
        url = f"{rabbit.at_port(wire.port)['url']}?heartbeat=1"
        with rabbit.opened(url=url, timeout="1m") as target:
            wire.mute()
            began = time.monotonic()
            (outcome,) = attempt(target, [sample_events.put("a")], 1)
            assert time.monotonic() - began < LIMIT
    assert isinstance(outcome, Unavailable)
    assert "heartbeats missed" in outcome.reason


@WINDOWS
def test_no_more_than_the_window_is_ever_unconfirmed(rabbit: Queue, window: int) -> None:
    with services.proxy(rabbit.server.port) as wire, rabbit.opened(rabbit.at_port(wire.port)) as target:
        wire.mute()
        outcomes = attempt(target, [sample_events.put(f"object-{number}") for number in range(300)], window)
    refused = [outcome.reason for outcome in outcomes if isinstance(outcome, Unavailable)]
    assert len(refused) == len(rabbit.held()) == window
    assert all("no answer within 2 s" in reason for reason in refused)
    assert outcomes.count(NOT_ATTEMPTED) == 300 - window, "what was not sent has no part in it"


@WINDOWS
def test_an_objects_next_event_waits_until_the_one_before_is_confirmed(rabbit: Queue, window: int) -> None:
    with services.proxy(rabbit.server.port) as wire, rabbit.opened(rabbit.at_port(wire.port)) as target:
        wire.mute()
        attempt(target, [sample_events.put(f"object-{number % 7}") for number in range(70)], window)
    assert len(rabbit.held()) == min(window, 7)


def test_a_blocked_connection_is_unavailable_at_once_and_is_kept(rabbit: Queue) -> None:
    with rabbit.opened(timeout="60s") as target:
        batch = [sample_events.put(f"object-{number % 5}", number=number + 1) for number in range(20)]
        evaluated(rabbit.server, 'rabbit_disk_monitor:set_disk_free_limit("1000000GB")')
        try:
            services.until(lambda: "alarm" in rabbit.server.tail())
            for _ in range(3):
                outcomes = attempt(target, batch, 100)
                assert all(isinstance(outcome, Unavailable | NotAttempted) for outcome in outcomes)
                assert "memory or disk" in outcomes[0].reason
        finally:
            evaluated(rabbit.server, 'rabbit_disk_monitor:set_disk_free_limit("50MB")')
        services.until(lambda: attempt(target, batch, 100) == [DELIVERED] * 20, LIMIT)
    sent = {event.path: [number + 1 for number, each in enumerate(batch) if each.path == event.path] for event in batch}
    for path, numbers in rabbit.numbers().items():
        assert list(dict.fromkeys(numbers)) == sent[path]
    assert len(rabbit.held()) <= 2 * 20


@pytest.mark.parametrize("wrong", ["password", "vhost", "exchange", "certificate", "port", "tls"])
def test_a_refusal_leaves_no_socket_open(rabbit: Queue, certificates: services.Certificates, wrong: str) -> None:
    target = rabbit.target({
        "password": rabbit.as_stranger(),
        "vhost": rabbit.values() | {"url": rabbit.server.url + "nowhere"},
        "exchange": rabbit.values() | {"exchange": "nowhere"},
        "certificate": rabbit.by_tls(certificates.other_ca),
        "port": rabbit.at_port(services.free_port()),
        "tls": rabbit.values() | {"url": f"amqps://127.0.0.1:{rabbit.server.port}"},
    }[wrong])  # fmt: skip
    assert_no_socket_is_left(target)


def test_a_node_that_hangs_costs_one_attempt_and_one_that_dies_as_well(rabbit: Queue) -> None:
    with services.proxy(rabbit.server.port) as wire:
        values = rabbit.at_port(wire.port) | {"nodes": f"{services.LOOPBACK}:{rabbit.server.port}"}
        hangs, dies = rabbit.target(values), rabbit.target(values)
        dies.open()
        wire.swallow()
        with pytest.raises(TargetUnavailable, match="no answer within 2 s"):
            hangs.open()
        hangs.open()
    for target in (hangs, dies):
        services.until(lambda: attempt(target, [sample_events.put("a")], 1) == [DELIVERED], 30)  # noqa: B023 - called at once
        target.close()


def test_verification_can_be_waived(rabbit: Queue, certificates: services.Certificates) -> None:
    assert rabbit.delivered(
        [sample_events.put("a")], 1, rabbit.by_tls(certificates.other_ca), tls_skip_verify="on"
    ) == [DELIVERED]


@pytest.mark.nightly("client certificates at Kafka, NATS and PostgreSQL")
def test_a_client_certificate_is_shown_and_can_be_the_login(certificates: services.Certificates) -> None:
    probe = Queue.__new__(Queue)
    probe.server = services.RabbitMQ()
    (probe.server.folder / "enabled_plugins").write_text("[rabbitmq_auth_mechanism_ssl].\n")
    configuration = probe.server.folder / "rabbitmq.conf"
    text = configuration.read_text().replace("fail_if_no_peer_cert = false", "fail_if_no_peer_cert = true")
    login = "ssl_cert_login_from = common_name\nauth_mechanisms.1 = PLAIN\nauth_mechanisms.2 = EXTERNAL\n"
    configuration.write_text(text + login)
    ours = {"client_cert": str(certificates.client_cert), "client_key": str(certificates.client_key)}
    with probe.server.start():
        probe.renew()
        values = probe.by_tls(certificates.ca)
        (refused,) = attempt(probe.target(values), [sample_events.put("a")], 1)
        assert isinstance(refused, Unavailable)
        assert probe.delivered([sample_events.put("a")], 1, values | ours) == [DELIVERED]
        place = f"amqps://127.0.0.1:{probe.server.tls_port}?auth_mechanism=external"
        with user(probe.server, "client", "unused", ".*", ".*", ".*"):
            assert probe.delivered([sample_events.put("b")], 1, values | ours, url=place) == [DELIVERED]
            files = {"certfile": certificates.client_cert, "keyfile": certificates.client_key}
            in_url = "".join(f"&{name}={quote(str(file))}" for name, file in files.items())
            assert probe.delivered([sample_events.put("c")], 1, values, url=place + in_url) == [DELIVERED]
        assert [path for path, _ in probe.held()] == ["images/a", "images/b", "images/c"]


def test_an_interrupted_call_does_not_leave_its_connection_to_the_next(
    rabbit: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rabbit.opened() as target:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(py_amqp.Connection, "blocking_read", interrupted)
            with pytest.raises(KeyboardInterrupt):
                target.deliver([sample_events.put("a")], 1)
        assert list(target.deliver([sample_events.put("b")], 1)) == [DELIVERED]


def test_the_consumer_of_the_page_reads_what_was_delivered(rabbit: Queue) -> None:
    with rabbit.opened(exchange="bucketevents", exchange_type="fanout", durable="on", routing_key="") as target:
        place = "amqp://guest:guest@localhost:5672/%2F"
        (program,) = consumers("amqp", **{place: rabbit.server.url.removesuffix("//") + "/%2F"})
        with rabbit.channel() as channel:
            channel.queue_declare("thumbnails", durable=True)
            channel.queue_bind("thumbnails", "bucketevents")
        assert list(target.deliver([sample_events.put("cat.jpg")], 1)) == [DELIVERED]
    assert output(program) == ["s3:ObjectCreated:Put images cat.jpg"]
    with rabbit.channel() as channel:
        channel.exchange_delete("bucketevents")
        channel.queue_delete("thumbnails")


# --- a template


@WINDOWS
def test_a_template_gives_each_event_its_routing_key(rabbit: Queue, window: int) -> None:
    with rabbit.opened(exchange="minio", exchange_type="topic", routing_key="{bucket}.{prefix:1}.{kind}") as target:
        bound(rabbit, routing_key="*.photos.*")
        bound(rabbit, routing_key="my%2Ebucket.#")
        made = [
            sample_events.put("photos/cat.jpg"), sample_events.delete("photos/cat.jpg"), sample_events.put("docs/a"),
            sample_events.put("photos.x/a"), sample_events.put("docs/b", bucket="my.bucket"),
        ]  # fmt: skip
        assert list(target.deliver(made, window)) == [DELIVERED] * 5
    held = [body for _, body in rabbit.held()]
    assert sorted(held) == sorted(payloads.log(made[place]) for place in (0, 1, 4))
    assert held.index(payloads.log(made[0])) < held.index(payloads.log(made[1]))


@WINDOWS
def test_any_key_is_one_word_of_a_routing_key_or_too_long(rabbit: Queue, window: int) -> None:
    keys = list(sample_events.ODD_KEYS)
    with rabbit.opened(exchange="minio", exchange_type="topic", routing_key="a.{key}.z") as target:
        bound(rabbit, routing_key="a.*.z")
        outcomes = list(target.deliver([sample_events.put(key) for key in keys], window))
    longest = keys.index("k" * 1000)
    reason = "routing_key of this event is longer than the 255 bytes that AMQP allows"
    assert outcomes.pop(longest) == Rejected(reason)
    assert outcomes == [DELIVERED] * len(outcomes)
    assert len(rabbit.held()) == len(outcomes)


def test_the_queue_of_a_template_that_does_not_exist_rejects_its_event_alone(rabbit: Queue) -> None:
    made = [sample_events.put(f"{QUEUE}/a"), sample_events.put("nowhere/a"), sample_events.put(f"{QUEUE}/b")]
    first, lost, last = rabbit.delivered(made, 1, routing_key="{prefix:1}", mandatory="on")
    assert (first, last) == (DELIVERED, DELIVERED)
    assert isinstance(lost, Rejected)
    assert "queue 'nowhere'" in lost.reason


@WINDOWS
def test_a_routing_key_of_a_template_that_is_not_allowed_fails_its_events_alone(rabbit: Queue, window: int) -> None:
    made = [sample_events.put(key) for key in ("ok/a", "no/a", "ok/b", "no/b")]
    with user(rabbit.server, "topical", "pw", ".*", ".*", ".*"):
        call(rabbit.server, f"{USERS}:set_topic_permissions", "topical", "/", "minio", "^ok", ".*", US)
        url = rabbit.server.url.replace(f"{services.USER}:{services.PASSWORD}@", "topical:pw@")
        with rabbit.opened(url=url, exchange="minio", exchange_type="topic", routing_key="{prefix:1}") as target:
            outcomes = attempt(target, made, window)
            assert all(isinstance(outcomes[place], Failed) for place in (1, 3))
            assert "access to topic 'no'" in str(outcomes[1])
            assert list(target.deliver([made[0], made[2]], window)) == [DELIVERED] * 2
