"""What is JetStream's own as a source: positions in a stream, what a stream loses, requests, hostile messages."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.config.fields.fields import parse
from app.config.sources.jetstream import JetstreamSourceSettings
from app.events.limits import Limits
from app.events.parsing import Message
from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes.nats import SUBJECT
from tests.contract.probes.nats_jetstream import STREAM
from tests.contract.probes.nats_servers import Configured
from tests.contract.probes.nats_wire import Wire
from tests.contract.source_probes.jetstream import Stream
from tests.services import until
from tests.support.pulled_events import (
    Sources,
    check_minio,
    messages,
    numbered,
    pull,
    recorded,
    running,
    wait_for,
)
from workers.source_test import run_source_test
from workers.sources.base import SourceChanged, SourceUnavailable
from workers.systems.nats.source import JetstreamSource, Position, StreamReader, StreamState, read_position, start_at


@pytest.fixture(scope="module")
def served() -> Iterator[Stream]:
    with Stream.alone() as stream:
        yield stream


@pytest.fixture
def stream(served: Stream) -> Stream:
    served.renew()
    return served


def source_of(values: Mapping[str, Any], **more: str) -> JetstreamSource:
    """A source, not opened yet."""
    return JetstreamSource(parse(JetstreamSourceSettings, {**values, **more}))


def sequence_numbers(pulled: list[Message]) -> list[int]:
    return [read_position(message.position).next - 1 for message in pulled]


SHARE = "2026-11-26T18:00:00Z"


@pytest.mark.parametrize(
    ("stored", "state", "sequence", "lost"),
    [
        ({}, (1, 1), 1, ""),
        ({}, (5, 9), 5, ""),
        ({SHARE: "5"}, (5, 9), 5, ""),
        ({SHARE: "9"}, (5, 9), 9, ""),
        ({SHARE: "9"}, (9, 9), 9, ""),
        ({SHARE: "3"}, (5, 9), 5, "2 messages were removed"),
        ({SHARE: "10"}, (5, 9), 5, "was restored or has lost messages"),
        ({"2025-01-01T00:00:00Z": "7"}, (5, 9), 5, "the stream was made again"),
    ],
)
def test_where_a_stream_is_read_from(stored: dict[str, str], state: tuple[int, int], sequence: int, lost: str) -> None:
    for at_end in (False, True):
        start = start_at(stored, StreamState(SHARE, *state), at_end=at_end)
        assert start.position.next == (state[1] if at_end and not stored else sequence)
        assert lost in start.lost
        assert bool(start.lost) == bool(lost)


def test_messages_that_the_stream_has_removed_are_counted_and_those_after_them_are_pulled(
    stream: Stream, database: Database
) -> None:
    sources, events = Sources(database), numbered(7)
    source = sources.put("jetstream", stream.values())
    stream.send(messages(events[:2]))
    with running(database):
        wait_for(database, events[:2])
    stream.send(messages(events[2:5]))
    stream.ask(f"STREAM.PURGE.{STREAM}", seq=5)
    with running(database):
        wait_for(database, events[4:5])
        assert sources.stored(source).notice == "2 messages were removed before they were pulled"
        stream.renew()
        stream.send(messages(events[5:]))
        wait_for(database, events[5:])
    assert sources.stored(source).notice == "the stream was made again; it is pulled from its beginning"
    assert recorded(database) == [one.id for one in [*events[:2], *events[4:]]]


@pytest.mark.promise
@pytest.mark.parametrize("sent", [5, 30], ids=["shorter", "longer"])
def test_a_stream_that_was_restored_is_read_whole_also_if_it_has_grown_beyond_the_position(
    database: Database, tmp_path: Path, sent: int
) -> None:
    sources, events = Sources(database), numbered(20 + sent)
    with Stream.alone() as stream:
        stream.renew()
        source = sources.put("jetstream", {**stream.values(), "timeout": "1s"})
        stream.send(messages(events[:10]))
        stream.server.stop()
        shutil.copytree(stream.server.folder, tmp_path / "older")
        stream.server.start()
        stream.send(messages(events[10:20]))
        with running(database):
            wait_for(database, events[:20])
        stream.server.stop()
        shutil.rmtree(stream.server.folder)
        shutil.copytree(tmp_path / "older", stream.server.folder)
        stream.server.start()
        stream.send(messages(events[20:]))
        with running(database):
            wait_for(database, events)
            until(lambda: sources.stored(source).lag == 0, what="no lag")
    assert recorded(database) == [one.id for one in events]
    assert "it was restored or has lost messages; it is pulled from its beginning" in sources.stored(source).notice


@pytest.mark.promise
@pytest.mark.parametrize("kept", [0, 1], ids=["nothing", "later messages"])
def test_a_position_whose_message_the_stream_has_removed_is_gone_on_from(
    stream: Stream, database: Database, kept: int
) -> None:
    sources, events = Sources(database), numbered(4)
    source = sources.put("jetstream", stream.values())
    stream.send(messages(events[:3]))
    with running(database):
        wait_for(database, events[:3])
    stream.send(messages(events[3 : 3 + kept]))
    stream.ask(f"STREAM.MSG.DELETE.{STREAM}", seq=3)
    with running(database):
        stream.send(messages(events[3 + kept :]))
        wait_for(database, events)
        assert sources.stored(source).notice == ""
    assert recorded(database) == [one.id for one in events]


def test_a_stream_that_is_made_again_while_the_source_is_opened_is_read_whole(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.send([b"1", b"2"])
    begin = StreamReader.begin

    async def late(reader: StreamReader, share: str, position: Position) -> bool:
        monkeypatch.undo()
        stream.renew()
        stream.send([b"3", b"4", b"5"])
        return await begin(reader, share, position)

    with closing(source_of(stream.values())) as source:
        positions = dict.fromkeys(source.open({}).moved, "3")
        monkeypatch.setattr(StreamReader, "begin", late)
        with pytest.raises(SourceUnavailable, match="made again just now"):
            source.open(positions)
        assert source.open(positions).lost == ["the stream was made again; it is pulled from its beginning"]
        assert [message.body for message in pull(source, 3)] == [b"3", b"4", b"5"]


def test_a_leader_that_is_catching_up_is_waited_for(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    stream.send([b"1", b"2"])
    state, looks = StreamReader.state, list[StreamState]()

    async def catching_up(reader: StreamReader) -> StreamState:
        looks.append(await state(reader))
        if len(looks) == 1:
            stream.send([b"3", b"4"])
        return looks[-1]

    with closing(source_of(stream.values())) as source:
        positions = dict.fromkeys(source.open({}).moved, "4")
        monkeypatch.setattr(StreamReader, "state", catching_up)
        assert source.open(positions).lost == []
        assert [message.body for message in pull(source, 1)] == [b"4"]


def test_messages_that_are_removed_while_the_source_reads_are_noticed(stream: Stream) -> None:
    stream.send([b"%d" % number for number in range(1, 11)])
    with closing(source_of(stream.values())) as source:
        begun = source.open({})
        pulled = pull(source, 1, 1)
        stream.ask(f"STREAM.PURGE.{STREAM}", seq=9)

        def is_noticed() -> bool:
            try:
                pulled.extend(source.pull(1, 0.5))
            except SourceChanged:
                return True
            return False

        until(is_noticed, what="a source that has to be opened again")
        assert sequence_numbers(pulled) == list(range(1, len(pulled) + 1))
        assert len(pulled) < 8
        opened = source.open(dict.fromkeys(begun.moved, pulled[-1].position))
        assert opened.lost == [f"{8 - len(pulled)} messages were removed before they were pulled"]
        assert sequence_numbers(pull(source, 2)) == [9, 10]


def test_a_message_that_was_deleted_among_others_is_no_lost_one(stream: Stream) -> None:
    stream.send([b"%d" % number for number in range(1, 7)])
    for deleted in (3, 6):
        stream.ask(f"STREAM.MSG.DELETE.{STREAM}", seq=deleted)
    with closing(source_of(stream.values())) as source:
        begun = source.open({})
        assert sequence_numbers(pull(source, 4)) == [1, 2, 4, 5]
        assert source.open(dict.fromkeys(begun.moved, "6")).lost == []
        stream.send([b"7"])
        assert sequence_numbers(pull(source, 1)) == [7]


def test_a_subject_is_pulled_alone_and_what_the_stream_removes_of_others_is_no_loss(
    stream: Stream, database: Database
) -> None:
    stream.target.make_stream(subjects=["minio.*.>"])
    sources, events = Sources(database), numbered(3)
    source = sources.put("jetstream", {**stream.values(), "subject": "minio.*.one"})
    stream.publish("minio.a.one", messages(events[:1]))
    stream.publish("minio.a.two", [b"other"] * 20)
    stream.publish("minio.b.one", messages(events[1:2]))
    stream.publish("minio.a.two", [b"other"] * 20)

    def position() -> str:
        return "".join(sources.registry.positions(sources.stored(source)).values())

    with running(database):
        wait_for(database, events[:2])
        until(lambda: position().startswith("43:22@"), what="the position after all that is in the stream")
    stream.ask(f"STREAM.PURGE.{STREAM}", seq=43)
    stream.publish("minio.a.one", messages(events[2:]))
    with running(database):
        wait_for(database, events)
        stored = sources.stored(source)
    assert (stored.notice, stored.messages, stored.rejected) == ("", 3, 0)


def test_the_test_of_a_source_takes_messages_of_other_subjects_for_no_message(stream: Stream) -> None:
    stream.target.make_stream(subjects=["minio.>"])
    settings = parse(JetstreamSourceSettings, {**stream.values(), "subject": "minio.one"})
    stream.publish("minio.two", [b"other"])
    *_, step = run_source_test(settings, {}, Limits())
    assert (step.step, step.ok, step.message) == ("read", True, "no message waits")


def test_a_new_source_may_begin_with_what_is_sent_from_then_on(stream: Stream, database: Database) -> None:
    sources, events = Sources(database), numbered(2)
    stream.send(messages(events[:1]))
    source = sources.put("jetstream", {**stream.values(), "start": "latest"})
    with running(database):
        until(lambda: sources.registry.positions(sources.stored(source)), what="the position at which it begins")
        stream.send(messages(events[1:]))
        wait_for(database, events[1:])
    assert recorded(database) == [events[1].id]


def test_a_consumer_that_is_deleted_is_made_again(stream: Stream, database: Database) -> None:
    sources, events = Sources(database), numbered(2)
    source = sources.put("jetstream", stream.values())
    stream.send(messages(events[:1]))
    with running(database):
        wait_for(database, events[:1])
        [consumer] = stream.ask(f"CONSUMER.NAMES.{STREAM}")["consumers"]
        stream.ask(f"CONSUMER.DELETE.{STREAM}.{consumer}")
        until(lambda: consumer not in stream.ask(f"CONSUMER.NAMES.{STREAM}")["consumers"], what="no such consumer")
        stream.send(messages(events[1:]))
        wait_for(database, events)
    assert (sources.stored(source).repeated, sources.stored(source).notice) == (0, "")


def test_a_stream_that_is_missing_is_named_and_pulled_from_when_it_is_there(stream: Stream, database: Database) -> None:
    sources, events = Sources(database), numbered(1)
    stream.ask(f"STREAM.DELETE.{STREAM}")
    source = sources.put("jetstream", stream.values())
    with running(database):
        until(lambda: sources.state(source) == "failing", what="a failing source")
        assert "stream not found (error 10059); create it" in sources.stored(source).error
        stream.renew()
        stream.send(messages(events))
        wait_for(database, events)


@pytest.mark.parametrize(
    "limit", [{"retention": "interest"}, {"retention": "workqueue"}, {"max_msgs_per_subject": 5}], ids=str
)
def test_a_stream_from_which_messages_vanish_unnoticed_is_refused(stream: Stream, limit: dict[str, Any]) -> None:
    stream.target.make_stream(**limit)
    with closing(source_of(stream.values())) as source:
        assert "=".join(map(str, *limit.items())) in refusal(source)


@pytest.mark.parametrize("limit", [{"storage": "memory"}, {"allow_rollup_hdrs": True}], ids=str)
def test_a_stream_that_may_lose_messages_unnoticed_is_named(
    stream: Stream, database: Database, limit: dict[str, Any]
) -> None:
    stream.target.make_stream(**limit)
    sources = Sources(database)
    source = sources.put("jetstream", stream.values())
    with running(database):
        until(lambda: next(iter(limit)) in sources.stored(source).reason, what="a warning")


@pytest.mark.promise
@pytest.mark.parametrize(
    "limit", [{"max_msgs": 3}, {"max_bytes": 1500}, {"max_age": 10**9, "duplicate_window": 10**9}], ids=str
)
def test_what_a_limit_of_the_stream_has_removed_is_counted(
    stream: Stream, database: Database, limit: dict[str, int]
) -> None:
    sources, events = Sources(database), numbered(10)
    source = sources.put("jetstream", stream.values())
    stream.send(messages(events[:2]))
    with running(database):
        wait_for(database, events[:2])
    stream.send(messages(events[2:9]))
    config = stream.ask(f"STREAM.INFO.{STREAM}")["config"]
    stream.ask(f"STREAM.UPDATE.{STREAM}", **config | limit)
    until(lambda: first_sequence(stream) > 3, what="a stream that has removed messages")
    stream.send(messages(events[9:]))
    with running(database):
        wait_for(database, events[9:])
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    stored = sources.stored(source)
    lost = 10 - stored.recorded
    assert lost > 0
    assert stored.notice == f"{lost} messages were removed before they were pulled"
    assert recorded(database) == [one.id for one in [*events[:2], *events[2 + lost :]]]


def first_sequence(stream: Stream) -> int:
    """The sequence number of the stream's first message."""
    return int(stream.ask(f"STREAM.INFO.{STREAM}")["state"]["first_seq"])


