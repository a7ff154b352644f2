"""An API knows when the certificates are valid of the servers that it connects to, and a worker a watched bucket's."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from app import asked_servers
from app.config.settings import Settings
from app.config.tls import Validity, validities_of_file
from app.outbox.processes import MetCertificate
from app.server.api_heartbeat import MetCertificates
from tests import services

DATABASES = ["postgres_server", "mysql_server", "mariadb_server"]


def met(**of_settings: str) -> dict[str, tuple[str, object]]:
    settings = Settings.from_environ({f"BUCKETWIRE_{name.upper()}": text for name, text in of_settings.items()})
    certificates = MetCertificates(settings)
    certificates.ask()
    return {one.of: (one.name, one.valid) for one in certificates.all()}


@pytest.mark.parametrize("server", DATABASES)
def test_the_certificate_of_the_database_is_known_if_it_is_verified(
    server: str, request: pytest.FixtureRequest, certificates: services.Certificates
) -> None:
    database: Any = request.getfixturevalue(server)
    scheme = "postgresql" if server == "postgres_server" else "mysql+pymysql"
    verified = "sslmode=verify-full" if server == "postgres_server" else f"ssl_ca={certificates.ca}"
    url = f"{scheme}://u:p@{services.LOOPBACK}:{database.port}/d"
    [valid] = validities_of_file(str(certificates.cert))
    assert met(database_url=f"{url}?{verified}") == {"database": (f"{services.LOOPBACK}:{database.port}", valid)}
    assert met(database_url=url) == {}


def test_the_certificate_of_the_broker_is_known_if_it_is_verified(
    rabbitmq_server: services.RabbitMQ, certificates: services.Certificates
) -> None:
    [valid] = validities_of_file(str(certificates.cert))
    port = rabbitmq_server.tls_port
    assert met(broker_url=rabbitmq_server.tls_url) == {"broker": (f"{services.LOOPBACK}:{port}", valid)}
    with services.redis(tls=True) as redis:
        url = f"{redis.tls_url}?ssl_cert_reqs="
        assert met(broker_url=f"{url}required") == {"broker": (f"{services.LOOPBACK}:{redis.tls_port}", valid)}
        assert met(broker_url=f"{url}none") == {}
        assert met(broker_url=redis.tls_url) == {}, "kombu verifies none unless it is told to"


def test_one_that_cannot_be_asked_stays_as_it_was_seen(certificates: services.Certificates) -> None:
    with services.receiver(tls=True) as receiver:
        settings = Settings.from_environ(
            {
                "BUCKETWIRE_OIDC_ISSUER": receiver.url,
                "BUCKETWIRE_OIDC_CLIENT_ID": "c",
                "BUCKETWIRE_OIDC_READ": "*",
                "BUCKETWIRE_OIDC_CONSOLE_URL": "https://console.example.com/console/",
            }
        )
        asked = MetCertificates(settings)
        asked.ask()
        [seen] = asked.all()
    assert (seen.of, [seen.valid]) == ("OpenID provider", validities_of_file(str(certificates.cert)))
    asked.ask()
    assert asked.all() == [seen]


@pytest.mark.parametrize("begin", [None, asked_servers.begin_postgresql, asked_servers.begin_mysql])
def test_a_server_that_sends_a_byte_now_and_then_is_given_up(begin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.asked_servers._CERTIFICATE_SECONDS", 0.5)
    ended = threading.Event()

    def trickle() -> None:
        client, _ = server.accept()
        with client:
            while not ended.wait(0.1):
                try:
                    client.sendall({None: b"\x16", asked_servers.begin_postgresql: b"S"}.get(begin, b"\x10"))
                except OSError:
                    return

    with socket.create_server((services.LOOPBACK, 0)) as server:
        thread = threading.Thread(target=trickle)
        thread.start()
        began = time.monotonic()
        try:
            with pytest.raises((OSError, asked_servers.NoCertificate)):
                asked_servers.ask_certificate(*server.getsockname(), **({"begin": begin} if begin else {}))
            assert time.monotonic() - began < 60
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(("hours", "seconds"), [(24 * 90, 3600), (24, 3600), (1, 150), (0, 60)])
def test_one_of_a_short_life_is_asked_for_before_it_seems_to_end(hours: int, seconds: float) -> None:
    asked = MetCertificates(Settings.from_environ({}))
    assert asked.pause() == 3600
    for of, life in (("database", 24 * 365), ("broker", hours)):
        asked._met[of] = MetCertificate(of, "h:1", Validity(0, life * 3_600_000), 0)
    assert asked.pause() == seconds
