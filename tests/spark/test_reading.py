"""Read listings and targets' rows from real servers: every value arrives, whatever the key."""

from __future__ import annotations

import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from psycopg2 import sql
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.target_settings import load
from app.config.targets.base import TargetSettings
from app.config.targets.elasticsearch import ElasticsearchSettings
from app.events.minio_json import encode_key
from app.events.model import Effect, Event
from app.listings.limits import BadListing
from spark_jobs.errors import root_cause
from spark_jobs.frames import KEY_HASH
from spark_jobs.jobs.comparison import namespace_by_key
from spark_jobs.jobs.tables_journal import recorded_between
from spark_jobs.listings import s3_listing
from spark_jobs.listings.listing import from_mc, from_parquet
from spark_jobs.listings.listing_source import ListingSource
from spark_jobs.stores import CannotRead, elasticsearch, mysql, postgresql, rows
from tests import services
from tests.support import minio_life
from tests.support.builders import migrated
from tests.support.hostile_names import BUCKETS
from tests.support.listings import ODD, fill, objects_of, unpack
from tests.support.properties import times
from tests.support.target_contents import ElasticsearchContents, MysqlContents
from workers.delivery.outcomes import DELIVERED
from workers.systems.elasticsearch.target import ElasticsearchTarget
from workers.systems.mysql.target import MysqlTarget
from workers.systems.postgresql.target import PostgresTarget
from workers.systems.redis.target import RedisTarget
from workers.targets.base import Target

PUT = "s3:ObjectCreated:Put"
HOSTILE_PATHS = ("b", "b0", "B", "b%", "b_", "b_x", "bx", "b\\", "b\\%", "it's", "é", "a", "ab", "-", "b/", '"')


@pytest.fixture(scope="module")
def direct(
    postgres_server: services.Postgres, mysql_server: services.MySQL, elasticsearch_server: services.Elasticsearch
) -> dict[str, dict[str, str]]:
    """Where MinIO writes to by itself: settings by type."""
    database = f"minio_{uuid4().hex[:8]}"
    for server in (postgres_server, mysql_server):
        server.create_database(database)
    return {
        "postgresql": {"connection_string": postgres_server.dsn(database) + " sslmode=disable", "table": "direct"},
        "mysql": {"dsn_string": MysqlContents(mysql_server, database).dsn, "table": "direct"},
        "elasticsearch": ElasticsearchContents(elasticsearch_server).login | {"index": "direct"},
    }


@pytest.fixture(scope="module")
def minio(direct: dict[str, dict[str, str]]) -> Iterator[services.MinIO]:
    """With a target `DIRECT:<type>` of its own for each of them."""
    env = {
        f"MINIO_NOTIFY_{kind.replace('postgresql', 'postgres')}_{name}_DIRECT".upper(): text
        for kind, settings in direct.items()
        for name, text in (settings | {"enable": "on", "format": "namespace"}).items()
        if name != "tls_ca"  # it knows no such setting, and trusts the session's authority anyway
    }
    with services.minio(extra_env=env) as running:
        yield running


@pytest.mark.nightly(
    "one with versions; one without where drift is found: current versions are read by the same code",
    when=lambda versioned: versioned is False,
)
@pytest.mark.parametrize("versioned", [False, True])
def test_a_bucket_is_listed_by_ranges_of_keys_and_from_what_mc_wrote(
    spark: SparkSession, at_minio: services.MinIO, tmp_path: Path, versioned: bool
) -> None:
    name = f"b-{uuid4().hex[:8]}"
    expected = fill(at_minio, name, versioned=versioned)
    bucket = s3_listing.Bucket.from_boto3(name, at_minio.url)
    assert bucket.is_versioned() is versioned
    ranges = s3_listing.divided(bucket, tasks=2)
    assert objects_of(s3_listing.listing(spark, bucket, ranges, versioned=versioned)) == expected
    # By keys as the ends of ranges, no object may fall between two; in `make nightly` by every key.
    alone = [
        row[0]
        for after, until in s3_listing.between(sorted(expected)[:: times(3, 1)], 10 * len(expected))
        for row in s3_listing.objects(bucket, (after, until), versioned=versioned)
    ]
    assert sorted(alone) == sorted(expected)

    file = tmp_path / "listing.json"
    lines = at_minio.mc("ls", "--recursive", *(["--versions"] if versioned else []), f"m/{name}")
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    written = from_mc(spark, str(file), name, versioned=versioned)
    assert objects_of(written) == expected
    assert (written.unreadable_count, written.problem) == (0, "")


