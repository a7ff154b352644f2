"""A process says that it is ready when it serves: to systemd once, and to whoever probes it at any time."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from tests import services
from tests.services import until
from tests.support.builders import migrated
from tests.support.service_processes import Role

PATIENCE = 60
ROLES = {
    "beat": ["beat"],
    "drain": ["worker", "--only", "drain"],
    "targets": ["worker", "--only", "targets", "--concurrency", "1"],
    "sources": ["worker", "--only", "sources"],
    "spark": ["worker", "--only", "spark"],
}


@dataclass(eq=False)
class Notifying(Role):
    """A role that a service manager has started, and that a cluster probes; it need not get ready."""

    def prepare(self) -> None:
        self.address = self.folder / "notify"
        self._manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._manager.bind(str(self.address))
        self._manager.setblocking(False)

    def env(self) -> Mapping[str, str]:
        probe = {"BUCKETWIRE_PROBE_LISTEN": f"{services.LOOPBACK}:{self.port}"}
        return {**super().env(), **probe, "NOTIFY_SOCKET": str(self.address)}

    def stop(self) -> None:
        super().stop()
        self._manager.close()

    def ping(self) -> None:
        self.probe()

    def probe(self) -> int:
        return httpx.get(f"http://{services.LOOPBACK}:{self.port}/readyz", timeout=5, trust_env=False).status_code

    def notified(self) -> list[bytes]:
        """What it has told the service manager since the last call."""
        states = []
        try:
            while True:
                states.append(self._manager.recv(1000))
        except BlockingIOError:
            return states


@pytest.fixture
def started() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, roles: Sequence[str], settings: Mapping[str, str]) -> dict[str, Notifying]:
    found = {name: Notifying(ROLES[name], settings) for name in roles}
    for role in found.values():
        stack.enter_context(role).start()
    return found


def probes(roles: Mapping[str, Notifying]) -> dict[str, int]:
    return {name: role.probe() for name, role in roles.items()}


def test_a_process_is_ready_while_the_task_broker_works(postgres_outbox: str, started: ExitStack) -> None:
    migrated(postgres_outbox).close()
    broker = started.enter_context(services.redis())
    broker.stop()
    settings = {
        "BUCKETWIRE_DATABASE_URL": postgres_outbox, "BUCKETWIRE_BROKER_URL": broker.url,
        "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
    }  # fmt: skip
    roles = start(started, ["beat", "drain", "targets", "spark"], settings)
    for role in roles.values():
        until(lambda role=role: "cannot be used" in role.said(), PATIENCE, what="the broker missed")  # type: ignore[misc]
    assert probes(roles) == dict.fromkeys(roles, 503)
    assert [role.notified() for role in roles.values()] == [[]] * 4
    broker.start()
    until(lambda: probes(roles) == dict.fromkeys(roles, 200), PATIENCE, what="all ready")
    assert [role.notified() for role in roles.values()] == [[b"READY=1"]] * 4
    broker.kill()
    until(lambda: probes(roles) == dict.fromkeys(roles, 503), PATIENCE, what="none ready")
    broker.start()
    until(lambda: probes(roles) == dict.fromkeys(roles, 200), PATIENCE, what="all ready again")
    assert [role.notified() for role in roles.values()] == [[]] * 4


def test_a_worker_for_sources_is_ready_while_the_outbox_works(postgres_outbox: str, started: ExitStack) -> None:
    """It pulls without the task broker."""
    migrated(postgres_outbox).close()
    url = sa.make_url(postgres_outbox)
    assert url.port is not None
    wire = started.enter_context(services.proxy(url.port))
    wire.cut()
    settings = {
        "BUCKETWIRE_DATABASE_URL": url.set(port=wire.port).render_as_string(hide_password=False),
        "BUCKETWIRE_BROKER_URL": f"redis://{services.LOOPBACK}:9/0",
        "BUCKETWIRE_SECRET_KEYS": Fernet.generate_key().decode(),
        "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
    }
    [role] = start(started, ["sources"], settings).values()
    assert (role.probe(), role.notified()) == (503, [])
    wire.heal()
    until(lambda: role.probe() == 200, PATIENCE, what="readiness")
    assert role.notified() == [b"READY=1"]
    wire.cut()
    until(lambda: role.probe() == 503, PATIENCE, what="the outbox missed")
    wire.heal()
    until(lambda: role.probe() == 200, PATIENCE, what="readiness again")
    assert role.notified() == []
