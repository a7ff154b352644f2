"""PySpark's daemon with what our tasks need: it forks the Python processes that run them.

Each would import that by itself, which takes more than a second of processor time, whenever none has waited for a task
within the last minute. And after each task it looks for garbage, among all that it has imported.
"""

from __future__ import annotations

import gc

import boto3  # type: ignore[import-untyped]  # ships no types
from pyspark import daemon

from spark_jobs.jobs import tables_journal  # noqa: F401 - to be there, as the next two
from spark_jobs.listings import s3_listing  # noqa: F401
from spark_jobs.stores import elasticsearch, redis  # noqa: F401

if __name__ == "__main__":
    # The first client reads what boto3 knows of S3. With a login it does not look for one.
    boto3.client("s3", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none").close()
    gc.collect()
    gc.freeze()
    daemon.manager()
