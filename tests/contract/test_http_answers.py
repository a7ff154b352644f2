"""An answer belongs to the request that was sent: every target that uses HTTP, at servers that send something else."""

from __future__ import annotations

import functools
import gzip
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from app.config import target_settings
from app.config.sources.sqs import SqsSourceSettings
from app.events.parsing import Message
from tests import services
from tests.services.proxy import INTERIM as INTERIM_ANSWERS
from tests.support import sample_events
from tests.support.raw_http import ANSWERED, Asked, Pieces, RawServer, settings, written
from workers import sources
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.sources.base import SourceUnavailable
from workers.targets import create
from workers.targets.base import Target

TYPES = pytest.mark.parametrize("type_name", ANSWERED)
KEYS = ("good-1", "bad-2", "good-3", "bad-4", "good-5", "good-6")
INTERIM = {
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n",
    "processing": INTERIM_ANSWERS[0],
    "early hints": INTERIM_ANSWERS[1],
    "unknown": b"HTTP/1.1 199\r\n\r\n",
    "several": b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" * 5,
}


@contextmanager
def opened(type_name: str, server: RawServer, **changes: str) -> Iterator[Target]:
    values = settings(type_name, server.port) | changes
    with closing(create(type_name, target_settings.load(type_name, values))) as target:
        target.open()
        yield target


def deliver(target: Target, keys: Sequence[str] = KEYS) -> list[Outcome]:
    """The outcomes of events that are delivered one after the other, each by itself."""
    return [target.deliver([sample_events.put(key)], 1)[0] for key in keys]


def assert_own_answers(outcomes: Sequence[Outcome], keys: Sequence[str] = KEYS) -> None:
    for key, outcome in zip(keys, outcomes, strict=True):
        assert isinstance(outcome, Failed) if key.startswith("bad") else outcome == DELIVERED, (key, outcome)


def answering(type_name: str, change: Callable[[Asked, bytes], Pieces | None]) -> RawServer:
    """A server whose right answers to deliveries go through `change`."""

    def answer(asked: Asked) -> Pieces | None:
        right = written(*ANSWERED[type_name](asked))
        return change(asked, right) if asked.is_delivery else [right]

    return RawServer(answer)


@TYPES
@pytest.mark.parametrize("interim", INTERIM)
def test_an_interim_answer_is_read_past(type_name: str, interim: str) -> None:
    server = answering(type_name, lambda _, right: [INTERIM[interim], right])
    with server, opened(type_name, server) as target:
        assert_own_answers(deliver(target))
        assert len({asked.connection for asked in server.deliveries()}) == 1


@TYPES
def test_interim_answers_to_many_requests_at_once_are_read_past(type_name: str) -> None:
    keys = [f"{'bad' if number % 3 == 0 else 'good'}-{number}" for number in range(60)]
    server = answering(type_name, lambda _, right: [INTERIM["early hints"], INTERIM["processing"], right])
    with server, opened(type_name, server) as target:
        assert_own_answers(target.deliver([sample_events.put(key) for key in keys], 16), keys)


@TYPES
@pytest.mark.parametrize(
    "head", [INTERIM["processing"], INTERIM["continue"], b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 90]
)
def test_answers_without_end_before_the_answer_are_refused(type_name: str, head: bytes) -> None:
    stopped = threading.Event()

    def endless() -> Iterator[bytes]:
        while not stopped.is_set():
            yield head * 100

    server = answering(type_name, lambda *_: endless())  # type: ignore[arg-type,return-value]  # it has no end
    with server, opened(type_name, server) as target:
        (outcome,) = deliver(target, ["good"])
        stopped.set()
    assert isinstance(outcome, Failed | Unavailable)
    assert "bytes" in outcome.reason or "headers" in outcome.reason, outcome


