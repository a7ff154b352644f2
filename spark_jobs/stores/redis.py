"""Read a Redis target's hash by HSCAN, which blocks no writer; in one task, because a hash has one cursor.

HSCAN's guarantee is enough: it returns every field that exists from start to end, some of them twice.
"""

import re
from collections.abc import Iterator
from typing import Any

import redis
from pyspark.sql import DataFrame, SparkSession

from app.config.targets.redis import RedisSettings
from spark_jobs.jobs.drift import documents
from spark_jobs.stores.base import CannotRead

_COUNT = 2000  # fields of one response


def rows(spark: SparkSession, settings: RedisSettings, bucket: str) -> DataFrame:
    """Return the ROWS of the bucket. Raises `CannotRead`."""
    check(settings, "hash")
    # One task reads the fields; all tasks parse them.
    buckets = spark.sparkContext.parallelize([bucket], 1)
    fields = buckets.flatMap(lambda name: _fields(settings, name))
    frame = spark.createDataFrame(fields, "key string, document string", verifySchema=False)
    return documents(frame.repartition(spark.sparkContext.defaultParallelism))


def check(settings: RedisSettings, kind: str) -> None:
    """Raise `CannotRead` if the target's key exists and is not of that kind, or if the server does not answer."""
    try:
        client = connect(settings)
        try:
            actual = client.type(settings.key)
        finally:
            client.close()
    except (redis.RedisError, OSError) as error:
        raise CannotRead(f"Redis: {error}") from None
    if actual not in (kind.encode(), b"none"):
        raise CannotRead(f"Redis: key {settings.key!r} is not a {kind}")


def connect(settings: RedisSettings) -> redis.Redis:
    """Return a client with the target's settings; the caller closes it."""
    is_socket = settings.address.host.startswith("/")
    location = (
        {"unix_socket_path": settings.address.host}
        if is_socket
        else {"host": settings.address.host, "port": settings.address.port}
    )
    tls = {
        "ssl": True,
        "ssl_ca_certs": settings.tls_ca or None,
        "ssl_cert_reqs": "none" if settings.tls_skip_verify else "required",
        "ssl_check_hostname": not settings.tls_skip_verify,
        "ssl_certfile": settings.client_cert or None,
        "ssl_keyfile": settings.client_key or None,
    }
    return redis.Redis(
        **location,
        **(tls if settings.tls else {}),  # type: ignore[arg-type]  # as above
        db=settings.db,
        username=(settings.user or None) if settings.password else None,  # as the target itself does
        password=settings.password or None,
        socket_timeout=30,
        socket_connect_timeout=10,
        client_name="bucketwire-reconcile",
        protocol=2,
    )


def _fields(settings: RedisSettings, bucket: str) -> Iterator[tuple[str, str]]:
    prefix = f"{bucket}/"
    match = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*"
    client = connect(settings)
    try:
        cursor = 0
        while True:
            response: Any = client.hscan(settings.key, cursor, match=match, count=_COUNT)
            cursor, values = response
            for field, value in values.items():
                yield field.decode(errors="replace")[len(prefix) :], value.decode(errors="replace")
            if not cursor:
                return
    finally:
        client.close()