@pytest.mark.parametrize("versioned", [False, True])
def test_a_bucket_of_more_than_a_page_is_listed_to_its_end(at_minio: services.MinIO, versioned: bool) -> None:
    name, keys = f"b-{uuid4().hex[:8]}", [f"old/{number % 9}/{number:04}" for number in range(1_050)]
    at_minio.client().make_bucket(name)
    unpack(at_minio, name, keys)
    bucket = s3_listing.Bucket.from_boto3(name, at_minio.url)
    assert [row[0] for row in s3_listing.objects(bucket, ("", None), versioned=versioned)] == sorted(keys)


def test_ranges_meet_and_cover_everything() -> None:
    assert s3_listing.between([], 4) == [("", None)]
    assert s3_listing.between(["b", "a", "b"], 2) == [("", "b"), ("b", None)]
    assert s3_listing.between("abcd", 4) == [("", "b"), ("b", "c"), ("c", "d"), ("d", None)]


def test_unreadable_lines_are_counted_and_a_failure_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    good: dict[str, Any] = {
        "status": "success", "type": "file", "lastModified": "2026-11-21T07:02:48.72Z", "size": 2, "key": "good",
        "etag": "e",
    }  # fmt: skip
    lines = [
        json.dumps(good), "", json.dumps(good)[:60], "no json", json.dumps(good | {"size": "many"}),
        json.dumps(good | {"lastModified": "yesterday"}), json.dumps({**good, "etag": None}), "[1]",
        json.dumps({"status": "error", "error": {"message": "Unable to list folder."}}),
    ]  # fmt: skip
    file = tmp_path / "listing.json"
    file.write_text("\n".join(lines))
    listing = from_mc(spark, str(file), "images", versioned=False)
    assert objects_of(listing) == {"good": ("e", 2, "")}
    file.unlink()
    assert listing.unreadable_count == 7, "they were counted with the search for errors"
    assert "Unable to list folder" in listing.problem


def test_listings_of_aws_and_rclone_are_read(spark: SparkSession, tmp_path: Path) -> None:
    time, file = "2026-11-21T07:02:48+00:00", tmp_path / "listing.json"
    keys = ["a", "p/line\nfeed", "p/é🎉", "q"]
    objects = [{"Key": key, "LastModified": time, "ETag": '"e-2"', "Size": 3} for key in keys]
    file.write_text(json.dumps({"Contents": objects}, indent=4))
    source = ListingSource(bucket="ceph:images", listing=str(file), listed_at=1, listing_of="images")
    listing = source.list_bucket(spark, tasks=1)
    assert objects_of(listing) == dict.fromkeys(keys, ("e-2", 3, ""))
    assert (listing.has_etags, listing.unreadable_count) == (True, 0)
    assert [row["modified"] for row in listing.frame.collect()] == [1_795_244_568_000] * 4
    below = replace(source, prefix="p/").list_bucket(spark, tasks=1)
    assert objects_of(below).keys() == {"p/line\nfeed", "p/é🎉"}
    with pytest.raises(BadListing, match="current versions only"):
        replace(source, versions=True).list_bucket(spark, tasks=1)
    for another in (replace(source, listing_of="others"), replace(source, listing_of="")):
        with pytest.raises(BadListing):
            another.list_bucket(spark, tasks=1)
    file.write_text(json.dumps([{"Path": "a", "Size": 3, "ModTime": time, "IsDir": False}]))
    listing = source.list_bucket(spark, tasks=1)
    assert (objects_of(listing), listing.has_etags) == ({"a": (None, 3, "")}, False)
    with pytest.raises(BadListing, match="has no ETags"):
        source.list_bucket(spark, tasks=1, needs_etags=True)


