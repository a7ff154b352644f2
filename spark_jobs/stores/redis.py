"""Read a Redis target's hash by HSCAN, which blocks no writer; in one task, because a hash has one cursor.

HSCAN's guarantee is enough: it returns every field that exists from start to end, some of them twice.
"""

import re
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import redis
from pyspark.sql import DataFrame, SparkSession
from redis.cluster import ClusterNode, RedisCluster
from redis.sentinel import Sentinel

from app.config.targets.redis import RedisSettings
from spark_jobs.jobs.comparison import documents
from spark_jobs.stores import CannotRead

HAS_SINGLE_ROWS = False  # whether one reading probably finds each key once
_COUNT = 2000  # fields of one response
_MAX_RESPONSES = 10_000_000  # of one reading: a server that never ends


def rows(spark: SparkSession, settings: RedisSettings, bucket: str, *, tasks: int) -> DataFrame:  # noqa: ARG001 (one reads)
    """Return the ROWS of the bucket. Raises `CannotRead`; so do the tasks that read them."""
    _check(settings)
    # One task reads the fields; all tasks parse them.
    buckets = spark.sparkContext.parallelize([bucket], 1)
    fields = buckets.flatMap(lambda name: _fields(settings, name))
    frame = spark.createDataFrame(fields, "key string, document string", verifySchema=False)
    return documents(frame.repartition(spark.sparkContext.defaultParallelism))


def hosts(settings: RedisSettings) -> Sequence[str]:
    """Return the hosts of the server, or of the Sentinels or nodes that are set."""
    return [place.host for place in settings.places]


def _check(settings: RedisSettings) -> None:
    """Raise `CannotRead` if the target's key exists and is no hash, or if the server does not answer."""
    try:
        client = connect(settings)
        try:
            actual = client.type(settings.key)
        finally:
            client.close()
    except (redis.RedisError, OSError) as error:
        raise CannotRead(f"Redis: {error}") from None
    if actual not in (b"hash", b"none"):
        raise CannotRead(f"Redis: key {settings.key!r} is not a hash")


def connect(settings: RedisSettings) -> redis.Redis | RedisCluster:
    """Return a client with the target's settings; the caller closes it. Raises `redis.RedisError`."""
    connection: dict[str, Any] = {"socket_timeout": 30, "socket_connect_timeout": 10, "protocol": 2}
    connection["client_name"] = "bucketwire-reconcile"
    if settings.uses_tls:
        connection |= {
            "ssl": True,
            "ssl_ca_certs": settings.tls_ca or None,
            "ssl_cert_reqs": "none" if settings.tls_skip_verify else "required",
            "ssl_check_hostname": not settings.tls_skip_verify,
            "ssl_certfile": settings.client_cert or None,
            "ssl_keyfile": settings.client_key or None,
            "ssl_exclude_verify_flags": [ssl.VERIFY_X509_STRICT],  # as `app.config.tls`
            "ssl_include_verify_flags": [ssl.VERIFY_X509_PARTIAL_CHAIN],
        }
    login = connection | _login(settings.user, settings.password)
    if settings.cluster:
        # redis-py leaves these untyped, and two below
        nodes = [ClusterNode(*place) for place in settings.places]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **login)
    if settings.sentinel:
        of_sentinels = connection | _login(settings.sentinel_user, settings.sentinel_password)
        sentinels = Sentinel(list(settings.places), sentinel_kwargs=of_sentinels)  # type: ignore[no-untyped-call]
        host, port = sentinels.discover_master(settings.sentinel)  # type: ignore[no-untyped-call]
        return redis.Redis(host=host, port=port, db=settings.db, **login)
    if settings.address.host.startswith("/"):
        return redis.Redis(unix_socket_path=settings.address.host, db=settings.db, **login)
    return redis.Redis(host=settings.address.host, port=settings.address.port, db=settings.db, **login)


def _login(user: str, password: str) -> dict[str, str | None]:
    """Return the login as the target itself sends it: without a password, no user."""
    return {"username": (user or None) if password else None, "password": password or None}


def _fields(settings: RedisSettings, bucket: str) -> Iterator[tuple[str, str]]:
    prefix = f"{bucket}/"
    match = re.sub(r"([*?\[\]\\^-])", r"\\\1", prefix) + "*"
    client = connect(settings)
    try:
        cursor, seen = 0, set[int]()
        while cursor not in seen and len(seen) < _MAX_RESPONSES:
            seen.add(cursor)
            response: Any = client.hscan(settings.key, cursor, match=match, count=_COUNT)
            cursor, values = response
            for field, value in values.items():
                yield field.decode(errors="replace")[len(prefix) :], value.decode(errors="replace")
            if not cursor:
                return
        raise CannotRead(f"Redis: HSCAN of the key {settings.key!r} does not end")
    finally:
        client.close()
