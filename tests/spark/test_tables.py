"""The Iceberg tables: filled from the log once, whatever interrupts it, and equal to what the buckets hold."""

from __future__ import annotations

import hashlib
import io
import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import orjson
import pytest
import sqlalchemy as sa
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from pyspark.sql import Row, SparkSession

from app.events.effects import NULL, is_concrete
from app.events.model import Event
from app.events.version_history import Entry, Fold
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from spark_jobs.errors import describe_error
from spark_jobs.iceberg.catalog import AlreadyUpdating, BadCatalog, Warehouse
from spark_jobs.iceberg.table import IcebergTable, LostPosition, Mark
from spark_jobs.jobs import tables as job_of_tables
from spark_jobs.jobs.tables import Tables, describe_gap, update
from spark_jobs.jobs.tables_journal import JOURNAL
from spark_jobs.jobs.tables_maintenance import is_due, maintain
from tests import provision, services
from tests.spark.conftest import QUICKLY, Job
from tests.support import minio_life, sample_events
from tests.support.builders import DELETE, PUT, add_target, event, migrated
from tests.support.hostile_names import BUCKETS
from tests.support.service_processes import BUCKETWIRE

MARKER, ALL, TAG = "s3:ObjectRemoved:DeleteMarkerCreated", "s3:ObjectRemoved:DeleteAllVersions", "s3:ObjectTagging:Put"
GET, TRANSITION = "s3:ObjectAccessed:Get", "s3:ObjectTransition:Complete"
pytestmark = pytest.mark.timeout(900)  # on a busy machine each commit takes seconds
HEAVY = (pytest.mark.heavy, pytest.mark.timeout(7200))

HOUR, WEEK, T = 3_600_000, 7 * 86_400_000, 1_795_221_236_082
FIXTURES = Path(__file__).parents[1] / "fixtures" / "minio_webhook_events.jsonl"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of the test's own, for a catalog of its own."""
    return spark.newSession()


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Database]:
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    add_target(database)
    yield database
    database.close()


@pytest.fixture
def tables(session: SparkSession, tmp_path: Path) -> Tables:
    return opened(session, Warehouse(f"{tmp_path}/tables"))


def opened(session: SparkSession, warehouse: Warehouse) -> Tables:
    warehouse.open(session)
    return Tables(session)


def journal_ids(tables: Tables) -> list[str]:
    return [row["event_id"] for row in tables.journal.frame().orderBy("log_position").collect()]


def inventory(tables: Tables, *columns: str) -> list[tuple[Any, ...]]:
    rows = tables.inventory.frame().select("bucket", "key", "version_id", *columns).collect()
    return sorted((tuple(row) for row in rows), key=repr)


def made(
    key: str, name: str = PUT, version: str = "", sequencer: str = "", number: int = 0, *, e_tag: str = "",
    size: int | None = None, at: int | None = None,
) -> Event:  # fmt: skip
    """An event with everything that the journal has a column for, unlike one with another number."""
    size, at = number if size is None else size, T + number if at is None else at
    thing: dict[str, Any] = {
        "key": quote_plus(key),
        "eTag": e_tag or f"e{number}",
        "size": size,
        "sequencer": sequencer,
    }
    record = {
        "eventName": name, "eventSource": "minio:s3", "userIdentity": {"principalId": "ann"},
        "requestParameters": {"sourceIPAddress": "10.0.0.1"}, "responseElements": {"x-amz-request-id": f"r{number}"},
        "s3": {"bucket": {"name": "b"}, "object": thing | ({"versionId": version} if version else {})},
    }  # fmt: skip
    text = orjson.dumps(record).decode()
    digest = hashlib.blake2b(f"{number} {text}".encode(), digest_size=16).hexdigest()
    return Event(digest, name, "b", key, version, sequencer, at, text)


# --- what the columns say ------------------------------------------------------------------------------------------