def test_a_listing_of_another_place_is_refused(spark: SparkSession, at_minio: services.MinIO, tmp_path: Path) -> None:
    name = f"b-{uuid4().hex[:8]}"
    client = at_minio.client()
    client.make_bucket(name)
    for key in ("a", "dir/b"):
        client.put_object(name, key, io.BytesIO(b"x"), 1)
    file = tmp_path / "listing.json"

    def refusal(*arguments: str, bucket: str = name) -> str:
        file.write_text("".join(f"{json.dumps(line)}\n" for line in at_minio.mc("ls", *arguments)))
        with pytest.raises(BadListing) as refused:
            from_mc(spark, str(file), bucket, versioned=False)
        return str(refused.value)

    assert f"/{name}/, not of the whole bucket other" in refusal("--recursive", f"m/{name}", bucket="other")
    assert f"/{name}/dir/, not of the whole bucket {name}" in refusal("--recursive", f"m/{name}/dir/")
    assert f"not of the whole bucket {name}" in refusal("--recursive", "m")
    assert "folder 'dir/' without its objects" in refusal(f"m/{name}")
    file.write_text("")
    with pytest.raises(BadListing, match="has no entries"):
        from_mc(spark, str(file), name, versioned=False)


def test_parquet_of_another_bucket_or_without_rows_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    entry = "'k' AS key, 'e' AS e_tag, 1L AS size, timestamp'2026-11-18 09:06:40' AS last_modified_date"
    spark.sql(f"SELECT {entry}, 'images' AS Bucket UNION ALL SELECT {entry}, 'other'").write.parquet(f"{tmp_path}/two")
    spark.sql(f"SELECT {entry}, 'images' AS bucket").write.parquet(f"{tmp_path}/one")
    spark.sql(f"SELECT {entry} LIMIT 0").write.parquet(f"{tmp_path}/none")
    assert from_parquet(spark, f"{tmp_path}/one", "images", versioned=False).frame.count() == 1
    with pytest.raises(BadListing, match="is a listing of other, not of images only"):
        from_parquet(spark, f"{tmp_path}/two", "images", versioned=False)
    with pytest.raises(BadListing, match="has no entries"):
        from_parquet(spark, f"{tmp_path}/none", "images", versioned=False)
    hidden = ListingSource(bucket="images", listing=f"{tmp_path}/_one", listed_at=1)
    with pytest.raises(BadListing, match="begins with _ or a dot"):
        hidden.list_bucket(spark, tasks=1)


def test_an_inventory_in_parquet_is_read(spark: SparkSession, tmp_path: Path) -> None:
    columns = ["key", "etag", "size", "last_modified", "version_id", "is_latest", "is_delete_marker"]
    time = "timestamp'2026-11-18 09:06:40.123'"
    values = ", ".join(
        [
            f"('k', '\"e1\"', 1L, {time}, 'v1', false, false)", f"('k', 'e2', 2L, {time}, 'v2', true, false)",
            f"('gone', null, null, {time}, 'v3', true, true)", f"('gone', 'e', 1L, {time}, 'v4', false, false)",
            f"('half', null, 1L, {time}, 'v5', true, false)",
        ]
    )  # fmt: skip
    spark.sql(f"SELECT * FROM VALUES {values} AS t({', '.join(columns)})").write.parquet(str(tmp_path / "p"))
    listing = from_parquet(spark, str(tmp_path / "p"), "images", versioned=True)
    assert [tuple(row) for row in listing.frame.collect()] == [("k", "e2", 2, 1_794_992_800_123, "v2")]
    assert listing.unreadable_count == 1
    spark.sql("SELECT 'k' AS key, 1L AS size").write.parquet(str(tmp_path / "q"))
    with pytest.raises(BadListing, match="e_tag, last_modified_date"):
        from_parquet(spark, str(tmp_path / "q"), "images", versioned=False)


CSV = """bucket,key,size,e_tag,last_modified_date,version_id,is_latest,is_delete_marker
images,k,1,"e1",2026-11-18T09:06:40.123Z,v1,false,false
images,"a ""b"", c
d",2,e2,2026-11-18 09:06:40.123,v2,true,false
images,gone,,,2026-11-18T09:06:40.123Z,v3,true,true
images,few,1
images,no size,x,e,2026-11-18T09:06:40.123Z,v4,true,false
images,no time,1,e,yesterday,v4,true,false
"""