@pytest.mark.promise
def test_what_a_full_stream_refuses_is_recorded_when_it_is_sent_again(stream: Stream, database: Database) -> None:
    stream.target.make_stream(max_msgs=3, discard="new")
    sources, events = Sources(database), numbered(4)
    source = sources.put("jetstream", stream.values())
    stream.send(messages(events[:3]))
    with closing(Wire(stream.server)) as wire:
        wire.publish(SUBJECT, messages(events[3:])[0])
        wire.flush()
    with running(database):
        wait_for(database, events[:3])
        stream.ask(f"STREAM.PURGE.{STREAM}")
        stream.send(messages(events[3:]))
        wait_for(database, events)
    assert recorded(database) == [one.id for one in events]
    assert sources.stored(source).notice == ""


def test_what_the_server_refuses_is_named() -> None:
    denied = f'{{ user: "{services.USER}", password: "{services.PASSWORD}", permissions: {{ publish: "minio.>" }} }}'
    login = f"authorization {{ users: [ {denied} ] }}\n"
    for server, reason in (
        (services.Nats(), "JetStream is not enabled"),
        (Configured(jetstream=True, login=login), "permissions violation for publish"),
    ):
        with server.start(), closing(source_of(values_of(server))) as source:
            assert reason in refusal(source)