def test_a_row_of_the_journal_says_what_minios_record_says(tables: Tables, outbox: Database) -> None:
    lines = [orjson.loads(line) for line in FIXTURES.read_text().splitlines()]
    records = [line["Records"][0] for line in lines if "Records" in line]
    put = next(one for one in records if one["eventName"] == PUT and one["s3"]["object"].get("versionId"))
    marker = next(one for one in records if one["eventName"] == MARKER and one["s3"]["object"].get("versionId"))
    events = [sample_events._from_record(one, orjson.dumps(one).decode()) for one in (put, marker)]
    Log(outbox).append([events])
    assert update(tables, outbox, WEEK).events == 2
    first, second = tables.journal.frame().orderBy("log_position").collect()
    thing = put["s3"]["object"]
    expected = {
        "bucket": put["s3"]["bucket"]["name"], "key": events[0].key, "version_id": thing["versionId"],
        "sequence_number": thing["sequencer"].rstrip("0"), "record_type": "CREATE", "is_delete_marker": False,
        "size": thing.get("size", 0), "e_tag": thing["eTag"], "is_multipart": False,
        "content_type": thing["contentType"], "user_metadata": thing["userMetadata"],
        "requester": put["userIdentity"]["principalId"], "source_ip_address": put["source"]["host"],
        "request_id": put["responseElements"]["x-amz-request-id"], "event_name": PUT, "event_source": "minio:s3",
        "event_id": events[0].id,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert round(first["record_timestamp"].timestamp() * 1000) == events[0].time
    assert first["last_modified_date"] == first["record_timestamp"]
    assert (second["record_type"], second["is_delete_marker"], second["last_modified_date"]) == ("DELETE", True, None)
    assert first.__fields__ == [name for name, _ in JOURNAL]


def test_a_record_of_any_shape_is_a_row_and_its_kind_is_named(tables: Tables, outbox: Database) -> None:
    odd = ['{"s3":[1]}', "{}", '{"s3":{"object":{"size":"many","eTag":7,"userMetadata":{"a":{"b":1}}}}}']
    events = [made("k", number=n)._replace(record=text) for n, text in enumerate(odd)]
    events += [event("k", bucket=bucket) for bucket in BUCKETS]
    events += [made("k", name, number=10 + n) for n, name in enumerate((DELETE, GET, TAG, TRANSITION, "s3:Other:New"))]
    events += [made("k", number=20)._replace(time=at) for at in (-62_135_596_800_000, 253_402_300_799_999)]
    events = [one._replace(id=f"{n:032}") for n, one in enumerate(events)]
    Log(outbox).append([events])
    assert update(tables, outbox, WEEK).events == len(events)
    columns = tables.journal.frame().select("event_id", "bucket", "record_type")  # Python has no such times
    rows = {row["event_id"]: row for row in columns.collect()}
    assert len(rows) == len(events)
    assert {row["bucket"] for row in rows.values()} == {one.bucket for one in events}
    kinds = [rows[one.id]["record_type"] for one in events[3 + len(BUCKETS) :][:5]]
    assert kinds == ["DELETE", "ACCESS", "UPDATE_METADATA", "UPDATE_METADATA", "OTHER"]
    files = tables.spark.sql(f"SELECT count(*) AS n FROM {tables.journal.name}.files").first()
    assert files is not None
    assert files["n"] <= 2, "events of any time are in the files of the day on which they were recorded"


def test_hostile_keys_and_two_kibibytes_of_metadata_are_kept_as_they_are(tables: Tables, outbox: Database) -> None:
    keys = [*BUCKETS, "a/" * 500 + "ü", "\u202egpj.exe", "k\u0301", "k\u00fc", "K", "k ", " k", "'; DROP TABLE t; --"]
    events = []
    for number, key in enumerate(keys):
        one = made(key, number=number)
        record = orjson.loads(one.record)
        metadata = {"X-Amz-Meta-Note": "🎉" * 512, 'X-Amz-Meta-"\n\\': "${x}\u0000", "content-type": key}
        record["s3"]["object"]["userMetadata"] = metadata
        events.append(one._replace(record=orjson.dumps(record).decode()))
    Log(outbox).append([events])
    update(tables, outbox, WEEK)
    rows = {row["key"]: row["user_metadata"] for row in tables.inventory.frame().collect()}
    assert rows == {one.key: orjson.loads(one.record)["s3"]["object"]["userMetadata"] for one in events}
    assert sorted(row["key"] for row in tables.journal.frame().collect()) == sorted(keys)


@pytest.mark.parametrize("buckets", [pytest.param(10_000, marks=HEAVY)])
def test_ten_thousand_buckets_make_no_more_files_than_one(tables: Tables, outbox: Database, buckets: int) -> None:
    Log(outbox).append([[event("k", bucket=f"bucket-{number}") for number in range(buckets)]])
    update(tables, outbox, WEEK)
    assert tables.inventory.frame().select("bucket").distinct().count() == buckets
    for table in tables.all:
        assert tables.spark.table(f"{table.name}.files").count() <= 16


# --- the rules of the mirror ---------------------------------------------------------------------------------------


def histories(keys: int, events: int) -> list[Event]:
    """Random events of some keys, in an order that mixes them."""
    rng = random.Random(7)
    names = [PUT, "s3:ObjectCreated:CompleteMultipartUpload", MARKER, MARKER, DELETE, ALL, GET, TAG]
    names += ["s3:ObjectLifecycle:Expiration:Current", "s3:ObjectLifecycle:Expiration:DeleteMarker"]
    weights = [8, 2, 3, 3, 6, 1, 1, 1, 1, 1]
    versions = ["", "", "null", "v1", "v2", "v3"]
    sequencers = ["", "not hex", "a0", *(f"{n:X}" for n in range(0xA1, 0xA9))]
    return [
        made(
            f"k{rng.randrange(keys)}", rng.choices(names, weights)[0], rng.choice(versions), rng.choice(sequencers), n
        )
        for n in range(events)
    ]  # fmt: skip


def folded(events: Sequence[Event]) -> dict[tuple[str, str | None], tuple[bool, bool, int]]:
    """By key and version what the mirror's rules say is there: whether it is a marker, the latest, and its event."""
    by_key: dict[str, list[Entry]] = {}
    for seq, one in enumerate(events, 1):
        by_key.setdefault(one.key, []).append(Entry(seq, one.name, one.version, one.sequencer))
    present = {}
    for key, entries in by_key.items():
        fold = Fold()
        fold.add(entries)
        layers = {version: state.layer(version) for version, state in fold.versions.items()}
        cover, top = fold.key.cover, fold.top()
        for version, layer in layers.items():
            if layer is not None and (cover is None or layer.place > cover):
                name = version if is_concrete(version) else None
                assert is_concrete(version) or version == NULL
                present[key, name] = (not layer.is_object, layer == top, layer.place[2])
    return present


def test_the_inventory_has_what_the_mirrors_rules_say(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_of_tables, "_MOST", 450)  # so that the last part needs two commits
    events = histories(120, 1800)
    expected = folded(events)
    assert {marker for marker, _, _ in expected.values()} == {True, False}
    assert {latest for _, latest, _ in expected.values()} == {True, False}
    for first, last in ((0, 700), (700, 1100), (1100, 1800)):  # by parts, because they are merged
        Log(outbox).append([events[first:last]])
        update(tables, outbox, WEEK)
        rows = inventory(tables, "is_delete_marker", "is_latest", "log_position", "size", "e_tag")
        found = {(key, version): (marker, latest, seq) for _, key, version, marker, latest, seq, _, _ in rows}
        assert found == folded(events[:last])
        assert len(rows) == len(found)
        of_object = {seq: (size, tag) for _, _, _, marker, _, seq, size, tag in rows if not marker}
        assert of_object == {seq: (seq - 1, f"e{seq - 1}") for seq in of_object}


def test_events_may_come_late_and_again(tables: Tables, outbox: Database) -> None:
    """A removal before the creation, in another run; and what has been removed does not come back."""
    Log(outbox).append([[made("k", DELETE, "v1", "A9", 1), made("n", DELETE, "", "B2", 2)]])
    update(tables, outbox, WEEK)
    Log(outbox).append([[made("k", PUT, "v1", "A1", 3), made("n", PUT, "", "B1", 4), made("n", PUT, "", "B3", 5)]])
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == [("b", "n", None, 5)]
    Log(outbox).append([[made("n", PUT, "", "B1", 6), made("k", PUT, "v1", "A1", 7)]])
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == [("b", "n", None, 5)]


# --- once, whatever happens ----------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


STEPS = [(name, table, when) for name, table in (("add", "journal"), ("merge", "versions"), ("merge", "inventory"))
         for when in ("before", "after")]  # fmt: skip


@pytest.mark.promise
def test_a_run_that_is_killed_at_any_commit_is_continued(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else of a run is seen by the next one: these are all the states in which it can be killed."""
    events = histories(20, 40 * len(STEPS))
    for number, (name, table, when) in enumerate(STEPS):
        Log(outbox).append([events[40 * number : 40 * (number + 1)]])
        original = getattr(IcebergTable, name)

        def dies(self: IcebergTable, *arguments: Any, original: Any = original, at: Any = (table, when)) -> None:
            if not self.name.endswith(at[0]):
                return original(self, *arguments)
            if at[1] == "after":
                original(self, *arguments)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, name, dies)
            with pytest.raises(Killed):
                update(tables, outbox, WEEK)
    update(tables, outbox, WEEK)
    assert journal_ids(tables) == [one.id for one in events]
    rows = inventory(tables, "is_delete_marker", "is_latest", "log_position")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)
    again = update(tables, outbox, WEEK)
    assert (again.events, again.keys) == (0, 0)


def environment(folder: Path, database: Database) -> dict[str, str]:
    return {
        **os.environ,
        "BUCKETWIRE_DATA_DIR": str(folder),
        "BUCKETWIRE_DATABASE_URL": database.url.render_as_string(hide_password=False),
        "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS),
        "BUCKETWIRE_SPARK_MASTER": "local[1]",
        **QUICKLY,
    }


@pytest.mark.promise
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=HEAVY)])
def test_the_command_is_killed_and_run_again(
    outbox: Database, session: SparkSession, tmp_path: Path, kills: int
) -> None:
    rng, events, folder = random.Random(kills), histories(50, 100 * kills), tmp_path / "tables"
    environ = environment(tmp_path, outbox)
    command = [BUCKETWIRE, "tables", "--json"]
    for number in range(kills):
        Log(outbox).append([events[100 * number : 100 * (number + 1)]])
        # A run makes about forty files, the last ones when it has committed.
        enough = sum(1 for _ in folder.rglob("*")) + rng.randrange(8, 40)
        run = subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        services.until(
            lambda run=run, enough=enough: run.poll() is not None or sum(1 for _ in folder.rglob("*")) >= enough, 600,
            what="the run in the middle of its work",
        )  # fmt: skip
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert orjson.loads(done.stdout)["position"] == len(events)
    found = opened(session, Warehouse(str(folder)))
    assert journal_ids(found) == [one.id for one in events]
    rows = inventory(found, "is_delete_marker", "is_latest", "log_position")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)


@pytest.mark.promise
def test_of_two_runs_at_once_one_gives_up_and_no_row_is_doubled(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run begins and ends while this one has read the log and not yet committed; twice, also at first."""
    original = IcebergTable.add
    for number in range(2):
        Log(outbox).append([[made(f"k{number}", number=number)]])
        once = iter([True])

        def overtaken(self: IcebergTable, *arguments: Any, once: Any = once) -> None:
            if next(once, False):
                assert update(tables, outbox, WEEK).events == 1
            original(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "add", overtaken)
            with pytest.raises(AlreadyUpdating, match="another run"):
                update(tables, outbox, WEEK)
        assert len(journal_ids(tables)) == number + 1
    assert update(tables, outbox, WEEK).events == 0


@pytest.mark.promise
@pytest.mark.parametrize("table", ["versions", "inventory"])
def test_a_run_that_was_stopped_before_a_merge_and_goes_on_after_others_changes_nothing_for_the_worse(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Another run has read more of the log meanwhile, and has removed what this one would add."""
    events, original = histories(10, 120), IcebergTable.merge
    Log(outbox).append([events[:60]])
    once = iter([True])

    def overtaken(self: IcebergTable, *arguments: Any) -> None:
        if self.name.endswith(table) and next(once, False):
            Log(outbox).append([events[60:]])
            assert update(tables, outbox, WEEK).events == 60
        original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "merge", overtaken)
        with suppress(AlreadyUpdating):
            update(tables, outbox, WEEK)
    update(tables, outbox, WEEK)
    assert journal_ids(tables) == [one.id for one in events]
    rows = inventory(tables, "is_delete_marker", "is_latest", "log_position")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)
    assert len(rows) == len(folded(events))


@pytest.mark.promise
def test_an_event_without_a_sequencer_that_is_folded_again_stays_where_it_was(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened after it was folded by another run, whose position this one has set back."""
    original, once = IcebergTable.merge, iter([True])
    Log(outbox).append([[made("k", PUT, "", "A1", 1)]])

    def overtaken(self: IcebergTable, *arguments: Any) -> None:
        if next(once, False):
            Log(outbox).append([[made("k", DELETE, number=2), made("k", PUT, "", "A5", 3)]])
            assert update(tables, outbox, WEEK).events == 2
        original(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "merge", overtaken)
        with suppress(AlreadyUpdating):
            update(tables, outbox, WEEK)
    update(tables, outbox, WEEK)
    Log(outbox).append([[made("k", PUT, "", "A2", 4)]])  # late: it changes nothing, but its key is looked at again
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == [("b", "k", None, 3)]
    Log(outbox).append([[made("k", DELETE, number=5)]])
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == []


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    warehouse = Warehouse(f"{tmp_path}/tables")
    with warehouse.locked(), pytest.raises(AlreadyUpdating, match="another run is writing to"), warehouse.locked():
        pass
    with warehouse.locked():
        pass


def test_what_left_the_log_unread_is_told_and_recorded(tables: Tables, outbox: Database) -> None:
    Log(outbox).append([[made("k", number=1)]])
    assert update(tables, outbox, 0).gaps == ()  # nothing was read before
    Log(outbox).append([[made("k", number=2)]])
    [gap] = update(tables, outbox, 0).gaps
    assert tables.journal.properties()["bucketwire.gap.1"] == gap
    assert "BUCKETWIRE_RETENTION" in job_of_tables.describe_gaps([gap])
    Log(outbox).append([[made("k", number=3)]])
    assert update(tables, outbox, WEEK).gaps == ()


def test_a_log_in_which_nothing_happened_for_long_has_no_gap(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Log(outbox).append([[made("k", number=1)]])
    update(tables, outbox, WEEK)
    began = tables.journal.mark().read_at
    for days in (3, 6, 9):
        monkeypatch.setattr(job_of_tables, "database_now", lambda _, days=days: began + days * 24 * HOUR)
        assert update(tables, outbox, WEEK).gaps == ()
    Log(outbox).append([[made("k", number=2)]])
    assert update(tables, outbox, WEEK).gaps == ()
    monkeypatch.setattr(job_of_tables, "database_now", lambda _: began - 9 * 24 * HOUR)  # the clock was wrong
    update(tables, outbox, WEEK)
    assert tables.journal.mark().read_at < began, "a mark of the future would hide gaps"
    assert len(journal_ids(tables)) == 2


def test_the_command_fails_at_a_gap_after_it_has_added_what_there_is(
    outbox: Database, tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = environment(tmp_path, outbox)
    Log(outbox).append([[made("k", number=1)]])
    assert job(settings, "tables", "--no-maintain")[0] == 0
    Log(outbox).append([[made("k", number=2)]])
    monkeypatch.setattr(job_of_tables, "database_now", lambda _: now_ms() + 2 * WEEK)
    code, out, error = job(settings, "tables", "--no-maintain")
    assert code == 1
    assert out.startswith("1 event added")
    assert "may have left the log before the tables read them" in error
    assert "bucketwire backfill" in error
    Log(outbox).append([[made("k", number=3)]])
    code, out, error = job(settings, "tables", "--no-maintain")
    assert (code, out[:13]) == (0, "1 event added"), error


@pytest.mark.parametrize(
    ("read_at", "now", "gap"),
    [(0, T, ""), (T, T + WEEK // 2, ""), (T, T + WEEK + 1, True), (T, T + WEEK - 3_500_000, True)],
)
def test_a_gap_is_possible_after_the_retention_and_a_little_earlier(read_at: int, now: int, gap: bool) -> None:
    assert bool(describe_gap(Mark(5 if read_at else 0, read_at), now, WEEK)) == bool(gap)


def test_a_log_that_ends_before_the_tables_is_not_read(tables: Tables, outbox: Database, tmp_path: Path) -> None:
    Log(outbox).append([[made("k", number=n) for n in range(3)]])
    update(tables, outbox, WEEK)
    other = migrated(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(job_of_tables.LogMovedBack, match="BUCKETWIRE_TABLES_WAREHOUSE"):
        update(tables, other, WEEK)
    other.close()


# --- over time -----------------------------------------------------------------------------------------------------


def test_an_earlier_state_is_queried_and_maintenance_forgets_it_and_nothing_else(
    tables: Tables, outbox: Database
) -> None:
    states = []
    for number in range(6):
        Log(outbox).append([[made(f"k{number}", number=number), made("k", number=10 + number, sequencer=f"A{number}")]])
        update(tables, outbox, WEEK)
        states.append(inventory(tables, "size"))
    snapshots = tables.spark.sql(f"SELECT snapshot_id FROM {tables.inventory.name}.snapshots ORDER BY committed_at")
    ids = [row["snapshot_id"] for row in snapshots.collect()]
    assert len(ids) == 6
    query = f"SELECT bucket, key, version_id, size FROM {tables.inventory.name} VERSION AS OF {{}}"
    then = [[tuple(row) for row in tables.spark.sql(query.format(each)).collect()] for each in ids]
    assert [sorted(rows, key=repr) for rows in then] == states
    marks, rows = [table.mark() for table in tables.all], journal_ids(tables)
    assert is_due(tables, now_ms())
    maintain(tables, -HOUR)  # also what it writes itself
    assert not is_due(tables, now_ms())
    assert [table.mark() for table in tables.all] == marks
    assert (journal_ids(tables), inventory(tables, "size")) == (rows, states[-1])
    for table in tables.all:
        assert tables.spark.table(f"{table.name}.snapshots").count() == 1
        assert tables.spark.table(f"{table.name}.files").where("content <> 0").count() == 0, "all deletions are merged"
    Log(outbox).append([[made("last", number=99)]])
    assert update(tables, outbox, WEEK).events == 1
    assert len(journal_ids(tables)) == 13


def test_a_column_is_added_and_old_snapshots_stay_readable(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch, session: SparkSession
) -> None:
    Log(outbox).append([[made("old", number=1)]])
    update(tables, outbox, WEEK)
    before = tables.journal.state()[1]
    session.sql(f"ALTER TABLE {tables.journal.name} DROP COLUMN request_id")  # as a version that did not have it
    again = Tables(session)
    Log(outbox).append([[made("new", number=2)]])
    update(again, outbox, WEEK)
    rows = {row["key"]: row["request_id"] for row in again.journal.frame().collect()}
    assert rows == {"old": None, "new": "r2"}
    old = session.sql(f"SELECT key, event_name FROM {tables.journal.name} VERSION AS OF {before}").collect()
    assert old == [Row(key="old", event_name=PUT)]


def test_a_table_without_a_position_is_not_filled_from_the_start(tables: Tables, outbox: Database) -> None:
    Log(outbox).append([[made("k", number=1)]])
    name = tables.journal.name
    columns = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in JOURNAL)
    tables.spark.sql(f"INSERT INTO {name} SELECT {columns}")
    with pytest.raises(LostPosition, match=r"bucketwire\.position"):
        update(tables, outbox, WEEK)


# --- the queries of the page ---------------------------------------------------------------------------------------


def test_the_queries_of_the_documentation_find_what_they_are_for(tables: Tables, outbox: Database) -> None:
    now = now_ms()
    old, key = now - 100 * 24 * HOUR, "{}/{}".format
    events = [
        made(key("a", "cold"), number=1, size=5, at=old),
        made(key("a", "read"), number=2, size=6, at=old),
        made(key("a", "read"), GET, number=3, at=now),
        made(key("a", "new"), number=4, size=7, at=now, e_tag="same"),
        made(key("c", "copy"), number=5, size=7, at=now, e_tag="same"),
        made(key("c", "gone"), number=6, size=100, at=now),
        made(key("c", "gone"), DELETE, number=7, at=now),
        made(key("c", "tagged"), number=8, size=9, at=now),
        made(key("c", "tagged"), "s3:ObjectCreated:PutTagging", number=9, at=now),
    ]
    Log(outbox).append([events])
    update(tables, outbox, WEEK)
    page = (Path(__file__).parents[2] / "docs/how-to/tables.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page.partition("## Queries")[2].partition("\n## ")[0], re.DOTALL)
    deleted, operations, growth, cold, duplicates, untagged, then = (
        tables.spark.sql(
            query.replace("2026-11-01 00:00:00", "2100-01-01 00:00:00").replace("'images'", "'b'")
        ).collect()
        for query in queries
    )
    assert [(row["requester"], row["source_ip_address"], row["key"]) for row in deleted] == [
        ("ann", "10.0.0.1", "c/gone")
    ]
    counted = {(row["event_name"], row["requester"], row["operations"], row["bytes"]) for row in operations}
    assert (PUT, "ann", 4, 7 + 7 + 100 + 9) in counted
    assert (DELETE, "ann", 1, None) in counted
    assert {row["folder"]: (row["written"], row["present"], row["objects"]) for row in growth} == {
        "a": (18, 18, 3), "c": (116, 16, 2),
    }  # fmt: skip
    assert [row["key"] for row in cold] == ["a/cold"]
    assert [(row["e_tag"], row["copies"], row["wasted"], row["example"]) for row in duplicates] == [
        ("same", 2, 7, "b/a/new")
    ]
    assert [row["key"] for row in untagged] == ["a/cold", "a/new", "a/read", "c/copy"]
    assert [row["key"] for row in then] == ["a/cold", "a/new", "a/read", "c/copy", "c/tagged"]


# --- other catalogs, other engines ---------------------------------------------------------------------------------


@contextmanager
def postgres_outbox(server: services.Postgres) -> Iterator[Database]:
    folder = services.new_folder("tables")
    database = migrated(server.create_database(f"tables_{folder.name.replace('-', '_').lower()}"))
    add_target(database)
    try:
        yield database
    finally:
        database.close()


def test_a_catalog_in_postgresql_and_pyiceberg_reads_it(
    session: SparkSession, postgres_server: services.Postgres, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    events = histories(30, 400)
    with postgres_outbox(postgres_server) as database:
        tables = opened(session, Warehouse(f"{tmp_path}/tables", database.url))
        for first in (0, 200):  # the second changes rows of the first
            Log(database).append([events[first : first + 200]])
            update(tables, database, WEEK)
        url = database.url.render_as_string(hide_password=False)
        catalog = SqlCatalog("bucketwire", uri=url, warehouse=f"file://{tmp_path}/tables")
        try:
            journal = catalog.load_table("s3.journal").scan().to_arrow().to_pylist()
            rows = catalog.load_table("s3.inventory").scan().to_arrow().to_pylist()
        finally:
            catalog.engine.dispose()
    assert sorted(row["event_id"] for row in journal) == sorted(one.id for one in events)
    found = {(r["key"], r["version_id"]): (r["is_delete_marker"], r["is_latest"], r["log_position"]) for r in rows}
    assert found == folded(events)
    assert len(rows) == len(found)


def duckdb_reader() -> Any:
    """A DuckDB with its extension for Iceberg, from the files of packages: it would download it."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in ("avro", "iceberg"):
        package = pytest.importorskip(f"duckdb_extension_{name}")
        [library] = Path(package.__path__[0]).rglob("*.duckdb_extension")
        connection.load_extension(str(library))
    return connection


def test_duckdb_reads_a_folder(tables: Tables, outbox: Database, tmp_path: Path) -> None:
    events = histories(30, 400)
    for first in (0, 200):  # the second deletes and changes rows of the first
        Log(outbox).append([events[first : first + 200]])
        update(tables, outbox, WEEK)
    page = (Path(__file__).parents[2] / "docs/how-to/tables.md").read_text()
    [query] = re.findall(r"```sql\n(.*?)```", page.partition("DuckDB reads")[2], re.DOTALL)
    with duckdb_reader() as reader:
        folder = tmp_path / "tables"
        rows = reader.execute(query.replace("/var/lib/bucketwire/tables", str(folder))).fetchall()
        ids = reader.execute(f"SELECT event_id FROM iceberg_scan('{folder}/s3/journal') ORDER BY log_position")
        assert [row[0] for row in ids.fetchall()] == [one.id for one in events]
    found = {(key, version): (marker, latest, seq) for key, version, marker, latest, seq in rows}
    assert found == folded(events)
    assert len(rows) == len(found)


@pytest.mark.promise
def test_a_rest_catalog_also_when_the_answer_to_a_commit_is_lost(
    session: SparkSession, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit has happened and nobody was told so: the next run must neither add its rows again nor miss them."""
    original, events = IcebergTable.add, histories(20, 200)
    with services.iceberg_rest() as server, services.proxy(server.port) as wire:
        tables = opened(session, Warehouse("", rest=f"http://{services.LOOPBACK}:{wire.port}"))
        Log(outbox).append([events[:100]])
        assert update(tables, outbox, WEEK).events == 100
        Log(outbox).append([events[100:]])

        def unanswered(self: IcebergTable, *arguments: Any) -> None:
            wire.lose_answer_to(b"POST /v1/namespaces/s3/tables/journal ")
            original(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "add", unanswered)
            with suppress(Exception):  # Iceberg may look what has become of the commit
                update(tables, outbox, WEEK)
        assert wire.lost.is_set()
        update(tables, outbox, WEEK)
        assert journal_ids(tables) == [one.id for one in events]
        rows = inventory(tables, "is_delete_marker", "is_latest", "log_position")
        maintain(tables, 0)
        assert len(journal_ids(tables)) == len(events)
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)


def test_a_socket_is_no_address_for_a_catalog(session: SparkSession) -> None:
    url = sa.make_url("postgresql+psycopg2://user@/outbox?host=/run/postgresql")
    with pytest.raises(BadCatalog, match="host of PostgreSQL"):
        Warehouse("/nowhere", url).open(session)


def test_a_warehouse_in_a_bucket(
    session: SparkSession, postgres_server: services.Postgres, at_minio: services.MinIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{at_minio.endpoint}")
    at_minio.client().make_bucket("lake")
    with postgres_outbox(postgres_server) as database:
        with monkeypatch.context() as patched:
            patched.setenv("AWS_SECRET_ACCESS_KEY", "wrong" * 4)
            with pytest.raises(Exception, match="403") as refused:
                opened(session.newSession(), Warehouse("s3a://lake/bucketwire", database.url))
            assert "BUCKETWIRE_DEBUG" in str(describe_error(refused.value))
        tables = opened(session, Warehouse("s3a://lake/bucketwire", database.url))
        Log(database).append([[made("k", number=1), made("j", number=2)]])
        assert update(tables, database, WEEK).events == 2
        assert inventory(tables, "size") == [("b", "j", None, 2), ("b", "k", None, 1)]
        maintain(tables, 0)
        assert inventory(tables, "size") == [("b", "j", None, 2), ("b", "k", None, 1)]
    keys = [each.object_name for each in at_minio.client().list_objects("lake", recursive=True)]
    assert any(str(key).startswith("bucketwire/s3/inventory/data/") for key in keys)


# --- a real bucket -------------------------------------------------------------------------------------------------


Held = dict[tuple[str, str | None], tuple[int | None, str | None, bool, bool]]  # by key and version, as below


def mixed_operations(server: services.MinIO, bucket: str, operations: int, *, versioned: bool) -> None:
    """Writes, deletes, and deletes of versions and of markers, on a few keys."""
    client, rng = server.client(), random.Random(bucket)
    for number in range(operations):
        key, choice = f"{bucket} {rng.randrange(operations // 8)}/ü+%.txt", rng.random()
        if choice < 0.6:
            content = b"x" * rng.randrange(50)
            client.put_object(bucket, key, io.BytesIO(content), len(content), metadata={"n": str(number)})
        elif choice < 0.8 or not versioned:
            client.remove_object(bucket, key)
        elif versions := list(client.list_objects(bucket, key, include_version=True)):
            client.remove_object(bucket, key, version_id=rng.choice(versions).version_id)


def listed(server: services.MinIO, bucket: str) -> Held:
    """Size, ETag, whether it is a marker and whether it is the latest, of every version in a bucket."""
    with closing(server.boto3()) as client:
        pages = list(client.get_paginator("list_object_versions").paginate(Bucket=bucket))
    return {
        (entry["Key"], None if entry["VersionId"] == "null" else entry["VersionId"]): (
            entry.get("Size"), entry.get("ETag", "").strip('"') or None, "Size" not in entry, entry["IsLatest"],
        )
        for page in pages
        for entry in (*page.get("Versions", ()), *page.get("DeleteMarkers", ()))
    }  # fmt: skip


def told(events: Sequence[Event]) -> Held:
    """The same by the mirror's rules."""
    things = [orjson.loads(one.record)["s3"]["object"] for one in events]
    return {
        place: (None if marker else thing.get("size", 0), None if marker else thing["eTag"], marker, latest)
        for place, (marker, latest, seq) in folded(events).items()
        for thing in [things[seq - 1]]
    }


@pytest.mark.parametrize("operations", [150, pytest.param(10_000, marks=HEAVY)])
def test_the_inventory_equals_the_listing_of_a_real_bucket(tables: Tables, outbox: Database, operations: int) -> None:
    with services.receiver() as receiver, services.minio(webhooks={"R": (receiver.url, "")}) as server:
        client, held = server.client(), Held()
        for bucket in ("plain", "versioned"):
            minio_life.watched_bucket(client, bucket, ["R:webhook"])
            if bucket == "versioned":
                client.set_bucket_versioning(bucket, VersioningConfig(ENABLED))
            mixed_operations(server, bucket, operations, versioned=bucket == "versioned")
            held |= listed(server, bucket)
        # MinIO does not send its events in order.
        services.until(lambda: told(minio_life.emitted(receiver)) == held, 120, what="MinIO's events")
        events = minio_life.emitted(receiver)
    half = len(events) // 2
    for some in (events[:half], events[half:]):
        Log(outbox).append([some])
        update(tables, outbox, WEEK)
    rows = inventory(tables, "size", "e_tag", "is_delete_marker", "is_latest")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == held
    assert len(rows) == len(held)