@pytest.mark.parametrize("name", ["listing.csv", "listing.csv.gz", "parts.csv"])
def test_a_listing_in_csv_is_read_by_the_names_of_its_columns(spark: SparkSession, tmp_path: Path, name: str) -> None:
    path, content = tmp_path / name, CSV.encode()
    if name == "parts.csv":  # as Spark and Athena write it
        path.mkdir()
        (path / "part-0.csv").write_bytes(content)
    else:
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    source = ListingSource(bucket="images", listing=str(path), listed_at=1, versions=True)
    listing = source.list_bucket(spark, tasks=1)
    assert [tuple(row) for row in listing.frame.collect()] == [('a "b", c\nd', "e2", 2, 1_794_992_800_123, "v2")]
    assert listing.unreadable_count == 3
    current = ListingSource(bucket="images", listing=str(path), listed_at=1).list_bucket(spark, tasks=1)
    assert sorted(row.key for row in current.frame.collect()) == ['a "b", c\nd', "k"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (CSV.replace("images,k", "other,k"), "is a listing of other, not of images only"),
        (CSV.partition("\n")[0] + "\n", "has no entries"),
        (CSV.partition("\n")[2], "has no column key, size, e_tag, last_modified_date"),
    ],
)
def test_csv_of_another_bucket_without_rows_or_names_is_refused(
    spark: SparkSession, tmp_path: Path, content: str, problem: str
) -> None:
    (tmp_path / "listing.csv").write_text(content)
    with pytest.raises(BadListing, match=problem):
        ListingSource(bucket="images", listing=f"{tmp_path}/listing.csv", listed_at=1).list_bucket(spark, tasks=1)


def event(key: str, bucket: str, number: int) -> Event:
    thing = {
        "key": encode_key(key),
        "size": number,
        "eTag": f"e{number}",
        "versionId": f"v{number}",
        "sequencer": "18E9",
    }
    record = {
        "eventTime": "2026-11-18T09:06:40.123Z", "eventName": PUT,
        "s3": {"bucket": {"name": bucket}, "object": thing},
    }  # fmt: skip
    text = orjson.dumps(record).decode()
    return Event(str(number), PUT, bucket, key, f"v{number}", "18E9", 1, text, Effect.UPSERT)


def deliver(target: Any, bucket: str) -> None:
    events = [event(key, name, number) for name in (bucket, f"{bucket}-2") for number, key in enumerate(ODD)]
    target.open()
    try:
        target.deliver(events, 1)
    finally:
        target.close()


def check(frame: DataFrame, bucket: str, more: Mapping[str, tuple[Any, ...]]) -> None:
    namespace = namespace_by_key(frame, bucket).drop(KEY_HASH)
    found = {one["key"]: tuple(one)[1:] for one in namespace.collect()}
    assert found == {
        key: (True, PUT, f"e{number}", number, f"v{number}", "18E9", 1_794_992_800_123)
        for number, key in enumerate(ODD)
    } | dict(more)


BROKEN = (False, None, None, None, "", None, None)


@pytest.mark.parametrize("kind", ["jsonb", "text"])
def test_a_postgresql_table_is_read(spark: SparkSession, postgres_server: services.Postgres, kind: str) -> None:
    name = f"test_{uuid4().hex[:8]}"
    postgres_server.create_database(name)
    settings = load("postgresql", {"connection_string": postgres_server.dsn(name), "table": '"Odd ""rows"'})
    assert rows(spark, settings, "b", tasks=2).isEmpty(), "the first delivery makes the table"
    with postgres_server.connection(name) as connection, connection.cursor() as cursor:
        if kind == "text":
            cursor.execute('CREATE TABLE "Odd ""rows" (key varchar PRIMARY KEY, value text)')
        deliver(PostgresTarget(settings), "b")  # type: ignore[arg-type]  # load returns what it was asked for
        broken = "{}" if kind == "jsonb" else "{"
        cursor.execute('INSERT INTO "Odd ""rows" VALUES (%s, %s), (%s, NULL)', ("b/broken", broken, "b/null"))
    check(rows(spark, settings, "b", tasks=2), "b", {"broken": BROKEN, "null": BROKEN})


@pytest.mark.parametrize("kind", ["jsonb", "text"])
def test_a_postgresql_table_of_any_name_and_with_further_columns_is_read(
    spark: SparkSession, postgres_server: services.Postgres, kind: str
) -> None:
    name = f"test_{uuid4().hex[:8]}"
    postgres_server.create_database(name)
    document = json.dumps({"Records": [json.loads(event("k", "b", 1).record)]})
    with postgres_server.connection(name) as connection, connection.cursor() as cursor:
        for table in ("objects", "records", "mirror", "of_document", "of_record", "selected"):
            cursor.execute(
                f"CREATE TABLE {table} (key varchar PRIMARY KEY, value {kind}, record text, thing int, part int)"
            )
            cursor.execute(f"INSERT INTO {table} VALUES ('b/k', %s)", (document,))
            connection.commit()
            settings = load("postgresql", {"connection_string": postgres_server.dsn(name), "table": table})
            [row] = rows(spark, settings, "b", tasks=1).collect()
            assert (row["key"], row["name"]) == ("k", PUT)


