"""Compare a listing with a PostgreSQL table as an operator would by hand: PySpark alone, and nothing of ours.

    PGPASSWORD=… python bench/plain_spark.py --listing FOLDER --url jdbc:postgresql://… --user NAME --findings FOLDER …

The peer of `bucketwire reconcile run` in `bench.reconcile`. It compares ETags and sizes, writes what differs as JSON
and prints the number of differences of each kind. It knows no rules, versions, events in flight, repeated keys or
report.
"""

import argparse
import json
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

# A row's document is an event; each of the `{tasks}` tasks reads the rows of one hash.
_QUERY = """(
    SELECT substr(key, length('{bucket}') + 2) AS key, value #>> '{{Records,0,s3,object,eTag}}' AS row_etag,
        (value #>> '{{Records,0,s3,object,size}}')::bigint AS row_size, (hashtext(key) & 2147483647) % {tasks} AS part
    FROM {table} WHERE key LIKE '{bucket}/%'
) AS selected"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("listing", "url", "user", "table", "bucket", "findings", "master", "heap", "jar"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    builder = SparkSession.builder.appName("compare").master(options.master)
    settings = {"spark.driver.memory": options.heap, "spark.jars": options.jar, "spark.ui.enabled": "false"}
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    tasks = spark.sparkContext.defaultParallelism
    rows = spark.read.jdbc(
        options.url,
        _QUERY.format(bucket=options.bucket, table=options.table, tasks=tasks),
        column="part",
        lowerBound=0,
        upperBound=tasks,
        numPartitions=tasks,
        properties={
            "driver": "org.postgresql.Driver",
            "user": options.user,
            "password": os.environ["PGPASSWORD"],
            "fetchsize": "10000",
        },
    )
    rows = rows.select("key", "row_etag", "row_size", F.lit(True).alias("has_row"))
    listing = spark.read.parquet(options.listing).select("key", "e_tag", "size", F.lit(True).alias("has_object"))
    differs = (F.col("e_tag") != F.col("row_etag")) | (F.col("size") != F.col("row_size"))
    kind = (
        F.when(F.col("has_row").isNull(), "missing")
        .when(F.col("row_etag").isNull(), "malformed")
        .when(F.col("has_object").isNull(), "orphaned")
        .when(differs, "stale")
    )
    joined = listing.join(rows, "key", "full_outer").withColumn("kind", kind)
    joined.where("kind IS NOT NULL").drop("has_row", "has_object").write.json(options.findings)
    counts = spark.read.json(options.findings).groupBy("kind").count().collect()
    print(json.dumps({row["kind"]: row["count"] for row in counts}))
    spark.stop()


if __name__ == "__main__":
    main()