@TYPES
def test_another_protocol_that_nobody_asked_for_is_no_answer(type_name: str) -> None:
    server = answering(type_name, lambda _, right: [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n", right])
    with server, opened(type_name, server) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Failed | Unavailable)
    assert "another protocol" in outcome.reason


@TYPES
@pytest.mark.parametrize(
    "line",
    [
        "HTTP/1.1 +200 OK",
        "HTTP/1.1 2_00 OK",
        "HTTP/1.1 0200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 099 OK",
        "200 OK",
        "",
        "\r",
    ],
)
def test_what_has_no_status_of_three_digits_is_no_answer(type_name: str, line: str) -> None:
    def change(_: Asked, right: bytes) -> Pieces:
        return [line.encode() + right[right.index(b"\r\n") :]]

    server = answering(type_name, change)
    with server, opened(type_name, server) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Failed | Unavailable)
    assert "status line" in outcome.reason


@pytest.mark.parametrize("window", [1, 16])
def test_an_answer_that_names_another_requests_messages_confirms_none(window: int) -> None:
    first: list[bytes] = []

    def replayed(_: Asked, right: bytes) -> Pieces:
        first.append(right)
        return first[:1]

    server = answering("sqs", replayed)
    with server, opened("sqs", server) as target:
        (before,) = target.deliver([sample_events.put("good-1")], window)
        (after,) = target.deliver([sample_events.put("good-2")], window)
    assert before == DELIVERED
    assert isinstance(after, Unavailable)
    assert "names none of the messages" in after.reason


def with_request_id(asked: Asked, right: bytes) -> bytes:
    """The answer with the id of its request, as Elasticsearch and OpenSearch write it."""
    (number,) = re.findall(rb"(?i)\r\nx-opaque-id: *([^\r]+)", asked.head)
    return right.replace(b"\r\n", b"\r\nX-Opaque-Id: " + number + b"\r\n", 1)


@contextmanager
def repeating(change: Callable[[bytes], bytes], **values: str) -> Iterator[tuple[RawServer, Target]]:
    """An Elasticsearch that has an answer of its own, then what `change` makes of it, and then the right ones."""
    sent: list[bytes] = []

    def answer(asked: Asked) -> Pieces:
        right = written(*ANSWERED["elasticsearch"](asked))
        if values["format"] == "access":  # nothing in the body tells two answers apart
            right = with_request_id(asked, right)
        if asked.is_delivery:
            sent.append(right)
        return [change(sent[0]) if asked.is_delivery and len(sent) == 2 else right]

    server = RawServer(answer)
    with server, opened("elasticsearch", server, **values) as target:
        yield server, target


@pytest.mark.parametrize("window", [1, 16])
@pytest.mark.parametrize(
    "values", [{"format": "access"}, {"format": "namespace"}, {"format": "namespace", "id_style": "plain"}]
)
def test_an_answer_to_another_request_of_elasticsearch_settles_nothing(values: dict[str, str], window: int) -> None:
    with repeating(lambda first: first, **values) as (server, target):
        outcomes = [target.deliver([sample_events.put(f"good-{number}")], window)[0] for number in (1, 2, 2)]
    assert outcomes[::2] == [DELIVERED, DELIVERED]
    assert isinstance(outcomes[1], Unavailable)
    assert outcomes[1].may_arrive
    assert ("X-Opaque-Id" if values["format"] == "access" else "not asked for") in outcomes[1].reason
    connections = [asked.connection for asked in server.deliveries()]
    assert connections[0] == connections[1] != connections[2]


def changing_items(change: Callable[[dict[str, dict[str, object]]], object], **others: object) -> RawServer:
    """An Elasticsearch of whose answers to deliveries each item is another one, and some members are others.

    As a real one it leaves out the members of items that `filter_path` does not name.
    """

    def changed(asked: Asked, _: bytes) -> Pieces:
        status, body = ANSWERED["elasticsearch"](asked)
        answer = json.loads(body) | others
        (given,) = parse_qs(urlsplit(asked.head.split()[1].decode()).query)["filter_path"]
        wanted = {path.rpartition(".")[2] for path in given.split(",")}
        items: Any = map(change, answer["items"])
        items = [{name: {k: v for k, v in one.items() if k in wanted} for name, one in item.items()} for item in items]
        return [written(status, json.dumps(answer | {"items": items}).encode())]

    return answering("elasticsearch", changed)


