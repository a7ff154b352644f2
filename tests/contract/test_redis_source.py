"""What is Redis's own as a source: a list whose elements have no numbers, and a stream that may be trimmed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import orjson
import pytest

from app.config.arn import SourceId
from app.config.fields.fields import parse
from app.config.sources.redis import RedisSourceSettings
from app.events.limits import Limits
from app.events.parsing import Message, read_message
from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes import redis
from tests.contract.source_probes.redis_list import Elements
from tests.contract.source_probes.redis_stream import Entries
from tests.services import until
from tests.support import minio_life
from tests.support.pulled_events import Sources, messages, numbered, recorded, running, wait_for
from workers.sources.base import SourceChanged, SourceUnavailable
from workers.systems.redis.source import RedisSource

KEY = "bucketevents"
KEYS = ["a b.txt", "é/ü.txt", "c+d", "e%2Ff", "g", "h/", "i&<j>"]


@pytest.fixture(scope="module")
def served() -> Iterator[Elements]:
    with Elements.alone() as probe:
        yield probe


@pytest.fixture
def elements(served: Elements) -> Elements:
    """A list, on a server that has nothing else."""
    served.renew()
    return served


@pytest.fixture
def entries(elements: Elements) -> Entries:
    """A stream, on the same server."""
    target = redis.Stream.__new__(redis.Stream)
    target.server = elements.server
    return Entries(target)


def source_of(probe: Elements, **more: str) -> RedisSource:
    """A source, not opened yet."""
    return RedisSource(parse(RedisSourceSettings, {**probe.values(), **more}))


def texts(pulled: Any) -> list[bytes]:
    return [message.body for message in pulled]


def left(probe: Elements) -> list[bytes]:
    found: list[bytes] = probe.target.ask("LRANGE", KEY, "0", "-1")
    return found


# ---------------------------------------------------------------- a list


def test_a_worker_that_has_lost_its_lease_removes_only_what_it_has_recorded(elements: Elements) -> None:
    elements.send([b"1", b"2", b"3", b"4"])
    with closing(source_of(elements)) as stopped, closing(source_of(elements)) as next_one:
        stopped.open({})
        old = stopped.pull(2, 0.1)
        next_one.open({})
        pulled = next_one.pull(3, 0.1)
        assert (texts(old), texts(pulled)) == ([b"1", b"2"], [b"1", b"2", b"3"])
        next_one.commit(pulled[:1])
        with pytest.raises(SourceChanged):
            stopped.commit(old)  # "2" at the head is not "1": it removes nothing
        assert left(elements) == [b"2", b"3", b"4"]
        assert texts(next_one.pull(9, 0.1)) == [b"4"]


def test_a_worker_before_whom_elements_were_removed_begins_at_the_head_again(elements: Elements) -> None:
    elements.send([b"1", b"2", b"3", b"4", b"5"])
    with closing(source_of(elements)) as stopped, closing(source_of(elements)) as next_one:
        stopped.open({})
        old = stopped.pull(2, 0.1)
        next_one.open({})
        pulled = next_one.pull(3, 0.1)
        stopped.commit(old)  # it had recorded them
        with pytest.raises(SourceChanged):
            next_one.pull(9, 0.1)  # not "5" before "4"
        with pytest.raises(SourceChanged):
            next_one.commit(pulled)
        assert left(elements) == [b"3", b"4", b"5"]
        next_one.open({})
        next_one.commit(pulled)  # of before it was opened again: they are pulled again
        assert texts(next_one.pull(9, 0.1)) == [b"3", b"4", b"5"]


def test_equal_elements_are_one_event_and_both_are_removed(elements: Elements, database: Database) -> None:
    sources, events = Sources(database), numbered(2)
    first, second = messages(events)
    elements.send([first, first, second, first])
    source = sources.put("redis", elements.values())
    with running(database):
        wait_for(database, events)
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    assert recorded(database) == [one.id for one in events]
    assert (sources.stored(source).messages, sources.stored(source).repeated) == (4, 2)
    assert left(elements) == []


@pytest.mark.promise
def test_what_is_left_of_a_list_that_is_trimmed_while_it_is_pulled_is_recorded_once_and_in_order(
    elements: Elements, database: Database
) -> None:
    sources, events = Sources(database), numbered(400)
    source = sources.put("redis", {**elements.values(), "batch_size": "5"})
    elements.send(messages(events[:300]))
    with running(database):
        until(lambda: len(recorded(database)) > 20, what="progress")
        elements.target.ask("LTRIM", KEY, "-100", "-1")
        elements.send(messages(events[300:]))
        wait_for(database, events[200:])
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    before = len(recorded(database)) - 200
    ids = [one.id for one in events]
    assert recorded(database) == ids[:before] + ids[200:]
    assert left(elements) == []


def test_large_elements_are_read_a_few_at_a_time(elements: Elements) -> None:
    elements.send([bytes([number]) * (1 << 18) for number in range(40)])
    with closing(source_of(elements)) as source:
        source.open({})
        source.commit(source.pull(5, 0.1))
        sizes = []
        while pulled := source.pull(1000, 0.1):
            source.commit(pulled)
            sizes.append(len(pulled))
    assert (sum(sizes), max(sizes)) == (35, 16)


def test_a_key_of_another_type_is_named_and_left_alone(elements: Elements) -> None:
    elements.target.ask("SET", KEY, "x")
    with closing(source_of(elements)) as source, pytest.raises(SourceUnavailable, match="holds a string"):
        source.open({})
    with closing(source_of(elements, password="wrong")) as source, pytest.raises(SourceUnavailable, match="password"):
        source.open({})


# ---------------------------------------------------------------- a stream


def groups(probe: Elements) -> dict[bytes, Any]:
    """What XINFO GROUPS says of the only group."""
    found = probe.target.ask("XINFO", "GROUPS", KEY)
    return dict(zip(found[0][::2], found[0][1::2], strict=True)) if found else {}


def test_the_group_shows_how_many_entries_wait(entries: Entries, database: Database) -> None:
    sources, events = Sources(database), numbered(20)
    source = sources.put("redis", {**entries.values(), "batch_size": "3"})
    entries.send(messages(events[:10]))
    with running(database):
        wait_for(database, events[:10])
        until(lambda: groups(entries).get(b"lag") == 0, what="no lag of the group")
        sources.registry.pause(source, "")
        until(lambda: sources.stored(source).lease_token == "", what="a released source")
        entries.send(messages(events[10:]))
        assert groups(entries)[b"lag"] == 10
        sources.registry.resume(source)
        wait_for(database, events)


def test_entries_that_were_trimmed_are_counted_and_those_after_them_are_pulled(
    entries: Entries, database: Database
) -> None:
    sources, events = Sources(database), numbered(9)
    source = sources.put("redis", entries.values())
    entries.send(messages(events[:2]))
    with running(database):
        wait_for(database, events[:2])
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    entries.send(messages(events[2:6]))
    entries.target.ask("XTRIM", KEY, "MAXLEN", "1")
    with running(database):
        wait_for(database, events[5:6])
        assert sources.stored(source).notice == "3 entries were removed before they were pulled"
        sources.registry.resume(source)
        entries.target.ask("EVAL", REPLACED, "1", KEY, *messages(events[6:8]))
        wait_for(database, events[7:8])
        until(lambda: "1 entries" in sources.stored(source).notice, what="a notice of what was lost meanwhile")
    assert recorded(database) == [one.id for one in [*events[:2], events[5], events[7]]]


REPLACED = """
redis.call('XADD', KEYS[1], '*', 'body', ARGV[1])
redis.call('XADD', KEYS[1], 'MAXLEN', '1', '*', 'body', ARGV[2])
"""


@pytest.mark.parametrize("how", ["DEL", "XDEL"])
def test_a_stream_that_is_another_one_is_pulled_from_its_beginning(
    entries: Entries, database: Database, how: str
) -> None:
    sources, events = Sources(database), numbered(6)
    source = sources.put("redis", entries.values())
    entries.send(messages(events[:3]))
    with running(database):
        wait_for(database, events[:3])
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    if how == "DEL":
        entries.target.ask("DEL", KEY)
        entries.send(messages(events[3:5]))
    else:  # as after a failover that has lost what was added last
        [_, [id_, _]] = entries.target.ask("XREVRANGE", KEY, "+", "-", "COUNT", "2")[::-1]
        entries.target.ask("XDEL", KEY, id_)
        entries.send(messages(events[3:5]))
    with running(database):
        wait_for(database, events[:5])
        assert "pulled from its beginning" in sources.stored(source).notice
        sources.registry.resume(source)
        entries.send(messages(events[5:]))
        wait_for(database, events)
        assert sources.stored(source).notice == ""
    assert recorded(database) == [one.id for one in events]


def test_a_new_source_may_begin_with_what_comes_from_then_on(entries: Entries, database: Database) -> None:
    sources, events = Sources(database), numbered(4)
    entries.send(messages(events[:2]))
    source = sources.put("redis", {**entries.values(), "start": "latest"})
    with running(database):
        until(lambda: positions(sources, source) != {}, what="the position at which it begins")
        entries.send(messages(events[2:]))
        wait_for(database, events[2:])
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    assert recorded(database) == [one.id for one in events[2:]]
    assert sources.stored(source).notice == ""


def positions(sources: Sources, source: SourceId) -> dict[str, str]:
    return sources.registry.positions(sources.stored(source))


def test_an_entry_without_the_field_is_kept_as_rejected(entries: Entries, database: Database) -> None:
    sources, events = Sources(database), numbered(2)
    source = sources.put("redis", {**entries.values(), "field": "event"})
    first, second = messages(events)
    for words in (("event", first), ("other", "x", "é", b"\xff"), ("event", second, "event", second)):
        entries.target.ask("XADD", KEY, "*", *words)
    with running(database):
        wait_for(database, events)
        until(lambda: sources.stored(source).rejected == 1, what="a rejected message")
    [one] = sources.rejected.page(sources.stored(source), limit=9)
    kept = sources.rejected.message(sources.stored(source), one.number)
    assert orjson.loads(kept.body) == {"other": "x", "é": "\ufffd"}


def test_an_entry_with_any_id_is_kept(entries: Entries, database: Database) -> None:
    sources = Sources(database)
    source = sources.put("redis", entries.values())
    entries.target.ask("XADD", KEY, f"{2**64 - 1}-{2**64 - 1}", "body", "{")
    with running(database):
        until(lambda: sources.stored(source).rejected == 1, what="a rejected message")
        until(lambda: sources.stored(source).lag == 0, what="no lag")


# ---------------------------------------------------------------- both


RIGHTS = {
    "access": "+type +lrange +ltrim +llen +blmove +eval",
    "stream": "+type +xread +xrange +xinfo|stream +xgroup",
}


@pytest.mark.parametrize("kind", RIGHTS)
def test_a_user_with_the_documented_rights_pulls(elements: Elements, kind: str) -> None:
    with closing(elements.server.client()) as client:
        client.acl_setuser(
            "puller", enabled=True, passwords=["+s3cret"], keys=[KEY], reset=True,
            commands=[*RIGHTS[kind].split(), "+client|setname"],
        )  # fmt: skip
        for text in ("1", "2"):
            client.rpush(KEY, text) if kind == "access" else client.xadd(KEY, {"body": text})
        with closing(source_of(elements, user="puller", password="s3cret", format=kind)) as source:
            source.open({})
            assert source.lag() == 2
            pulled = source.pull(1, 0.1)
            source.commit(pulled)
            assert source.lag() == 1
            pulled += source.pull(9, 0.1)
            source.commit(pulled[1:])
            assert (texts(pulled), source.lag(), source.pull(9, 0.1)) == ([b"1", b"2"], 0, [])
        client.acl_setuser("puller", enabled=True, commands=["-type"])
        with closing(source_of(elements, user="puller", password="s3cret", format=kind)) as source:
            with pytest.raises(SourceUnavailable) as refused:
                source.open({})
            assert RIGHTS[kind].partition(" +xgroup")[0] in str(refused.value)


@pytest.mark.promise
@pytest.mark.parametrize("kind", ["access", "stream"])
def test_a_redis_that_is_back_with_an_older_state_repeats_some_and_loses_nothing(database: Database, kind: str) -> None:
    sources, events = Sources(database), numbered(40)
    with services.redis() as server, closing(server.client()) as client:

        def send(some: slice) -> None:
            for body in messages(events[some]):
                client.rpush(KEY, body) if kind == "access" else client.xadd(KEY, {"body": body})

        address = f"{services.LOOPBACK}:{server.port}"
        source = sources.put("redis", {"address": address, "key": KEY, "format": kind})
        send(slice(20))
        client.save()
        with running(database):
            wait_for(database, events[:20])
            send(slice(20, 30))
            wait_for(database, events[:30])
            server.kill()
            server.start()
            send(slice(30, 40))
            wait_for(database, events)
            until(lambda: sources.stored(source).lag == 0, what="no lag")
    assert recorded(database) == [one.id for one in events]
    assert (sources.stored(source).recorded, sources.stored(source).repeated) == (40, 20)
    assert ("pulled from its beginning" in sources.stored(source).notice) == (kind == "stream")


@pytest.mark.parametrize("kind", ["access", "stream"])
def test_a_redis_that_may_remove_the_key_is_named(elements: Elements, database: Database, kind: str) -> None:
    sources, [event] = Sources(database), numbered(1)
    with closing(elements.server.client()) as client:

        def risk() -> str:
            with closing(source_of(elements, format=kind)) as source:
                return "; ".join(source.open({}).risks)

        client.config_set("maxmemory-policy", "allkeys-lru")
        assert risk() == ""  # there is no limit
        client.config_set("maxmemory", "100mb")
        assert re.fullmatch("Redis has maxmemory-policy allkeys-lru, .* set noeviction", risk())
        client.config_set("maxmemory-policy", "noeviction")
        assert risk() == ""
        client.config_set("maxmemory", "0")
        [text] = messages([event])
        client.rpush(KEY, text, text) if kind == "access" else client.xadd(KEY, {"body": text})
        client.expire(KEY, 1000)
        source = sources.put("redis", {**elements.values(), "format": kind})
        with running(database):
            until(lambda: "the key expires" in sources.stored(source).reason, what="a warning")
            wait_for(database, [event])
        assert risk() == "" if kind == "access" else "PERSIST" in risk()  # a list that is empty is none


# ---------------------------------------------------------------- what fills it


def test_what_minio_appends_is_recorded_as_what_its_webhook_gets(elements: Elements, database: Database) -> None:
    target = {"ADDRESS": elements.values()["address"], "PASSWORD": services.PASSWORD, "KEY": KEY, "FORMAT": "access"}
    environ = {f"MINIO_NOTIFY_REDIS_{key}_R": value for key, value in (target | {"ENABLE": "on"}).items()}
    with services.receiver() as reference:
        with services.minio(webhooks={"W": (reference.url, "")}, extra_env=environ) as minio:
            names = ("W:webhook", "R:redis")
            minio_life.live(minio, names, KEYS, lambda n: until(lambda: len(left(elements)) >= n, what=f"{n} elements"))
        posts = [Message(post.body) for post in reference.requests() if post.method == "POST"]
    events = [event for post in posts for event in read_message(post, Limits(), None).events]
    Sources(database).put("redis", elements.values())
    with running(database):
        wait_for(database, events)
    assert recorded(database) == [one.id for one in events]
