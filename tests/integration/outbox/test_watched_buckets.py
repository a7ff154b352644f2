"""What is known of a watched bucket, in the outbox: one holder, whose commits change it with the events found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import SourceId
from app.events.model import Event
from app.events.order import comparable
from app.events.own_events import DELETE
from app.listings import snapshot
from app.listings.comparison import Chunk, Replacement, compared
from app.listings.differences import Content, Counts, Entry, Listed
from app.listings.limits import BadListing
from app.outbox import log_head, tables
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.database import Database
from app.outbox.log.append import Log, Receipt
from app.outbox.log.retention import purge
from app.outbox.reconcile.runs import BACKFILLED
from app.outbox.sources import watched
from app.outbox.sources.intake import TargetFull
from app.outbox.sources.watched import WatchedBuckets, read_watched
from tests.support import databases
from tests.support.builders import PUT, add_target, event, registry
from tests.support.older_state import older_state
from tests.support.pulled_events import recorded
from tests.support.query_cost import query_cost
from tests.support.rows_read import rows_read
from tests.support.watched_bucket import SETTINGS, SOURCE, Known

DAY, HOUR = 86_400_000, 3_600_000
pytestmark = databases.THREE


@pytest.fixture
def known(database: Database) -> Known:
    return Known(database)


def test_chunks_come_in_the_order_of_utf8_and_change_with_the_events_of_their_keys(known: Known) -> None:
    firsts = ["b", "a", "\U0001f600", "\uffff", "B"]
    for number, first in enumerate(firsts, 1):
        known.add(number, first)
    assert [chunk.first for chunk in known.watched.chunks(known.lease)] == ["B", "a", "b", "\uffff", "\U0001f600"]
    found = [event("a"), event("c")]
    known.add(6, "c", *found, removed=(1, 2))
    assert [chunk.first for chunk in known.watched.chunks(known.lease)] == ["B", "c", "\uffff", "\U0001f600"]
    assert known.watched.body(known.lease, 6) == b"ccc"
    assert recorded(known.database) == [one.id for one in found]
    assert known.sources.stored(SOURCE).recorded == 2


def test_who_has_lost_the_lease_writes_neither_chunks_nor_events(known: Known) -> None:
    known.add(1, "a")
    known.sources.registry.resume(SOURCE)  # revokes it
    other = known.claim()
    for events in ([], [event("a")]):
        with pytest.raises(LeaseLost):
            known.replace(Replacement([1], [(2, "b", b"b")], events))
    with pytest.raises(LeaseLost):
        known.finish(1)
    with pytest.raises(LeaseLost):
        known.watched.ask(known.lease, 5, "reason")
    assert recorded(known.database) == []
    assert [chunk.number for chunk in known.watched.chunks(other)] == [1]
    with pytest.raises(LeaseLost):
        known.watched.body(other, 2)


def test_a_listing_is_not_compared_with_an_older_state_of_the_outbox(known: Known) -> None:
    """Its chunks are not those that were read, and events that are recorded since have seqs that others had."""
    Log(known.database).append([[event("lost before")]])
    known.add(1, "a")
    found = Replacement([1], [(2, "b", b"b")], [event("found")], Counts(created=1))
    with older_state(known.database):
        Log(known.database).append([[event("lost")]])
        run = known.run(None, 5)
    since = event("since")
    Log(known.database).append([[since]])  # at the seq of the lost one
    with known.database.writing() as connection:
        log_head.begin_epoch(connection, "restored")
    refused = (
        lambda: known.watched.replace(known.lease, found, run),
        lambda: known.watched.replace(known.lease, Replacement([1], [(2, "b", b"b")]), run),
        lambda: known.watched.finish(known.lease, run, Counts(), store_time=0, due_at=9),
    )
    for write in refused:
        with pytest.raises(LeaseLost, match="it was restored, or has failed over"):
            write()
    assert recorded(known.database)[1:] == [since.id]
    assert [chunk.number for chunk in known.watched.chunks(known.lease)] == [1]
    assert not known.watched.state(known.lease).complete


def test_an_outbox_without_the_last_event_or_a_chunk_is_an_older_state_though_nobody_has_said_so(known: Known) -> None:
    with older_state(known.database):
        Log(known.database).append([[event("lost")]])
        known.add(1, "a")
        run = known.run(None, 5)
    for replacement in (Replacement([], [(2, "b", b"b")]), Replacement([], [], [event("found")])):
        with pytest.raises(LeaseLost, match="it was restored, or has failed over"):
            known.watched.replace(known.lease, replacement, run)
    with pytest.raises(LeaseLost):
        known.replace(Replacement([1], [(2, "b", b"b")]))
    assert (recorded(known.database), known.watched.chunks(known.lease)) == ([], [])


def test_a_full_target_takes_neither_events_nor_chunks(known: Known) -> None:
    add_target(known.database, queue_limit="1", queue_full="reject")
    before = event("c")
    Log(known.database).append([[before]])
    with pytest.raises(TargetFull) as full:
        known.add(1, "a", event("a"), event("b"))
    assert not full.value.never
    assert (recorded(known.database), known.watched.chunks(known.lease)) == ([before.id], [])


def test_more_events_than_a_commit_may_have_are_recorded_by_several_and_once(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chunk is replaced by the last; until then they explain what was found."""
    target = add_target(known.database, queue_limit="3", queue_full="reject")
    monkeypatch.setattr(watched, "_MAX_COMMITTED", 2)
    events = [event("k", version=f"v{number}") for number in range(5)]
    found = Replacement([], [(1, "k", snapshot.encode([Entry("k", "v0", None)]))], events, Counts(created=5))
    for _ in range(2):
        with pytest.raises(TargetFull):
            known.replace(found)
        assert recorded(known.database) == [one.id for one in events[:2]]
        assert (known.watched.chunks(known.lease), known.watched.state(known.lease).created) == ([], 0)
    registry(known.database).remove(target, force=True)
    receipt = known.replace(found)
    assert (receipt.recorded, receipt.repeated) == (3, 2)
    assert recorded(known.database) == [one.id for one in events]
    assert (len(known.watched.chunks(known.lease)), known.watched.state(known.lease).created) == (1, 5)


