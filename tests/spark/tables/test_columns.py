"""The journal's rows: what each column has, for records of any shape."""

from contextlib import closing
from pathlib import Path

import orjson
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from spark_jobs.iceberg import Warehouse
from spark_jobs.jobs.tables import Tables, update
from spark_jobs.jobs.tables_journal import JOURNAL
from tests import services
from tests.support import sample_events
from tests.support.builders import DELETE, PUT, add_target, event, migrated
from tests.support.hostile_names import BUCKETS
from tests.support.table_events import GET, HEAVY, MARKER, TAG, TRANSITION, WEEK, made, opened

pytestmark = pytest.mark.timeout(900)  # on a busy machine each commit takes seconds
FIXTURES = Path(__file__).parents[2] / "fixtures" / "minio_webhook_events.jsonl"


LINES = [orjson.loads(line) for line in FIXTURES.read_text().splitlines()]
RECORDS = [line["Records"][0] for line in LINES if "Records" in line]
SHOWN = [
    next(one for one in RECORDS if one["eventName"] == name and one["s3"]["object"].get("versionId"))
    for name in (PUT, MARKER)
]
OF_MINIO = [sample_events._from_record(one, orjson.dumps(one).decode()) for one in SHOWN]

SHAPES = ['{"s3":[1]}', "{}", '{"s3":{"object":{"size":"many","eTag":7,"userMetadata":{"a":{"b":1}}}}}']
KINDS = (DELETE, GET, TAG, TRANSITION, "s3:Other:New")
SHAPED = [
    one._replace(id=f"{n:032}")
    for n, one in enumerate(
        [
            *(made("k", number=n)._replace(record=text) for n, text in enumerate(SHAPES)),
            *(made("k", name, number=10 + n) for n, name in enumerate(KINDS)),
            *(event("k", bucket=bucket) for bucket in BUCKETS),
            *(made("k", number=20)._replace(time=at) for at in (-62_135_596_800_000, 253_402_300_799_999)),
        ]
    )
]
KEYS = [*BUCKETS, "a/" * 500 + "ü", "\u202egpj.exe", "k\u0301", "k\u00fc", "K", "k ", " k", "'; DROP TABLE t; --"]


def described(key: str, number: int) -> Event:
    """An event with two kibibytes of metadata."""
    one = made(key, number=number)
    record = orjson.loads(one.record)
    metadata = {"X-Amz-Meta-Note": "🎉" * 512, 'X-Amz-Meta-"\n\\': "${x}\u0000", "content-type": key}
    record["s3"]["object"]["userMetadata"] = metadata
    return one._replace(record=orjson.dumps(record).decode())


DESCRIBED = [described(key, number) for number, key in enumerate(KEYS)]


@pytest.fixture(scope="module")
def filled(spark: SparkSession) -> Tables:
    """Tables that took all these events in one run: do not change them."""
    events = [*OF_MINIO, *SHAPED, *DESCRIBED]
    folder = services.new_folder("columns")
    with closing(migrated(f"sqlite:///{folder}/outbox.db")) as database:
        add_target(database)
        Log(database).append([events])
        tables = opened(spark.newSession(), Warehouse(f"{folder}/tables"))
        assert update(tables, database, WEEK).events == len(events)
    return tables


def test_a_row_of_the_journal_says_what_minios_record_says(filled: Tables) -> None:
    put, event = SHOWN[0], OF_MINIO[0]
    first, second = filled.journal.frame().orderBy("log_position").limit(2).collect()
    thing = put["s3"]["object"]
    expected = {
        "bucket": put["s3"]["bucket"]["name"], "key": event.key, "version_id": thing["versionId"],
        "sequence_number": thing["sequencer"].rstrip("0"), "record_type": "CREATE", "is_delete_marker": False,
        "size": thing.get("size", 0), "e_tag": thing["eTag"], "is_multipart": False,
        "content_type": thing["contentType"], "user_metadata": thing["userMetadata"],
        "requester": put["userIdentity"]["principalId"], "source_ip_address": put["source"]["host"],
        "request_id": put["responseElements"]["x-amz-request-id"], "event_name": PUT, "event_source": "minio:s3",
        "event_id": event.id,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert round(first["record_timestamp"].timestamp() * 1000) == event.time
    assert first["last_modified_date"] == first["record_timestamp"]
    assert (second["record_type"], second["is_delete_marker"], second["last_modified_date"]) == ("DELETE", True, None)
    assert first.__fields__ == [name for name, _ in JOURNAL]


def test_a_record_of_any_shape_is_a_row_and_its_kind_is_named(filled: Tables) -> None:
    columns = filled.journal.frame().select("event_id", "bucket", "record_type")  # Python has no such times
    rows = {row["event_id"]: row for row in columns.collect()}
    assert rows.keys() == {one.id for one in (*OF_MINIO, *SHAPED, *DESCRIBED)}
    assert [rows[one.id]["bucket"] for one in SHAPED] == [one.bucket for one in SHAPED]
    kinds = [rows[one.id]["record_type"] for one in SHAPED[len(SHAPES) :][: len(KINDS)]]
    assert kinds == ["DELETE", "ACCESS", "UPDATE_METADATA", "UPDATE_METADATA", "OTHER"]
    files = filled.spark.sql(f"SELECT count(*) AS n FROM {filled.journal.name}.files").first()
    assert files is not None
    assert files["n"] <= 2, "events of any time are in the files of the day on which they were recorded"


def test_hostile_keys_and_two_kibibytes_of_metadata_are_kept_as_they_are(filled: Tables) -> None:
    rows = {(row["bucket"], row["key"]): row["user_metadata"] for row in filled.inventory.frame().collect()}
    expected = {(one.bucket, one.key): orjson.loads(one.record)["s3"]["object"]["userMetadata"] for one in DESCRIBED}
    assert len(expected) == len(KEYS)
    assert {place: rows[place] for place in expected} == expected
    ids = [one.id for one in DESCRIBED]
    journal = filled.journal.frame().where(F.col("event_id").isin(ids)).select("key").collect()
    assert sorted(row["key"] for row in journal) == sorted(KEYS)


@pytest.mark.parametrize("buckets", [pytest.param(10_000, marks=HEAVY)])
def test_ten_thousand_buckets_make_no_more_files_than_one(tables: Tables, outbox: Database, buckets: int) -> None:
    Log(outbox).append([[event("k", bucket=f"bucket-{number}") for number in range(buckets)]])
    update(tables, outbox, WEEK)
    assert tables.inventory.frame().select("bucket").distinct().count() == buckets
    for table in tables.all:
        assert tables.spark.table(f"{table.name}.files").count() <= 16