@pytest.mark.parametrize("errors", [False, None, 0, ""])
@pytest.mark.parametrize("format_name", ["access", "namespace"])
def test_what_is_said_of_a_document_counts_more_than_what_is_said_of_all(format_name: str, errors: object) -> None:
    server = changing_items(lambda item: item, errors=errors)
    with server, opened("elasticsearch", server, format=format_name) as target:
        assert_own_answers(target.deliver([sample_events.put(key) for key in KEYS], 16))


@pytest.mark.parametrize("status", [200, 404, 500])
@pytest.mark.parametrize("format_name", ["access", "namespace"])
def test_an_answer_about_another_action_settles_nothing(format_name: str, status: int) -> None:
    server = changing_items(lambda item: {"delete": dict(*item.values()) | {"status": status}})
    with server, opened("elasticsearch", server, format=format_name) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Unavailable)
    assert outcome.may_arrive
    assert "the action 'delete', which was not asked for" in outcome.reason


@pytest.mark.parametrize(
    "odd", [{"error": {"type": "t", "reason": "r"}}, {"error": "no"}, {"status": 0}, {"status": 302}, {"status": 700}]
)
@pytest.mark.parametrize("format_name", ["access", "namespace"])
def test_what_no_cluster_says_of_a_document_is_no_fault_of_its_event(format_name: str, odd: dict[str, object]) -> None:
    server = changing_items(lambda item: {name: one | odd for name, one in item.items()})
    with server, opened("elasticsearch", server, format=format_name) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Unavailable), outcome


@pytest.mark.parametrize(
    ("said", "reason"),
    [({"status": 200, "result": "noop"}, "pipeline"), ({"status": 201, "failure_store": "used"}, "failure store")],
)
@pytest.mark.parametrize("format_name", ["access", "namespace"])
def test_a_document_that_is_accepted_and_not_in_the_index_is_not_delivered(
    format_name: str, said: dict[str, object], reason: str
) -> None:
    """As of a pipeline's processor `drop`, and of a data stream with a failure store."""
    dropped = iter([False, True, False, True])
    server = changing_items(
        lambda item: {name: one | (said if next(dropped) else {"result": "created"}) for name, one in item.items()}
    )
    with server, opened("elasticsearch", server, format=format_name) as target:
        outcomes = target.deliver([sample_events.put(key) for key in ("a", "b", "c", "d")], 16)
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED), Rejected, type(DELIVERED), Unavailable]
    assert reason in outcomes[1].reason  # type: ignore[union-attr]  # it is Rejected


def test_a_server_that_has_repeated_an_id_always_does() -> None:
    with repeating(lambda first: re.sub(rb"X-Opaque-Id: [^\r]+\r\n", b"", first), format="access") as (_, target):
        outcomes = deliver(target, ["good-1", "good-2", "good-3"])
    assert outcomes[::2] == [DELIVERED, DELIVERED]
    assert isinstance(outcomes[1], Unavailable)
    assert "without our X-Opaque-Id" in outcomes[1].reason


def test_a_refusal_without_an_id_may_be_a_proxys() -> None:
    with repeating(lambda _: written(413, b"<html>"), format="access") as (server, target):
        assert deliver(target, ["good-1"]) == [DELIVERED]
        assert target.deliver([sample_events.put(key) for key in ("good-2", "good-3")], 16) == [DELIVERED] * 2
    assert len(server.deliveries()) == 4  # the two were divided


@pytest.mark.parametrize(
    "body", [b"{}", b'{"Successful": []}', b'{"Successful": [{"Id": "x"}]}', b'{"Failed": 3}', b"[]"]
)
def test_a_server_that_names_no_message_is_no_fault_of_the_events(body: bytes) -> None:
    server = answering("sqs", lambda *_: [written(200, body)])
    with server, opened("sqs", server) as target:
        outcomes = target.deliver([sample_events.put(key) for key in KEYS], 16)
    assert isinstance(outcomes[0], Unavailable), outcomes
    assert not any(isinstance(outcome, Failed) for outcome in outcomes)