def refusal(source: JetstreamSource) -> str:
    """Why it cannot be opened."""
    with pytest.raises(SourceUnavailable) as raised:
        source.open({})
    return str(raised.value)


def test_a_user_needs_no_more_permissions_than_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/pull-from-queues.md").read_text()
    [section] = re.findall(r"^## NATS JetStream\n(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    permissions = [
        f"{what}: {json.dumps([subject.replace('BUCKETEVENTS', STREAM) for subject in re.findall('`([^`]+)`', row)])}"
        for what, row in re.findall(r"^\| (publish|subscribe) \| (.+) \|$", section, re.MULTILINE)
    ]
    assert len(permissions) == 2
    login = f'user: "{services.USER}", password: "{services.PASSWORD}"'
    admin = f'user: "admin", password: "{services.PASSWORD}"'
    users = f"{{ {login}, permissions: {{ {', '.join(permissions)} }} }}, {{ {admin} }}"
    server = Configured(jetstream=True, login=f"authorization {{ users: [ {users} ] }}\n")
    with server.start(), closing(source_of(values_of(server))) as source:
        with closing(Wire(server, user="admin")) as wire:
            wire.ask(f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=[SUBJECT], storage="file")
            wire.publish(SUBJECT, b"one")
            wire.flush()
        source.open({})
        assert [message.body for message in pull(source, 1)] == [b"one"]
        assert source.lag() == 0


