"""A Redis target's hash by HSCAN, which no writer has to wait for; one task, as a hash has one cursor.

What HSCAN promises is enough: a field that is there from the beginning to the end is returned; one may come twice.
"""

import re
from collections.abc import Iterator
from typing import Any

import redis
from pyspark.sql import DataFrame, SparkSession

from app.config.targets.redis import RedisSettings
from spark_jobs.jobs.drift import documents
from spark_jobs.stores.base import CannotRead

_COUNT = 2000  # fields of one answer


def rows(spark: SparkSession, settings: RedisSettings, bucket: str) -> DataFrame:
    """ROWS of the bucket. Raises `CannotRead`."""
    check(settings, "hash")
    # Few bytes go to the one task, all that it finds to as many as there are.
    one = spark.sparkContext.parallelize([bucket], 1)
    fields = one.flatMap(lambda name: _fields(settings, name))
    found = spark.createDataFrame(fields, "key string, document string", verifySchema=False)
    return documents(found.repartition(spark.sparkContext.defaultParallelism))


def check(settings: RedisSettings, kind: str) -> None:
    """Raise `CannotRead` where the target's key is there and holds something else, or the server cannot be asked."""
    try:
        client = connect(settings)
        try:
            found = client.type(settings.key)
        finally:
            client.close()
    except (redis.RedisError, OSError) as error:
        raise CannotRead(f"Redis: {error}") from None
    if found not in (kind.encode(), b"none"):
        raise CannotRead(f"Redis: key {settings.key!r} is no {kind}")


def connect(settings: RedisSettings) -> redis.Redis:
    """A client by the target's own settings, to be closed by the caller."""
    is_socket = settings.address.host.startswith("/")
    place = (
        {"unix_socket_path": settings.address.host}
        if is_socket
        else {"host": settings.address.host, "port": settings.address.port}
    )
    secure = {
        "ssl": True,
        "ssl_ca_certs": settings.tls_ca or None,
        "ssl_cert_reqs": "none" if settings.tls_skip_verify else "required",
        "ssl_check_hostname": not settings.tls_skip_verify,
        "ssl_certfile": settings.client_cert or None,
        "ssl_keyfile": settings.client_key or None,
    }
    return redis.Redis(
        **place,
        **(secure if settings.tls else {}),  # type: ignore[arg-type]  # as above
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
            answer: Any = client.hscan(settings.key, cursor, match=match, count=_COUNT)
            cursor, found = answer
            for field, value in found.items():
                yield field.decode(errors="replace")[len(prefix) :], value.decode(errors="replace")
            if not cursor:
                return
    finally:
        client.close()