# --- what a server sends beside the answer


OTHERS = written(200, b'{"errors": false, "items": [{"index": {"status": 201}}], "Successful": [{"Id": "0"}]}')
# By what is added to each answer; the next request must not have it for its answer.
ADDED: dict[str, Callable[[bytes], Pieces]] = {
    "a second answer": lambda right: [right + OTHERS],
    "a second answer a moment later": lambda right: [right, OTHERS],
    "half of a second answer, and the rest": lambda right: [right + OTHERS[:20], OTHERS[20:]],
    "an interim answer": lambda right: [right + INTERIM["processing"]],
    "a byte": lambda right: [right + b"\n"],
    "a line, a moment later": lambda right: [right, b"\r\n"],
    "more than the length": lambda right: [right + b" more of the body"],
    "a body that has no place": lambda right: [right.replace(b"200 Any", b"204 Any") + OTHERS],
}


@TYPES
@pytest.mark.parametrize("added", ADDED)
def test_what_comes_after_an_answer_is_nobodys(type_name: str, added: str) -> None:
    server = answering(type_name, lambda _, right: ADDED[added](right))
    with server, opened(type_name, server) as target:
        outcomes = []
        for key in KEYS:
            outcomes += deliver(target, [key])
            # What is sent a moment later has to be there before the next request for the client to see it.
            assert server.sent.acquire(timeout=30)
    if added != "a body that has no place" or type_name == "webhook":
        assert_own_answers(outcomes)
    assert len({asked.connection for asked in server.deliveries()}) == len(KEYS)


# --- where an answer ends


def with_headers(right: bytes, *headers: str) -> bytes:
    head, _, body = right.partition(b"\r\n\r\n")
    kept = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join([*kept, *(each.encode() for each in headers), b"", body])


def length(right: bytes) -> int:
    return len(right.partition(b"\r\n\r\n")[2])


