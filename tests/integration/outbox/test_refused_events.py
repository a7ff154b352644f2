"""One event that the database refuses: it is refused or quarantined by itself, and everything else is recorded."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.settings import Settings
from app.events.model import Event
from app.outbox import tables
from app.outbox.engine.database import VALUE_ERRORS, Database, DatabaseUnavailable
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import GroupCommit, Recorder
from app.outbox.log.spool import Spool, SpoolFeeder, decoded
from app.outbox.reconcile.log_queries import unchanged_since
from app.server.application import create_app
from tests import services
from tests.support import databases
from tests.support.builders import add_target, event, migrated
from tests.support.refused_events import refuse_poison

pytestmark = databases.TWO


def recorded(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.events.c.id).order_by(tables.events.c.seq)).scalars())


def together(commits: GroupCommit, requests: list[list[Event]]) -> list[Receipt | QueueFull | BaseException]:
    """What each of several requests is answered that come at the same time."""

    def append(events: list[Event]) -> Receipt | QueueFull | BaseException:
        try:
            return commits.append(events, 60)
        except (*VALUE_ERRORS, *DatabaseUnavailable) as error:
            return error

    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(append, requests))


def large(size: int) -> Event:
    """An event whose record has about `size` bytes."""
    one = event("large")
    return one._replace(record=f'{one.record[:-1]},"pad":"{"x" * size}"}}')


@databases.ALL
def test_an_event_that_the_database_refuses_fails_its_own_request_only(database: Database) -> None:
    refuse_poison(database)
    commits = GroupCommit(database)
    requests = [[event(f"{number}"), event(f"{number}b")] for number in range(20)]
    requests[7] = [event("good"), event("poison")]
    answers = together(commits, requests)
    assert isinstance(answers.pop(7), VALUE_ERRORS)
    assert answers == [Receipt(recorded=2)] * 19
    assert len(recorded(database)) == 38
    assert commits.append([event("after")]) == Receipt(recorded=1)


@databases.ALL
def test_events_are_not_to_blame_while_the_database_takes_no_event_at_all(database: Database) -> None:
    refuse_poison(database, column="seq", value="NEW.seq")  # which is so of every row
    answers = list(Recorder(database).record([[event("a")], [event("b")]]))
    assert len(answers) == 2
    assert all(isinstance(answer, sa.exc.DBAPIError) for answer in answers), answers
    assert recorded(database) == []


@databases.ALL
def test_an_event_that_the_database_refuses_is_quarantined_and_the_rest_is_fed_in_order(
    database: Database, tmp_path: Path
) -> None:
    refuse_poison(database)
    spool = Spool(tmp_path / "spool")
    requests = [[event(f"{number}-{place}") for place in range(5)] for number in range(4)]
    poison = event("poison")
    for number, events in enumerate(requests):
        spool.append([*events[:2], poison, *events[2:]] if number == 1 else events)
    bad = spool.quarantined / f"{spool.files()[1].stem}.bad"
    feeder = SpoolFeeder(spool, database)
    feeder.feed()
    assert recorded(database) == [one.id for events in requests for one in events]
    assert not spool.pending()
    assert spool.damaged() == 1
    assert list(decoded(bad.read_bytes())) == [poison]
    assert "it is refused" in bad.with_suffix(".reason").read_text()
    spool.append([event("after")])
    assert feeder.feed() == 1


def test_events_that_the_database_refuses_are_quarantined_by_themselves_wherever_they_stand(
    database: Database, tmp_path: Path
) -> None:
    refuse_poison(database)
    spool = Spool(tmp_path / "spool")
    events = [event("poison" if number in (0, 1, 6, 10) else f"{number}") for number in range(11)]
    spool.append(events)
    [bad] = [spool.quarantined / f"{path.stem}.bad" for path in spool.files()]
    SpoolFeeder(spool, database).feed()
    assert recorded(database) == [one.id for one in events if one.key != "poison"]
    assert list(decoded(bad.read_bytes())) == [one for one in events if one.key == "poison"]


def test_a_full_disk_under_the_spool_folder_does_not_keep_a_refused_event_in_the_way(
    postgres_outbox: str, tmp_path: Path
) -> None:
    """There is no room to write down what is refused, and none is made unless the files behind are fed."""
    database = migrated(postgres_outbox)
    refuse_poison(database)
    spool = Spool(tmp_path / "spool")
    before, poison, beside, unreadable, after = (event(key) for key in ("a", "poison", "b", "c", "d"))
    for events in ([before], [poison, beside], [unreadable], [after]):
        spool.append(events)
    mixed, damaged = spool.files()[1:3]
    damaged.write_bytes(b"damaged")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))  # no byte can be written any more
    try:
        SpoolFeeder(spool, database).feed()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert recorded(database) == [before.id, beside.id, after.id]
    assert not spool.pending()
    assert list(decoded((spool.quarantined / f"{mixed.stem}.bad").read_bytes())) == [poison, beside]
    assert (spool.quarantined / f"{damaged.stem}.bad").read_bytes() == b"damaged"
    assert not list(spool.folder.rglob("*.draft"))
    database.close()


def test_a_file_that_is_refused_as_a_whole_and_taken_in_halves_leaves_nothing_behind(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Log.append

    def limited(self: Log, requests: Sequence[Sequence[Event]], **options: Any) -> list[Receipt | QueueFull]:
        if sum(map(len, requests)) > 2:
            raise ValueError("it is too much at once")
        return append(self, requests, **options)

    monkeypatch.setattr(Log, "append", limited)
    spool = Spool(tmp_path / "spool")
    events = [event(f"{number}") for number in range(5)]
    for some in (events[:4], events[4:]):
        spool.append(some)
    SpoolFeeder(spool, database).feed()
    assert recorded(database) == [one.id for one in events]
    assert not spool.pending()
    assert not spool.damaged()
    assert not list(spool.folder.rglob("*.reason"))


@pytest.mark.parametrize("outbox_url", ["postgresql"], indirect=True)
def test_a_statement_timeout_of_the_role_quarantines_nothing(outbox_url: str, tmp_path: Path) -> None:
    database = migrated(outbox_url)
    sa.event.listen(database.engine, "begin", lambda each: each.exec_driver_sql("SET LOCAL statement_timeout = 50"))
    with database.engine.connect() as connection, connection.begin():
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.02);"
            " RETURN NEW; END $$; CREATE TRIGGER slow BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION slow()"
        )
    spool = Spool(tmp_path / "spool")
    spool.append([event(f"{number}") for number in range(8)])
    with pytest.raises(DatabaseUnavailable):
        SpoolFeeder(spool, database).feed()
    assert (len(spool.files()), spool.damaged()) == (1, 0)
    with pytest.raises(DatabaseUnavailable):
        GroupCommit(database).append([event(f"{number}") for number in range(8)], 60)
    database.close()


@databases.ALL
def test_most_of_a_request_is_recorded_where_one_event_is_refused(database: Database) -> None:
    target = add_target(database)
    refuse_poison(database)
    events = [event("poison" if number == 3 else f"{number}") for number in range(7)]
    receipts, refused = Recorder(database, only_target=target, guard=unchanged_since(0)).record_most(events)
    assert sum(receipt.recorded for receipt in receipts if isinstance(receipt, Receipt)) == 6
    assert [one for one, _ in refused] == [events[3]]
    assert recorded(database) == [one.id for one in events if one.key != "poison"]
    assert all(receipt.overtaken == 0 for receipt in receipts if isinstance(receipt, Receipt))


@pytest.mark.parametrize("outbox_url", ["sqlite", "postgresql"], indirect=True)
def test_a_repair_with_one_event_that_the_database_refuses_records_the_others(
    outbox_url: str, database: Database, tmp_path: Path
) -> None:
    target = add_target(database, "audit")
    refuse_poison(database)
    token = "a-token-of-32-characters-for-you"
    environ = {
        "BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": outbox_url,
        "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0", "BUCKETWIRE_API_TOKENS": f"tests:admin:{token}",
    }  # fmt: skip
    app = create_app(Settings.from_environ(environ))
    path, headers = f"/v1/targets/{target.type}/{target.name}/events?after=0", {"Authorization": f"Bearer {token}"}
    body = "[" + ",".join(event(key).record for key in ("a", "poison", "b")) + "]"
    answer = app.test_client().post(path, data=body, headers=headers)
    assert (answer.status_code, answer.get_json()) == (
        202, {"recorded": 2, "repeated": 0, "overtaken": 0, "refused": 1},
    )  # fmt: skip
    answer = app.test_client().post(path, data=event("poison").record, headers=headers)
    assert answer.status_code == 400
    app.extensions["bucketwire"].database.close()


@databases.ALL
def test_buckets_that_differ_by_trailing_blanks_only_do_not_hold_each_other_up(database: Database) -> None:
    commits = GroupCommit(database)
    requests = [[event(bucket="abc"), event(bucket="abc "), event(bucket="abc  ")], [event(bucket="other")]]
    assert together(commits, requests) == [Receipt(recorded=3), Receipt(recorded=1)]


@databases.ALL
@pytest.mark.slow
def test_a_lock_that_is_held_for_long_quarantines_nothing(outbox_url: str, tmp_path: Path) -> None:
    """A database that takes nothing for as long as its lock timeout is slow, and says nothing about the event."""
    database = migrated(outbox_url)
    patient = {"sqlite": "PRAGMA busy_timeout = 100", "postgresql": "SET lock_timeout = '100ms'"}
    statement = patient.get(database.dialect, "SET innodb_lock_wait_timeout = 1")
    sa.event.listen(database.engine, "begin", lambda connection: connection.exec_driver_sql(statement))
    spool = Spool(tmp_path / "spool")
    spool.append([event("waits")])
    other = Database(outbox_url)
    with other.writing() as connection:
        connection.execute(tables.log_head.update().values(last_seq=tables.log_head.c.last_seq))
        with pytest.raises(DatabaseUnavailable):
            SpoolFeeder(spool, database).feed()
    assert len(spool.files()) == 1
    assert not spool.damaged()
    assert SpoolFeeder(spool, other).feed() == 1
    for opened in (database, other):
        opened.close()


OF_PACKETS = pytest.mark.parametrize("outbox_url", ["mysql", "mariadb"], indirect=True)


@contextmanager
def packets(url: str, size: int | None) -> Iterator[int]:
    """Have the server take statements of so many bytes at most, on connections that are opened within the block.

    Yields the size; with None that which the server has without being told.
    """
    with closing(Database(url)) as asking:
        with asking.writing() as connection:
            usual = int(connection.exec_driver_sql("SELECT @@GLOBAL.max_allowed_packet").scalar_one())

        def take(most: int) -> None:
            with asking.writing() as connection:  # the server ends one that says nothing meanwhile
                connection.exec_driver_sql(f"SET GLOBAL max_allowed_packet = {most}")

        try:
            take(size or usual)
            yield size or usual
        finally:
            take(usual)


@databases.ALL
@pytest.mark.nightly(
    "a packet of 1 MiB: the database is asked how much it takes, whatever that is", when=lambda size: size is None
)
@OF_PACKETS
@pytest.mark.parametrize("size", [1 << 20, None])
def test_an_event_larger_than_a_packet_fails_its_own_request_only(outbox_url: str, size: int | None) -> None:
    with packets(outbox_url, size) as packet, closing(migrated(outbox_url)) as database:
        commits = GroupCommit(database)
        requests = [[event(f"{number}")] for number in range(6)]
        requests[3] = [event("good"), large(packet + 1)]
        answers = together(commits, requests)
        assert isinstance(answers.pop(3), VALUE_ERRORS)
        assert answers == [Receipt(recorded=1)] * 5
        # Just below the limit it is kept, also where much of it has to be escaped.
        fits = large(packet - 40_000)
        quoted = event("quoted")._replace(record='{"a":"' + '\\"' * (packet // 4 - 10_000) + '"}')
        assert commits.append([fits], 60) == Receipt(recorded=1)
        assert commits.append([quoted], 60) == Receipt(recorded=1)


@databases.ALL
@OF_PACKETS
def test_an_event_larger_than_a_packet_is_quarantined_and_the_rest_is_fed(outbox_url: str, tmp_path: Path) -> None:
    with packets(outbox_url, 1 << 20) as packet, closing(migrated(outbox_url)) as database:
        spool = Spool(tmp_path / "spool")
        before, after = event("before"), event("after")
        for events in ([before], [large(packet + 1)], [after]):
            spool.append(events)
        SpoolFeeder(spool, database).feed()
        assert recorded(database) == [before.id, after.id]
        assert spool.damaged() == 1


@databases.ALL
@OF_PACKETS
def test_a_database_of_small_packets_takes_many_events_at_once(outbox_url: str) -> None:
    with packets(outbox_url, 65_536) as packet, closing(migrated(outbox_url)) as database:
        commits = GroupCommit(database)
        assert commits.append([event(f"{number}") for number in range(1000)], 60) == Receipt(recorded=1000)
        with pytest.raises(VALUE_ERRORS, match="more than the"):
            commits.append([large(packet)], 60)


@databases.ALL
@pytest.mark.parametrize("outbox_url", ["postgresql", "mysql", "mariadb"], indirect=True)
def test_an_event_at_which_the_connection_breaks_each_time_holds_nobody_up(outbox_url: str, tmp_path: Path) -> None:
    """A proxy before the database hangs up on what is too large for it; the database itself is well."""
    migrated(outbox_url).close()
    url = sa.make_url(outbox_url)
    assert url.port
    with services.proxy(url.port, hang_up_on=b"poison") as between:
        database = Database(url.set(port=between.port).render_as_string(hide_password=False))
        spool = Spool(tmp_path / "spool")
        before, after = event("before"), event("after")
        for events in ([before], [event("poison")], [after]):
            spool.append(events)
        SpoolFeeder(spool, database).feed()
        assert recorded(database) == [before.id, after.id]
        assert spool.damaged() == 1
        database.close()


@pytest.mark.nightly(
    "MariaDB and PostgreSQL: MySQL has MariaDB's driver, whose errors are known by one function",
    when=lambda kind: kind == "mysql",
)
@pytest.mark.parametrize("kind", ["postgres", "mysql", "mariadb"])
def test_a_database_that_goes_away_and_comes_back_quarantines_nothing(kind: str, tmp_path: Path) -> None:
    server = {"postgres": services.postgres, "mysql": services.mysql, "mariadb": services.mariadb}[kind]()
    with server:
        database = migrated(server.create_database("outbox"))
        spool = Spool(tmp_path / "spool")
        feeder = SpoolFeeder(spool, database)
        sent = [[event(f"{number}")] for number in range(6)]
        for number in range(3):
            for events in sent[number * 2 : number * 2 + 2]:
                spool.append(events)
            server.kill()
            for _ in range(2):
                with pytest.raises(DatabaseUnavailable):
                    feeder.feed()
            assert len(spool.files()) == 2
            server.start()
            _feed_until_empty(feeder)
        assert recorded(database) == [one.id for events in sent for one in events]
        assert not spool.damaged()
        database.close()


def _feed_until_empty(feeder: SpoolFeeder) -> None:
    for _ in range(20):
        try:
            feeder.feed()
        except DatabaseUnavailable:
            continue
        return
    raise AssertionError("the database does not come back")


def test_what_was_recorded_before_the_database_went_away_is_answered_so(database: Database) -> None:
    """Of requests that are recorded one by one, each gets the answer that is true for itself."""
    add_target(database)
    refuse_poison(database)
    answers = together(GroupCommit(database), [[event("poison")], [event("a")], [event("poison")]])
    assert [isinstance(answer, Receipt) for answer in answers] == [False, True, False]
