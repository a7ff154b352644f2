"""What `bucketwire up` sees to before and while the service runs: its folder, its ports, its tables, its sample."""

import asyncio
import errno
import fcntl
import http.client
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from app.config import tls
from app.config.fields.addresses import HostPort
from app.config.settings import Settings
from app.config.target_settings import from_environ, invalid_targets
from app.events.names import EVERY
from app.outbox.registry import Registry
from app.rules.model import EVERY_BUCKET, Rule
from app.supervisor.embedded_broker import SAMPLE, sample_values

_FLOWER = 5555  # where people look for it
_ENDING = 15.0  # seconds that a predecessor may need until its last process has ended


class CannotStart(Exception):
    """The service cannot start; the message says why and what to set."""


def lock_folder(folder: Path) -> int:
    """Take the folder for this service and return the lock's descriptor. Raises `CannotStart`.

    A predecessor that was killed holds the lock until its guard has ended its processes: that is waited for.
    """
    descriptor = os.open(folder / "up.lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + _ENDING
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode()
            if _runs(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise CannotStart(
                    f"`bucketwire up` is running already in {folder}, as process {holder}; "
                    "BUCKETWIRE_DATA_DIR=<folder> gives another one a folder of its own"
                ) from None
        time.sleep(0.1)
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _runs(holder: str) -> bool:
    try:
        os.kill(int(holder), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def check_address(listen: HostPort) -> None:
    """Raise `CannotStart` where nothing can listen there."""
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((listen.host, listen.port))
        except OSError as error:
            hint = f"BUCKETWIRE_LISTEN={listen._replace(port=free_port())} would be free"
            if error.errno == errno.EADDRINUSE:
                raise CannotStart(f"another program listens on {listen} already; {hint}") from None
            raise CannotStart(f"nothing can listen on {listen}: {error.strerror}; {hint}") from None


def free_port(wanted: int = 0) -> int:
    """The wanted loopback port if nothing uses it, else another."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise CannotStart("this machine has no free port left")


def remembered_port(path: Path) -> int:
    """Flower's port: the one that it had last time, if nothing took it meanwhile."""
    try:
        wanted = int(path.read_text())
    except (OSError, ValueError):
        wanted = _FLOWER
    port = free_port(wanted)
    path.write_text(f"{port}\n")
    return port


def api_answers(address: HostPort, *, secure: bool) -> bool:
    """Whether the API answers at all; with TLS by whatever certificate, which may well be for another name."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=2)  # no proxy of the environment's
    if secure:
        context = tls.context(skip_verify=True)
        connection = http.client.HTTPSConnection(address.host, address.port, timeout=2, context=context)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def sync_environment(registry: Registry, environ: Mapping[str, str]) -> list[str]:
    """Make the targets that `MINIO_NOTIFY_…` variables name those of the outbox; says what is wrong with any of them.

    One that is wrong touches no other: it is kept with its problem, and its events wait.
    """
    found = from_environ(environ)
    problems = invalid_targets(found.targets, environ)
    registry.sync_environment(found.targets, {target: str(error) for target, error in problems.items()})
    return [*map(str, found.problems), *map(str, problems.values())]


def add_sample(registry: Registry, settings: Settings) -> bool:
    """Make the sample target where nothing at all is configured yet; says whether there is one that works."""
    if not settings.embedded_broker:
        return False
    targets = registry.targets()
    if not targets:
        registry.put(SAMPLE, sample_values(settings), origin="sample")
        registry.add_rule(Rule(bucket=EVERY_BUCKET, events=(EVERY,), target=SAMPLE))
        return True
    found = next((stored for stored in targets if stored.target == SAMPLE and stored.origin == "sample"), None)
    if found is not None and found.values.get("address") != str(settings.broker_socket):
        registry.put(SAMPLE, sample_values(settings), origin="sample")  # the folder was moved
    return found is not None


async def until(condition: Callable[[], bool], patience: float, what: str) -> None:
    """Return when the condition, which may block for a moment, holds. Raises `CannotStart` after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not await asyncio.to_thread(condition):
        if time.monotonic() > deadline:
            raise CannotStart(f"{what} within {patience:g} s")
        await asyncio.sleep(0.05)
