"""Record heartbeats of an API: that one of its processes has answered at the API's address.

One of gunicorn's workers records them for all, by a thread. Its main process has no thread, because it forks.
"""

import fcntl
import socket
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app.api_answer import problem_of
from app.config import tls
from app.config.fields.addresses import HostPort
from app.config.settings import Settings
from app.outbox.delivery.leases import new_token
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.spool import describe_waiting, waiting_files
from app.outbox.policies import HEARTBEATS, SPOOL
from app.outbox.processes import API, MetCertificate, Process, end_process, read_process, record_process
from app.release import VERSION
from app.server.met_certificates import MetCertificates

_END_SECONDS = 1.5  # that the main process waits at most to record its end


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