def values_of(server: services.Nats) -> dict[str, str]:
    login = {"username": services.USER, "password": services.PASSWORD}
    return {"address": f"{services.LOOPBACK}:{server.port}", "stream": STREAM, **login}


def test_a_server_with_tls_and_a_token_is_pulled_from() -> None:
    with services.nats(jetstream=True, tls=True, token="s3cret-token") as server:
        with closing(Wire(server)) as wire:
            wire.ask(f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=[SUBJECT], storage="file")
            wire.publish(SUBJECT, b"one")
            wire.flush()
        values = {"address": f"{services.LOOPBACK}:{server.port}", "stream": STREAM, "token": "s3cret-token"}
        with closing(source_of(values, cert_authority=str(services.certificates().ca))) as source:
            source.open({})
            assert [message.body for message in pull(source, 1)] == [b"one"]
        with closing(source_of(values, cert_authority=str(services.certificates().ca), token="wrong-s3cret")) as source:
            reason = refusal(source)
            assert "authorization violation" in reason.lower()
            assert "s3cret" not in reason


def test_a_message_larger_than_a_request_asks_for_holds_up_nothing() -> None:
    sizes = [100, 1 << 20, 18 << 20, 1 << 23, 1 << 23, 17 << 20, 100]
    with Configured(jetstream=True, more="max_payload: 32MB\n").start() as server:
        with closing(Wire(server)) as wire:
            wire.ask(f"STREAM.CREATE.{STREAM}", name=STREAM, subjects=[SUBJECT], storage="file")
            for size in sizes:
                wire.publish(SUBJECT, b"x" * size)
            wire.flush()
        with closing(source_of(values_of(server))) as source:
            source.open({})
            assert [len(message.body) for message in pull(source, len(sizes))] == sizes


