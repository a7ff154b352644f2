"""Record heartbeats of an API: that one of its processes has answered at the API's address.

One of gunicorn's workers records them for all, by a thread. Its main process has no thread, because it forks.

It asks the servers that the API connects to (database, broker, OpenID provider) for their certificates once an hour, or
if one has a life of less than a day more often, so that none that was renewed seems to end. Only those that are
verified: of the others the end has no effect. One that cannot be asked stays as it was last seen.
"""

import contextlib
import fcntl
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import sqlalchemy as sa

from app import asked_servers
from app.asked_servers import problem_of
from app.config import tls
from app.config.fields.addresses import HostPort
from app.config.settings import Settings
from app.config.tls import Validity
from app.outbox.delivery.leases import new_token
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.spool import describe_waiting, waiting_files
from app.outbox.policies import HEARTBEATS, SPOOL
from app.outbox.processes import API, MetCertificate, Process, end_process, read_process, record_process
from app.release import VERSION

# That the main process waits at most to record its end. Without that record its end in order looks like its death.
_END_SECONDS = HEARTBEATS.patience_seconds + 0.5
_AGAIN_SECONDS = 3600.0
_AGAIN_SHARE = 24  # or this share of the shortest life, which is renewed after two thirds and late after three quarters
_LEAST_SECONDS = 60.0
_BROKER_PORTS = {"amqps": 5671, "rediss": 6379}


class ApiHeartbeat:
    """The heartbeats of one API; to be made in its main process, before it forks.

    Which worker records is decided by a lock on a file that all of them have open. The kernel frees it with the worker.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process = Process(new_token(), f"api@{socket.gethostname()}", VERSION, "gunicorn", (API,))
        self._met = MetCertificates(settings)
        self._valid: tls.Validity | None = None  # the certificate at its own address; None: none was seen
        self._seen_at = 0
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process runs

    def begin(self, listeners: Sequence[Any]) -> None:
        """Begin to record in this worker, once no other one does; `listeners` are gunicorn's sockets."""
        ports = [address[1] for address in (one.getsockname() for one in listeners) if isinstance(address, tuple)]
        if ports:
            thread = threading.Thread(target=self._run, args=(ports[0],), name="api-heartbeat", daemon=True)
            thread.start()

    def end(self) -> None:
        """Record that the API ends, in the main process."""
        thread = threading.Thread(target=self._end, name="api-heartbeat", daemon=True)
        thread.start()
        thread.join(_END_SECONDS)

    def _end(self) -> None:
        with suppress(sa.exc.SQLAlchemyError), closing(self._open()) as database:
            end_process(database, self._process.id)

    def _open(self) -> Database:
        patience = min(HEARTBEATS.patience_seconds, self._settings.database_timeout)
        return Database(self._settings.database_url, pool_size=1, patience=patience)

    def _run(self, port: int) -> None:
        while not self._is_first():
            time.sleep(HEARTBEATS.interval_ms / 1000)
        scheme = "https" if self._settings.tls_cert else "http"
        own = f"{scheme}://{self._settings.api_address._replace(port=port)}"
        is_known = False
        self._met.begin()
        with closing(self._open()) as database:
            while True:
                problem = problem_of(own, certificate=self._note_own)
                with suppress(sa.exc.SQLAlchemyError):  # the next one is soon; before `migrate` there is no such table
                    if not is_known:
                        address = f"{scheme}://{HostPort(reachable_host(self._settings), port)}"
                        self._process = replace(self._adopt(database), address=address)
                        is_known = True
                    self._process = record_process(
                        database,
                        replace(
                            self._process,
                            problem=problem,
                            jobs=self._spooled(),
                            certificates=[*self._own(), *self._met.all()],
                        ),
                    )
                time.sleep(HEARTBEATS.interval_ms / 1000)

    def _note_own(self, certificate: bytes) -> None:
        with suppress(Exception):  # an odd one, by more classes than `ValueError`; the heartbeats go on
            self._valid, self._seen_at = tls.validity_of(certificate), now_ms()

    def _own(self) -> list[MetCertificate]:
        return [] if self._valid is None else [MetCertificate("", self._process.address, self._valid, self._seen_at)]

    def _spooled(self) -> tuple[str, ...]:
        """Return what waits in the spool folder for longer than recording takes."""
        with suppress(OSError):  # the API itself says that the folder cannot be used
            if self._settings.spool_dir:
                waiting, now = waiting_files(Path(self._settings.spool_dir)), now_ms()
                return (describe_waiting(waiting, now),) if waiting.age(now) > SPOOL.waiting_ms else ()
        return ()

    def _is_first(self) -> bool:
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _adopt(self, database: Database) -> Process:
        """Return the process with the times that a worker before this one has recorded."""
        with database.reading() as connection:
            return read_process(connection, self._process.id) or self._process


def reachable_host(settings: Settings) -> str:
    """Return the host by which others can ask the API.

    Of one that listens on every address, that is the address from which this host reaches the outbox's database, since
    whoever asks reaches it, too.
    """
    host = settings.listen.host
    if settings.api_address.host == host:
        return host
    database = sa.make_url(settings.database_url)
    with suppress(OSError):
        found = socket.getaddrinfo(database.host or host, database.port or 1, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, place in found:
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(place)  # sends nothing
                return str(probe.getsockname()[0])
    return settings.api_address.host


class _Server(NamedTuple):
    of: str
    address: HostPort
    ask: Callable[[str, int], Validity] = asked_servers.ask_certificate


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
        ask = partial(asked_servers.ask_certificate, begin=asked_servers.begin_postgresql)
        yield _Server("database", HostPort(database.host, database.port or 5432), ask)
    if database.host and database.get_backend_name() in ("mysql", "mariadb") and "ssl_ca" in database.query:
        ask = partial(asked_servers.ask_certificate, begin=asked_servers.begin_mysql)
        yield _Server("database", HostPort(database.host, database.port or 3306), ask)
    broker = urlsplit(settings.broker_url)
    if broker.scheme in _BROKER_PORTS and broker.hostname:
        verifies = parse_qs(broker.query).get("ssl_cert_reqs", ["none" if broker.scheme == "rediss" else "required"])
        if not verifies[-1].lower().endswith("none"):
            yield _Server("broker", HostPort(broker.hostname, broker.port or _BROKER_PORTS[broker.scheme]))
    provider = urlsplit(settings.oidc_issuer)
    if provider.scheme == "https" and provider.hostname:
        yield _Server("OpenID provider", HostPort(provider.hostname, provider.port or 443))