def chunked(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


UNCERTAIN: dict[str, Callable[[bytes], bytes]] = {
    "a length, and chunks": lambda right: chunk(
        right, "Transfer-Encoding: chunked", f"Content-Length: {length(right)}"
    ),
    "an unknown coding": lambda right: with_headers(
        right, "Transfer-Encoding: any", f"Content-Length: {length(right)}"
    ),
}
INVALID: dict[str, Callable[[bytes], bytes]] = {
    "two lengths": lambda right: with_headers(right, "Content-Length: 3", f"Content-Length: {length(right)}"),
    "two lengths in one": lambda right: with_headers(right, f"Content-Length: {length(right)}, 3"),
    "a negative length": lambda right: with_headers(right, "Content-Length: -5"),
    "no number": lambda right: with_headers(right, "Content-Length: many"),
    "Python's number": lambda right: with_headers(right, "Content-Length: 1_0"),
}


def chunk(right: bytes, *headers: str) -> bytes:
    head, _, body = with_headers(right, *headers).partition(b"\r\n\r\n")
    return head + b"\r\n\r\n" + chunked(body)


@TYPES
@pytest.mark.parametrize("end", UNCERTAIN)
def test_a_connection_is_not_used_again_where_an_answers_end_is_uncertain(type_name: str, end: str) -> None:
    server = answering(type_name, lambda _, right: [UNCERTAIN[end](right)])
    with server, opened(type_name, server) as target:
        assert_own_answers(deliver(target))
    assert len({asked.connection for asked in server.deliveries()}) == len(KEYS)


@TYPES
@pytest.mark.parametrize("end", INVALID)
def test_an_answer_whose_length_contradicts_itself_is_none(type_name: str, end: str) -> None:
    server = answering(type_name, lambda _, right: [INVALID[end](right)])
    with server, opened(type_name, server) as target:
        outcomes = deliver(target)
    assert all(isinstance(outcome, Failed | Unavailable) for outcome in outcomes)
    assert all("Content-Length" in outcome.reason for outcome in outcomes if isinstance(outcome, Failed | Unavailable))
    assert len({asked.connection for asked in server.deliveries()}) == len(KEYS)


@TYPES
def test_the_same_length_twice_is_a_length(type_name: str) -> None:
    def twice(_: Asked, right: bytes) -> Pieces:
        return [with_headers(right, f"Content-Length: {length(right)}", f"Content-Length: {length(right)}")]

    server = answering(type_name, twice)
    with server, opened(type_name, server) as target:
        assert_own_answers(deliver(target))
    assert len({asked.connection for asked in server.deliveries()}) == 1


CUTS = (
    b"HTTP/1.1 200",
    b"HTTP/1.1 200 Any\r\n",
    b"HTTP/1.1 200 Any\r\nRetry-After: 1",
    b"HTTP/1.1 200 Any\r\nA: b\r\n",
)


@TYPES
@pytest.mark.parametrize("cut", CUTS)
def test_an_answer_whose_head_has_no_end_has_a_status_at_most(type_name: str, cut: bytes) -> None:
    server = answering(type_name, lambda *_: [cut])
    server.closes = lambda asked: asked.is_delivery
    with server, opened(type_name, server) as target:
        (outcome,) = deliver(target, ["good"])
    if type_name == "webhook" and cut != CUTS[0]:  # its status is all that a webhook says
        assert outcome == DELIVERED
    else:
        assert isinstance(outcome, Failed | Unavailable)


@pytest.mark.parametrize("type_name", ["sqs", "elasticsearch"])
@pytest.mark.parametrize("size", ["-5", "-1", "five", ""])
def test_a_chunk_of_an_impossible_size_is_no_answer(type_name: str, size: str) -> None:
    def impossible(_: Asked, right: bytes) -> Pieces:
        return [
            chunk(right, "Transfer-Encoding: chunked").replace(
                b"\r\n%x\r\n" % length(right), f"\r\n{size}\r\n".encode()
            )
        ]

    server = answering(type_name, impossible)
    with server, opened(type_name, server) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Unavailable)


@pytest.mark.parametrize("status", [600, 999])
def test_a_status_that_means_nothing_is_the_clusters_fault(status: int) -> None:
    server = answering("elasticsearch", lambda _, right: [right.replace(b" 200 Any", b" %d Any" % status)])
    with server, opened("elasticsearch", server) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Unavailable)
    assert f"answered {status}" in outcome.reason


NOBODYS = {
    "elasticsearch": (
        *("[]", "5", '""', "{}", '{"items": 5}', '{"items": null}', '{"items": [5]}', '{"items": [{}]}'),
        *('{"items": [{"index": 5}]}', '{"items": [{"index": {"status": "x"}}]}', '{"items": {"index": 5}}'),
        '{"items": [{"index": {"status": null}}]}',
    ),
    "sqs": (
        *("[]", "5", "{}", '{"Successful": 5}', '{"Successful": [5]}', '{"Successful": [{"Id": ["0"]}]}'),
        *('{"Successful": {"Id": "0"}}', '{"Failed": [{"Code": "any"}]}'),
    ),
}


@pytest.mark.parametrize(("type_name", "body"), [(name, body) for name in NOBODYS for body in NOBODYS[name]])
def test_an_answer_of_another_server_blames_no_event(type_name: str, body: str) -> None:
    server = answering(type_name, lambda *_: [written(200, body.encode())])
    with server, opened(type_name, server) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Unavailable)


@pytest.mark.parametrize(
    "docs", ["5", "[5]", "[]", "[{}, {}]", '[{"_source": {"Records": [{"s3": {"object": {"key": 1}}}]}}]']
)
def test_a_document_that_no_cluster_has_blames_no_event(docs: str) -> None:
    server = answering("elasticsearch", lambda *_: [written(200, b'{"docs": %s}' % docs.encode())])
    with server, opened("elasticsearch", server, format="namespace") as target:
        (outcome,) = target.deliver([sample_events.delete_version("a", "null")], 1)
    assert isinstance(outcome, Unavailable)


