"""Query the embedded Redis: whether it answers, and the entries of the sample target."""

from collections.abc import Sequence
from typing import cast

import redis

from app.broker import POLICY
from app.config.settings import Settings
from app.socket_watchdog import limited_connection
from app.supervisor.start import SAMPLE_DB, SAMPLE_KEEPS, SAMPLE_KEY


class RedisNotResponding(Exception):
    """The embedded Redis does not answer; the message says why."""


def answers(settings: Settings) -> bool:
    """Return whether the embedded Redis answers commands."""
    try:
        with _client(settings) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


def sample(settings: Settings, limit: int) -> Sequence[bytes]:
    """Return the newest entries of the sample, oldest first. Raises `RedisNotResponding`."""
    try:
        with _client(settings, SAMPLE_DB) as client:
            return cast(Sequence[bytes], client.lrange(SAMPLE_KEY, -limit, -1))
    except redis.RedisError as error:
        raise RedisNotResponding(str(error)) from None


def trim_sample(settings: Settings) -> None:
    """Keep only the newest entries of the sample."""
    try:
        with _client(settings, SAMPLE_DB) as client:
            client.ltrim(SAMPLE_KEY, -SAMPLE_KEEPS, -1)
    except (redis.RedisError, OSError):
        return  # the caller tries again soon


def _client(settings: Settings, database: int = 0) -> redis.Redis:
    """Return a client that waits for an answer as long as those of the broker do."""
    connection = limited_connection(redis.UnixDomainSocketConnection)
    seconds = POLICY.timeout_seconds
    pool = redis.ConnectionPool(connection, path=str(settings.broker_socket), db=database, socket_timeout=seconds)
    return redis.Redis.from_pool(pool)