@pytest.mark.nightly(
    "plain ids; names of buckets in hashes: pages are read alike, whatever the ids", when=lambda style: style == "hash"
)
@pytest.mark.parametrize("style", ["hash", "plain"])
def test_an_elasticsearch_index_is_read(
    spark: SparkSession, elasticsearch_server: services.Elasticsearch, style: str
) -> None:
    index = ElasticsearchContents(elasticsearch_server, f"rows-{uuid4().hex[:8]}")
    values = index.login | {"index": index.index, "id_style": style}
    settings = load("elasticsearch", values)
    assert isinstance(settings, ElasticsearchSettings)
    assert rows(spark, settings, "b", tasks=2).collect() == []
    index.ask("PUT", "", {"settings": {"number_of_shards": 3}})
    deliver(ElasticsearchTarget(settings), "b")

    documents = index.all()
    index.put("b/broken", {"Records": []})
    index.put("b/other", documents["b/a+b"])
    if style == "hash":
        # Under an id that is not its object's: of an object that has a document of its own, and of one that has none.
        gone = orjson.loads(orjson.dumps(documents["b/a+b"]).replace(b"a%2Bb", b"gone"))
        index.put("stray", gone)
        broken = {"gone": BROKEN}
    else:
        number = ODD.index("a+b")
        of_another = (False, PUT, f"e{number}", number, f"v{number}", "18E9", 1_794_992_800_123)
        broken = {"broken": BROKEN, "other": of_another}
    for tasks, page in ((1, 100), (2, 4), (7, 1)):
        check(elasticsearch.rows(spark, settings, "b", tasks=tasks, page=page), "b", broken)


def test_the_error_of_a_task_is_described_by_its_message(
    spark: SparkSession, elasticsearch_server: services.Elasticsearch
) -> None:
    index = ElasticsearchContents(elasticsearch_server, f"rows-{uuid4().hex[:8]}")
    index.ask("PUT", "")
    found = rows(spark, load("elasticsearch", index.login | {"index": index.index}), "b", tasks=2)
    index.ask("DELETE", "")
    with pytest.raises(Py4JJavaError) as error:
        found.count()
    message = f"Elasticsearch at {elasticsearch_server.url}/ answered 404: "
    assert root_cause(error.value).startswith(message)
    assert root_cause(ValueError("a\nb")) == "a"
    assert root_cause(KeyboardInterrupt()) == "KeyboardInterrupt"


def test_who_may_read_an_index_and_who_may_not(elasticsearch_server: services.Elasticsearch) -> None:
    index = ElasticsearchContents(elasticsearch_server, f"rows-{uuid4().hex[:8]}")
    index.ask("PUT", "")
    login = index.login | {"index": index.index}

    def read(**changes: str) -> list[Any]:
        settings = load("elasticsearch", {name: text for name, text in (login | changes).items() if text})
        assert isinstance(settings, ElasticsearchSettings)
        found = elasticsearch.open_point_in_time(settings, "b", tasks=1)
        assert found is not None
        return list(found.read(0))

    def key(*privileges: str) -> dict[str, str]:
        roles = {"r": {"cluster": ["monitor"], "index": [{"names": [index.index], "privileges": privileges}]}}
        api_key = index.ask("POST", "/_security/api_key", {"name": "k", "role_descriptors": roles}).json()
        return {"username": "", "password": "", "api_key": f"{api_key['id']}:{api_key['api_key']}"}

    place = index.login["url"].replace("https://", f"https://{index.login['username']}:{services.PASSWORD}@")
    assert read() == read(**key("read", "maintenance")) == read(url=place, username="", password="") == []
    assert read(tls_ca="", tls_skip_verify="on") == []
    for changes, words in (
        (key("read"), "403: .*privilege maintenance is needed"),
        (key("maintenance"), "403: .*privilege read is needed"),
        ({"password": "hush"}, "401: .*check the login"),
        ({"tls_ca": ""}, "certificate verify failed"),
        ({"tls_ca": "/nowhere.pem"}, "tls_ca: /nowhere.pem cannot be used"),
        ({"url": f"https://{services.LOOPBACK}:{services.free_port()}"}, "refused"),
    ):
        with pytest.raises(CannotRead, match=words) as error:
            read(**changes)
        assert "hush" not in str(error.value)


