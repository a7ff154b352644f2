"""Ask the servers that an API connects to for their certificates: database, broker, OpenID provider.

It does so once an hour, or if one has a life of less than a day more often, so that none that was renewed seems to end.

Only those that are verified: of the others the end has no effect. One that cannot be asked stays as it was last seen.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import sqlalchemy as sa

from app import asked_certificate
from app.config.fields.addresses import HostPort
from app.config.settings import Settings
from app.config.tls import Validity
from app.outbox.engine.database import now_ms
from app.outbox.processes import MetCertificate

_AGAIN_SECONDS = 3600.0
_AGAIN_SHARE = 24  # or this share of the shortest life, which is renewed after two thirds and late after three quarters
_LEAST_SECONDS = 60.0
_BROKER_PORTS = {"amqps": 5671, "rediss": 6379}


class _Server(NamedTuple):
    of: str
    address: HostPort
    ask: Callable[[str, int], Validity] = asked_certificate.ask


class MetCertificates:
    """The certificates that the servers of these settings presented last."""

    def __init__(self, settings: Settings) -> None:
        self._servers = list(_servers(settings))
        self._met: dict[str, MetCertificate] = {}

    def begin(self) -> None:
        """Begin to ask, in a thread, if there is a server to be asked."""
        if self._servers:
            threading.Thread(target=self._run, name="met-certificates", daemon=True).start()

    def all(self) -> list[MetCertificate]:
        """Return what is known so far."""
        return [*self._met.copy().values()]

    def _run(self) -> None:
        while True:
            self.ask()
            time.sleep(self.pause())

    def pause(self) -> float:
        """Return the seconds until they are asked again."""
        lives = [(one.valid.ends_at - one.valid.begins_at) / 1000 for one in self.all()]
        return max(_LEAST_SECONDS, min([_AGAIN_SECONDS, *(life / _AGAIN_SHARE for life in lives)]))

    def ask(self) -> None:
        """Ask each server once."""
        for of, address, ask in self._servers:
            # Away, without TLS, or with a certificate that only OpenSSL reads: the API's own connections say more.
            with contextlib.suppress(Exception):
                self._met[of] = MetCertificate(of, str(address), ask(*address), now_ms())


def _servers(settings: Settings) -> Iterator[_Server]:
    database = sa.make_url(settings.database_url)
    if database.host and database.get_backend_name() == "postgresql" and "verify" in str(database.query.get("sslmode")):
        ask = partial(asked_certificate.ask, begin=asked_certificate.begin_postgresql)
        yield _Server("database", HostPort(database.host, database.port or 5432), ask)
    if database.host and database.get_backend_name() in ("mysql", "mariadb") and "ssl_ca" in database.query:
        ask = partial(asked_certificate.ask, begin=asked_certificate.begin_mysql)
        yield _Server("database", HostPort(database.host, database.port or 3306), ask)
    broker = urlsplit(settings.broker_url)
    if broker.scheme in _BROKER_PORTS and broker.hostname:
        verifies = parse_qs(broker.query).get("ssl_cert_reqs", ["none" if broker.scheme == "rediss" else "required"])
        if not verifies[-1].lower().endswith("none"):
            yield _Server("broker", HostPort(broker.hostname, broker.port or _BROKER_PORTS[broker.scheme]))
    provider = urlsplit(settings.oidc_issuer)
    if provider.scheme == "https" and provider.hostname:
        yield _Server("OpenID provider", HostPort(provider.hostname, provider.port or 443))