def test_an_event_between_the_commits_of_a_key_puts_off_the_rest_of_it(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_MAX_COMMITTED", 2)
    entries = [Entry("j", "v", Content("e", 1, 1)), *(Entry("k", f"v{number}", None) for number in range(5))]
    known.replace(Replacement([], [(1, "j", snapshot.encode(entries))]))
    events = [event("j", version="w"), *(event("k", version=f"v{number}") for number in range(5))]
    reported = event("k", version="v4")._replace(id="reported".ljust(32, "-"))
    commit = watched.WatchedBuckets._commit  # private, to come between two commits

    def interrupted(self: WatchedBuckets, *arguments: Any) -> Receipt:
        receipt = commit(self, *arguments)
        if receipt.recorded:
            Log(known.database).append([[reported]])
        return receipt

    monkeypatch.setattr(watched.WatchedBuckets, "_commit", interrupted)
    now = [entry._replace(known=Content("e", 1, 1)) for entry in entries]
    found = Replacement([1], [(2, "j", snapshot.encode(now))], events, Counts(created=6))
    known.replace(found)
    assert recorded(known.database) == [*(one.id for one in events[:2]), reported.id]
    [chunk] = known.watched.chunks(known.lease)
    assert snapshot.decode(known.watched.body(known.lease, chunk.number)) == entries
    assert known.watched.state(known.lease).created == 2


def test_the_events_of_a_key_are_those_that_every_target_gets_and_that_change_its_content(known: Known) -> None:
    log = Log(known.database)
    first, tagged, second = event("k"), event("k", name="s3:ObjectCreated:PutTagging"), event("k", version="v2")
    repair = event("k")
    repair = repair._replace(record=repair.record.replace('"x-amz-request-id"', '"x-bucketwire-target"'))
    other = event("k", bucket="other")
    log.append([[first, tagged, second, repair, other, event("l")]])
    [logged] = known.watched.logged("images", {"k": (), "m": ()})
    assert [(one.entry.name, one.entry.version) for one in logged["k"]] == [(PUT, ""), (PUT, "v2")]
    assert logged["m"] == []
    keys = [key for some in known.watched.keys_since("images", "", 0) for key in some]
    assert sorted(keys) == ["k", "l"]
    seq = known.watched.log_state().last_seq
    log.append([[event("later"), event("no/later")]])
    assert [*known.watched.keys_since("images", "la", seq)] == [{"later"}]


def test_a_key_with_an_event_that_the_listing_may_not_have_stays_as_it_was_known(known: Known) -> None:
    content = Content("a", 1, 1_000)
    entries = {key: Entry(key, "", content) for key in ("a", "b", "c")}
    old, new = snapshot.encode(entries.values()), snapshot.encode([entries["b"]])
    known.replace(Replacement([], [(1, "a", old)]))
    seq = known.watched.log_state().last_seq
    log, found = Log(known.database), [event("a"), event("c", version="v1")]
    early, other = event("a"), event("c", version="v2")
    log.append([[early, other]])
    look = known.watched._outdated

    def looked(events: Sequence[Event], *others: Any) -> set[str]:  # and then an event comes, before the commit
        keys = look(events, *others)
        log.append([[late]])
        return keys

    late = event("c", version="v1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known.watched, "_outdated", looked)
        counts = Counts(created=1, changed=1)
        receipt = known.replace(Replacement([1], [(2, "b", new)], found, counts), seq)
    assert receipt.recorded == 0
    state = known.watched.state(known.lease)
    assert (state.created, state.changed) == (0, 0)
    assert recorded(known.database) == [early.id, other.id, late.id]
    bodies = [known.watched.body(known.lease, chunk.number) for chunk in known.watched.chunks(known.lease)]
    assert [entry for body in bodies for entry in snapshot.decode(body)] == [*entries.values()]
    receipt = known.replace(Replacement([], [], found), None)
    assert receipt.recorded == 2


def test_no_more_events_are_read_at_once_than_memory_may_hold(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_MAX_LOGGED", 6)
    log, keys = Log(known.database), [f"k{number}" for number in range(8)]
    hot = [event("hot") for _ in range(20)]
    log.append([[event(key) for key in [*keys, *keys]], hot[::-1]])
    parts = [*known.watched.logged("images", dict.fromkeys([*keys[:4], "hot", *keys[4:], "none"], ()))]
    assert [key for part in parts for key in part] == [*keys[:4], "hot", *keys[4:], "none"]
    assert all(sum(map(len, part.values())) <= 6 for part in parts)
    found = {key: events for part in parts for key, events in part.items()}
    assert {key: len(events) for key, events in found.items()} == dict.fromkeys(keys, 2) | {"hot": 6, "none": 0}
    assert {one.entry.sequencer for one in found["hot"]} == {comparable(one.sequencer) for one in hot[-6:]}
    assert [one.entry.seq for one in found["hot"]] == sorted(one.entry.seq for one in found["hot"])


@pytest.mark.parametrize("outbox_url", ["mysql", "mariadb"], indirect=True)
def test_of_a_key_with_very_many_events_only_the_newest_are_read(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "_MAX_LOGGED", 6)
    read = []
    for _ in range(2):
        Log(known.database).append([[event("hot") for _ in range(1_000)]])
        with known.database.reading() as connection:
            connection.exec_driver_sql("ANALYZE TABLE events").all()
            before = rows_read(connection)
            assert len(connection.execute(watched._logged_events("images", ["hot"])).all()) == 7
            read.append(rows_read(connection) - before)
    assert read[1] < 1.2 * read[0]


@pytest.mark.parametrize("outbox_url", ["mysql", "mariadb"], indirect=True)
def test_the_events_of_very_many_versions_of_a_key_are_each_read_a_few_times(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "_MAX_LOGGED", 100)
    read, versions = [], list[str]()
    for _ in range(2):
        more = [f"v{len(versions) + number:05}" for number in range(2_500)]
        versions += more
        Log(known.database).append([[event("hot", version=version) for version in more]])
        with known.database.reading() as connection:
            connection.exec_driver_sql("ANALYZE TABLE events").all()
            newest = connection.execute(watched._logged_events("images", ["hot"])).all()[:100]
            before = rows_read(connection)
            of_key = watched._of_keys("images", ["hot"], watched._OF_ALL_TARGETS)
            older = watched._older_of_versions(connection, of_key, versions, newest)
            read.append(rows_read(connection) - before)
        assert {row.version for row in [*newest, *older]} == {*versions}
        assert len(older) == len(versions) - 100
    assert read[1] < 3 * read[0]


@pytest.mark.parametrize("named", [3, 1_000])
def test_a_version_that_was_reported_long_ago_is_explained(
    known: Known, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    monkeypatch.setattr(watched, "_MAX_LOGGED", 6)
    monkeypatch.setattr(watched, "_MAX_NAMED_VERSIONS", named)
    reported = [event("hot", version=f"v{number}") for number in range(20)]
    gone = event("hot", name=DELETE, version="v0")
    Log(known.database).append([[*reported, gone, *(event("hot", version=f"w{number}") for number in range(9))]])
    content, now = Content("a", 1, 1_000), known.clock()
    before = [Entry("hot", version, content) for version in ("v0", "v1")]
    listed = [Listed("hot", one.version, content, is_latest=one is reported[-1]) for one in reported[:0:-1]]
    listed += [Listed("hot", "never reported", content, is_latest=False)]
    parts = compared(
        [Chunk(1, "hot")],
        read=lambda _: snapshot.encode(before),
        logged=lambda versions: known.watched.logged("images", versions),
        listed=listed,
        recent=["hot"],
        run=known.run(None, now, versioned=True),
        numbers=iter(range(2, 9)),
        most=99,
    )
    [part] = parts
    found = [one.version for one in part.replacement().events if one.version[0] != "w"]
    assert (found, part.counts.explained) == (["never reported"], 19)


def test_the_event_that_an_object_is_compared_with_says_what_it_has(known: Known) -> None:
    older, newer = (event("k", sequencer=place) for place in ("18E9E833E5D3", "18E9E833E5D4"))
    newer = newer._replace(record=newer.record.replace('"key"', '"eTag":"e","size":3,"key"'))
    Log(known.database).append([[newer, older, event("gone"), event("gone", name=DELETE)]])
    [logged] = known.watched.logged("images", {"k": (), "gone": ()})
    assert [(one.etag, one.size) for one in logged["k"]] == [("e", 3), (None, None)]
    assert [(one.etag, one.size) for one in logged["gone"]] == [(None, None), (None, None)]


def test_listings_are_counted_and_an_approval_is_asked_for_once(known: Known) -> None:
    Log(known.database).append([[event(f"{number}") for number in range(7)]])
    known.watched.count_requests(known.lease, 9)  # nothing is noted of it yet
    known.finish(1_000, objects=5, known=5, created=2, explained=1)
    known.watched.count_requests(known.lease, 1)
    known.finish(2_000, objects=6, known=5, removed=1, pending=3)
    state = known.watched.state(known.lease)
    assert (state.complete, state.began_at, state.ended_at, state.seq, state.due_at) == (True, 2_000, 2_005, 7, 62_000)
    assert (state.objects, state.pending, state.listings, state.requests) == (6, 3, 2, 1)
    assert (state.created, state.changed, state.removed, state.explained) == (2, 0, 1, 1)
    assert known.sources.stored(SOURCE).lag == 3
    known.watched.ask(known.lease, 40, "too many")
    stored = known.sources.stored(SOURCE)
    assert (stored.paused, stored.reason) == (True, "too many")
    known.sources.registry.resume(SOURCE)
    known.watched.count_requests(known.lease, 3)  # of a listing that has lost its lease
    known.lease = known.claim()
    state = known.watched.state(known.lease)
    assert (state.asked, state.requests) == (40, 4)
    assert 62_000 < state.due_at <= known.clock()
    known.finish(3_000, pending=41, going=40)
    assert known.watched.state(known.lease).asked == 40
    known.finish(4_000, removed=40, pending=1)
    assert known.watched.state(known.lease).asked == 0


def test_what_a_listing_that_is_due_needs_stays_in_the_log_for_a_day_at_most(known: Known) -> None:
    log, now = Log(known.database), known.clock()
    log.append([[event("listed"), event("other", bucket="other")]])
    run = known.run(None, now)
    kept = [event("a"), event("b")]
    log.append([[*kept, event("c", bucket="other")]])

    def list_it(due_at: int) -> None:
        known.watched.finish(known.lease, run, Counts(), store_time=0, due_at=due_at)

    list_it(now - DAY + HOUR)
    assert purge(known.database, now + HOUR) == 3
    assert recorded(known.database) == [one.id for one in kept]
    list_it(now - DAY - HOUR)
    assert purge(known.database, now + HOUR) == 2
    known.sources.registry.resume(SOURCE)
    log.append([[event("d")]])
    assert purge(known.database, now + HOUR) == 0


def test_what_left_the_log_during_a_pause_is_not_forgotten_when_the_source_is_resumed(known: Known) -> None:
    w, registry = tables.watched_buckets, known.sources.registry

    def complete_since() -> int:
        """Counted from now, in days; 0: since the last listing."""
        now = known.clock()
        since = known.watched.state(known.lease).complete_since(now, 7 * DAY)
        return round((since - now) / DAY) if since else 0

    def paused_for(milliseconds: int) -> None:
        """Wait so long, and resume."""
        registry.pause(SOURCE, "")
        state = known.watched.state(known.lease)
        times = {name: getattr(state, name) for name in ("due_at", "began_at", "lapsed_at")}
        with known.database.writing() as connection:
            connection.execute(w.update().values({name: at - milliseconds for name, at in times.items() if at}))
        registry.resume(SOURCE)
        known.lease = known.claim()

    assert complete_since() == -7  # no listing has begun
    known.watched.begin(known.lease, "images")
    paused_for(2 * DAY)
    assert complete_since() == -7  # nothing was kept for a day
    known.finish(known.clock())
    assert complete_since() == 0
    paused_for(DAY - HOUR)
    assert complete_since() == 0
    for _ in range(2):  # the second time is soon enough, and what was lost is lost
        paused_for(DAY + HOUR)
        assert complete_since() == -7
        paused_for(DAY - HOUR)
        assert complete_since() == -8
    known.finish(known.clock())
    assert complete_since() == 0


def test_what_a_first_listing_needs_stays_in_the_log_for_a_day_at_most(known: Known) -> None:
    log, now, w = Log(known.database), known.clock(), tables.watched_buckets
    kept = [event("a"), event("b")]
    log.append([[kept[0], event("c", bucket="other")]])
    for _ in range(2):  # the second is another try, and changes nothing
        known.watched.begin(known.lease, "images")
        before = known.watched.state(known.lease)
        assert (before.bucket, before.complete, before.seq) == ("images", False, 0)
        assert now <= before.began_at <= known.clock()
    log.append([[kept[1]]])
    assert purge(known.database, now + HOUR) == 1
    assert recorded(known.database) == [one.id for one in kept]
    for due_at, began_at, removed in ((now - DAY + HOUR, now - 2 * DAY, 0), (now - 2 * DAY, now - DAY - HOUR, 2)):
        with known.database.writing() as connection:
            connection.execute(w.update().values(due_at=due_at, began_at=began_at))
        known.watched.begin(known.lease, "images")
        assert purge(known.database, now + HOUR) == removed


def test_a_first_listing_begins_with_a_backfill_whose_events_the_log_has_without_doubt(known: Known) -> None:
    """An event that stays for another reason, such as a dead letter, says nothing of younger ones."""
    log, now, w = Log(known.database), known.clock(), tables.watched_buckets
    log.append([[event("old")]])
    with known.database.writing() as connection:
        connection.execute(tables.events.update().values(received_at=now - 30 * DAY))

    def backfilled(began: int) -> None:
        values = {
            "run": f"{began:032}", "type": "redis", "name": "x", "bucket": "images", "state": BACKFILLED, "report": "",
            "started_at": began, "alive_until": began, "finished_at": began + HOUR, "problem": "",
        }  # fmt: skip
        with known.database.writing() as connection:
            connection.execute(tables.reconciliations.insert().values(**values))

    def problem(prefix: str = "") -> str:
        try:
            known.watched.check_backfill(known.lease, "images", prefix, 7 * DAY)
        except BadListing as error:
            return str(error).partition("with: ")[2].partition(";")[0]
        return ""

    assert problem() == "none has ended"
    backfilled(now - 7 * DAY - HOUR)
    assert problem() == "its events may have left the log"
    known.watched.begin(known.lease, "images")
    for began_at, found in ((now - 2 * HOUR, ""), (now - DAY - HOUR, "its events may have left the log")):
        with known.database.writing() as connection:
            connection.execute(w.update().values(began_at=began_at))
        assert problem("a/") == found
    backfilled(now - DAY)
    assert problem() == ""
    costs = []
    for count in (250, 2_500):
        log.append([[event(f"k{number}") for number in range(count)]])
        with query_cost(known.database) as cost:
            assert problem() == ""
        costs.append(cost.rows)
    assert costs[1] < costs[0] + 100


def test_a_source_that_the_environment_disables_keeps_events_for_a_day_however_often_processes_start(
    known: Known,
) -> None:
    registry, source = known.sources.registry, SourceId("bucket", "env")
    registry.sync_environment({source: {"enable": "on", **SETTINGS}}, ())
    lease = known.leases.claim(known.sources.stored(source), known.clock())
    assert lease is not None
    known.lease = lease
    known.finish(1_000)
    off = {source: {"enable": "off", **SETTINGS}}
    for _ in range(2):
        registry.sync_environment(off, ())
        with known.database.reading() as connection:
            assert read_watched(connection)[lease.stored.row_id].due_at == 61_000
    registry.sync_environment({source: {"enable": "on", **SETTINGS}}, ())
    with known.database.reading() as connection:
        assert read_watched(connection)[lease.stored.row_id].due_at > 61_000


def test_invalid_settings_of_the_environment_for_a_while_forget_nothing(known: Known) -> None:
    registry, source = known.sources.registry, SourceId("bucket", "env")
    valid, misspelt = {"enable": "on", **SETTINGS}, {"enable": "on", "endpoint": SETTINGS["endpoint"], "bukket": "x"}
    registry.sync_environment({source: valid}, ())
    lease = known.leases.claim(known.sources.stored(source), known.clock())
    assert lease is not None
    known.lease = lease
    known.finish(1_000, objects=5)
    registry.sync_environment({source: misspelt}, {source})
    assert known.sources.state(source) == "disabled"
    registry.sync_environment({source: valid}, ())
    with known.database.reading() as connection:
        assert read_watched(connection)[lease.stored.row_id].objects == 5


def test_another_bucket_and_a_removed_source_are_forgotten(known: Known) -> None:
    known.add(1, "a")
    known.finish(1_000)
    known.sources.put("bucket", {**SETTINGS, "every": "1m"})
    known.lease = known.claim()
    assert len(known.watched.chunks(known.lease)) == 1
    assert 61_000 < known.watched.state(known.lease).due_at <= known.clock()
    known.sources.put("bucket", {**SETTINGS, "bucket": "others"})
    known.lease = known.claim()
    assert known.watched.chunks(known.lease) == []
    assert not known.watched.state(known.lease).complete
    known.add(1, "a")
    known.finish(1_000)
    known.sources.registry.remove(SOURCE)
    with known.database.reading() as connection:
        assert read_watched(connection) == {}
        assert connection.execute(sa.select(tables.watched_chunks.c.number)).all() == []


def test_what_was_found_is_counted_with_its_events_also_if_the_listing_never_ends(known: Known) -> None:
    target = add_target(known.database, queue_limit="1", queue_full="reject")
    found = Replacement([], [], [event("a"), event("b"), event("c")], Counts(created=3))
    Log(known.database).append([[event("a")]], routed=False)  # since the listing began
    for _ in range(3):
        with pytest.raises(TargetFull):
            known.replace(found)
        assert known.watched.state(known.lease).created == 0
    registry(known.database).remove(target, force=True)
    known.replace(found)
    state = known.watched.state(known.lease)
    assert (state.created, state.found_since_yesterday(known.clock())) == (2, 2)
    assert (state.complete, state.listings, state.due_at) == (False, 0, 0)
    gone = Replacement([], [], [event("d", name=DELETE)], Counts(removed=1))
    known.replace(gone, None)
    counts = Counts(created=2, removed=1, explained=4)
    known.watched.finish(known.lease, known.run(), counts, store_time=0, due_at=4)
    state = known.watched.state(known.lease)
    assert (state.created, state.removed, state.explained, state.listings) == (2, 1, 4, 1)


def test_the_days_findings_are_those_of_today_and_yesterday(known: Known) -> None:
    known.finish(1, created=2, removed=1, explained=1)
    known.finish(2, changed=4)
    state, now = known.watched.state(known.lease), known.clock()
    assert state.found_since_yesterday(now) == 7
    assert state.found_since_yesterday(now + DAY) == 7
    assert state.found_since_yesterday(now + 2 * DAY) == 0
    w = tables.watched_buckets
    with known.database.writing() as connection:
        connection.execute(w.update().values(day=w.c.day - 1))
    known.finish(3, created=1)
    state = known.watched.state(known.lease)
    assert (state.found_on_day, state.found_before, state.found_since_yesterday(now)) == (1, 7, 8)