@pytest.mark.promise
def test_subjects_and_headers_that_are_no_text_stop_nothing(stream: Stream, database: Database) -> None:
    stream.target.make_stream(subjects=["minio.>"])
    sources, events = Sources(database), numbered(9)
    source = sources.put("jetstream", stream.values())
    bodies = iter(messages(events))
    for subject in ("minio.events", b"minio.\xff\xfe", b"minio.a\x0bb", b"minio.a\x0cb"):
        stream.publish(subject, [next(bodies)])
    for headers in (b"NATS/1.0\r\n\xff: \xff\r\nno colon\r\n\r\n", b"NATS/1.0 \xff\xfe\xfd \xff\r\n\r\n",
                    b"NATS/1.0 404\r\nStatus: 409\r\nDescription: x\r\n\r\n", b"NATS/1.0\r\n\r\n"):  # fmt: skip
        stream.publish("minio.events", [next(bodies)], headers)
    stream.publish("minio.events", [next(bodies)])
    with running(database):
        wait_for(database, events)
    assert recorded(database) == [one.id for one in events]
    assert sources.stored(source).rejected == 0


def test_what_a_real_minio_publishes_is_recorded(stream: Stream, database: Database) -> None:
    stream.target.make_stream(subjects=["bucketevents"])
    login = {"USERNAME": services.USER, "PASSWORD": services.PASSWORD}
    place = {"ADDRESS": stream.values()["address"], "SUBJECT": "bucketevents", "JETSTREAM": "on"}
    check_minio(database, "jetstream", stream.values(), "nats", **place, **login)