@pytest.mark.parametrize("order", ["C", "C.UTF-8 of the database", "en-x-icu"])
def test_the_index_finds_the_rows_of_a_bucket_in_postgresql(postgres_server: services.Postgres, order: str) -> None:
    """Whatever the bucket's name; where the collation is no order of bytes, an index for LIKE is enough."""
    name = f"test_{uuid4().hex[:8]}"
    postgres_server.create_database(name)
    collation = "" if "database" in order else f'COLLATE "{order}"'
    with postgres_server.connection(name) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE mirror (key varchar {collation} PRIMARY KEY, value jsonb)")
        cursor.execute("CREATE INDEX by_pattern ON mirror (key text_pattern_ops)")
        paths = [f"{bucket}/{key}" for bucket in HOSTILE_PATHS for key in ("k", "é", "\U0010ffff", "0")]
        cursor.executemany("INSERT INTO mirror (key) VALUES (%s)", [(path,) for path in paths])
        cursor.execute("SET enable_seqscan = off")
        cursor.execute("SET enable_bitmapscan = off")
        cursor.execute(postgresql._COLLATION, ("mirror",))
        is_ordered = postgresql._orders_by_bytes(cursor.fetchone())
        assert is_ordered == (order != "en-x-icu")
        table = sql.Identifier("mirror")
        for bucket in HOSTILE_PATHS:
            query = postgresql._query(table, bucket, 2, is_json=True, is_ordered=is_ordered)
            cursor.execute(query)
            expected = {path.removeprefix(f"{bucket}/") for path in paths if path.startswith(f"{bucket}/")}
            assert {row[0] for row in cursor.fetchall()} == expected, bucket
            cursor.execute(sql.SQL("EXPLAIN ") + query)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert re.search(r"Index Cond: .*key.* ~?>=~? ", plan), plan


@pytest.mark.parametrize("server", ["mysql_server", "mariadb_server"])
@pytest.mark.parametrize("tasks", [1, 3, 8, 300])
def test_all_tasks_together_read_a_mysql_table_once(request: pytest.FixtureRequest, server: str, tasks: int) -> None:
    running: services.MySQL = request.getfixturevalue(server)
    name = f"test_{uuid4().hex[:8]}"
    running.create_database(name)
    settings = load("mysql", {"dsn_string": MysqlContents(running, name).dsn, "table": "rows"})
    deliver(MysqlTarget(settings), "b")  # type: ignore[arg-type]  # load returns what it was asked for
    selected, plans, read = f"({mysql._query('`rows`', 'b', 'key_hash')}) AS selected", set[str](), list[str]()
    with running.connection(name) as connection, connection.cursor() as cursor:
        for part in mysql._ranges(tasks):
            cursor.execute(f"SELECT `key` FROM {selected} WHERE {part}")
            read += [str(row[0]) for row in cursor.fetchall()]
            cursor.execute(f"EXPLAIN SELECT `key` FROM {selected} WHERE {part}")
            (row,) = cursor.fetchall()
            plans.add(str(row))
    assert sorted(read) == sorted(ODD)
    assert tasks == 1 or all("PRIMARY" in plan for plan in plans), plans


def test_a_job_opens_no_more_connections_than_it_may(spark: SparkSession, tmp_path: Path) -> None:
    database = migrated(f"sqlite:///{tmp_path}/log.db")
    for connections in (1, 2):
        found = recorded_between(spark, database, 1, 0, 100_000, connections=connections)
        assert found.rdd.getNumPartitions() == (1 if connections < spark.sparkContext.defaultParallelism else 8)
    database.close()


@pytest.mark.parametrize("server", ["mysql_server", "mariadb_server"])
def test_a_mysql_table_is_read(spark: SparkSession, request: pytest.FixtureRequest, server: str) -> None:
    running: services.MySQL = request.getfixturevalue(server)
    name = f"test_{uuid4().hex[:8]}"
    running.create_database(name)
    dsn = f"{services.USER}:{services.PASSWORD}@tcp({services.LOOPBACK}:{running.port})/{name}"
    settings = load("mysql", {"dsn_string": dsn, "table": "rows"})
    assert rows(spark, settings, "b", tasks=2).isEmpty(), "the first delivery makes the table"
    deliver(MysqlTarget(settings), "b")  # type: ignore[arg-type]  # load returns what it was asked for
    with running.connection(name) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO `rows` (key_name, value) VALUES ('b/broken', '{}')")
        cursor.execute("CREATE TABLE selected AS SELECT *, 1 AS part, 2 AS `key` FROM `rows`")
        connection.commit()
    check(rows(spark, settings, "b", tasks=2), "b", {"broken": BROKEN})
    other = load("mysql", {"dsn_string": dsn, "table": "selected"})
    check(rows(spark, other, "b", tasks=2), "b", {"broken": BROKEN})


