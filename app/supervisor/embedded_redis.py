"""Query the embedded Redis: whether it answers, and the entries of the sample target."""

from collections.abc import Sequence
from typing import cast

import redis

from app.config.settings import Settings
from app.supervisor.embedded_broker import SAMPLE_DB, SAMPLE_KEEPS, SAMPLE_KEY


class RedisNotResponding(Exception):
    """The embedded Redis does not answer; the message says why."""


def answers(settings: Settings) -> bool:
    """Return whether the embedded Redis answers commands."""
    try:
        with redis.Redis(unix_socket_path=str(settings.broker_socket)) as client:
            return bool(client.ping())
    except (redis.RedisError, OSError):
        return False


def sample(settings: Settings, limit: int) -> Sequence[bytes]:
    """Return the newest entries of the sample, oldest first. Raises `RedisNotResponding`."""
    try:
        with redis.Redis(unix_socket_path=str(settings.broker_socket), db=SAMPLE_DB) as client:
            return cast(Sequence[bytes], client.lrange(SAMPLE_KEY, -limit, -1))
    except redis.RedisError as error:
        raise RedisNotResponding(str(error)) from None


def trim_sample(settings: Settings) -> None:
    """Keep only the newest entries of the sample."""
    try:
        with redis.Redis(unix_socket_path=str(settings.broker_socket), db=SAMPLE_DB) as client:
            client.ltrim(SAMPLE_KEY, -SAMPLE_KEEPS, -1)
    except (redis.RedisError, OSError):
        return  # the caller tries again soon