# --- a kept-alive connection that the server has closed


@TYPES
def test_a_request_that_meets_a_closed_connection_is_made_again_by_a_new_one(type_name: str) -> None:
    # The request arrives, and is not answered: a server that closes an idle connection may have had it in its queue.
    server = answering(type_name, lambda asked, right: [right] if asked.before < 3 else None)
    with server, opened(type_name, server) as target:
        assert_own_answers(deliver(target))
        by = {asked.connection for asked in server.deliveries()}
    assert len(by) > 1
    assert len(server.deliveries()) > len(KEYS)


@TYPES
def test_a_request_by_a_new_connection_is_not_made_again(type_name: str) -> None:
    server = answering(type_name, lambda *_: None)
    with server, opened(type_name, server) as target:
        outcomes = deliver(target, ["good-1", "good-2"])
    assert sum(asked.before == 0 for asked in server.deliveries()) == 2
    assert all(isinstance(outcome, Failed | Unavailable) for outcome in outcomes)


@TYPES
def test_a_request_of_whose_answer_a_byte_came_is_not_made_again(type_name: str) -> None:
    def cut(asked: Asked, right: bytes) -> Pieces:
        return [right] if asked.before < 3 else [right[:5], b""]

    server = answering(type_name, cut)
    server.closes = lambda asked: asked.before >= 3
    with server, opened(type_name, server) as target:
        outcomes = deliver(target, ["good"] * 4)
        asked = len(server.deliveries())
    assert asked == 4
    assert any(isinstance(outcome, Failed | Unavailable) for outcome in outcomes)


@TYPES
def test_closed_connections_cost_no_attempt_with_many_requests_at_once(type_name: str) -> None:
    server = answering(type_name, lambda asked, right: [right] if asked.before < 4 else None)
    keys = [f"good-{number}" for number in range(300)]
    with server, opened(type_name, server) as target:
        assert_own_answers(target.deliver([sample_events.put(key) for key in keys], 16), keys)


# --- how much is read


@functools.cache
def packed_blanks() -> bytes:
    return gzip.compress(b" " * (1 << 28), 1)


def unpacking(_: bytes) -> Pieces:
    return [written(200, packed_blanks(), "Content-Encoding: gzip")]


def many_streams(_: bytes) -> Pieces:
    return [written(200, gzip.compress(b" " * (1 << 20)) * 256, "Content-Encoding: gzip")]


def without_end(_: bytes) -> Pieces:
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", *([b" " * (1 << 20)] * 64)]