def test_a_table_of_a_minio_before_2022_is_read(spark: SparkSession, mysql_server: services.MySQL) -> None:
    """No hash, and the character set of a server of its time (§4.11)."""
    name = f"test_{uuid4().hex[:8]}"
    mysql_server.create_database(name)
    with mysql_server.connection(name) as connection, connection.cursor() as cursor:
        columns = "key_name VARCHAR(2048), value JSON, PRIMARY KEY (key_name)"
        cursor.execute(f"CREATE TABLE direct ({columns}) CHARSET latin1")
        for number, key in enumerate(("a b/é+%", "z")):
            text = orjson.dumps({"Records": [orjson.loads(event(key, "b", number).record)]}).decode()
            cursor.execute("INSERT INTO direct VALUES (%s, %s)", (f"b/{key}", text))
            cursor.execute("INSERT INTO direct VALUES (%s, %s)", (f"B/{key} of another bucket", text))
        connection.commit()
    settings = load("mysql", {"dsn_string": MysqlContents(mysql_server, name).dsn, "table": "direct"})
    found = namespace_by_key(rows(spark, settings, "b", tasks=2), "b").collect()
    assert {(one["key"], one["sound"], one["etag"]) for one in found} == {("a b/é+%", True, "e0"), ("z", True, "e1")}


@pytest.mark.nightly(
    "PostgreSQL: MinIO writes the same document into any store", when=lambda kind: kind != "postgresql"
)
@pytest.mark.parametrize("kind", ["postgresql", "mysql", "elasticsearch"])
def test_what_minio_itself_wrote_is_sound(
    spark: SparkSession, minio: services.MinIO, direct: dict[str, dict[str, str]], kind: str
) -> None:
    bucket = f"b-{uuid4().hex[:8]}"
    client = minio.client()
    minio_life.watched_bucket(client, bucket, [f"DIRECT:{kind}"])

    def listed() -> dict[str, tuple[bool, str, int]]:
        return {one.object_name: (True, one.etag, one.size) for one in client.list_objects(bucket, recursive=True)}

    def found() -> dict[str, tuple[bool, str, int]]:
        read = namespace_by_key(rows(spark, load(kind, direct[kind]), bucket, tasks=2), bucket).collect()
        return {one["key"]: (one["sound"], one["etag"], one["size"] or 0) for one in read}

    for number, key in enumerate(ODD):
        client.put_object(bucket, key, io.BytesIO(b"x" * number), number)
    services.until(lambda: found() == listed(), 60, what="MinIO's own rows")
    # Only now: MinIO's events of one object overtake each other.
    for key in ODD[:2]:
        client.put_object(bucket, key, io.BytesIO(b"anew"), 4)
    client.remove_object(bucket, ODD[3])
    assert len(listed()) == len(ODD) - 1
    services.until(lambda: found() == listed(), 60, what="MinIO's own rows, of what was changed")


def test_a_redis_hash_is_read(spark: SparkSession, redis_server: services.Redis) -> None:
    key = f"rows-{uuid4().hex[:8]}"
    values = {"address": f"{services.LOOPBACK}:{redis_server.port}", "key": key}
    settings = load("redis", values)
    assert rows(spark, settings, "b", tasks=2).collect() == []
    deliver(RedisTarget(settings), "b")  # type: ignore[arg-type]  # load returns what it was asked for
    with redis_server.client() as client:
        client.hset(key, "b/broken", b"\xff{")
        check(rows(spark, settings, "b", tasks=2), "b", {"broken": BROKEN})
        client.set(f"{key}-text", "x")
    with pytest.raises(CannotRead, match="is not a hash"):
        rows(spark, load("redis", values | {"key": f"{key}-text"}), "b", tasks=2)


