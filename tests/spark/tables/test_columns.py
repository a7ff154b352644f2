"""The journal's rows: what each column has, for records of any shape."""

from pathlib import Path

import orjson
import pytest

from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from spark_jobs.jobs.tables import Tables, update
from spark_jobs.jobs.tables_journal import JOURNAL
from tests.support import sample_events
from tests.support.builders import DELETE, PUT, event
from tests.support.hostile_names import BUCKETS
from tests.support.table_events import GET, HEAVY, MARKER, TAG, TRANSITION, WEEK, made

pytestmark = pytest.mark.timeout(900)  # on a busy machine each commit takes seconds
FIXTURES = Path(__file__).parents[2] / "fixtures" / "minio_webhook_events.jsonl"


@pytest.mark.usefixtures("_journal_alone_in_make_test")
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