def claiming(_: bytes) -> Pieces:
    return [b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9000000000\r\n\r\n{"]


def in_chunks(_: bytes) -> Pieces:
    chunk = b"100000\r\n" + b" " * (1 << 20) + b"\r\n"
    return [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *([chunk] * 64)]


HOSTILE = pytest.mark.parametrize(
    "hostile", [unpacking, many_streams, without_end, claiming, in_chunks], ids=lambda hostile: str(hostile.__name__)
)


@HOSTILE
@pytest.mark.parametrize("type_name", ["sqs", "elasticsearch"])
def test_an_answer_that_is_read_has_a_limit(type_name: str, hostile: Callable[[bytes], Pieces]) -> None:
    pieces = hostile(b"")  # before the target's time runs
    server = answering(type_name, lambda *_: pieces)
    with server, opened(type_name, server) as target:
        (outcome,) = deliver(target, ["good"])
    assert isinstance(outcome, Unavailable)
    assert "more than 16,777,216" in outcome.reason


@pytest.mark.parametrize("hostile", [unpacking, without_end, in_chunks])
def test_of_a_webhooks_answer_the_status_counts_however_long_it_is(hostile: Callable[[bytes], Pieces]) -> None:
    pieces = hostile(b"")  # before the target's time runs
    server = answering("webhook", lambda *_: pieces)
    with server, opened("webhook", server) as target:
        assert deliver(target, ["good"] * 2) == [DELIVERED] * 2
    assert len({asked.connection for asked in server.deliveries()}) == 2


@pytest.mark.parametrize("type_name", ["sqs", "elasticsearch"])
def test_a_packed_answer_is_read(type_name: str) -> None:
    def packed(asked: Asked, _: bytes) -> Pieces:
        status, body = ANSWERED[type_name](asked)
        return [written(status, gzip.compress(body), "Content-Encoding: gzip")]

    server = answering(type_name, packed)
    with server, opened(type_name, server) as target:
        assert_own_answers(deliver(target))


def test_messages_that_are_too_much_for_one_answer_are_received_one_by_one() -> None:
    body = "x" * (1 << 20)

    def answer(asked: Asked) -> Pieces:
        if b"ReceiveMessage" not in asked.head:
            return [written(200, b"{}")]
        count = json.loads(asked.body)["MaxNumberOfMessages"]
        messages = [{"Body": body * 2, "ReceiptHandle": f"{len(server.asked)}-{one}"} for one in range(count)]
        return [written(200, json.dumps({"Messages": messages}).encode())]

    server = RawServer(answer)
    with server:
        values = settings("sqs", server.port)
        source = sources.create("sqs", target_settings.load(SqsSourceSettings, values))
        with closing(source):
            source.open({})
            assert len(source.pull(10, 1)) == 1


ODD_MESSAGES = {
    "no attributes": {"Attributes": None, "MessageAttributes": None},
    "no time": {"Attributes": {"SentTimestamp": None}},
    "an attribute that is none": {"MessageAttributes": {"trace": None}},
    "an attribute without a text": {"MessageAttributes": {"content-encoding": {"StringValue": None}}},
}


def pulled(answer: object) -> Sequence[Message]:
    """What a source pulls from a queue whose server answers so."""
    with RawServer(
        lambda asked: [written(200, b"{}" if not asked.is_delivery else json.dumps(answer).encode())]
    ) as server:
        settings_of = target_settings.load(SqsSourceSettings, settings("sqs", server.port))
        with closing(sources.create("sqs", settings_of)) as source:
            source.open({})
            return list(source.pull(10, 1))


@pytest.mark.parametrize("odd", ODD_MESSAGES)
def test_a_message_of_a_queue_is_pulled_whatever_is_null_in_it(odd: str) -> None:
    [message] = pulled({"Messages": [{"Body": "one", "ReceiptHandle": "1", **ODD_MESSAGES[odd]}]})
    assert (message.body, message.headers, message.sent_at) == (b"one", {}, 0)


@pytest.mark.parametrize(
    "found", ["one", {"Body": "one"}, {"ReceiptHandle": "1", "Attributes": {"SentTimestamp": "now"}}]
)
def test_an_answer_that_is_no_list_of_messages_is_named(found: object) -> None:
    with pytest.raises(SourceUnavailable, match="the answer to ReceiveMessage cannot be read"):
        pulled({"Messages": [found]})


# --- a real server


NODE = """
const http = require("node:http");
const server = http.createServer((request, answer) => {
  let body = "";
  request.on("data", (piece) => { body += piece; });
  request.on("end", () => {
    answer.writeProcessing();
    answer.writeEarlyHints({ link: "</style.css>; rel=preload" });
    setTimeout(() => { answer.statusCode = body.includes("bad-") ? 500 : 200; answer.end("done"); }, 5);
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
"""


@pytest.fixture
def node_port() -> Iterator[int]:
    services.need("oidc")  # which runs in node too
    with subprocess.Popen([shutil.which("node") or "node", "-e", NODE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


@pytest.mark.parametrize("window", [1, 16])
def test_early_hints_of_node_are_read_past(node_port: int, window: int) -> None:
    keys = [f"{'bad' if number % 2 else 'good'}-{number}" for number in range(40)]
    values = settings("webhook", node_port)
    with closing(create("webhook", target_settings.load("webhook", values))) as target:
        assert_own_answers(target.deliver([sample_events.put(key) for key in keys], window), keys)