@pytest.fixture(params=["postgresql", "mysql", "mariadb", "redis", "hash", "plain"])
def store(request: pytest.FixtureRequest) -> tuple[TargetSettings, type[Target]]:
    """An empty store of each kind, and who writes to it; of an index also its style of ids."""
    name = f"test_{uuid4().hex[:8]}"
    if request.param == "postgresql":
        postgres: services.Postgres = request.getfixturevalue("postgres_server")
        postgres.create_database(name)
        return load("postgresql", {"connection_string": postgres.dsn(name), "table": "rows"}), PostgresTarget
    if request.param == "redis":
        redis: services.Redis = request.getfixturevalue("redis_server")
        return load("redis", {"address": f"{services.LOOPBACK}:{redis.port}", "key": name}), RedisTarget
    if request.param in ("hash", "plain"):
        index = ElasticsearchContents(request.getfixturevalue("elasticsearch_server"), name)
        values = index.login | {"index": name, "id_style": request.param}
        return load("elasticsearch", values), ElasticsearchTarget
    mysql: services.MySQL = request.getfixturevalue(f"{request.param}_server")
    mysql.create_database(name)
    return load("mysql", {"dsn_string": MysqlContents(mysql, name).dsn, "table": "rows"}), MysqlTarget


@pytest.mark.nightly(
    "PostgreSQL, and hashes of Elasticsearch: one function escapes a name, and what delivers gets all",
    when=lambda store: store in {"mysql", "mariadb", "plain", "redis"},
)
def test_a_name_of_a_bucket_is_nothing_but_a_name_to_any_store(
    spark: SparkSession, store: tuple[TargetSettings, type[Target]]
) -> None:
    settings, adapter = store
    read = BUCKETS[:: times(3, 1)]  # each takes a plan; all are written
    names = [*BUCKETS, "images", "x", "X", "trail", "it", "IT'S", "lead", "new", "a", "ab", "..."]
    paths = list[str]()
    target = adapter(settings)  # type: ignore[call-arg]  # an adapter takes its own settings
    target.open()
    try:
        for number, name in enumerate(names):
            [outcome] = target.deliver([event(f"k{number}", name, number)], 1)
            assert outcome == DELIVERED or "of at most 512 bytes; id_style=hash has no such limit" in str(outcome), name
            if outcome == DELIVERED:
                paths.append(f"{name}/k{number}")
    finally:
        target.close()
    assert len(names) - len(paths) == (getattr(settings, "id_style", "") == "plain")
    expected = {(name, path.removeprefix(f"{name}/")) for name in read for path in paths if path.startswith(f"{name}/")}
    frames = [rows(spark, settings, name, tasks=1).select(F.lit(name).alias("name"), "key") for name in read]
    found = [tuple(row) for row in reduce(DataFrame.union, frames).collect()]
    # By its document, not by its path, an index knows a bucket whose name holds a slash.
    within = {("..", f"../etc/passwd/k{names.index('../../etc/passwd')}")}
    by_document = isinstance(settings, ElasticsearchSettings) and settings.id_style == "hash"
    assert sorted(found) == sorted(expected - within if by_document else expected)
    for name in ("nul\0", "nul\0' OR 1=1 -- ", "\udcff"):
        with pytest.raises(CannotRead, match="databases cannot store it as text"):
            rows(spark, settings, name, tasks=1)


def test_an_error_of_a_store_contains_no_secret(spark: SparkSession) -> None:
    def error_of(settings: TargetSettings) -> str:
        with pytest.raises(CannotRead) as error:
            rows(spark, settings, "b", tasks=2)
        return str(error.value)

    closed = f"host={services.LOOPBACK} port={services.free_port()} password=hush dbname=x user=u"
    message = error_of(load("postgresql", {"connection_string": closed, "table": "rows"}))
    assert "refused" in message
    assert "hush" not in message
    assert "format access" in error_of(load("redis", {"address": "h:1", "key": "k", "format": "access"}))


def test_an_error_of_java_says_what_happened(spark: SparkSession) -> None:
    port, closed = services.free_port(), "Connection refused"
    down = load("mysql", {"dsn_string": f"u:hush@tcp({services.LOOPBACK}:{port})/db", "table": "rows"})
    with pytest.raises(Py4JJavaError) as error:
        rows(spark, down, "b", tasks=1)
    assert root_cause(error.value) == f"Communications link failure, caused by ConnectException: {closed}"
    assert root_cause(ValueError("at s3a://key:hush@host/x?password=hush&b=1")) == (
        "at s3a://*redacted*@host/x?password=*redacted*&b=1"
    )
